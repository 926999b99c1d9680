"""A site's part of the cast: those who work for topics that live together.

On one server that is all topics, in a cluster those of one slot. Each site has its own lookout,
scheduler, expirer and monitor, so trouble on one server holds up nothing on another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mx_rmq.core import events
from mx_rmq.core.partition import topic_of
from mx_rmq.runtime.clock import ServerClock
from mx_rmq.runtime.expirer import Expirer
from mx_rmq.runtime.lookout import Lookout
from mx_rmq.runtime.monitor import Monitor
from mx_rmq.runtime.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Callable

    from mx_rmq.core.handler import Handler
    from mx_rmq.core.outcome import Circumstances
    from mx_rmq.runtime.bus import Events
    from mx_rmq.runtime.dispatcher import Dispatcher
    from mx_rmq.runtime.loop import Loop
    from mx_rmq.runtime.slots import TopicSlots
    from mx_rmq.store import Store


class Site:
    """Lookout, scheduler, expirer and monitor of the topics of one site."""

    def __init__(
        self,
        store: Store,
        number: int,
        dispatcher: Dispatcher,
        bus: Events,
        *,
        worker: str,
        lease: float,
        circumstances: Callable[[ServerClock], Circumstances],
    ) -> None:
        self.clock = ServerClock()
        self._dispatcher = dispatcher
        self._bus = bus
        self._handlers: dict[str, Handler] = {}
        self._scheduler = Scheduler(store, (), on_moved=self._moved)
        self._expirer = Expirer(store, bus, worker=worker, lease=lease)
        self._monitor = Monitor(
            store,
            self._handlers,
            self.clock,
            bus,
            worker=worker,
            lease=lease,
            link=store.link_of(number),
            circumstances=circumstances,
        )
        self._lookout = Lookout(
            store,
            number,
            self.clock,
            dispatcher,
            self._scheduler,
            self._expirer,
            self._monitor,
            lease=lease,
        )

    def add(self, topic: TopicSlots) -> None:
        """Take up a topic."""
        self._handlers[topic.name] = topic.handler
        self._scheduler.add(topic.name)
        self._lookout.add(topic)

    def _moved(self, topic: str, count: int) -> None:
        """Messages of a topic are pending now, because they were due."""
        self._dispatcher.ready(topic)
        if self._bus.wants(events.Due):
            self._bus.emit(events.Due(topic_of(topic), count))

    @property
    def loops(self) -> tuple[Loop, ...]:
        """Everything that must run for as long as the worker does."""
        return (
            self._lookout.looking,
            self._scheduler.loop,
            self._expirer.loop,
            self._monitor.loop,
            *(listener.loop for listener in self._lookout.listeners),
        )

    def start(self) -> None:
        """Start everything."""
        for loop in self.loops:
            loop.start()

    def look_around(self) -> None:
        """Look at every topic now, not at the next regular time."""
        self._lookout.looking.wake()
        for listener in self._lookout.listeners:
            listener.listen_again()

    async def go_deaf(self) -> None:
        """Take no more messages."""
        await self._lookout.stop()

    async def stop(self) -> None:
        """Send the others home, too."""
        await self._scheduler.loop.stop()
        await self._expirer.loop.stop()
        await self._monitor.loop.stop()

    async def hand_back_rings(self) -> None:
        """Ring for the other workers, where something is pending."""
        await self._lookout.hand_back_rings()
