"""What the handlers saw: a file in memory that all processes share.

A handler notes its entry there, which takes well under a microsecond, and the harness watches
without asking the server. Times are CLOCK_MONOTONIC in nanoseconds.
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

DONE = 0x80
"""The bit of a flag that says a handler has finished. The others count the entries."""


class Record:
    """For each message: when it was produced, when a handler was entered, and a flag."""

    def __init__(self, path: Path, messages: int) -> None:
        self.messages = messages
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 17 * messages)
        view = memoryview(self._map)
        self.produced = view[: 8 * messages].cast("q")
        self.entered = view[8 * messages : 16 * messages].cast("q")
        self.flags = view[16 * messages :]

    @classmethod
    def create(cls, path: Path, messages: int) -> Record:
        """Make an empty one."""
        with path.open("wb") as file:
            file.truncate(17 * messages)
        return cls(path, messages)

    def first_unseen(self, start: int) -> int:
        """Return the first message from `start` on that no handler has seen, or -1.

        Cheap if messages arrive in order: watching must not use up a core.
        """
        place = self._map.find(b"\0", 16 * self.messages + start)
        return place if place < 0 else place - 16 * self.messages

    def any_seen(self) -> bool:
        """Return whether a handler has seen one of the first thousands."""
        return any(self.flags[:4_000])

    def seen(self) -> int:
        """Count the messages that handlers have seen."""
        return self.messages - bytes(self.flags).count(0)

    def done(self) -> int:
        """Count the messages that handlers have finished."""
        return sum(flag >= DONE for flag in self.flags)

    def repeated(self) -> int:
        """Count the messages that were handled more than once."""
        return sum(flag & ~DONE > 1 for flag in self.flags)
