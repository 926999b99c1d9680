"""The status of a message, its progress and its result.

A result is stored as one line of JSON about its message, a newline, and the encoded result.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from typing import Final, Self

import msgspec

from mx_rmq.core.errors import DecodeError, InvalidInput
from mx_rmq.core.message import State  # noqa: TC001 - FastAPI reads the annotations of Status
from mx_rmq.core.text import storable

MAX_NOTE: Final = 200  # characters of a note about progress

_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


@dataclass(frozen=True, slots=True)
class Status:
    """Where a message is."""

    state: State
    attempt: int = 0
    """The running attempt, or the one that completed it; else how many have failed so far. One that
    was aborted, snoozed or handed back has not failed."""
    progress: float | None = None
    """What the running attempt last reported with `delivery.progress`: a share from 0 to 1."""
    note: str = ""  # and in words
    reason: str = ""  # why it is dead or quarantined, or why the last attempt failed

    @property
    def is_final(self) -> bool:
        """Whether it does not change any more, unless an operator requeues it."""
        return self.state.is_archive


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """The line before a result."""

    attempt: int  # the attempt that succeeded
    created_at: int  # when the message was produced, ms
    ttl: int  # how long the result is kept, ms
    worker: str = ""

    def with_result(self, result: bytes) -> bytes:
        """Return what is stored. JSON contains no raw newline."""
        return msgspec.json.encode(self) + b"\n" + result

    @classmethod
    def read(cls, data: bytes) -> tuple[Self, bytes]:
        """Split what is stored into the line and the result."""
        line, newline, result = data.partition(b"\n")
        try:
            kept = msgspec.json.decode(line, type=cls)
        except _UNREADABLE as error:
            raise DecodeError(f"not a kept result: {error}", data) from error
        if not newline:
            raise DecodeError("not a kept result: no newline after its first line", data)
        return kept, result

    @classmethod
    def is_over(cls, data: bytes, completed_at: float, now: int) -> bool:
        """Return whether what is stored is older than it was to be kept, ms."""
        try:
            return completed_at + cls.read(data)[0].ttl <= now
        except DecodeError:  # the caller is told that it cannot be read
            return False


class ProgressNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a handler reports about its progress."""

    share: float | None = None
    note: str = ""

    @classmethod
    def of(cls, share: float | None, note: str) -> ProgressNote:
        """Check what a handler reports."""
        number = isinstance(share, int | float) and not isinstance(share, bool)
        if share is not None and not (number and isfinite(share) and 0 <= share <= 1):
            raise InvalidInput(f"progress({share!r:.80}): the share must be a number from 0 to 1")
        if not isinstance(note, str):
            raise InvalidInput(f"progress(note={note!r:.80}): the note is not a string")
        return cls(None if share is None else float(share), storable(note)[:MAX_NOTE])

    @classmethod
    def read(cls, data: bytes, lease: bytes) -> ProgressNote:
        """Return what the holder of a lease reported; empty if an earlier attempt did."""
        token, _, report = data.partition(b" ")
        if token and token == lease.partition(b":")[0]:
            with suppress(*_UNREADABLE):
                return msgspec.json.decode(report, type=cls)
        return cls()
