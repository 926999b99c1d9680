"""The lookout: knows when there is something to do, and tells who does it.

It hears the doorbells of all topics of a site on one connection, and looks around every ten seconds
in case a ring was lost: with one call for all of them, so an idle worker costs a server almost
nothing, however many topics it serves.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from mx_rmq.runtime.loop import Loop
from mx_rmq.runtime.tasks import how_it_ended, spawn
from mx_rmq.safe_log import get_logger

if TYPE_CHECKING:
    from mx_rmq.runtime.clock import ServerClock
    from mx_rmq.runtime.dispatcher import Dispatcher
    from mx_rmq.runtime.monitor import Monitor
    from mx_rmq.runtime.scheduler import Scheduler
    from mx_rmq.runtime.slots import TopicSlots
    from mx_rmq.store import Store
    from mx_rmq.store.doorbell import Doorbell

logger = get_logger(__name__)

LISTEN: Final = 5.0
"""Seconds that one wait for a ring takes. A connection that stays silent for longer is dead."""

LOOK_AROUND: Final = 10.0
"""Seconds between two looks around."""


class Lookout:
    """Wakes dispatcher, scheduler and monitor for the topics of one site."""

    def __init__(
        self,
        store: Store,
        doorbell: Doorbell,
        topics: dict[str, TopicSlots],
        clock: ServerClock,
        dispatcher: Dispatcher,
        scheduler: Scheduler,
        monitor: Monitor,
        *,
        lease: float,
    ) -> None:
        self._store = store
        self._doorbell = doorbell
        self._topics = topics
        self._clock = clock
        self._dispatcher = dispatcher
        self._scheduler = scheduler
        self._monitor = monitor
        self._every = min(LOOK_AROUND, lease)
        self._hearing: frozenset[str] | None = None
        """The topics that the wait under way listens to; None: none is under way."""
        self._unblocking: asyncio.Task[None] | None = None
        self.listening = Loop("doorbell", self.listen)
        self.looking = Loop("lookout", self.look_around)

    def listen_anew(self) -> None:
        """A topic may have fallen quiet: if its doorbell is not heard, it shall be."""
        if self._hearing is None or self._unblocking is not None:
            return
        topics = self._topics.values()
        if self._dispatcher.hears_all(self._hearing, topics):
            return
        if not self._hearing.issuperset(self._dispatcher.listens_to(topics)):
            self._unblocking = spawn("unblock", self._doorbell.unblock)
            self._unblocking.add_done_callback(self._unblocked)

    async def listen(self) -> float:
        """Wait for one ring and pass it on."""
        self._hearing = frozenset(self._dispatcher.listens_to(self._topics.values()))
        try:
            ring = await self._doorbell.wait(self._hearing, self._topics, LISTEN)
        finally:
            self._hearing = None
        if ring is None:
            return 0.0
        if ring.delay:
            self._scheduler.rung(ring.topic)
        elif not await self._dispatcher.take(ring.topic):
            await self._store.ring_doorbell(ring.topic)  # for somebody who has room
            self._dispatcher.ready(ring.topic)
        return 0.0

    async def look_around(self) -> float:
        """See what is pending, due or overdue in every topic."""
        asked_at = time.monotonic()
        seen = await self._store.survey_topics(list(self._topics))
        self._clock.heard(seen.now, asked_at)
        for topic, survey in seen.topics.items():
            if survey.pending:
                self._dispatcher.ready(topic)
            self._scheduler.saw(topic, survey.due)
            self._monitor.saw(topic, survey.deadline)
        return self._every

    async def stop(self) -> None:
        """Hear and see no more; a ring that was swallowed on the way is given back."""
        await self.looking.stop()
        await self.listening.stop()
        if self._unblocking is not None:
            await asyncio.wait([self._unblocking])
        await self._doorbell.close()

    async def hand_back_rings(self) -> None:
        """Ring for the other workers, where something is pending."""
        seen = await self._store.survey_topics(list(self._topics))
        for topic, survey in seen.topics.items():
            if survey.pending:
                await self._store.ring_doorbell(topic)

    def _unblocked(self, task: asyncio.Task[None]) -> None:
        self._unblocking = None
        if not task.cancelled() and task.exception() is not None:
            logger.error("a wait for doorbells could not be ended: %s", how_it_ended(task))
