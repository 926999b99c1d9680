"""The expirer: dead-letters messages whose time to live passes while they wait.

It acts at the next expiry time that it knows. The survey finds these every ten seconds, so a
message is dead-lettered within ten seconds of its time, even while its topic is paused. Every
worker that serves the topic knows the same times: the one that found something goes on, the others
leave it to that one until the next survey. In a topic with a default time to live, each survey is
followed by a look for waiting messages that have none.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from mx_rmq.runtime.default_ttl import set_expiry_times
from mx_rmq.runtime.loop import TRY_AGAIN, FailureLog, Loop, each

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mx_rmq.core.handler import Handler
    from mx_rmq.net.server_clock import ServerClock
    from mx_rmq.runtime.recovery import Recovery
    from mx_rmq.runtime.relay import RelayedTopic
    from mx_rmq.store import Store

PAUSE: Final = 1.0  # seconds between two calls for a topic, so that expiring messages share one


class Expirer:
    """Knows when the next message expires in each topic of one site."""

    def __init__(
        self,
        store: Store,
        recovery: Recovery,
        clock: ServerClock,
        handlers: Mapping[str, Handler | RelayedTopic],
    ) -> None:
        self._store = store
        self._recovery = recovery
        self._clock = clock
        self._handlers = handlers
        self._unseen: list[str] = []
        """Topics with a default time to live, whose messages may lack an expiry time."""
        self._act_at: dict[str, float] = {}  # by topic, on the monotonic clock
        self._failures = FailureLog("expirer")
        self.loop = Loop("expirer", self.step)

    def surveyed(self, topic: str, wait: int | None) -> None:
        """Note that the next message of a topic expires in `wait` ms; None: none does."""
        has_default = self._handlers[topic].ttl is not None
        if has_default and topic not in self._unseen:
            self._unseen.append(topic)
        if wait is None:
            self._act_at.pop(topic, None)
        else:
            self._act_at[topic] = time.monotonic() + wait / 1000
        if has_default or wait is not None:
            self.loop.wake()

    async def step(self) -> float | None:
        """Dead-letter what has expired; return the seconds until the next time."""
        unseen, self._unseen = self._unseen, []
        await each(unseen, self._set_expiry_times, self._failures)
        now = time.monotonic()
        topics = [topic for topic, at in self._act_at.items() if at <= now]
        for failed in await each(topics, self._expire, self._failures):
            self._act_at[failed] = time.monotonic() + TRY_AGAIN
        if not self._act_at:
            return None
        return max(0.0, min(self._act_at.values()) - time.monotonic())

    async def _set_expiry_times(self, topic: str) -> None:
        if (ttl := self._handlers[topic].ttl_ms) is None:
            return
        first = await set_expiry_times(self._store, topic, ttl)
        if first is not None:
            at = time.monotonic() + (first - self._clock.now()) / 1000
            self._act_at[topic] = min(at, self._act_at.get(topic, at))

    async def _expire(self, topic: str) -> None:
        ttl = self._handlers[topic].ttl_ms
        wait = await self._recovery.expire(topic, self._failures, ttl)
        if wait is None:
            self._act_at.pop(topic, None)
        else:  # at once if more is left, but the other topics come first
            pause = max(wait / 1000, PAUSE) if wait else 0.0
            self._act_at[topic] = time.monotonic() + pause
