"""The dispatcher: pending -> local slots, in batches, never more than there is room for."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

from mx_rmq.core.errors import MxRmqError, OutcomeUnknown
from mx_rmq.runtime.loop import Backoff, FailureLog, how_it_ended, spawn
from mx_rmq.safe_log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mx_rmq.runtime.consumer import Consumer
    from mx_rmq.runtime.slots import Slots, TopicSlots
    from mx_rmq.store import Store
    from mx_rmq.store.results import Dispatched

logger = get_logger(__name__)

TRIES: Final = 8
"""Topics to check in one go. If a worker serves hundreds of topics and this many have no room, the
others probably have none either; they come first the next time."""

OUTSTANDING: Final = 2
"""Concurrent dispatch calls per topic: while we read one reply, the server runs the next call."""

BATCH: Final = 200
"""Messages per call. Enough to share its cost, few enough that the server, the handlers and the
lifecycle can work on different batches at the same time."""


class Dispatcher:
    """Keeps the slots of one worker filled.

    `take` is for a ring, `wake` for a survey or the scheduler, `fill` and `freed` for new room.
    """

    def __init__(self, store: Store, slots: Slots, *, worker: str, lease: int) -> None:
        self._store = store
        self._slots = slots
        self._worker = worker
        self._lease = lease
        self.consumer: Consumer | None = None  # set by the Consumer when it is built
        self._calls: Counter[TopicSlots] = Counter()
        self._tasks: set[asyncio.Task[Dispatched]] = set()
        self._backoffs: defaultdict[TopicSlots, Backoff] = defaultdict(Backoff)
        self._failures = FailureLog("dispatcher")
        self._paused: dict[TopicSlots, asyncio.TimerHandle] = {}
        self._unanswered_at = float("-inf")
        """When a call last ended without an answer. It may have leased messages to us."""
        self._stopped = False
        self.leaving = False  # the worker is stopping: leave pending messages to other workers
        self.on_hold = False  # leases cannot be extended: take nothing
        self.ringing: set[asyncio.Task[None]] = set()  # rings for other workers
        self.listeners = 0  # how many doorbell listeners there are
        self.skipped: dict[TopicSlots, Callable[[], None]] = {}
        """Topics that the current blocking waits skip, and how to restart those waits."""

    async def take(self, name: str) -> bool:
        """Ask for messages of a topic and wait for the answer; False: we cannot take any now."""
        topic = self._slots.topics[name]
        room = self._slots.room(topic)
        if self._stopped or self.on_hold or topic in self._paused or not room:
            return False
        await asyncio.wait([self._ask(topic, room)])
        return True

    def wake(self, name: str) -> None:
        """Ask for messages of a topic as soon as there is room: some may be pending."""
        topic = self._slots.topics[name]
        if topic not in self._paused:
            self._slots.backlog[topic] = None
            self.fill(topic)

    def fill(self, first: TopicSlots) -> None:
        """Ask for more messages wherever there is room: of this topic first, then of the others."""
        backlog = self._slots.backlog
        if self._stopped or self.on_hold or not backlog:
            return
        if first in backlog:
            self._fill_topic(first)
        misses = 0
        for topic in list(backlog):
            if misses == TRIES or self._slots.is_full():
                return
            if not self._fill_topic(topic):
                misses += 1
                backlog[topic] = backlog.pop(topic)  # next time try others first

    def _fill_topic(self, topic: TopicSlots) -> bool:
        """Ask for messages if the room is worth a call; return whether we did."""
        asked = False
        while self._calls[topic] < OUTSTANDING and (room := self._slots.worth_asking(topic)):
            _ = self._ask(topic, room)
            asked = True
        if asked:
            self._slots.backlog[topic] = self._slots.backlog.pop(topic)  # the others come first now
        return asked

    def _ask(self, topic: TopicSlots, room: int) -> asyncio.Task[Dispatched]:
        """Start a dispatch call; `_answered` gets the result."""
        count = min(room, BATCH)
        task = spawn(
            "dispatch",
            self._store.dispatch_message,
            topic.name,
            self._worker,
            count=count,
            lease=self._lease,
            alone=topic.ordered,
        )
        self._slots.reserve(topic, count)
        self._calls[topic] += 1
        self._tasks.add(task)
        task.add_done_callback(partial(self._answered, topic, count, time.monotonic()))
        return task

    def _answered(
        self, topic: TopicSlots, count: int, asked_at: float, task: asyncio.Task[Dispatched]
    ) -> None:
        """Put the messages of an answer into the slots, start what can run, and ask for more."""
        self._tasks.discard(task)
        self._calls[topic] -= 1
        if task.cancelled() or task.exception() is not None:
            self._slots.receive(topic, count, [], asked_at)
            self._failed(topic, task)
            return
        answer = task.result()
        messages = answer.messages
        self._slots.receive(topic, count, messages, asked_at)
        self._backoffs.pop(topic, None)
        topic.clock.update(answer.now, asked_at)
        if messages and self.consumer is not None:
            self.consumer.start_ready()
        # An ordered topic may have more anyway: other workers get none while we hold these.
        if len(messages) == count or (messages and topic.ordered):
            self._slots.backlog[topic] = None
        else:  # the next ring wakes us
            self._slots.backlog.pop(topic, None)
            self.listen_again(topic)
        self.fill(topic)  # or other topics: room reserved for messages that did not come is free

    def _failed(self, topic: TopicSlots, task: asyncio.Task[Dispatched]) -> None:
        """Pause a topic after a call that failed or was cancelled."""
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._failures.log(error)
        elif not self._stopped:
            how = how_it_ended(task)
            logger.error("a dispatch call for %s did not finish: %s", topic.name, how)
        if not isinstance(error, Exception) or isinstance(error, OutcomeUnknown):
            self._unanswered_at = time.monotonic()
        self.pause(topic, self._backoffs[topic].next())

    def pause(self, topic: TopicSlots, seconds: float) -> None:
        """Take nothing from a topic for a while."""
        self._slots.backlog.pop(topic, None)
        if topic not in self._paused and not self._stopped:
            loop = asyncio.get_running_loop()
            self._paused[topic] = loop.call_later(seconds, self._resume, topic)

    def _resume(self, topic: TopicSlots) -> None:
        del self._paused[topic]
        self.wake(topic.name)

    def freed(self, topic: TopicSlots) -> None:
        """Refill: a message of this topic was settled, so there is room for more, of any topic."""
        self.fill(topic)
        if self.leaving and topic.ordered and not topic.committed:
            ringing = spawn("ring", self._ring, topic.name)
            self.ringing.add(ringing)
            ringing.add_done_callback(self.ringing.discard)
        self.listen_again(topic)

    async def _ring(self, name: str) -> None:
        """Ring for other workers: they were refused while we held messages of an ordered topic."""
        with suppress(MxRmqError):  # the others survey their topics every ten seconds anyway
            await self._store.ring_doorbell(name)

    # which doorbells to listen to

    def to_skip(self, topics: Iterable[TopicSlots]) -> list[TopicSlots]:
        """Return the topics not to listen to: no room, paused, or known to have pending messages.

        `room` is costly, so it is not called where there must be room: for topics without messages
        here, in a worker that is not full.
        """
        slots, paused = self._slots, self._paused
        full, backlog = slots.is_full(), slots.backlog
        return [
            topic
            for topic in topics
            if self.on_hold
            or topic in backlog
            or topic in paused
            or ((topic.committed or full) and not slots.room(topic))
        ]

    def listen_again(self, topic: TopicSlots) -> None:
        """Restart blocking waits that skip this topic, or a few others, if those have room now."""
        if not self.skipped:
            return
        chosen = dict.fromkeys(islice(self.skipped, TRIES))
        if topic in self.skipped:
            chosen[topic] = None
        still_skipped = self.to_skip(chosen)
        for one in chosen:
            restart = self.skipped[one] = self.skipped.pop(one)  # next time try others first
            if one not in still_skipped:
                restart()

    async def stop(self, seconds: float) -> None:
        """Ask for nothing more; wait up to `seconds` for answers under way."""
        self._stopped = True
        for pause in self._paused.values():
            pause.cancel()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=seconds)
            for task in late:  # if it leased messages, they come back when their leases run out
                task.cancel()

    def may_have_unknown_leases(self) -> bool:
        """Return whether the server may have leased messages to us that we never received."""
        return time.monotonic() - self._unanswered_at < self._lease / 1000
