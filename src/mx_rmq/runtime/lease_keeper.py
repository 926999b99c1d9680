"""The lease keeper: extends the leases of a worker, from a thread with its own event loop.

A handler that blocks the worker's event loop does not lose its message: the lease is extended all
the same, and the block is reported with the handler's name and stack. Messages that wait behind it
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
from mx_rmq.core.text import end_of, text_of
from mx_rmq.net.caller import REPLY_WITHIN
from mx_rmq.runtime.lifecycle import handed_back
from mx_rmq.runtime.loop import Complaints, each, spawn
from mx_rmq.runtime.slots import Stopped
from mx_rmq.safe_log import defer_exit
from mx_rmq.store.arguments import MAX_BATCH

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from mx_rmq.runtime.consumer import Consumer
    from mx_rmq.runtime.event_bus import Events
    from mx_rmq.runtime.lifecycle import Lifecycle
    from mx_rmq.runtime.slots import HeldMessage, Slots, TopicSlots
    from mx_rmq.store import Store

LOOK: Final = 0.25
LOOK_IDLE: Final = 0.5
"""Seconds between two looks at what is held. A new message does not wake the thread: it would take
Python's global lock at the very moment at which the handler begins."""

PAST_TIMEOUT: Final = 5.0
"""Seconds past its timeout for which a handler that blocks the loop keeps its lease."""

BLOCKED_AFTER: Final = 1.0
"""Seconds of standstill after which the event loop counts as blocked."""

BEGIN_WITHIN: Final = 10.0
END_WITHIN: Final = 10.0
"""Seconds that the thread has to begin, and to end."""

STUCK_AFTER: Final = 40
"""Looks of the watchdog, four per second, at which a thread that made no turn counts as stuck."""


class _Life:
    """One life of the thread. It shares nothing with the next one, which may begin beside it."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.wake: asyncio.Event | None = None
        self.ended = False
        """Told to end."""
        self.over = ""
        """How it ended; empty: it has not."""
        self.turns = 0
        self.busy: dict[int, asyncio.Task[None]] = {}
        """The sites to which a call is under way."""
        self.changed = asyncio.Event()
        """Set in the worker's event loop: it has begun, or it is over."""

    def forget(self, site: int, _: asyncio.Task[None]) -> None:
        """A call to a site has ended."""
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
        self._life: _Life | None = None
        """None: not started, or told to end."""
        self._main_loop: asyncio.AbstractEventLoop | None = None
        self._main_thread = 0
        self._seen_turns = 0
        self._still = 0
        """Looks since the thread made its last turn."""
        self._standing_in: asyncio.Task[None] | None = None
        self._heard_at = 0.0
        self._reported = False
        self._complaints = Complaints("lease keeper")
        self._handing_back: set[HeldMessage] = set()
        """What is to be handed back, until that is done."""

    async def begin(self) -> None:
        """Start the thread and wait until it works. Call it in the loop whose leases it keeps."""
        try:
            self.start()
            life = self._life
            async with asyncio.timeout(BEGIN_WITHIN):
                while life is not None and not life.turns and not life.over:
                    life.changed.clear()
                    await life.changed.wait()
            why = "" if life is None else life.over
        except (RuntimeError, MemoryError, TimeoutError) as error:
            why = f"{type(error).__name__}: {error}"
        except BaseException:  # cancelled
            if self._life is not None:
                self._tell_to_end(self._life)
            raise
        if why:
            await self.stop()
            raise WorkerBroken(f"the {self.name} could not start: {why}")

    def start(self) -> None:
        """Start the thread; one that is stuck is left alone, and ends when it can."""
        self._main_loop = asyncio.get_running_loop()
        self._main_thread = threading.get_ident()
        self._heard_at = time.monotonic()
        if self._life is not None:
            self._tell_to_end(self._life)
        life = self._life = _Life()
        self._seen_turns = self._still = 0
        thread = threading.Thread(
            target=self._live, args=(life,), name="mx-rmq-keeper", daemon=True
        )
        try:
            thread.start()
        except (RuntimeError, MemoryError) as error:
            life.over = f"its thread could not be started: {error}"
            raise

    def down(self) -> str:
        """Return why leases are not extended; empty: they are. Called at each watchdog check."""
        life = self._life
        if life is None or life.over:
            return "" if life is None else life.over
        self._still = self._still + 1 if life.turns == self._seen_turns else 0
        self._seen_turns = life.turns
        return "its thread is stuck" if self._still >= STUCK_AFTER else ""

    def stand_in(self) -> None:
        """Extend leases from the event loop, if the thread is late with them or gone."""
        now = time.monotonic()
        late = (now - held.extended_at > 1.5 * self._every for held in self._slots.held)
        if self._standing_in is None and any(late):
            self._standing_in = spawn("keeper", self._extend_here)
            self._standing_in.add_done_callback(self._stood_in)

    async def _extend_here(self) -> None:
        due, now = self._due()
        extending = (self._extend(self._store, due[topic], now) for topic in due)
        for failed in await asyncio.gather(*extending, return_exceptions=True):
            if isinstance(failed, Exception):
                self._complaints.failed(failed)

    def _stood_in(self, task: asyncio.Task[None]) -> None:
        self._standing_in = None
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._complaints.failed(error)

    async def stop(self) -> None:
        """End the thread. Nothing happens if it does not run."""
        life, self._life = self._life, None
        if self._standing_in is not None:
            self._standing_in.cancel()
        if life is not None:
            self._tell_to_end(life)
            with suppress(TimeoutError):  # it is stuck in foreign code: it ends when it can
                async with asyncio.timeout(END_WITHIN):
                    while not life.over:
                        life.changed.clear()
                        await life.changed.wait()

    def _tell_to_end(self, life: _Life) -> None:
        life.ended = True
        if life.loop is not None and life.wake is not None:
            with suppress(RuntimeError):  # the loop is closed, so the thread is ending
                life.loop.call_soon_threadsafe(life.wake.set)

    # in the thread

    def _live(self, life: _Life) -> None:
        """Keep the leases until told to end, or until something ends the thread."""
        how = "its thread ended"
        try:
            with asyncio.Runner() as runner:
                runner.get_loop()  # which may fail
                runner.run(self._run(life))
        except (SystemExit, KeyboardInterrupt) as error:  # a subscriber's: for the whole program
            self._tell_main(defer_exit, error)
        except BaseException as error:  # noqa: BLE001 - the watchdog sees it
            how = f"{type(error).__name__}: {text_of(error)}"
        finally:
            life.over = how
            self._tell_main(life.changed.set)

    def _tell_main(self, tell: Callable[..., object], *about: object) -> None:
        if self._main_loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._main_loop.call_soon_threadsafe(tell, *about)

    async def _run(self, life: _Life) -> None:
        life.loop, life.wake = asyncio.get_running_loop(), asyncio.Event()
        reply_within = min(REPLY_WITHIN, self._every)  # a lost packet must not cost the lease
        async with self._store.twin(patience=1.0, reply_within=reply_within) as store:
            while not life.ended and not self._is_abandoned():
                life.turns += 1
                if life.turns == 1:
                    self._tell_main(life.changed.set)
                idle = not self._slots.held
                if idle:
                    self._heard_at = time.monotonic()  # nothing runs, so nothing stands still
                else:
                    try:
                        self._watch()
                        await self._extend_all(life, store)
                        await self._hand_back(life, store)
                    except Exception as error:  # noqa: BLE001 - the next turn comes soon
                        self._complaints.failed(error)
                pause = min(self._every / 2, LOOK_IDLE if idle else LOOK)
                began = time.monotonic()
                try:
                    async with asyncio.timeout(pause):
                        await life.wake.wait()
                except TimeoutError:
                    pass
                if time.monotonic() - began > pause + BLOCKED_AFTER / 2:  # all of us stood still
                    self._heard_at = time.monotonic()
            for task in life.busy.values():
                task.cancel()

    def _is_abandoned(self) -> bool:
        """Whether the event loop was closed and the worker never stopped: then the leases end."""
        return self._main_loop is not None and self._main_loop.is_closed()

    async def _extend_all(self, life: _Life, store: Store) -> None:
        """Extend what is due; report what is lost."""
        due, now = self._due()
        await self._by_site(life, due, lambda topic: self._extend(store, due[topic], now))

    def _due(self) -> tuple[dict[TopicSlots, list[HeldMessage]], float]:
        """Return what was not extended for a third of the lease, and the time."""
        now = time.monotonic()
        due: dict[TopicSlots, list[HeldMessage]] = defaultdict(list)
        for held in self._slots.held.copy():
            if now - held.extended_at >= self._every and not self._is_given_up(held, now):
                due[held.topic].append(held)
        return due, now

    async def _extend(self, store: Store, all_held: list[HeldMessage], now: float) -> None:
        """Extend leases of one topic."""
        for start in range(0, len(all_held), MAX_BATCH):
            batch = all_held[start : start + MAX_BATCH]
            claims = [held.claim for held in batch]
            lost = await store.extend_lease(
                batch[0].topic.name, self._worker, claims, lease=round(self._lease * 1000)
            )
            tokens = {claim.token for claim in lost}
            for held in batch:
                if held.claim.token not in tokens:
                    held.extended_at = now
                else:
                    self._tell_main(self._lifecycle.lease_lost, held)

    def _is_given_up(self, held: HeldMessage, now: float) -> bool:
        """Return whether to let a lease run out.

        A timeout cannot stop a handler that blocks the loop, so its lease ends instead.
        """
        if held.stopped is Stopped.LEASE_LOST:
            return True
        timeout = held.topic.handler.timeout
        if timeout is None or held.started_at is None or held.settling:
            return False
        blocked = now - self._heard_at > BLOCKED_AFTER
        return blocked and now - held.started_at > timeout + PAST_TIMEOUT

    async def _hand_back(self, life: _Life, store: Store) -> None:
        """Hand back what has not started, if the loop stands still for longer than a lease."""
        if time.monotonic() - self._heard_at < max(self._lease, BLOCKED_AFTER):
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
                await store.release_message(topic.name, self._worker, back)
                self._handing_back.difference_update(batch)
                for held in batch:
                    self._tell_main(self._lifecycle.forget_waiting, held)

        await self._by_site(life, waiting, release)

    async def _by_site(
        self,
        life: _Life,
        topics: Iterable[TopicSlots],
        duty: Callable[[TopicSlots], Awaitable[object]],
    ) -> None:
        """Do a duty for topics. A server that does not answer holds up only its own topics."""
        sites: dict[int, list[TopicSlots]] = defaultdict(list)
        for topic in topics:
            sites[self._store.site_of(topic.name)].append(topic)
        begun = []
        for site in sites.keys() - life.busy.keys():
            task = life.busy[site] = spawn("keeper", self._do, sites[site], duty)
            task.add_done_callback(partial(life.forget, site))
            begun.append(task)
        if begun:
            await asyncio.wait(begun, timeout=self._every / 4)

    async def _do(
        self, topics: list[TopicSlots], duty: Callable[[TopicSlots], Awaitable[object]]
    ) -> None:
        try:
            await each(topics, duty, self._complaints)
        except Exception as error:  # noqa: BLE001 - the next turn comes soon
            self._complaints.failed(error)

    def _watch(self) -> None:
        """Check that the event loop still runs."""
        if self._main_loop is None:
            return
        silent = time.monotonic() - self._heard_at
        if silent > BLOCKED_AFTER and not self._reported:
            self._reported = True
            self._report(silent)
        self._main_loop.call_soon_threadsafe(self._hear)

    def _hear(self) -> None:
        self._heard_at = time.monotonic()
        self._reported = False

    def _report(self, silent: float) -> None:
        task = None if self._main_loop is None else asyncio.current_task(self._main_loop)
        handler = self._consumer.handler_in(task)
        frame = sys._current_frames().get(self._main_thread)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
        name = "no handler" if handler is None else handler.name
        self._bus.emit(LoopBlocked(handler=name, seconds=silent, stack=end_of(stack)))
