"""The keeper: keeps the leases of a worker alive, from a thread with a loop of its own.

So a handler that blocks the event loop does not lose its message: the lease is extended while
the loop stands still, and the block is reported with the handler's name and stack. What waits
behind it is handed back after a lease, so that another worker can run it. (Code that holds Python's
global lock for longer than the lease stops this thread, too.)
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from mx_rmq.core.events import LoopBlocked
from mx_rmq.core.text import end_of
from mx_rmq.runtime.lifecycle import handed_back
from mx_rmq.runtime.loop import Complaints, each
from mx_rmq.runtime.slots import Stopped
from mx_rmq.store.call import REPLY_WITHIN
from mx_rmq.store.scripted import MAX_BATCH

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from mx_rmq.runtime.bus import Events
    from mx_rmq.runtime.consumer import Consumer
    from mx_rmq.runtime.slots import Held, Slots, TopicSlots
    from mx_rmq.store import Store

LOOK: Final = 0.25
LOOK_IDLE: Final = 0.5
"""Seconds between two looks at what is held. Nobody wakes the thread for a new message: it would
want Python's global lock at the very moment at which the handler shall begin."""

PAST_TIMEOUT: Final = 5.0
"""Seconds past its timeout for which a handler that blocks the loop keeps its lease."""

BLOCKED_AFTER: Final = 1.0
"""Seconds of standstill after which the event loop counts as blocked."""


class Keeper:
    """Extends every lease of one worker before it runs out."""

    def __init__(
        self,
        store: Store,
        slots: Slots,
        consumer: Consumer,
        bus: Events,
        *,
        worker: str,
        lease: float,
        on_lost: Callable[[Held], None],
        on_handed_back: Callable[[Held], None],
    ) -> None:
        self._store = store
        self._slots = slots
        self._consumer = consumer
        self._bus = bus
        self._worker = worker
        self._lease = lease
        self._every = min(lease / 3, 10.0)
        self._on_lost = on_lost
        self._on_handed_back = on_handed_back
        self._thread: threading.Thread | None = None
        self._main_loop: asyncio.AbstractEventLoop | None = None
        self._main_thread = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None
        self._ended = False
        self._heard_at = 0.0
        self._reported = False
        self._complaints = Complaints("keeper of the leases")
        self._busy: dict[int, asyncio.Task[None]] = {}
        """The sites to which a call is under way."""
        self._handing_back: set[Held] = set()
        """What is to be handed back, until that is done."""

    def start(self) -> None:
        """Start the thread. Call it in the event loop whose leases it keeps."""
        self._main_loop = asyncio.get_running_loop()
        self._main_thread = threading.get_ident()
        self._heard_at = time.monotonic()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run()), name="mx-rmq-keeper", daemon=True
        )
        self._thread.start()

    async def stop(self) -> None:
        """End the thread. Nothing happens if it does not run."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._ended = True
            if self._loop is not None and self._wake is not None:
                with suppress(RuntimeError):  # the loop is closed: it has seen by itself
                    self._loop.call_soon_threadsafe(self._wake.set)
            # Not joined in the default executor: handlers may have filled it.
            while thread.is_alive():  # noqa: ASYNC110 - a thread sets no asyncio event
                await asyncio.sleep(0.005)

    # in the thread

    async def _run(self) -> None:
        self._loop, self._wake = asyncio.get_running_loop(), asyncio.Event()
        reply_within = min(REPLY_WITHIN, self._every)  # a lost packet shall not cost the lease
        async with self._store.twin(patience=1.0, reply_within=reply_within) as store:
            while not self._ended and not self._is_abandoned():
                idle = not self._slots.held
                if idle:
                    self._heard_at = time.monotonic()  # nothing runs, so nothing stands still
                else:
                    try:
                        self._watch()
                        await self.extend(store)
                        await self.hand_back(store)
                    except Exception as error:  # noqa: BLE001 - the next turn comes soon
                        self._complaints.failed(error)
                pause = min(self._every / 2, LOOK_IDLE if idle else LOOK)
                began = time.monotonic()
                try:
                    async with asyncio.timeout(pause):
                        await self._wake.wait()
                except TimeoutError:
                    pass
                if time.monotonic() - began > pause + BLOCKED_AFTER / 2:  # all of us stood still
                    self._heard_at = time.monotonic()
            for task in self._busy.values():
                task.cancel()

    def _is_abandoned(self) -> bool:
        """Say whether the event loop ended and nobody stopped the worker: then its leases end."""
        return self._main_loop is not None and self._main_loop.is_closed()

    async def extend(self, store: Store) -> None:
        """Extend what was not extended for a third of the lease; tell what is lost."""
        now = time.monotonic()
        due: dict[TopicSlots, list[Held]] = defaultdict(list)
        for held in self._slots.held.copy():
            if now - held.extended_at >= self._every and not self._is_given_up(held, now):
                due[held.topic].append(held)

        async def extend(topic: TopicSlots) -> None:
            for start in range(0, len(due[topic]), MAX_BATCH):
                batch = due[topic][start : start + MAX_BATCH]
                claims = [held.claim for held in batch]
                lease = round(self._lease * 1000)
                lost = await store.extend_lease(topic.name, self._worker, claims, lease=lease)
                tokens = {claim.token for claim in lost}
                for held in batch:
                    if held.claim.token not in tokens:
                        held.extended_at = now
                    elif self._main_loop is not None:
                        self._main_loop.call_soon_threadsafe(self._on_lost, held)

        await self._by_site(due, extend)

    def _is_given_up(self, held: Held, now: float) -> bool:
        """Say whether a lease shall not be kept any longer.

        Its own timeout cannot stop a handler that blocks the loop; so its lease ends instead.
        """
        if held.stopped is Stopped.LEASE_LOST:
            return True
        timeout = held.topic.handler.timeout
        if timeout is None or held.started_at is None or held.settling:
            return False
        blocked = now - self._heard_at > BLOCKED_AFTER
        return blocked and now - held.started_at > timeout + PAST_TIMEOUT

    async def hand_back(self, store: Store) -> None:
        """Hand back what has not started, if the loop stands still for longer than a lease."""
        if time.monotonic() - self._heard_at < max(self._lease, BLOCKED_AFTER):
            return
        waiting: dict[TopicSlots, list[Held]] = defaultdict(list)
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
                    if self._main_loop is not None:
                        self._main_loop.call_soon_threadsafe(self._on_handed_back, held)

        await self._by_site(waiting, release)

    async def _by_site(
        self, topics: Iterable[TopicSlots], duty: Callable[[TopicSlots], Awaitable[object]]
    ) -> None:
        """Do a duty for topics. A server that does not answer holds up its own ones alone."""
        sites: dict[int, list[TopicSlots]] = defaultdict(list)
        for topic in topics:
            sites[self._store.site_of(topic.name)].append(topic)
        begun = []
        for site in sites.keys() - self._busy.keys():
            task = asyncio.create_task(self._do(site, sites[site], duty), name="mx-rmq keeper")
            self._busy[site] = task
            begun.append(task)
        if begun:
            await asyncio.wait(begun, timeout=self._every / 4)

    async def _do(
        self,
        site: int,
        topics: list[TopicSlots],
        duty: Callable[[TopicSlots], Awaitable[object]],
    ) -> None:
        try:
            await each(topics, duty, self._complaints)
        except Exception as error:  # noqa: BLE001 - the next turn comes soon
            self._complaints.failed(error)
        finally:
            del self._busy[site]

    def _watch(self) -> None:
        """See whether the event loop still runs."""
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
        handler = self._consumer.runs_in(task)
        frame = sys._current_frames().get(self._main_thread)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
        name = "no handler" if handler is None else handler.name
        self._bus.emit(LoopBlocked(handler=name, seconds=silent, stack=end_of(stack)))
