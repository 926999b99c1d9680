"""The server's clock, as far as a worker can know it between two answers."""

from __future__ import annotations

import time
from typing import Final

JUMP: Final = 5.0
"""Seconds by which the server's clock may differ from what was expected before that is a jump."""


class ServerClock:
    """Estimates the server's time from the last answer that told it."""

    def __init__(self) -> None:
        self._told = 0
        self._told_at = 0.0
        self.jumped_at = float("-inf")
        """When a jump of the server's clock was last noticed, on the monotonic clock."""

    def heard(self, now: int) -> None:
        """The server said that it is `now` (ms)."""
        heard_at = time.monotonic()
        if self._told and abs(now - self.now()) > JUMP * 1000:
            self.jumped_at = heard_at
        self._told, self._told_at = now, heard_at

    def now(self) -> int:
        """Return the server's time, ms."""
        return self._told + round((time.monotonic() - self._told_at) * 1000)
