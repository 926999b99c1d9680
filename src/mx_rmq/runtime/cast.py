"""The cast: everybody who works in one running worker, and the order in which they come and go."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from mx_rmq.core import events
from mx_rmq.core.errors import MxRmqError
from mx_rmq.core.outcome import Release
from mx_rmq.core.partition import partitions
from mx_rmq.runtime.about import about_worker
from mx_rmq.runtime.caretaker import Caretaker
from mx_rmq.runtime.consumer import Consumer
from mx_rmq.runtime.crons import Crons
from mx_rmq.runtime.dispatcher import Dispatcher
from mx_rmq.runtime.janitor import Janitor
from mx_rmq.runtime.keeper import Keeper
from mx_rmq.runtime.lifecycle import Lifecycle
from mx_rmq.runtime.loop import AWAY, Loop
from mx_rmq.runtime.site import Site
from mx_rmq.runtime.slots import Slots, Stopped
from mx_rmq.runtime.tasks import spawn
from mx_rmq.runtime.threads import Threads
from mx_rmq.runtime.watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mx_rmq.core.config import WorkerSettings
    from mx_rmq.core.cron import Cron
    from mx_rmq.core.handler import Handler
    from mx_rmq.core.middleware import Middleware
    from mx_rmq.core.outcome import Outcome
    from mx_rmq.runtime.bus import Events
    from mx_rmq.runtime.slots import Held, TopicSlots
    from mx_rmq.store import Store

BEAT: Final = 15.0
"""Seconds between two signs of life in the registry of workers."""

FORGET: Final = 3_600_000
"""Milliseconds after which the registry forgets a silent worker."""

HOARD: Final = 1.0
"""Seconds that a message may wait here for a slot."""

CANCEL_WITHIN: Final = 5.0
"""Seconds that a cancelled handler has to end."""


class Cast:
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
        self._began = time.time()
        self._serving = True
        self._beats = 0
        self._lease = lease
        self._handlers = handlers
        self._slots = Slots((), concurrency=settings.concurrency, prefetch=settings.prefetch)
        self._threads = Threads(settings.concurrency)
        self._lifecycle = Lifecycle(
            store, self._slots, bus, worker=name, on_settled=self._on_settled
        )
        self._consumer = Consumer(
            self._slots,
            self._threads,
            worker=name,
            lease=lease,
            middleware=middleware,
            settle=self._settle,
            on_no_thread=self._on_no_thread,
        )
        self._dispatcher = Dispatcher(
            store,
            self._slots,
            worker=name,
            lease=round(lease * 1000),
            on_taken=self._on_taken,
        )
        self._sites: dict[int, Site] = {}
        self._keeper = Keeper(
            store,
            self._slots,
            self._consumer,
            bus,
            worker=name,
            lease=lease,
            on_lost=self._on_lost,
            on_handed_back=self._on_handed_back,
        )
        self._cron_list = tuple(crons)
        self._crons: list[Crons] = []
        self._caretaker = Caretaker(
            store,
            bus,
            self._slots.topics,
            worker=name,
            lease=lease,
            circumstances=self._consumer.circumstances,
        )
        self._janitor = Janitor(store, lambda: [*self._slots.topics, *self._caretaker.topics])
        self._beating = Loop("beat", self.beat)
        self._ringing: set[asyncio.Task[None]] = set()
        self._settled = asyncio.Event()
        self._hoarding: asyncio.TimerHandle | None = None
        self._watchdog = Watchdog(
            name,
            bus,
            on_look=self._on_look,
            on_change=self._beating.wake,
            on_failed=self._on_failed,
        )
        self._watchdog.watch(
            self._keeper,
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
            await self._keeper.begin()
        except BaseException:
            with suppress(MxRmqError, TimeoutError):
                async with asyncio.timeout(CANCEL_WITHIN):
                    await self._store.forget_worker(self._name)
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
        """Go down the ladder; say whether everything was settled or handed back."""
        self._serving = False
        self._bus.emit(events.WorkerStopping(self._name, self._slots.running, grace))
        for crons in self._crons:
            await crons.loop.stop()
        await asyncio.gather(*(site.go_deaf() for site in self._sites.values()))
        await self._dispatcher.stop(CANCEL_WITHIN)
        if self._hoarding is not None:
            self._hoarding.cancel()
        for held in self._slots.take_back():
            self._lifecycle.settle(held, Release())
        await self._finish(grace)
        await self._cancel()
        await self._lifecycle.flush(CANCEL_WITHIN)
        self._lifecycle.close()
        await self._beating.stop()
        await asyncio.gather(*(site.stop() for site in self._sites.values()))
        await self._caretaker.loop.stop()
        await self._janitor.loop.stop()
        await self._keeper.stop()
        await self._consumer.close()
        self._threads.close()
        await self._watchdog.stop()
        with suppress(MxRmqError, TimeoutError):
            async with asyncio.timeout(CANCEL_WITHIN):
                await asyncio.gather(
                    self._store.forget_worker(self._name),
                    *(site.hand_back_rings() for site in self._sites.values()),
                    *self._ringing,
                    return_exceptions=True,  # one server may be away
                )
        clean = not self._slots.held and not self._lifecycle.abandoned
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
        """Say whether a task runs one of this worker's handlers."""
        return self._consumer.runs_in(task) is not None

    async def beat(self) -> float:
        """Tell the registry of workers that this one lives."""
        about = about_worker(
            self._handlers,
            self._slots,
            self._consumer.running(),
            started=self._began,
            down=self.down(),
        )
        try:
            await self._register()
        except AWAY:  # then later; where the workers are listed may be another server
            if not self._beats:
                raise
        if self._beats:
            self._serve()
        forget = FORGET if self._beats == 0 else 0
        await self._store.beat_worker(self._name, about, forget=forget)
        self._beats += 1
        return BEAT

    async def _register(self) -> None:
        """List the topics, and learn how many partitions they have."""
        known = self._store.partitions
        if not self._beats:
            await self._store.claim_layout()
        for topic, handler in self._handlers.items():
            if (handler.partitions or 1) > known.get(topic, 1):
                await self._store.grow(topic, handler.partitions or 1)
        await self._store.register_topics(  # again and again: the registry may have been lost
            {topic: known.get(topic, 1) for topic in self._handlers}
        )

    def _serve(self) -> None:
        """Take up every partition of every topic, also those that have come up meanwhile."""
        if not self._serving:
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
            self._bus,
            worker=self._name,
            lease=self._lease,
            circumstances=self._consumer.circumstances,
        )
        site.start()
        return site

    async def until_empty(self, *, delayed: bool) -> None:
        """Wait until nothing is left to do in any topic."""
        while True:
            self._settled.clear()
            left = bool(self._slots.held) or await self._left(delayed=delayed)
            if not (left or self._slots.held or self._settled.is_set()):  # nothing moved meanwhile
                return
            if self.failed.done():
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await self._settled.wait()

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
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline - time.monotonic()):
                while self._slots.running:
                    self._settled.clear()
                    await self._settled.wait()

    async def _cancel(self) -> None:
        """Cancel what still runs, and hand back what does not end."""
        for again, seconds in ((False, CANCEL_WITHIN), (True, 1.0)):
            for held in self._consumer.running():
                held.stop(Stopped.SHUTDOWN, again=again)
            await self._until_settled(time.monotonic() + seconds)
        for held in self._consumer.running():  # it ignores us; somebody else shall have it
            held.settling = True
            self._lifecycle.settle(held, Release())

    def _settle(self, held: Held, outcome: Outcome | None) -> None:
        self._lifecycle.settle(held, outcome)
        self._settled.set()

    def _on_taken(self) -> None:
        self._consumer.start_ready()
        if self._hoarding is None and self._slots.waiting:
            loop = asyncio.get_running_loop()
            self._hoarding = loop.call_later(HOARD, self._hand_back_late)

    def _hand_back_late(self) -> None:
        """Hand back what waits for a slot for too long: another worker may have one."""
        self._hoarding = None
        for held in self._slots.take_back(time.monotonic() - HOARD):
            self._lifecycle.settle(held, Release())
        if self._slots.waiting:
            loop = asyncio.get_running_loop()
            self._hoarding = loop.call_later(HOARD, self._hand_back_late)

    def _on_settled(self, topic: TopicSlots) -> None:
        self._settled.set()
        self._dispatcher.fill(topic)
        if topic.handler.ordered and not (self._serving or topic.held):
            self._ring_for_others(topic)
        self._dispatcher.listen_again(topic)  # room for this one is room for others

    def _on_no_thread(self, topic: TopicSlots) -> None:
        """A message was handed back because no thread could be started: pause its topic briefly."""
        self._dispatcher.pause(topic, self._threads.backoff.next())

    def _on_look(self) -> None:
        """Extend leases if the keeper is late. While it is down, take no messages."""
        self._keeper.stand_in()
        on_hold = self._keeper.name in self.down()
        if self._dispatcher.on_hold and not on_hold:
            self._dispatcher.on_hold = False
            for site in self._sites.values():
                site.look_around()
        self._dispatcher.on_hold = on_hold

    def _on_failed(self, why: str) -> None:
        if not self.failed.done():
            self.failed.set_result(why)

    def _ring_for_others(self, topic: TopicSlots) -> None:
        """Others were refused while we had some of an ordered topic; we do not ask again."""
        ringing = spawn("ring", self._ring, topic.name)
        self._ringing.add(ringing)
        ringing.add_done_callback(self._ringing.discard)

    async def _ring(self, name: str) -> None:
        with suppress(MxRmqError):  # then others look around
            await self._store.ring_doorbell(name)

    def _on_lost(self, held: Held) -> None:
        if held not in self._slots.held or held.settling:
            return  # settled meanwhile, or about to be: that answer tells
        if held.interrupt is not None:
            held.stop(Stopped.LEASE_LOST)
        else:
            self._slots.forget_waiting(held)
            self._lifecycle.report_lost(held)

    def _on_handed_back(self, held: Held) -> None:
        self._slots.forget_waiting(held)
        self._on_settled(held.topic)
