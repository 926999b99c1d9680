"""The listener: waits for the doorbells of some topics of a site, on its own connection.

The blocking call names every doorbell, and one ring ends it. So the cost of a ring, for the server
and for us, grows with the number of topics. That is why a listener takes at most 64 topics, and a
site with more has several listeners.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from mx_rmq.runtime.loop import Loop
from mx_rmq.runtime.tasks import how_it_ended, spawn
from mx_rmq.safe_log import get_logger

if TYPE_CHECKING:
    from mx_rmq.runtime.dispatcher import Dispatcher
    from mx_rmq.runtime.scheduler import Scheduler
    from mx_rmq.runtime.slots import TopicSlots
    from mx_rmq.store import Store
    from mx_rmq.store.doorbell import Doorbell

logger = get_logger(__name__)

MOST: Final = 64
"""Topics of one listener."""

LISTEN: Final = 10.0
"""Seconds that one wait for a ring lasts, if the worker has a single listener. With N of them
each waits N times as long, so that together they start one wait every ten seconds."""

LONGEST: Final = 300.0
"""The longest that a wait lasts, in seconds."""


class Listener:
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
        self._unblocking: asyncio.Task[None] | None = None
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
        if self._waiting and self._unblocking is None:
            self._unblocking = spawn("unblock", self._doorbell.unblock)
            self._unblocking.add_done_callback(self._unblocked)

    async def listen(self) -> float:
        """Wait for one ring and pass it on."""
        dispatcher = self._dispatcher
        unheard = dispatcher.leaves_out(self.topics.values())
        heard = self.topics.keys() - {topic.name for topic in unheard}
        seconds = min(LISTEN * dispatcher.listeners, LONGEST)
        self._waiting = True
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
        if not task.cancelled() and task.exception() is not None:
            logger.error("cannot end a wait for doorbells: %s", how_it_ended(task))
