"""The doorbell listener: waits for rings of topics and wakes dispatcher, scheduler or relay.

One blocking call waits for the doorbells of all its topics. Each ring ends the call, and the next
one names all topics again, so the cost of a ring grows with their number. That is why a listener
has at most 64 topics; a site with more has several listeners.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from mx_rmq.runtime.loop import Loop, how_it_ended, spawn
from mx_rmq.safe_log import get_logger

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from mx_rmq.net.doorbell import Doorbell
    from mx_rmq.runtime.dispatcher import Dispatcher
    from mx_rmq.runtime.relay import Relay
    from mx_rmq.runtime.scheduler import Scheduler
    from mx_rmq.runtime.slots import TopicSlots
    from mx_rmq.store import Store

logger = get_logger(__name__)

MAX_TOPICS: Final = 64  # topics per listener

WAIT: Final = 10.0
"""Seconds that a wait for a ring lasts if the worker has a single listener. With N listeners each
waits N times as long, so that together they start one wait every ten seconds."""

LONGEST_WAIT: Final = 300.0  # seconds that a wait for a ring may last


class DoorbellListener:
    """Passes rings on to the dispatcher and the scheduler."""

    def __init__(
        self, store: Store, doorbell: Doorbell, dispatcher: Dispatcher, scheduler: Scheduler
    ) -> None:
        self.topics: dict[str, TopicSlots] = {}
        self._relayed: dict[str, Relay] = {}  # topics with subscriptions, and who fans them out
        self._store = store
        self._doorbell = doorbell
        self._dispatcher = dispatcher
        self._scheduler = scheduler
        self._waiting = False
        self._waits = 0  # waits so far; also the number of the current wait
        self._unblocking: asyncio.Task[None] | None = None  # the task that ends a wait
        self._ending = 0  # the number of that wait
        self._again = False  # once that task is done, end the current wait, too
        self.loop = Loop("doorbell listener", self.listen)
        dispatcher.listeners += 1

    def add(self, topic: TopicSlots) -> None:
        """Also listen to this topic."""
        self.topics[topic.name] = topic
        self.listen_again()

    def add_relayed(self, topic: str, relay: Relay) -> None:
        """Also listen to this topic, for a relay."""
        self._relayed[topic] = relay
        self.listen_again()

    def is_full(self) -> bool:
        return len(self.topics) + len(self._relayed) >= MAX_TOPICS

    async def listen(self) -> float:
        """Wait for one ring and pass it on."""
        dispatcher = self._dispatcher
        skipped = dispatcher.to_skip(self.topics.values())
        listened: AbstractSet[str] = self.topics.keys() - {topic.name for topic in skipped}
        delays: AbstractSet[str] = self.topics.keys()
        if self._relayed:
            listened, delays = listened | self._relayed.keys(), delays | self._relayed.keys()
        seconds = min(WAIT * dispatcher.listeners, LONGEST_WAIT)
        self._waiting = True
        self._waits += 1
        dispatcher.skipped.update(dict.fromkeys(skipped, self.listen_again))
        try:
            ring = await self._doorbell.wait(listened, delays, seconds)
        finally:
            self._waiting = False
            for topic in skipped:
                dispatcher.skipped.pop(topic, None)
        if ring is None:
            return 0.0
        if ring.delay:
            self._scheduler.on_ring(ring.topic)
        elif ring.topic in self._relayed:
            self._relayed[ring.topic].wake(ring.topic)
        elif not await dispatcher.take(ring.topic):
            await self._store.ring_doorbell(ring.topic)  # for a worker that has room
            dispatcher.wake(ring.topic)
        return 0.0

    def listen_again(self) -> None:
        """End the current wait, so that the next one covers more topics."""
        if not self._waiting:
            return
        if self._unblocking is None:
            self._ending = self._waits
            self._unblocking = spawn("unblock", self._doorbell.unblock)
            self._unblocking.add_done_callback(self._unblocked)
        elif self._ending != self._waits:  # it was started for an earlier wait
            self._again = True

    def _unblocked(self, task: asyncio.Task[None]) -> None:
        self._unblocking = None
        again, self._again = self._again, False
        if again:
            self.listen_again()
        if not task.cancelled() and task.exception() is not None:
            logger.error("cannot stop waiting for doorbells: %s", how_it_ended(task))

    async def stop(self) -> None:
        """Stop listening."""
        await self.loop.stop()
        if self._unblocking is not None:
            await asyncio.wait([self._unblocking])
        await self._doorbell.close()
