"""The expirer: dead-letters messages whose time to live passes while they wait.

It acts at the next expiry time that it knows. The survey finds these every ten seconds, so a
message is dead-lettered within ten seconds of its time, even while its topic is paused. Every
worker that serves the topic knows the same times: the one that found something goes on, the others
leave it to that one until the next survey.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from mx_rmq.runtime.loop import TRY_AGAIN, FailureLog, Loop, each

if TYPE_CHECKING:
    from mx_rmq.runtime.recovery import Recovery

PAUSE: Final = 1.0  # seconds between two calls for a topic, so that expiring messages share one


class Expirer:
    """Knows when the next message expires in each topic of one site."""

    def __init__(self, recovery: Recovery) -> None:
        self._recovery = recovery
        self._act_at: dict[str, float] = {}  # by topic, on the monotonic clock
        self._failures = FailureLog("expirer")
        self.loop = Loop("expirer", self.step)

    def surveyed(self, topic: str, wait: int | None) -> None:
        """Note that the next message of a topic expires in `wait` ms; None: none does."""
        if wait is None:
            self._act_at.pop(topic, None)
            return
        self._act_at[topic] = time.monotonic() + wait / 1000
        self.loop.wake()

    async def step(self) -> float | None:
        """Dead-letter what has expired; return the seconds until the next time."""
        now = time.monotonic()
        topics = [topic for topic, at in self._act_at.items() if at <= now]
        for failed in await each(topics, self._expire, self._failures):
            self._act_at[failed] = time.monotonic() + TRY_AGAIN
        if not self._act_at:
            return None
        return max(0.0, min(self._act_at.values()) - time.monotonic())

    async def _expire(self, topic: str) -> None:
        wait = await self._recovery.expire(topic, self._failures)
        if wait is None:
            self._act_at.pop(topic, None)
        else:  # at once if more is left, but the other topics come first
            pause = max(wait / 1000, PAUSE) if wait else 0.0
            self._act_at[topic] = time.monotonic() + pause
