"""The wakeups: wake the parts of a worker when the topics of a site have something to do.

Doorbell listeners hear rings at once. A survey every ten seconds finds what a lost ring would have
told. It is one call for all topics, so an idle worker costs a server almost nothing.

A blocking call names every doorbell, and one ring ends it, so the cost of a ring grows with the
number of topics. A listener therefore takes at most 64 topics; a site with more has several.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from mx_rmq.runtime.loop import Loop, how_it_ended, spawn
from mx_rmq.safe_log import get_logger

if TYPE_CHECKING:
    from mx_rmq.net.doorbell import Doorbell
    from mx_rmq.runtime.clock import ServerClock
    from mx_rmq.runtime.dispatcher import Dispatcher
    from mx_rmq.runtime.expirer import Expirer
    from mx_rmq.runtime.monitor import Monitor
    from mx_rmq.runtime.scheduler import Scheduler
    from mx_rmq.runtime.slots import TopicSlots
    from mx_rmq.store import Store

logger = get_logger(__name__)

MOST: Final = 64
"""Topics of one listener."""

LISTEN: Final = 10.0
"""Seconds that one wait for a ring lasts, if the worker has a single listener. With N of them
each waits N times as long, so that together they start one wait every ten seconds."""

LONGEST: Final = 300.0
"""The longest that a wait lasts, in seconds."""

LOOK_AROUND: Final = 10.0
"""Seconds between two surveys."""


class Wakeups:
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
        self.listeners: list[DoorbellListener] = []
        self.looking = Loop("lookout", self.look_around)

    def add(self, topic: TopicSlots) -> None:
        """Serve a topic."""
        self._topics.append(topic.name)
        if not self.listeners or self.listeners[-1].is_full:
            doorbell = self._store.doorbell(self._site)
            listener = DoorbellListener(self._store, doorbell, self._dispatcher, self._scheduler)
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
        """Stop. `hand_back_rings` replaces a ring that is lost on the way."""
        await self.looking.stop()
        await asyncio.gather(*(listener.stop() for listener in self.listeners))

    async def hand_back_rings(self) -> None:
        """Ring for other workers where something is pending."""
        seen = await self._store.survey_topics(self._topics)
        for topic, survey in seen.topics.items():
            if survey.pending:
                await self._store.ring_doorbell(topic)


class DoorbellListener:
    """Passes rings on to the dispatcher and the scheduler."""

    def __init__(
        self, store: Store, doorbell: Doorbell, dispatcher: Dispatcher, scheduler: Scheduler
    ) -> None:
        self.topics: dict[str, TopicSlots] = {}
        self._store = store
        self._doorbell = doorbell
        self._dispatcher = dispatcher
        self._scheduler = scheduler
        self._waiting = False
        self._waits = 0
        """Waits begun so far: the number of the current one."""
        self._unblocking: asyncio.Task[None] | None = None
        self._ending = 0
        """The number of the wait that `_unblocking` ends."""
        self._again = False
        """End the current wait too, once `_unblocking` is done."""
        self.loop = Loop("doorbell", self.listen)
        dispatcher.listeners += 1

    @property
    def is_full(self) -> bool:
        """Whether it has as many topics as it may."""
        return len(self.topics) >= MOST

    def add(self, topic: TopicSlots) -> None:
        """Also listen to this topic."""
        self.topics[topic.name] = topic
        self.listen_again()

    def listen_again(self) -> None:
        """End the current wait, so that the next one covers more topics."""
        if not self._waiting:
            return
        if self._unblocking is None:
            self._ending = self._waits
            self._unblocking = spawn("unblock", self._doorbell.unblock)
            self._unblocking.add_done_callback(self._unblocked)
        elif self._ending != self._waits:  # it ends the wait before this one
            self._again = True

    async def listen(self) -> float:
        """Wait for one ring and pass it on."""
        dispatcher = self._dispatcher
        unheard = dispatcher.leaves_out(self.topics.values())
        heard = self.topics.keys() - {topic.name for topic in unheard}
        seconds = min(LISTEN * dispatcher.listeners, LONGEST)
        self._waiting = True
        self._waits += 1
        dispatcher.unheard.update(dict.fromkeys(unheard, self.listen_again))
        try:
            ring = await self._doorbell.wait(heard, self.topics, seconds)
        finally:
            self._waiting = False
            for topic in unheard:
                dispatcher.unheard.pop(topic, None)
        if ring is None:
            return 0.0
        if ring.delay:
            self._scheduler.rung(ring.topic)
        elif not await dispatcher.take(ring.topic):
            await self._store.ring_doorbell(ring.topic)  # for a worker that has room
            dispatcher.ready(ring.topic)
        return 0.0

    async def stop(self) -> None:
        """Stop listening. A ring that is lost on the way is replaced later."""
        await self.loop.stop()
        if self._unblocking is not None:
            await asyncio.wait([self._unblocking])
        await self._doorbell.close()

    def _unblocked(self, task: asyncio.Task[None]) -> None:
        self._unblocking = None
        again, self._again = self._again, False
        if again:
            self.listen_again()
        if not task.cancelled() and task.exception() is not None:
            logger.error("cannot end a wait for doorbells: %s", how_it_ended(task))
