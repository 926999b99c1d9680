"""The dispatcher: pending -> local slots, in batches, never more than there is room for.

If a limit holds back the messages of a topic, no worker asks for them until they may start: the
server chooses one that asks again at that time. When a message is settled, the doorbell rings.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from mx_rmq.core.errors import MxRmqError, OutcomeUnknown
from mx_rmq.runtime.loop import Backoff, FailureLog, how_it_ended, spawn
from mx_rmq.safe_log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

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

LARGE_BATCH: Final = 500
"""Messages per call for a batch handler that takes so many at a time."""


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
        self._timers: dict[TopicSlots, asyncio.TimerHandle] = {}
        """When to ask again for messages that a limit holds back."""
        self._then: dict[TopicSlots, float] = {}
        """When to ask again after that: the server relies on us at the last time that it named."""
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
        limited = [topic for topic in backlog if topic.limited] if self._slots.limited else []
        self._fill_each(limited)  # which take free slots only; the others leave some to them
        if first in backlog and not first.limited:
            self._fill_topic(first)
        if not self._slots.is_full():
            self._fill_each([topic for topic in backlog if not topic.limited])

    def _fill_each(self, topics: list[TopicSlots]) -> None:
        backlog, misses = self._slots.backlog, 0
        for topic in topics:
            if misses == TRIES or (self._slots.is_full() and not topic.limited):
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
        count = min(room, BATCH if topic.batch <= BATCH else min(topic.batch, LARGE_BATCH))
        dispatch: Callable[..., Coroutine[Any, Any, Dispatched]] = self._store.dispatch_message
        if topic.in_turn:
            dispatch = partial(self._store.dispatch_in_turn, limits=topic.limits)
        task = spawn(
            "dispatch",
            dispatch,
            topic.name,
            self._worker,
            count=count,
            lease=self._lease,
            alone=topic.ordered,
        )
        self._slots.reserve(topic, count)
        self._calls[topic] += 1
        self._tasks.add(task)
        task.add_done_callback(
            partial(self._answered, topic, count, time.monotonic(), topic.in_turn)
        )
        return task

    def _answered(
        self,
        topic: TopicSlots,
        count: int,
        asked_at: float,
        in_turn: bool,
        task: asyncio.Task[Dispatched],
    ) -> None:
        """Put the messages of an answer into the slots, start what can run, and ask for more."""
        self._tasks.discard(task)
        self._calls[topic] -= 1
        if task.cancelled() or task.exception() is not None:
            self._slots.receive(topic, count, [], asked_at)
            self._failed(topic, task)
            self._start_ready()
            return
        answer = task.result()
        messages = answer.messages
        self._slots.receive(topic, count, messages, asked_at)
        self._backoffs.pop(topic, None)
        topic.clock.update(answer.now, asked_at)
        self._start_ready()
        if answer.in_turn != in_turn:
            topic.in_turn = answer.in_turn or topic.limited
        if answer.wait is not None:
            self._ask_after(topic, answer.wait / 1000)
        # An ordered topic may have more anyway: other workers get none while we hold these.
        more = len(messages) == count or (messages and topic.ordered)
        if more or (answer.in_turn and not in_turn):
            self._slots.backlog[topic] = None
        else:  # the next ring wakes us
            self._slots.backlog.pop(topic, None)
            self.listen_again(topic)
        self.fill(topic)  # or other topics: room reserved for messages that did not come is free

    def _start_ready(self) -> None:
        """Start what can run: what came, and what waits for slots that are no longer promised."""
        if self._slots.waiting and self.consumer is not None:
            self.consumer.start_ready()

    def _ask_after(self, topic: TopicSlots, seconds: float) -> None:
        """Ask for messages of a topic after a while: then a limit allows the next one."""
        loop = asyncio.get_running_loop()
        at = loop.time() + seconds
        timer = self._timers.get(topic)
        if self._stopped:
            self._spawn_ring(topic)  # another worker comes back instead
            return
        if timer is not None and timer.when() <= at:
            self._then[topic] = at
            return
        if timer is not None:
            timer.cancel()
        self._timers[topic] = loop.call_at(at, self._ask_now, topic)

    def _ask_now(self, topic: TopicSlots) -> None:
        """Ask for messages that a limit held back; without room, ring for another worker.

        If a call is under way, its answer brings them, or says when to ask again.
        """
        del self._timers[topic]
        then = self._then.pop(topic, None)
        if then is not None:
            loop = asyncio.get_running_loop()
            self._timers[topic] = loop.call_at(then, self._ask_now, topic)
        has_room = self._slots.room(topic) or self._calls[topic]
        if self.on_hold or topic in self._paused or not has_room:
            self._spawn_ring(topic)
        else:
            self._slots.backlog[topic] = None
            self._fill_topic(topic)  # `fill` may not get to it, if many others have no room
        self.wake(topic.name)

    def waits(self, topic: TopicSlots) -> float | None:
        """Return the seconds until a limit allows more messages of a topic; None: unknown."""
        timer = self._timers.get(topic)
        return None if timer is None else timer.when() - asyncio.get_running_loop().time()

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
            self._spawn_ring(topic)
        self.listen_again(topic)

    def _spawn_ring(self, topic: TopicSlots) -> None:
        ringing = spawn("ring", self._ring, topic.name)
        self.ringing.add(ringing)
        ringing.add_done_callback(self.ringing.discard)

    async def _ring(self, name: str) -> None:
        """Ring for other workers: we refused them, or have no room."""
        with suppress(MxRmqError):  # the others survey their topics every ten seconds anyway
            await self._store.ring_doorbell(name, self._worker)

    # which doorbells to listen to

    def to_skip(self, topics: Iterable[TopicSlots]) -> list[TopicSlots]:
        """Return the topics not to listen to: no room, paused, or known to have pending messages.

        Without room, we still listen to a topic with limits that has no messages here: it gets no
        slot unless the others know that it wants one.

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
            or ((topic.committed or (full and not topic.limited)) and not slots.room(topic))
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
        """Ask for nothing more; wait up to `seconds` for answers under way.

        Where we were to come back, we ring for another worker now: handlers may still run for long.
        """
        self._stopped = True
        for topic in self._timers:
            self._spawn_ring(topic)
        for timer in (*self._paused.values(), *self._timers.values()):
            timer.cancel()
        self._timers.clear()
        self._then.clear()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=seconds)
            for task in late:  # if it leased messages, they come back when their leases run out
                task.cancel()

    def may_have_unknown_leases(self) -> bool:
        """Return whether the server may have leased messages to us that we never received."""
        return time.monotonic() - self._unanswered_at < self._lease / 1000
