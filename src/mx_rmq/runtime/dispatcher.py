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
from mx_rmq.runtime.loop import Backoff, Complaints, how_it_ended, spawn
from mx_rmq.safe_log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mx_rmq.runtime.consumer import Consumer
    from mx_rmq.runtime.slots import Slots, TopicSlots
    from mx_rmq.store import Store
    from mx_rmq.store.results import Leased

logger = get_logger(__name__)

LOOKS: Final = 8
"""Topics without room to look at before we give up until next time: of hundreds of topics, most
have no room for the same reason."""

OUTSTANDING: Final = 2
"""Dispatch calls per topic at the same time: while one is answered, the next is on its way."""

BATCH: Final = 200
"""Messages in one call. Enough to share its cost, few enough that the server, the handlers and the
settling work at the same time, each on a batch of its own."""


class _Ask:
    """A call for messages, and the room that is reserved for them."""

    __slots__ = ("answered", "count", "topic")

    def __init__(self, topic: TopicSlots, count: int) -> None:
        self.topic = topic
        self.count = count
        self.answered = False


class Dispatcher:
    """Keeps the slots of one worker filled."""

    def __init__(
        self,
        store: Store,
        slots: Slots,
        *,
        worker: str,
        lease: int,
    ) -> None:
        self._store = store
        self._slots = slots
        self._worker = worker
        self._lease = lease
        self.consumer: Consumer | None = None
        """Runs what is taken. Set by the consumer."""
        self._calls: Counter[TopicSlots] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._backoffs: defaultdict[TopicSlots, Backoff] = defaultdict(Backoff)
        self._complaints = Complaints("dispatcher")
        self._pausing: dict[TopicSlots, asyncio.TimerHandle] = {}
        self._unanswered_at = float("-inf")
        """When a call ended without an answer: it may have leased messages to us."""
        self._stopped = False
        self.leaving = False
        """True once the worker is stopping: what becomes free is for other workers."""
        self.ringing: set[asyncio.Task[None]] = set()
        """Rings for other workers that are under way."""
        self.on_hold = False
        """True while leases cannot be extended: take nothing."""
        self.listeners = 0
        """How many doorbell listeners there are."""
        self.unheard: dict[TopicSlots, Callable[[], None]] = {}
        """The topics that the current blocking waits leave out, and how to restart their waits."""

    def listens_to(self, topic: TopicSlots) -> bool:
        """Return whether to listen to a topic: it has room, and nothing known to be pending."""
        slots = self._slots
        known = self.on_hold or topic in slots.ready or topic in self._pausing
        return not known and slots.room(topic) > 0

    def leaves_out(self, topics: Iterable[TopicSlots]) -> list[TopicSlots]:
        """Return the topics that we need not listen to now.

        There is room for a topic of which we hold nothing, unless the worker is full.
        """
        full, ready, pausing = self._slots.is_full(), self._slots.ready, self._pausing
        return [
            topic
            for topic in topics
            if (self.on_hold or topic.held or full or topic in ready or topic in pausing)
            and not self.listens_to(topic)
        ]

    def listen_again(self, topic: TopicSlots) -> None:
        """Restart the blocking waits that should now cover this topic, or others with room."""
        unheard = self.unheard
        if topic in unheard and self.listens_to(topic):
            unheard[topic]()
        for other in tuple(islice(unheard, LOOKS)):
            if self.listens_to(other):
                unheard[other]()
            unheard[other] = unheard.pop(other)  # next time look at others

    def ready(self, name: str) -> None:
        """Something may be pending in a topic."""
        topic = self._slots.topics[name]
        if topic not in self._pausing:
            self._slots.ready[topic] = None
            self.fill(topic)

    def fill(self, first: TopicSlots) -> None:
        """Ask for more wherever there is room: this topic first, then the others in turn.

        No call is made for fewer messages than are worth one.
        """
        ready = self._slots.ready
        if self._stopped or self.on_hold or not ready:
            return
        if first in ready:
            self._ask(first)
        misses = 0
        for topic in list(ready):
            if misses == LOOKS or self._slots.is_full():
                return
            if not self._ask(topic):
                misses += 1
                ready[topic] = ready.pop(topic)  # next time look at others

    def freed(self, topic: TopicSlots) -> None:
        """Messages of a topic are settled: ask for more, of this topic or of others."""
        self.fill(topic)
        if self.leaving and topic.ordered and not topic.held:
            ringing = spawn("ring", self._ring, topic.name)
            self.ringing.add(ringing)
            ringing.add_done_callback(self.ringing.discard)
        self.listen_again(topic)  # room for this one is room for others

    async def _ring(self, name: str) -> None:
        """Ring for other workers: they were refused while we held some of an ordered topic."""
        with suppress(MxRmqError):  # the others survey their topics every ten seconds anyway
            await self._store.ring_doorbell(name)

    async def take(self, name: str) -> bool:
        """Ask for messages of a topic and wait for the answer; False: there is no room."""
        topic = self._slots.topics[name]
        room = self._slots.room(topic)
        if self._stopped or self.on_hold or topic in self._pausing or room <= 0:
            return False
        await asyncio.wait([self._begin(topic, room)])
        return True

    async def stop(self, seconds: float) -> None:
        """Ask for nothing more; wait up to `seconds` for answers under way."""
        self._stopped = True
        for pause in self._pausing.values():
            pause.cancel()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=seconds)
            for task in late:  # messages in a late answer come back when their leases run out
                task.cancel()

    def may_hold_unknown(self) -> bool:
        """Return whether messages may be leased to this worker that it does not know of."""
        return time.monotonic() - self._unanswered_at < self._lease / 1000

    def _ask(self, topic: TopicSlots) -> bool:
        """Ask for messages of a topic if there is room; return whether there was."""
        asked = False
        while self._calls[topic] < OUTSTANDING and (room := self._slots.worth(topic)):
            _ = self._begin(topic, room)
            asked = True
        if asked:
            self._slots.ready[topic] = self._slots.ready.pop(topic)  # now the others come first
        return asked

    def _begin(self, topic: TopicSlots, room: int) -> asyncio.Task[None]:
        ask = _Ask(topic, min(room, BATCH))
        self._slots.ask(topic, ask.count)
        self._calls[topic] += 1
        task = spawn("dispatch", self._take, ask)
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, ask))
        return task

    def _ended(self, ask: _Ask, task: asyncio.Task[None]) -> None:
        """Forget a call. If it was cancelled, or died of a bug, its room is free again."""
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is None:
            return
        self._answered(ask, [], time.monotonic())
        self._unanswered_at = time.monotonic()
        if not self._stopped:
            how = how_it_ended(task)
            logger.error("a dispatch call for %s did not finish: %s", ask.topic.name, how)
            self._pause(ask.topic)

    def _answered(self, ask: _Ask, messages: list[Leased], began: float) -> None:
        if not ask.answered:
            ask.answered = True
            self._calls[ask.topic] -= 1
            self._slots.answered(ask.topic, ask.count, messages, began)

    async def _take(self, ask: _Ask) -> None:
        topic, count = ask.topic, ask.count
        began = time.monotonic()
        try:
            taken = await self._store.dispatch_message(
                topic.name,
                self._worker,
                count=count,
                lease=self._lease,
                alone=topic.ordered,
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, the dispatcher goes on
            self._complaints.failed(error)
            self._answered(ask, [], began)
            if isinstance(error, OutcomeUnknown):
                self._unanswered_at = time.monotonic()
            self._pause(topic)
            return
        messages = taken.messages
        self._answered(ask, messages, began)
        self._backoffs.pop(topic, None)
        topic.clock.heard(taken.now, began)
        if messages and self.consumer is not None:
            self.consumer.start_ready()
        # An ordered topic may have more too: others were refused while we had these.
        if len(messages) == count or (messages and topic.ordered):
            self._slots.ready[topic] = None
        else:  # the next ring wakes us
            self._slots.ready.pop(topic, None)
            self.listen_again(topic)
        self.fill(topic)  # or others: the room reserved for what did not come is free

    def _pause(self, topic: TopicSlots) -> None:
        """Leave a topic alone for a moment."""
        self.pause(topic, self._backoffs[topic].next())

    def pause(self, topic: TopicSlots, seconds: float) -> None:
        """Leave a topic alone for some seconds."""
        self._slots.ready.pop(topic, None)
        if topic not in self._pausing and not self._stopped:
            loop = asyncio.get_running_loop()
            self._pausing[topic] = loop.call_later(seconds, self._resume, topic)

    def _resume(self, topic: TopicSlots) -> None:
        del self._pausing[topic]
        self.ready(topic.name)
