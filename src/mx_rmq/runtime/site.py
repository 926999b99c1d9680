"""A site: topics that live together, and the parts of a worker that serve them.

On one server that is all topics, in a cluster those of one slot. Each site has its own wakeups,
scheduler, expirer and monitor, so trouble on one server holds up nothing on another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mx_rmq.core import events
from mx_rmq.core.partition import topic_of
from mx_rmq.net.server_clock import ServerClock
from mx_rmq.runtime.expirer import Expirer
from mx_rmq.runtime.monitor import Monitor
from mx_rmq.runtime.scheduler import Scheduler
from mx_rmq.runtime.wakeups import Wakeups

if TYPE_CHECKING:
    from mx_rmq.core.handler import Handler
    from mx_rmq.runtime.dispatcher import Dispatcher
    from mx_rmq.runtime.event_bus import Events
    from mx_rmq.runtime.loop import Loop
    from mx_rmq.runtime.recovery import Recovery
    from mx_rmq.runtime.slots import TopicSlots
    from mx_rmq.store import Store


class Site:
    """Wake-ups, scheduler, expirer and monitor of the topics of one site."""

    def __init__(
        self,
        store: Store,
        number: int,
        dispatcher: Dispatcher,
        recovery: Recovery,
        bus: Events,
        *,
        worker: str,
        lease: float,
    ) -> None:
        self.clock = ServerClock()
        self._dispatcher = dispatcher
        self._bus = bus
        self._handlers: dict[str, Handler] = {}
        self._scheduler = Scheduler(store, (), on_moved=self._moved)
        self._expirer = Expirer(store, recovery, worker=worker, lease=lease)
        self._monitor = Monitor(
            store,
            self._handlers,
            self.clock,
            recovery,
            worker=worker,
            lease=lease,
            link=store.link_of(number),
        )
        self._wakeups = Wakeups(
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
        """Serve a topic."""
        self._handlers[topic.name] = topic.handler
        self._scheduler.add(topic.name)
        self._wakeups.add(topic)

    def _moved(self, topic: str, count: int) -> None:
        """The scheduler has moved messages of a topic to pending."""
        self._dispatcher.wake(topic)
        if events.Due in self._bus.wanted:
            self._bus.emit(events.Due(topic_of(topic), count))

    @property
    def loops(self) -> tuple[Loop, ...]:
        """The loops that must run as long as the worker does."""
        return (
            self._wakeups.survey_loop,
            self._scheduler.loop,
            self._expirer.loop,
            self._monitor.loop,
            *(listener.loop for listener in self._wakeups.listeners),
        )

    def start(self) -> None:
        """Start everything."""
        for loop in self.loops:
            loop.start()

    def check_now(self) -> None:
        """Survey every topic now, not at the next regular time."""
        self._wakeups.check_now()

    async def stop_wakeups(self) -> None:
        """Hear no more doorbells and make no more surveys."""
        await self._wakeups.stop()

    async def stop(self) -> None:
        """Stop the other parts."""
        await self._scheduler.loop.stop()
        await self._expirer.loop.stop()
        await self._monitor.loop.stop()

    async def hand_back_rings(self) -> None:
        """Ring for other workers where something is pending."""
        await self._wakeups.hand_back_rings()
