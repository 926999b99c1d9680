"""The lookout: knows when there is something to do in the topics of a site, and tells who does it.

Its listeners hear the doorbells. It looks around every ten seconds in case a ring was lost: with
one call for all topics, so an idle worker costs a server almost nothing, however many it serves.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from mx_rmq.runtime.listener import Listener
from mx_rmq.runtime.loop import Loop

if TYPE_CHECKING:
    from mx_rmq.runtime.clock import ServerClock
    from mx_rmq.runtime.dispatcher import Dispatcher
    from mx_rmq.runtime.expirer import Expirer
    from mx_rmq.runtime.monitor import Monitor
    from mx_rmq.runtime.scheduler import Scheduler
    from mx_rmq.runtime.slots import TopicSlots
    from mx_rmq.store import Store

LOOK_AROUND: Final = 10.0
"""Seconds between two looks around."""


class Lookout:
    """Wakes dispatcher, scheduler, expirer and monitor for the topics of one site."""

    def __init__(
        self,
        store: Store,
        site: int,
        clock: ServerClock,
        dispatcher: Dispatcher,
        scheduler: Scheduler,
        expirer: Expirer,
        monitor: Monitor,
        *,
        lease: float,
    ) -> None:
        self._store = store
        self._site = site
        self._topics: list[str] = []
        self._clock = clock
        self._dispatcher = dispatcher
        self._scheduler = scheduler
        self._expirer = expirer
        self._monitor = monitor
        self._every = min(LOOK_AROUND, lease)
        self.listeners: list[Listener] = []
        self.looking = Loop("lookout", self.look_around)

    def add(self, topic: TopicSlots) -> None:
        """Take up a topic."""
        self._topics.append(topic.name)
        if not self.listeners or self.listeners[-1].is_full:
            doorbell = self._store.doorbell(self._site)
            listener = Listener(self._store, doorbell, self._dispatcher, self._scheduler)
            self.listeners.append(listener)
            listener.loop.start()
        self.listeners[-1].add(topic)
        self.looking.wake()

    async def look_around(self) -> float:
        """See what is pending, due, expired or overdue in every topic."""
        asked_at = time.monotonic()
        seen = await self._store.survey_topics(self._topics.copy())
        self._clock.heard(seen.now, asked_at)
        for topic, survey in seen.topics.items():
            if survey.pending:
                self._dispatcher.ready(topic)
            self._scheduler.saw(topic, survey.due)
            self._expirer.saw(topic, survey.expires)
            self._monitor.saw(topic, survey.deadline)
        return self._every

    async def stop(self) -> None:
        """Hear and see no more; a ring that was swallowed on the way is given back."""
        await self.looking.stop()
        await asyncio.gather(*(listener.stop() for listener in self.listeners))

    async def hand_back_rings(self) -> None:
        """Ring for the other workers, where something is pending."""
        seen = await self._store.survey_topics(self._topics)
        for topic, survey in seen.topics.items():
            if survey.pending:
                await self._store.ring_doorbell(topic)
