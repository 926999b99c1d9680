"""The server's clock, estimated between two answers."""

from __future__ import annotations

import time
from typing import Final

JUMP: Final = 5.0  # seconds; a larger difference from what we expect is a jump of the clock


class ServerClock:
    """Estimates the server's time from the last answer that contained it."""

    def __init__(self) -> None:
        self._last_ms = 0
        self._asked_at = 0.0
        self._answered_at = 0.0
        self.jumped_at = float("-inf")  # when we last noticed a jump, on the monotonic clock

    def update(self, now: int, asked_at: float) -> None:
        """Note the server's time, `now` in ms, from the answer to a call made at `asked_at`.

        The clock jumped if no moment between the two calls and their answers fits. An answer that
        we read late, because this process was frozen, leaves much room.
        """
        answered_at = time.monotonic()
        if self._last_ms:
            least = self._last_ms + round((asked_at - self._answered_at) * 1000)
            most = self._last_ms + round((answered_at - self._asked_at) * 1000)
            if not least - JUMP * 1000 <= now <= most + JUMP * 1000:
                self.jumped_at = answered_at
        self._last_ms, self._asked_at, self._answered_at = now, asked_at, answered_at

    @property
    def is_known(self) -> bool:
        return self._last_ms > 0

    def now(self) -> int:
        """Return the server's time in ms."""
        return self._last_ms + round((time.monotonic() - self._answered_at) * 1000)
