"""A site: topics that live together, and the parts of a worker that serve them.

On one server that is all topics, in a cluster those of one slot. Each site has its own parts, so
trouble on one server does not hold up topics on another.

Doorbell listeners notice a ring at once. A survey every ten seconds makes up for lost
rings. It is one call for all topics, so an idle worker costs a server almost nothing.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from mx_rmq.core import events
from mx_rmq.core.partition import topic_of
from mx_rmq.net.server_clock import ServerClock
from mx_rmq.runtime.crons import Crons, Timetable
from mx_rmq.runtime.deadlines import Deadlines
from mx_rmq.runtime.doorbell_listener import DoorbellListener
from mx_rmq.runtime.expirer import Expirer
from mx_rmq.runtime.loop import Loop
from mx_rmq.runtime.monitor import Monitor
from mx_rmq.runtime.relay import Relay, RelayedTopic
from mx_rmq.runtime.scheduler import Scheduler
from mx_rmq.runtime.waiting_check import WaitingCheck

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mx_rmq.core.cron import Cron
    from mx_rmq.core.handler import Handler
    from mx_rmq.runtime.dispatcher import Dispatcher
    from mx_rmq.runtime.event_bus import Events
    from mx_rmq.runtime.recovery import Recovery
    from mx_rmq.runtime.slots import TopicSlots
    from mx_rmq.store import Store

SURVEY_EVERY: Final = 10.0  # seconds


class Site:
    """The survey, doorbell listeners, scheduler, expirer, monitor, crons and relay of one site."""

    def __init__(
        self,
        store: Store,
        number: int,
        dispatcher: Dispatcher,
        recovery: Recovery,
        bus: Events,
        crons: Iterable[Cron],
        *,
        lease: float,
    ) -> None:
        self._store = store
        self._number = number
        self._dispatcher = dispatcher
        self._bus = bus
        self.waiting_check = WaitingCheck(store)
        self._every = min(SURVEY_EVERY, lease)
        self.clock = ServerClock()
        self.handlers: dict[str, Handler | RelayedTopic] = {}
        self.listeners: list[DoorbellListener] = []
        self.survey_loop = Loop("survey", self.survey)
        self.scheduler = Scheduler(store, on_moved=self._moved)
        self.expirer = Expirer(store, recovery, self.clock, self.handlers)
        deadlines = Deadlines(lease, store.link_of(number), self.clock)
        self.monitor = Monitor(store, self.handlers, deadlines, recovery)
        mine = [Timetable.declared(cron) for cron in crons]
        self._crons = [Crons(store, mine, self.clock, bus)] if mine else []
        self.relays: list[Relay] = []  # one, if there are topics with subscriptions

    @property
    def loops(self) -> tuple[Loop, ...]:
        """The loops that must run as long as the worker does."""
        return (
            self.survey_loop,
            self.scheduler.loop,
            self.expirer.loop,
            self.monitor.loop,
            self.waiting_check.loop,
            *(crons.loop for crons in self._crons),
            *(relay.loop for relay in self.relays),
            *(listener.loop for listener in self.listeners),
        )

    def start(self) -> None:
        for loop in self.loops:
            loop.start()

    def add(self, topic: TopicSlots) -> None:
        """Serve a topic."""
        self.handlers[topic.name] = topic.handler
        self.scheduler.add(topic.name)
        self._listener().add(topic)
        self.survey_loop.wake()

    def relay(self, topic: str, ttl: int | None) -> None:
        """Pass the messages of a topic on to its subscriptions. `ttl`: its default, ms."""
        if not self.relays:
            self.relays.append(Relay(self._store, on_moved=self._copied))
            self.relays[0].loop.start()
        self.handlers[topic] = RelayedTopic(ttl)
        self.scheduler.add(topic)
        self.relays[0].add(topic)
        self._listener().add_relayed(topic, self.relays[0])
        self.survey_loop.wake()

    def _listener(self) -> DoorbellListener:
        """Return a listener that has room for another topic."""
        if not self.listeners or self.listeners[-1].is_full():
            doorbell = self._store.doorbell(self._number)
            listener = DoorbellListener(self._store, doorbell, self._dispatcher, self.scheduler)
            self.listeners.append(listener)
            listener.loop.start()
        return self.listeners[-1]

    async def survey(self) -> float:
        """Find out what is pending, due, expired or overdue in every topic."""
        asked_at = time.monotonic()
        answer = await self._store.survey_topics(list(self.handlers))
        self.clock.update(answer.now, asked_at)
        for topic, found in answer.topics.items():
            if found.pending:
                self._wake(topic)
            self.scheduler.surveyed(topic, found.due)
            self.expirer.surveyed(topic, found.expires)
            self.monitor.surveyed(topic, found.deadline)
            self.waiting_check.surveyed(topic, found.waiting)
        return self._every

    def _moved(self, topic: str, count: int) -> None:
        """The scheduler has moved messages of a topic to pending."""
        self._wake(topic)
        if events.Due in self._bus.wanted:
            self._bus.emit(events.Due(topic_of(topic), count))

    def _wake(self, topic: str) -> None:
        """Something is pending in a topic."""
        if isinstance(self.handlers[topic], RelayedTopic):
            self.relays[0].wake(topic)
        else:
            self._dispatcher.wake(topic)

    def _copied(self, subscription: str) -> None:
        """A subscription has new messages."""
        if subscription in self.handlers:
            self._dispatcher.wake(subscription)

    def check_now(self) -> None:
        """Survey all topics now, and listen to all that have room."""
        self.survey_loop.wake()
        for listener in self.listeners:
            listener.listen_again()

    async def stop_taking(self) -> None:
        """Stop crons, survey, relay and listeners.

        `hand_back_rings` makes up for rings that get lost.
        """
        for crons in self._crons:
            await crons.loop.stop()
        await self.survey_loop.stop()
        for relay in self.relays:
            await relay.loop.stop()
        await asyncio.gather(*(listener.stop() for listener in self.listeners))

    async def stop(self) -> None:
        """Stop the other parts."""
        for part in (self.scheduler, self.expirer, self.monitor, self.waiting_check):
            await part.loop.stop()

    async def hand_back_rings(self) -> None:
        """Ring for other workers where something is pending."""
        answer = await self._store.survey_topics(list(self.handlers))
        for topic, found in answer.topics.items():
            if found.pending:
                await self._store.ring_doorbell(topic)
