"""The expirer: dead-letters messages whose time to live passes while they wait.

It acts at the next expiry time it knows of. The wakeups report these every ten seconds, so a
message is dead-lettered within ten seconds of its time, even while its topic is paused.
Every worker that serves the topic knows the same times: the one that found something goes on, the
others leave it to that one until the next survey.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final

from mx_rmq.runtime.deadlines import DECIDE_WITHIN
from mx_rmq.runtime.loop import TRY_AGAIN, Complaints, Loop, each

if TYPE_CHECKING:
    from mx_rmq.runtime.recovery import Recovery
    from mx_rmq.store import Store

BATCH: Final = 100
"""Messages taken by one call."""

PAUSE: Final = 1.0
"""Seconds between two looks at a topic: messages that expire meanwhile share a call."""


class Expirer:
    """Knows when the next message expires in each topic of one site."""

    def __init__(self, store: Store, recovery: Recovery, *, worker: str, lease: float) -> None:
        self._store = store
        self._recovery = recovery
        self._worker = worker
        self._lease = lease
        self._act_at: dict[str, float] = {}
        """When to act, on the monotonic clock, in topics where something expires."""
        self._complaints = Complaints("expirer")
        self.loop = Loop("expirer", self.step)

    def saw(self, topic: str, wait: int | None) -> None:
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
        for failed in await each(topics, self._expire, self._complaints):
            self._act_at[failed] = time.monotonic() + TRY_AGAIN
        if not self._act_at:
            return None
        return max(0.0, min(self._act_at.values()) - time.monotonic())

    async def _expire(self, topic: str) -> None:
        wait = await expire(
            self._store,
            self._recovery,
            topic,
            worker=self._worker,
            lease=self._lease,
            complaints=self._complaints,
        )
        if wait is None:
            self._act_at.pop(topic, None)
        else:  # at once if more is left, but the other topics come first
            pause = max(wait / 1000, PAUSE) if wait else 0.0
            self._act_at[topic] = time.monotonic() + pause


async def expire(
    store: Store,
    recovery: Recovery,
    topic: str,
    *,
    worker: str,
    lease: float,
    complaints: Complaints,
) -> int | None:
    """Dead-letter a batch of waiting messages of a topic whose time to live has passed.

    Returns the ms until the next one expires, 0 if more have expired; None if none will, or if we
    found nothing, because another worker was faster.
    """
    decide_within = round(min(lease, DECIDE_WITHIN) * 1000)
    taken = await store.expire_message(topic, worker, count=BATCH, recovery=decide_within)
    if not taken.messages:
        return None
    await each(taken.messages, partial(recovery.expired, topic, now=taken.now), complaints)
    await store.ring_doorbell(topic)  # in an ordered topic, workers that asked were refused
    return taken.wait
