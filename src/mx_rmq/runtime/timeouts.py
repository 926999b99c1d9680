"""The time limits of running handlers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from mx_rmq.runtime.held import Stopped

if TYPE_CHECKING:
    from mx_rmq.runtime.held import HeldBatch, HeldMessage


class Timeouts:
    """Stops handlers that take too long."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._timers: dict[HeldMessage | HeldBatch, asyncio.TimerHandle] = {}

    def set(self, held: HeldMessage | HeldBatch, seconds: float) -> None:
        """Stop a handler in `seconds` from now, instead of at its time limit so far."""
        self.clear(held)
        self._timers[held] = self._loop.call_later(seconds, held.stop, Stopped.TIMEOUT)

    def clear(self, held: HeldMessage | HeldBatch) -> None:
        """Let a handler take as long as it likes, or note that it has ended."""
        timer = self._timers.pop(held, None)
        if timer is not None:
            timer.cancel()

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
