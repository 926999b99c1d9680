"""What processes did, in one file that all of them append to.

A process may be killed in the middle of a line. So each line begins with its line break: a torn
line ends where the next one begins, and is left out.
"""

from __future__ import annotations

import os
import time
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


class What(StrEnum):
    """What a note is about."""

    # producers
    PRODUCE = "produce"
    """These labels are about to be produced."""
    PRODUCED = "produced"
    """They have these ids."""
    REFUSED = "refused"
    """They were not stored, says the error."""
    UNKNOWN = "unknown"
    """It is unknown whether they were stored."""

    # the store of a worker
    LEASED = "leased"
    TAKEN_OVER = "taken over"
    CALL = "call"
    """A script is about to be called for these claims."""
    ANSWER = "answer"
    """What it answered."""

    GAVE_UP = "gave up"
    """A worker ended with this error. It starts again, as under a supervisor."""
    STARVED = "starved"
    """The process has not run since then: the machine was busy, or the lab froze it."""

    # handlers
    START = "start"
    FAIL = "fail"
    END = "end"
    SPOILT = "spoilt"
    """The payload is not what was produced."""

    # the lab
    HIRED = "hired"
    KILLED = "killed"
    FROZEN = "frozen"
    THAWED = "thawed"
    TROUBLE = "trouble"
    """From here on leases may be lost although no worker died: the server or the network fails."""
    CALM = "calm"
    FORGOT = "forgot"
    """The server was killed, and may have forgotten what it has done since then."""


class Note(msgspec.Struct, array_like=True):
    """One moment of one process."""

    what: What
    at: float
    """Monotonic time; all processes of a machine share that clock."""
    who: str
    """The worker or producer."""
    call: int = 0
    """The number of the call, which its answer repeats."""
    script: str = ""
    ids: list[str] = msgspec.field(default_factory=list)
    tokens: list[int] = msgspec.field(default_factory=list)
    words: list[str] = msgspec.field(default_factory=list)
    """Labels of producers and handlers, answers of scripts, who lost a lease."""
    since: float = 0.0
    """When the call that is noted was made."""


class Journal:
    """The journal of one process."""

    def __init__(self, path: Path, who: str) -> None:
        self.who = who
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._encode = msgspec.json.Encoder().encode
        self._calls = 0

    def note(
        self,
        what: What,
        *,
        who: str = "",
        call: int = 0,
        script: str = "",
        ids: Sequence[str] = (),
        tokens: Sequence[int] = (),
        words: Sequence[str] = (),
        since: float = 0.0,
    ) -> None:
        """Write a note."""
        line = (what, time.monotonic(), who or self.who, call, script, ids, tokens, words, since)
        os.write(self._file, b"\n" + self._encode(line))

    def next_call(self) -> int:
        """Return the number of the next call of this process."""
        self._calls += 1
        return self._calls


def read(path: Path) -> Iterator[Note]:
    """Read a history in the order in which it was written."""
    decode = msgspec.json.Decoder(Note).decode
    with path.open("rb") as lines:
        for line in lines:
            if line.endswith((b"]\n", b"]")):
                try:
                    yield decode(line)
                except msgspec.DecodeError:
                    continue  # torn right after a bracket
