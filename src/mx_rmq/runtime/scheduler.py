"""The scheduler: moves what is due to the pending ones, at its time.

It sleeps exactly until the next due time that it knows, and is woken when an earlier one comes up.
Several workers know the same times: whoever was rung, or moved the last ones, acts at once; who
only learned of a due time by looking around waits a moment longer, in case the other is gone.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from mx_rmq.runtime.loop import TRY_AGAIN, Complaints, Loop, each

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mx_rmq.store import Store

BATCH: Final = 500
"""Messages moved by one call, of each priority."""

STAND_IN: Final = 1.0
"""Seconds after which a worker does what another one should have done."""


class Scheduler:
    """Knows the next due time of each topic of one site."""

    def __init__(
        self, store: Store, topics: Iterable[str], *, on_moved: Callable[[str, int], None]
    ) -> None:
        self.loop = Loop("scheduler", self.step)
        self._complaints = Complaints("scheduler")
        self._store = store
        self._on_moved = on_moved
        self._due: dict[str, float | None] = {}
        """When to act, on the monotonic clock; None: nothing is delayed."""
        for topic in topics:
            self.add(topic)

    def add(self, topic: str) -> None:
        """Take up a topic."""
        self._due[topic] = 0.0
        self.loop.wake()

    def rung(self, topic: str) -> None:
        """An earlier due time has come up in a topic."""
        self._due[topic] = 0.0
        self.loop.wake()

    def saw(self, topic: str, wait: int | None) -> None:
        """Somebody looked around and saw the next due time, in `wait` ms."""
        if wait is not None:
            self._act_at(topic, time.monotonic() + wait / 1000 + STAND_IN)
            self.loop.wake()

    async def step(self) -> float | None:
        """Move what is due in every topic; return the seconds until the next due time."""
        now = time.monotonic()
        topics = [topic for topic, due in self._due.items() if due is not None and due <= now]
        for failed in await each(topics, self._move, self._complaints):
            self._due[failed] = time.monotonic() + TRY_AGAIN
        waits = [due - time.monotonic() for due in self._due.values() if due is not None]
        return max(0.0, min(waits)) if waits else None

    async def _move(self, topic: str) -> None:
        self._due[topic] = None  # so that a ring that comes meanwhile is not overwritten
        try:
            moved = await self._store.process_delay_message(topic, count=BATCH)
            if moved:  # tell of it at once: the doorbell, which rings for all workers, is slower
                self._on_moved(topic, len(moved))
            wait = await self._store.get_next_delay_task(topic)
        except BaseException:
            self._due[topic] = 0.0
            raise
        if wait is not None:
            self._act_at(topic, time.monotonic() + wait / 1000)

    def _act_at(self, topic: str, at: float) -> None:
        known = self._due[topic]
        self._due[topic] = at if known is None else min(known, at)
