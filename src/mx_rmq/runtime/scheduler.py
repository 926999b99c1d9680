"""The scheduler: moves messages from delayed to pending when they are due.

It sleeps exactly until the next due time that it knows, and is woken when an earlier one comes up.
Several workers know the same times. A worker that got a ring, or that moved the last messages, acts
at once. One that learned the time from a survey waits a second longer, in case that worker is gone.
"""

from __future__ import annotations

import time
from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING, Final

from mx_rmq.runtime.loop import TRY_AGAIN, FailureLog, Loop, each

if TYPE_CHECKING:
    from collections.abc import Callable

    from mx_rmq.store import Store

BATCH: Final = 500  # messages moved per call, of each priority
STAND_IN: Final = 1.0  # seconds to wait for the worker that should act first


class Scheduler:
    """Knows the next due time of each topic of one site."""

    def __init__(self, store: Store, *, on_moved: Callable[[str, int], None]) -> None:
        self.loop = Loop("scheduler", self.step)
        self._failures = FailureLog("scheduler")
        self._store = store
        self._on_moved = on_moved
        self._due: dict[str, float] = {}
        """When to act, on the monotonic clock, in topics with delayed messages."""
        self._agenda: list[tuple[float, str]] = []
        """The same as a heap, so that many topics cost no more than one. Entries that are no longer
        in `_due` are skipped."""
        self._new: set[str] = set()  # topics whose first due time is not known yet

    def add(self, topic: str) -> None:
        """Serve a topic. The next survey shows when something is due in it."""
        self._new.add(topic)

    def on_ring(self, topic: str) -> None:
        """Act at once: an earlier due time has come up in a topic."""
        self._act_at(topic, 0.0)
        self.loop.wake()

    def surveyed(self, topic: str, wait: int | None) -> None:
        """Note that a message of a topic is due in `wait` ms; None: none is delayed."""
        stand_in = 0.0 if topic in self._new else STAND_IN
        self._new.discard(topic)
        if wait is not None:
            self._act_at(topic, time.monotonic() + wait / 1000 + stand_in)
            self.loop.wake()

    async def step(self) -> float | None:
        """Move due messages in every topic; return the seconds until the next due time."""
        now = time.monotonic()
        due = set()
        while (head := self._head()) is not None and head[0] <= now:
            due.add(heappop(self._agenda))
        try:
            for failed in await each([topic for _, topic in due], self._move, self._failures):
                self._due.pop(failed, None)
                self._act_at(failed, time.monotonic() + TRY_AGAIN)
        finally:
            for entry in due:
                if self._is_current(entry):  # the server went away before its turn came
                    heappush(self._agenda, entry)
        head = self._head()
        return None if head is None else max(0.0, head[0] - time.monotonic())

    def _head(self) -> tuple[float, str] | None:
        while self._agenda and not self._is_current(self._agenda[0]):
            heappop(self._agenda)
        return self._agenda[0] if self._agenda else None

    async def _move(self, topic: str) -> None:
        del self._due[topic]  # so that a ring that comes meanwhile is not overwritten
        try:
            moved = await self._store.process_delay_message(topic, count=BATCH)
            if moved:  # tell ours at once: the doorbell, which rings for all workers, is slower
                self._on_moved(topic, len(moved))
            wait = await self._store.get_next_delay_task(topic)
        except BaseException:
            self._act_at(topic, 0.0)
            raise
        if wait is not None:
            self._act_at(topic, time.monotonic() + wait / 1000)

    def _act_at(self, topic: str, at: float) -> None:
        if at < self._due.get(topic, inf):
            self._due[topic] = at
            heappush(self._agenda, (at, topic))

    def _is_current(self, entry: tuple[float, str]) -> bool:
        """Return whether an entry of the agenda is the topic's next one."""
        at, topic = entry
        return self._due.get(topic) == at
