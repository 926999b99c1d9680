"""A clock that moves when a test says so. Scripts use it as the server's time."""

from __future__ import annotations


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000_000

    def __call__(self) -> int:
        return self.now

    def advance(self, ms: int) -> int:
        self.now += ms
        return self.now
