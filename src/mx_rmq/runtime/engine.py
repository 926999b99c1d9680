"""The engine: the parts of one running worker, and the order in which they start and stop.

    doorbell listener -> dispatcher -> slots -> consumer -> lifecycle    the path of a message
    survey, scheduler, expirer, monitor, crons, relay                    once per site: `site.py`
    schedules, lease keeper, caretaker, janitor, registry, watchdog      beside them

The parts call each other directly. The engine only builds, starts and stops them.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from mx_rmq.core import events
from mx_rmq.core.errors import MxRmqError
from mx_rmq.core.outcome import Release
from mx_rmq.core.partition import base_topic, partitions, subscription_of
from mx_rmq.runtime.abort_listener import AbortListener
from mx_rmq.runtime.caretaker import Caretaker
from mx_rmq.runtime.consumer import Consumer
from mx_rmq.runtime.dispatcher import Dispatcher
from mx_rmq.runtime.handler_calls import HandlerCalls
from mx_rmq.runtime.held import Stopped
from mx_rmq.runtime.janitor import Janitor
from mx_rmq.runtime.lease_keeper import LeaseKeeper
from mx_rmq.runtime.lifecycle import Lifecycle
from mx_rmq.runtime.loop import Loop
from mx_rmq.runtime.progress import ProgressSender
from mx_rmq.runtime.recovery import Recovery
from mx_rmq.runtime.registry import Registry
from mx_rmq.runtime.schedules import Schedules
from mx_rmq.runtime.site import Site
from mx_rmq.runtime.slots import Slots
from mx_rmq.runtime.steps import StepKeeper
from mx_rmq.runtime.threads import Threads
from mx_rmq.runtime.watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from mx_rmq.core.cron import Cron
    from mx_rmq.core.handler import Handler
    from mx_rmq.core.middleware import Middleware
    from mx_rmq.net.server_clock import ServerClock
    from mx_rmq.runtime.event_bus import Events
    from mx_rmq.runtime.injection import Injection
    from mx_rmq.runtime.slots import TopicSlots
    from mx_rmq.settings import WorkerSettings
    from mx_rmq.store import Store

STEP_WITHIN: Final = 5.0
"""Seconds to wait, in each step of a stop, for replies, for cancelled handlers, for outcomes."""

HELD_BACK: Final = 30.0
"""Seconds: if pending messages have to wait for longer, and there are delayed ones, they probably
wait for those. A rate rarely makes them wait for so long."""

CANCEL_AGAIN_WITHIN: Final = 1.0  # seconds for a handler to end after its second cancellation

FOREVER: Final = 10**14  # ms; a message that is due later waits for a signal, and never times out


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
        injection: Injection,
        settings: WorkerSettings,
        lease: float,
        name: str,
        inline: bool,
        thread_scope: Callable[[], AbstractContextManager[object]] | None,
    ) -> None:
        self.hurry = asyncio.Event()  # set: do not wait for handlers any longer
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Done when a part keeps dying; its result is the reason."""
        self._name = name
        self._store = store
        self._bus = bus
        self._lease = lease
        self._handlers = handlers
        self._crons = tuple(crons)
        self.slots = Slots(concurrency=settings.concurrency, prefetch=settings.prefetch)
        self._threads = Threads(settings.concurrency, inline=inline, scope=thread_scope)
        self._dispatcher = Dispatcher(store, self.slots, worker=name, lease=round(lease * 1000))
        self._lifecycle = Lifecycle(store, self.slots, self._dispatcher, bus, worker=name)
        steps = StepKeeper(
            store,
            self._lifecycle,
            worker=name,
            on_uninformed=self._uninformed,
            middleware=middleware,
        )
        self._progress = ProgressSender(store, worker=name)
        calls = HandlerCalls(
            self._threads,
            self._dispatcher,
            middleware=middleware,
            progress=self._progress,
            injection=injection,
            steps=steps,
        )
        self.consumer = Consumer(
            self.slots,
            calls,
            self._dispatcher,
            self._lifecycle,
            steps,
            bus,
            worker=name,
            lease=lease,
        )
        self._lease_keeper = LeaseKeeper(
            store, self.slots, self.consumer, self._lifecycle, bus, worker=name, lease=lease
        )
        self._abort_listener = AbortListener(store, self.slots, self._lifecycle)
        self._sites: dict[int, Site] = {}
        self._recovery = Recovery(store, self._lifecycle, bus, worker=name, lease=lease)
        self._relayed: dict[str, None] = {}  # topics with subscriptions, and their partitions
        self._served: dict[str, None] = {}  # all topics and partitions that have a site here
        self._caretaker = Caretaker(store, bus, self._recovery, self._served, worker=name)
        self._janitor = Janitor(
            store,
            lambda: [*self._served, *self._caretaker.topics],
            lambda: [
                name
                for name, topic in self.slots.topics.items()
                if topic.handler.result_ttl is not None
            ],
        )
        self._registry = Registry(store, handlers, self.slots, self.consumer, worker=name)
        self._registry_loop = Loop("registry", self.beat)
        self.watchdog = Watchdog(
            name,
            bus,
            on_check=self._on_check,
            on_change=self._registry_loop.wake,
            on_failed=self.fail,
        )
        self._schedules = Schedules(
            store,
            self._crons,
            bus,
            clocks=self._clock_of,
            watch=self.watchdog.watch,
        )
        self._abort_listener.call_on_notice(self._schedules.channel, self._schedules.look_again)
        self.watchdog.watch(
            self._lease_keeper,
            self._threads,
            self.consumer,
            self._lifecycle,
            self._abort_listener.loop,
            self._caretaker.loop,
            self._janitor.loop,
            self._registry_loop,
            self._progress.loop,
            self._schedules.loop,
        )

    async def start(self) -> None:
        """Start everything. Only the calls inside `try` can fail, and until then nothing runs."""
        try:
            await self.beat()
            await self._lease_keeper.begin()
        except BaseException:
            with suppress(MxRmqError, TimeoutError):
                async with asyncio.timeout(STEP_WITHIN):
                    await self._registry.leave()
            raise
        await self.watchdog.start()
        self._serve()
        self._abort_listener.loop.start()
        self._caretaker.loop.start()
        self._schedules.loop.start()
        self._janitor.loop.start()
        self._registry_loop.start()
        topics = tuple(self._handlers)
        self._bus.emit(events.WorkerStarted(self._name, topics, self.slots.concurrency))

    async def stop(self, *, grace: float) -> bool:
        """Stop everything in order; return whether everything was settled or handed back."""
        self._dispatcher.leaving = True
        self._bus.emit(events.WorkerStopping(self._name, self.slots.running, grace))
        await self._schedules.stop()
        await asyncio.gather(*(site.stop_taking() for site in self._sites.values()))
        await self._dispatcher.stop(STEP_WITHIN)
        self.consumer.hand_back()
        await self._finish(grace)
        await self._cancel()
        await self._progress.stop()
        await self._lifecycle.drain(STEP_WITHIN)
        self._lifecycle.close()
        await self._registry_loop.stop()
        await asyncio.gather(*(site.stop() for site in self._sites.values()))
        await self._caretaker.loop.stop()
        await self._janitor.loop.stop()
        await self._abort_listener.stop()
        await self._lease_keeper.stop()
        await self.consumer.close()
        self._threads.close()
        await self.watchdog.stop()
        with suppress(MxRmqError, TimeoutError):
            async with asyncio.timeout(STEP_WITHIN):
                await asyncio.gather(
                    self._registry.leave(),
                    self._caretaker.leave(),
                    *(site.hand_back_rings() for site in self._sites.values()),
                    *self._dispatcher.ringing,
                    return_exceptions=True,  # one server may be unreachable
                )
        left = self.slots.held or self._lifecycle.abandoned
        clean = not left and not self._dispatcher.may_have_unknown_leases()
        self._bus.emit(events.WorkerStopped(self._name, clean))
        return clean

    async def _finish(self, grace: float) -> None:
        """Let handlers finish within the grace, unless told to hurry."""
        hurry = asyncio.create_task(self.hurry.wait(), name="mx-rmq hurry")
        finish = asyncio.create_task(self._until_none_runs(grace), name="mx-rmq finish")
        await asyncio.wait([hurry, finish], return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        finish.cancel()

    async def _until_none_runs(self, seconds: float) -> None:
        """Wait up to `seconds` until no handler runs."""
        progress = self._lifecycle.progress
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.slots.running:
                    progress.clear()
                    await progress.wait()

    async def _cancel(self) -> None:
        """Cancel handlers that still run, and hand back the messages of those that do not end."""
        for again, seconds in ((False, STEP_WITHIN), (True, CANCEL_AGAIN_WITHIN)):
            for held in list(self.consumer.running.values()):
                held.stop(Stopped.SHUTDOWN, again=again)
            await self._until_none_runs(seconds)
        for held in self.consumer.unfinished():
            held.settling = True
            self._lifecycle.settle(held, Release())

    async def beat(self) -> float:
        """Report to the registry, and serve partitions that were added since."""
        await self._registry.register_topics()
        if self._registry.is_listed:
            self._serve()
        return await self._registry.beat(self.watchdog.down())

    def _serve(self) -> None:
        """Start to serve all partitions of our topics that are not served yet."""
        if self._dispatcher.leaving:
            return
        for topic, handler in self._handlers.items():
            parts = self._store.partitions.get(topic, 1)
            for name in partitions(topic, parts):
                if name in self.slots.topics:
                    self.slots.topics[name].share_limits(parts)
                else:
                    site = self._site_of(name)
                    topic_slots = self.slots.add(handler, name, site.clock, parts)
                    site.add(topic_slots)
                    self._served[name] = None
                    self._abort_listener.add(topic_slots)
                    self.watchdog.watch(*site.loops)
        for topic in {base_topic(name) for name in self._handlers if subscription_of(name)}:
            for name in partitions(topic, self._store.partitions.get(topic, 1)):
                if name not in self._relayed:
                    site = self._site_of(name)
                    site.relay(name, self._store.own_ttl(topic))
                    self._relayed[name] = self._served[name] = None
                    self.watchdog.watch(*site.loops)

    def _site_of(self, topic: str) -> Site:
        """Return the site of a topic; start one that is new."""
        number = self._store.site_of(topic)
        if number in self._sites:
            return self._sites[number]
        site = self._sites[number] = Site(
            self._store,
            number,
            self._dispatcher,
            self._recovery,
            self._bus,
            [cron for cron in self._crons if self._store.site_of(cron.topic) == number],
            lease=self._lease,
        )
        site.start()
        return site

    def _uninformed(self, topic: str) -> None:
        """Look soon at what a message waits for: it is about to be parked."""
        self._sites[self._store.site_of(topic)].waiting_check.parks(topic)

    def _clock_of(self, number: int) -> ServerClock | None:
        site = self._sites.get(number)
        return None if site is None else site.clock

    def _on_check(self) -> None:
        """Extend leases if the lease keeper is late; while it is down, dispatch nothing."""
        self._lease_keeper.extend_if_late()
        on_hold = self._lease_keeper.name in self.watchdog.down()
        if self._dispatcher.on_hold and not on_hold:
            self._dispatcher.on_hold = False
            for site in self._sites.values():
                site.check_now()
        self._dispatcher.on_hold = on_hold

    def fail(self, why: str) -> None:
        """Make the worker stop, for this reason."""
        if not self.failed.done():
            self.failed.set_result(why)

    async def until_empty(self, *, delayed: bool) -> None:
        """Wait until no message is left to handle in the topics served here."""
        progress = self._lifecycle.progress
        while not self.failed.done():
            progress.clear()
            if self.slots.lingering:
                self.consumer.start_lingering()
            left = bool(self.slots.held) or await self._is_anything_left(delayed=delayed)
            if not (left or self.slots.held or progress.is_set()):  # nothing moved while we asked
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await progress.wait()

    async def _is_anything_left(self, *, delayed: bool) -> bool:
        for name in list(self._relayed):  # first: their messages go to the others
            due = await self._store.get_next_delay_task(name)
            counts = await self._store.views.counts(name)
            waits = counts.pending and not counts.paused and counts.subscriptions
            if waits or due == 0 or counts.processing or (counts.delayed and delayed):
                return True
        for name, topic in list(self.slots.topics.items()):
            # Ask this before counting: what is due may become pending in between.
            due = await self._store.get_next_delay_task(name)
            counts = await self._store.views.counts(name)
            times_out = counts.waiting and due is not None and due < FOREVER
            if due == 0 or counts.processing or (delayed and (counts.delayed or times_out)):
                return True
            pending = counts.pending and not counts.paused
            if pending and not (topic.in_turn and await self._is_held_back(topic, due)):
                return True
        return False

    async def _is_held_back(self, topic: TopicSlots, due: int | None) -> bool:
        """Return whether all pending messages wait for delayed ones of their keys.

        `due`: the ms until the next delayed message is due.
        """
        if due is None or not await self._dispatcher.take(topic.name) or self.slots.held:
            return False
        wait = self._dispatcher.waits(topic)
        return wait is None or wait >= min(due / 1000, HELD_BACK) - 0.1  # they are rounded
