"""The lease keeper: extends the leases of a worker, from a thread with its own event loop.

A handler that blocks the worker's event loop does not lose its message: the lease is still
extended, and the block is reported with the handler's name and stack. Messages that wait behind it
are handed back after a lease, so that another worker can run them. (Code that holds Python's global
lock for longer than a lease stops this thread, too.)
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections import defaultdict
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from mx_rmq.core.errors import WorkerBroken
from mx_rmq.core.events import LoopBlocked
from mx_rmq.core.text import end_of, named
from mx_rmq.net.caller import REPLY_WITHIN
from mx_rmq.runtime.lifecycle import handed_back
from mx_rmq.runtime.loop import FailureLog, each, spawn
from mx_rmq.safe_log import defer_exit
from mx_rmq.store.arguments import MAX_BATCH
from mx_rmq.store.results import Settled

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from mx_rmq.runtime.consumer import Consumer
    from mx_rmq.runtime.event_bus import Events
    from mx_rmq.runtime.held import HeldMessage
    from mx_rmq.runtime.lifecycle import Lifecycle
    from mx_rmq.runtime.slots import Slots, TopicSlots
    from mx_rmq.store import Store

CHECK_EVERY: Final = 0.25
CHECK_IDLE_EVERY: Final = 0.5
"""Seconds between two checks of the held messages. A new message does not wake the thread: it would
take Python's global lock just when the handler begins."""

PAST_TIMEOUT: Final = 5.0  # seconds past its timeout that a handler which blocks keeps its lease
BLOCKED_AFTER: Final = 1.0  # seconds without a response after which the event loop is blocked
BEGIN_WITHIN: Final = 10.0  # seconds that the thread has to begin
END_WITHIN: Final = 10.0  # seconds that the thread has to end
STUCK_AFTER: Final = 40  # checks of the watchdog, four per second, until a thread counts as stuck


class _Thread:
    """The state of one thread. It shares nothing with the next one, which may start beside it."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.wake: asyncio.Event | None = None
        self.must_end = False
        self.ended = ""  # how it ended; empty: it has not
        self.turns = 0
        self.busy: dict[int, asyncio.Task[None]] = {}  # calls under way, by site
        self.begun = asyncio.Event()  # set in the worker's event loop, as the next one
        self.over = asyncio.Event()

    def forget(self, site: int, _: asyncio.Task[None]) -> None:
        del self.busy[site]


class LeaseKeeper:
    """Extends every lease of one worker before it runs out."""

    name = "lease keeper"

    def __init__(
        self,
        store: Store,
        slots: Slots,
        consumer: Consumer,
        lifecycle: Lifecycle,
        bus: Events,
        *,
        worker: str,
        lease: float,
    ) -> None:
        self._store = store
        self._slots = slots
        self._consumer = consumer
        self._lifecycle = lifecycle
        self._bus = bus
        self._worker = worker
        self._lease = lease
        self._every = min(lease / 3, 10.0)
        self._thread: _Thread | None = None  # None: not started, or told to end
        self._main_loop: asyncio.AbstractEventLoop | None = None
        self._main_thread = 0
        self._seen_turns = 0
        self._still = 0  # checks since the thread made its last turn
        self._extending: asyncio.Task[None] | None = None
        self._responded_at = 0.0
        self._reported = False
        self._failures = FailureLog("lease keeper")
        self._handing_back: set[HeldMessage] = set()

    async def begin(self) -> None:
        """Start the thread and wait until it works. Call it in the loop whose leases it keeps."""
        why = ""
        try:
            self.start()
            if (thread := self._thread) is not None:
                async with asyncio.timeout(BEGIN_WITHIN):
                    await thread.begun.wait()
                why = thread.ended
        except (RuntimeError, MemoryError, TimeoutError) as error:
            why = f"{type(error).__name__}: {error}"
        except BaseException:  # cancelled
            if self._thread is not None:
                self._tell_to_end(self._thread)
            raise
        if why:
            await self.stop()
            raise WorkerBroken(f"the {self.name} could not start: {why}")

    def start(self) -> None:
        """Start a thread. One that is stuck is left alone, and ends when it can."""
        self._main_loop = asyncio.get_running_loop()
        self._main_thread = threading.get_ident()
        self._responded_at = time.monotonic()
        if self._thread is not None:
            self._tell_to_end(self._thread)
        thread = self._thread = _Thread()
        self._seen_turns = self._still = 0
        try:
            threading.Thread(
                target=self._main, args=(thread,), name="mx-rmq-keeper", daemon=True
            ).start()
        except (RuntimeError, MemoryError) as error:
            thread.ended = f"its thread could not be started: {error}"
            thread.over.set()
            raise

    def down(self) -> str:
        """Return why leases are not extended; empty: they are. Called at each watchdog check."""
        thread = self._thread
        if thread is None or thread.ended:
            return "" if thread is None else thread.ended
        self._still = self._still + 1 if thread.turns == self._seen_turns else 0
        self._seen_turns = thread.turns
        return "its thread is stuck" if self._still >= STUCK_AFTER else ""

    def extend_if_late(self) -> None:
        """Extend leases from the event loop if the thread is late or gone."""
        now = time.monotonic()
        late = (now - held.extended_at > 1.5 * self._every for held in self._slots.held)
        if self._extending is None and any(late):
            self._extending = spawn("keeper", self._extend_here)
            self._extending.add_done_callback(self._extended)

    async def _extend_here(self) -> None:
        due, now = self._due()
        extending = (self._extend(self._store, due[topic], now) for topic in due)
        for failed in await asyncio.gather(*extending, return_exceptions=True):
            if isinstance(failed, Exception):
                self._failures.log(failed)

    def _extended(self, task: asyncio.Task[None]) -> None:
        self._extending = None
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._failures.log(error)

    async def stop(self) -> None:
        """End the thread. Does nothing if it does not run."""
        thread, self._thread = self._thread, None
        if self._extending is not None:
            self._extending.cancel()
        if thread is not None:
            self._tell_to_end(thread)
            with suppress(TimeoutError):  # stuck in application code: it ends when it can
                async with asyncio.timeout(END_WITHIN):
                    await thread.over.wait()

    def _tell_to_end(self, thread: _Thread) -> None:
        thread.must_end = True
        if thread.loop is not None and thread.wake is not None:
            with suppress(RuntimeError):  # the loop is closed, so the thread is ending
                thread.loop.call_soon_threadsafe(thread.wake.set)

    # in the thread

    def _main(self, thread: _Thread) -> None:
        """Extend leases until told to end, or until something ends the thread."""
        how = "its thread ended"
        try:
            with asyncio.Runner() as runner:
                runner.get_loop()  # which may fail
                runner.run(self._run(thread))
        except (SystemExit, KeyboardInterrupt) as error:  # a subscriber's: for the whole program
            self._in_main_loop(defer_exit, error)
        except BaseException as error:  # noqa: BLE001 - the watchdog sees it
            how = named(error)
        finally:
            thread.ended = how
            self._in_main_loop(thread.begun.set)
            self._in_main_loop(thread.over.set)

    def _in_main_loop(self, function: Callable[..., object], *arguments: object) -> None:
        if self._main_loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._main_loop.call_soon_threadsafe(function, *arguments)

    async def _run(self, thread: _Thread) -> None:
        thread.loop, thread.wake = asyncio.get_running_loop(), asyncio.Event()
        reply_within = min(REPLY_WITHIN, self._every)  # a lost packet must not cost the lease
        async with self._store.twin(patience=1.0, reply_within=reply_within) as store:
            while not thread.must_end and not self._is_abandoned():
                thread.turns += 1
                if thread.turns == 1:
                    self._in_main_loop(thread.begun.set)
                idle = not self._slots.held
                if idle:
                    self._responded_at = time.monotonic()  # nothing runs, so nothing is blocked
                else:
                    try:
                        self._check_main_loop()
                        await self._extend_all(thread, store)
                        await self._hand_back(thread, store)
                    except Exception as error:  # noqa: BLE001 - the next turn comes soon
                        self._failures.log(error)
                pause = min(self._every / 2, CHECK_IDLE_EVERY if idle else CHECK_EVERY)
                began = time.monotonic()
                try:
                    async with asyncio.timeout(pause):
                        await thread.wake.wait()
                except TimeoutError:
                    pass
                if (
                    time.monotonic() - began > pause + BLOCKED_AFTER / 2
                ):  # the whole process was frozen
                    self._responded_at = time.monotonic()
            for task in thread.busy.values():
                task.cancel()

    def _is_abandoned(self) -> bool:
        """Return whether the event loop was closed without stopping the worker: leases run out."""
        return self._main_loop is not None and self._main_loop.is_closed()

    async def _extend_all(self, thread: _Thread, store: Store) -> None:
        due, now = self._due()
        await self._by_site(thread, due, lambda topic: self._extend(store, due[topic], now))

    def _due(self) -> tuple[dict[TopicSlots, list[HeldMessage]], float]:
        """Return the messages whose leases were not extended for a third, and the time."""
        now = time.monotonic()
        due: dict[TopicSlots, list[HeldMessage]] = defaultdict(list)
        for held in self._slots.held.copy():
            if now - held.extended_at >= self._every and not self._is_given_up(held, now):
                due[held.topic].append(held)
        return due, now

    async def _extend(self, store: Store, all_held: list[HeldMessage], now: float) -> None:
        """Extend leases of one topic; report those that are lost."""
        for start in range(0, len(all_held), MAX_BATCH):
            batch = all_held[start : start + MAX_BATCH]
            claims = [held.leased for held in batch]
            lost = await store.extend_lease(
                batch[0].topic.name, self._worker, claims, lease=round(self._lease * 1000)
            )
            tokens = {claim.token for claim in lost}
            for held in batch:
                if held.leased.token not in tokens:
                    held.extended_at = now
                else:
                    self._in_main_loop(self._lifecycle.lease_lost, held)

    def _is_given_up(self, held: HeldMessage, now: float) -> bool:
        """Return whether to let a lease run out.

        A timeout cannot stop a handler that blocks the loop, so its lease ends instead.
        """
        if held.is_lost:
            return True
        timeout = held.topic.handler.timeout
        if timeout is None or held.started_at is None or held.settling:
            return False
        blocked = now - self._responded_at > BLOCKED_AFTER
        return blocked and now - held.started_at > timeout + PAST_TIMEOUT

    async def _hand_back(self, thread: _Thread, store: Store) -> None:
        """Hand back messages that have not started, if the loop is blocked longer than a lease."""
        if time.monotonic() - self._responded_at < max(self._lease, BLOCKED_AFTER):
            return
        waiting: dict[TopicSlots, list[HeldMessage]] = defaultdict(list)
        there = self._slots.held.copy()
        self._handing_back &= there.keys()
        for held in there:
            if held.started_at is None and (not held.settling or held in self._handing_back):
                waiting[held.topic].append(held)

        async def release(topic: TopicSlots) -> None:
            for start in range(0, len(waiting[topic]), MAX_BATCH):
                batch = waiting[topic][start : start + MAX_BATCH]
                for held in batch:
                    held.settling = True
                batch = [held for held in batch if held.started_at is None]  # not even meanwhile
                self._handing_back.update(batch)
                back = [handed_back(held) for held in batch]
                answers = await store.release_message(topic.name, self._worker, back)
                for held, answer in zip(batch, answers, strict=True):
                    if answer is Settled.REPLACED:
                        await store.release_replaced(topic.name, self._worker, held.leased)
                self._handing_back.difference_update(batch)
                for held in batch:
                    self._in_main_loop(self._lifecycle.forget_waiting, held)

        await self._by_site(thread, waiting, release)

    async def _by_site(
        self,
        thread: _Thread,
        topics: Iterable[TopicSlots],
        duty: Callable[[TopicSlots], Awaitable[object]],
    ) -> None:
        """Do a duty for topics. A server that does not answer holds up only its own topics."""
        sites: dict[int, list[TopicSlots]] = defaultdict(list)
        for topic in topics:
            sites[self._store.site_of(topic.name)].append(topic)
        begun = []
        for site in sites.keys() - thread.busy.keys():
            task = thread.busy[site] = spawn("keeper", self._do, sites[site], duty)
            task.add_done_callback(partial(thread.forget, site))
            begun.append(task)
        if begun:
            await asyncio.wait(begun, timeout=self._every / 4)

    async def _do(
        self, topics: list[TopicSlots], duty: Callable[[TopicSlots], Awaitable[object]]
    ) -> None:
        try:
            await each(topics, duty, self._failures)
        except Exception as error:  # noqa: BLE001 - the next turn comes soon
            self._failures.log(error)

    def _check_main_loop(self) -> None:
        """Report the event loop if it is blocked."""
        if self._main_loop is None:
            return
        silent = time.monotonic() - self._responded_at
        if silent > BLOCKED_AFTER and not self._reported:
            self._reported = True
            self._report(silent)
        self._main_loop.call_soon_threadsafe(self._responded)

    def _responded(self) -> None:
        self._responded_at = time.monotonic()
        self._reported = False

    def _report(self, silent: float) -> None:
        task = None if self._main_loop is None else asyncio.current_task(self._main_loop)
        handler = self._consumer.handler_in(task)
        frame = sys._current_frames().get(self._main_thread)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
        name = "code outside of handlers" if handler is None else handler.name
        self._bus.emit(LoopBlocked(handler=name, seconds=silent, stack=end_of(stack)))
