"""The time limits of all running handlers, on one timer."""

from __future__ import annotations

import asyncio
import heapq
import time
from itertools import count
from typing import TYPE_CHECKING

from mx_rmq.runtime.slots import Stopped

if TYPE_CHECKING:
    from mx_rmq.runtime.slots import HeldMessage


class Timeouts:
    """Stops handlers that take too long."""

    def __init__(self) -> None:
        self._deadlines: dict[HeldMessage, float] = {}
        self._queue: list[tuple[float, int, HeldMessage]] = []
        self._numbers = count()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")

    def set(self, held: HeldMessage, seconds: float) -> None:
        """Give a handler this many seconds from now."""
        deadline = time.monotonic() + seconds
        self._deadlines[held] = deadline
        heapq.heappush(self._queue, (deadline, next(self._numbers), held))
        if deadline < self._timer_at:
            self._arm(deadline)

    def clear(self, held: HeldMessage) -> None:
        """A handler has ended."""
        self._deadlines.pop(held, None)
        if len(self._queue) > 64 + 2 * len(self._deadlines):  # most of them have ended
            self._queue = [entry for entry in self._queue if self._valid(entry)]
            heapq.heapify(self._queue)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, deadline: float) -> None:
        self.close()
        self._timer_at = deadline
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(0.0, deadline - time.monotonic()), self._strike)

    def _strike(self) -> None:
        self._timer, self._timer_at = None, float("inf")
        now = time.monotonic()
        try:
            while self._queue and (self._queue[0][0] <= now or not self._valid(self._queue[0])):
                entry = heapq.heappop(self._queue)
                if self._valid(entry):
                    self._deadlines.pop(entry[2])
                    entry[2].stop(Stopped.TIMEOUT)
        finally:  # a handler that cannot be stopped must not save the others
            if self._queue:
                self._arm(self._queue[0][0])

    def _valid(self, entry: tuple[float, int, HeldMessage]) -> bool:
        return self._deadlines.get(entry[2]) == entry[0]
