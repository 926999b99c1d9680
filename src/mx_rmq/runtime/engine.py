"""The engine: the parts of one running worker, and the order in which they start and stop.

    dispatcher -> slots -> consumer -> lifecycle -> dispatcher     a message's way through a worker
    wakeups, scheduler, expirer, monitor                           once per site, see `site.py`
    lease keeper, caretaker, janitor, crons, registry, watchdog    beside them

The parts know each other directly. The engine only builds, starts and stops them.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from mx_rmq.core import events
from mx_rmq.core.errors import MxRmqError
from mx_rmq.core.outcome import Release
from mx_rmq.core.partition import partitions
from mx_rmq.runtime.caretaker import Caretaker
from mx_rmq.runtime.consumer import Consumer
from mx_rmq.runtime.crons import Crons
from mx_rmq.runtime.dispatcher import Dispatcher
from mx_rmq.runtime.janitor import Janitor
from mx_rmq.runtime.lease_keeper import LeaseKeeper
from mx_rmq.runtime.lifecycle import Lifecycle
from mx_rmq.runtime.loop import Loop
from mx_rmq.runtime.recovery import Recovery
from mx_rmq.runtime.registry import Registry
from mx_rmq.runtime.site import Site
from mx_rmq.runtime.slots import Slots, Stopped
from mx_rmq.runtime.threads import Threads
from mx_rmq.runtime.watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mx_rmq.core.cron import Cron
    from mx_rmq.core.handler import Handler
    from mx_rmq.core.middleware import Middleware
    from mx_rmq.runtime.event_bus import Events
    from mx_rmq.settings import WorkerSettings
    from mx_rmq.store import Store

CANCEL_WITHIN: Final = 5.0
"""Seconds that a cancelled handler has to end."""


class Engine:
    """The parts of one running worker."""

    def __init__(
        self,
        store: Store,
        bus: Events,
        handlers: dict[str, Handler],
        *,
        crons: Iterable[Cron],
        middleware: Sequence[Middleware],
        settings: WorkerSettings,
        lease: float,
        name: str,
    ) -> None:
        self.hurry = asyncio.Event()
        """Set: do not wait for handlers any longer."""
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Done when a part kept dying: with the reason."""
        self._name = name
        self._store = store
        self._bus = bus
        self._lease = lease
        self._handlers = handlers
        self._cron_list = tuple(crons)
        self._slots = Slots(concurrency=settings.concurrency, prefetch=settings.prefetch)
        self._threads = Threads(settings.concurrency)
        self._dispatcher = Dispatcher(store, self._slots, worker=name, lease=round(lease * 1000))
        self._lifecycle = Lifecycle(store, self._slots, self._dispatcher, bus, worker=name)
        self._consumer = Consumer(
            self._slots,
            self._threads,
            self._dispatcher,
            self._lifecycle,
            worker=name,
            lease=lease,
            middleware=middleware,
        )
        self._lease_keeper = LeaseKeeper(
            store, self._slots, self._consumer, self._lifecycle, bus, worker=name, lease=lease
        )
        self._sites: dict[int, Site] = {}
        self._crons: list[Crons] = []
        self._recovery = Recovery(self._lifecycle, bus, worker=name)
        self._caretaker = Caretaker(
            store, bus, self._recovery, self._slots.topics, worker=name, lease=lease
        )
        self._janitor = Janitor(store, lambda: [*self._slots.topics, *self._caretaker.topics])
        self._registry = Registry(store, handlers, self._slots, self._consumer, worker=name)
        self._beating = Loop("registry", self.beat)
        self._watchdog = Watchdog(
            name,
            bus,
            on_look=self._on_look,
            on_change=self._beating.wake,
            on_failed=self._on_failed,
        )
        self._watchdog.watch(
            self._lease_keeper,
            self._threads,
            self._consumer,
            self._lifecycle,
            self._caretaker.loop,
            self._janitor.loop,
            self._beating,
        )

    async def start(self) -> None:
        """Start everything. Only the lines in `try` can fail: then nothing has started."""
        try:
            await self.beat()
            await self._lease_keeper.begin()
        except BaseException:
            with suppress(MxRmqError, TimeoutError):
                async with asyncio.timeout(CANCEL_WITHIN):
                    await self._registry.leave()
            raise
        await self._watchdog.start()
        self._serve()
        for number, site in self._sites.items():
            crons = [cron for cron in self._cron_list if self._store.site_of(cron.topic) == number]
            if crons:
                self._crons.append(Crons(self._store, crons, site.clock, self._bus))
        for fired in self._crons:
            fired.loop.start()
            self._watchdog.watch(fired.loop)
        self._caretaker.loop.start()
        self._janitor.loop.start()
        self._beating.start()
        topics = tuple(self._handlers)
        self._bus.emit(events.WorkerStarted(self._name, topics, self._slots.concurrency))

    async def stop(self, *, grace: float) -> bool:
        """Stop everything in order; return whether everything was settled or handed back."""
        self._dispatcher.leaving = True
        self._bus.emit(events.WorkerStopping(self._name, self._slots.running, grace))
        for crons in self._crons:
            await crons.loop.stop()
        await asyncio.gather(*(site.stop_wakeups() for site in self._sites.values()))
        await self._dispatcher.stop(CANCEL_WITHIN)
        self._consumer.hand_back()
        await self._finish(grace)
        await self._cancel()
        await self._lifecycle.flush(CANCEL_WITHIN)
        self._lifecycle.close()
        await self._beating.stop()
        await asyncio.gather(*(site.stop() for site in self._sites.values()))
        await self._caretaker.loop.stop()
        await self._janitor.loop.stop()
        await self._lease_keeper.stop()
        await self._consumer.close()
        self._threads.close()
        await self._watchdog.stop()
        with suppress(MxRmqError, TimeoutError):
            async with asyncio.timeout(CANCEL_WITHIN):
                await asyncio.gather(
                    self._registry.leave(),
                    *(site.hand_back_rings() for site in self._sites.values()),
                    *self._dispatcher.ringing,
                    return_exceptions=True,  # one server may be away
                )
        left = self._slots.held or self._lifecycle.abandoned
        clean = not left and not self._dispatcher.may_have_unknown_leases()
        self._bus.emit(events.WorkerStopped(self._name, clean))
        return clean

    @property
    def running(self) -> int:
        """Handlers that run."""
        return self._slots.running

    @property
    def held(self) -> int:
        """Messages that are leased to this worker."""
        return len(self._slots.held)

    def down(self) -> dict[str, str]:
        """Return the parts that are down now, each with the reason."""
        return self._watchdog.down()

    def runs_in(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether a task runs one of this worker's handlers."""
        return self._consumer.handler_in(task) is not None

    async def beat(self) -> float:
        """Tell the registry that this worker is alive, and serve partitions added since."""
        await self._registry.register_topics()
        if self._registry.is_listed:
            self._serve()
        return await self._registry.beat(self.down())

    def _serve(self) -> None:
        """Serve every partition of every topic that is not served yet."""
        if self._dispatcher.leaving:
            return
        for topic, handler in self._handlers.items():
            for name in partitions(topic, self._store.partitions.get(topic, 1)):
                if name not in self._slots.topics:
                    number = self._store.site_of(name)
                    site = self._sites.get(number) or self._open_site(number)
                    site.add(self._slots.add(handler, name, site.clock))
                    self._watchdog.watch(*site.loops)

    def _open_site(self, number: int) -> Site:
        site = self._sites[number] = Site(
            self._store,
            number,
            self._dispatcher,
            self._recovery,
            self._bus,
            worker=self._name,
            lease=self._lease,
        )
        site.start()
        return site

    async def until_empty(self, *, delayed: bool) -> None:
        """Wait until nothing is left to do in any topic."""
        progress = self._lifecycle.progress
        while True:
            progress.clear()
            left = bool(self._slots.held) or await self._left(delayed=delayed)
            if not (left or self._slots.held or progress.is_set()):  # nothing moved meanwhile
                return
            if self.failed.done():
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await progress.wait()

    async def _left(self, *, delayed: bool) -> bool:
        for topic in self._slots.topics:
            due = await self._store.get_next_delay_task(topic) == 0  # first: it may become pending
            counts = await self._store.views.counts(topic)
            if due or counts.processing or (counts.pending and not counts.paused):
                return True
            if counts.delayed and delayed:
                return True
        return False

    async def _finish(self, grace: float) -> None:
        """Let handlers finish."""
        hurry = asyncio.create_task(self.hurry.wait(), name="mx-rmq hurry")
        finish = asyncio.create_task(
            self._until_settled(time.monotonic() + grace), name="mx-rmq finish"
        )
        await asyncio.wait([hurry, finish], return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        finish.cancel()

    async def _until_settled(self, deadline: float) -> None:
        """Wait until no handler runs, or until the deadline."""
        progress = self._lifecycle.progress
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline - time.monotonic()):
                while self._slots.running:
                    progress.clear()
                    await progress.wait()

    async def _cancel(self) -> None:
        """Cancel what still runs, and hand back what does not end."""
        for again, seconds in ((False, CANCEL_WITHIN), (True, 1.0)):
            for held in list(self._consumer.running.values()):
                held.stop(Stopped.SHUTDOWN, again=again)
            await self._until_settled(time.monotonic() + seconds)
        for held in list(
            self._consumer.running.values()
        ):  # it ignores us: let another worker have it
            held.settling = True
            self._lifecycle.settle(held, Release())

    def _on_look(self) -> None:
        """Extend leases if the lease keeper is late. While it is down, take no messages."""
        self._lease_keeper.stand_in()
        on_hold = self._lease_keeper.name in self.down()
        if self._dispatcher.on_hold and not on_hold:
            self._dispatcher.on_hold = False
            for site in self._sites.values():
                site.check_now()
        self._dispatcher.on_hold = on_hold

    def _on_failed(self, why: str) -> None:
        if not self.failed.done():
            self.failed.set_result(why)
