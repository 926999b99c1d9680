"""The dispatcher: pending -> local slots, in batches, never more than there is room for."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

from mx_rmq.runtime.loop import Backoff, Complaints
from mx_rmq.runtime.tasks import how_it_ended, spawn
from mx_rmq.safe_log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mx_rmq.runtime.slots import Slots, TopicSlots
    from mx_rmq.store import Store
    from mx_rmq.store.answers import Leased

logger = get_logger(__name__)

LOOKS: Final = 8
"""Topics without room that are looked at before it is left to the next occasion: of hundreds, most
have none for the same reason."""

OUTSTANDING: Final = 2
"""Dispatch calls of a topic under way at once: while one is answered, the next is on its way."""

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
        on_taken: Callable[[], None],
    ) -> None:
        self._store = store
        self._slots = slots
        self._worker = worker
        self._lease = lease
        self._on_taken = on_taken
        self._calls: Counter[TopicSlots] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._backoffs: defaultdict[TopicSlots, Backoff] = defaultdict(Backoff)
        self._complaints = Complaints("dispatcher")
        self._pausing: dict[TopicSlots, asyncio.TimerHandle] = {}
        self._stopped = False
        self.on_hold = False
        """True while leases cannot be extended: take nothing."""
        self.listeners = 0
        """How many wait for rings."""
        self.unheard: dict[TopicSlots, Callable[[], None]] = {}
        """The topics that the waits under way leave out, and how to begin another wait for each."""

    def listens_to(self, topic: TopicSlots) -> bool:
        """Say whether a topic's doorbell matters now: nothing is known to wait, room to take it."""
        slots = self._slots
        known = self.on_hold or topic in slots.ready or topic in self._pausing
        return not known and slots.room(topic) > 0

    def leaves_out(self, topics: Iterable[TopicSlots]) -> list[TopicSlots]:
        """Return those whose doorbells do not matter now.

        There is room for a topic of which nothing is here, unless the worker is full.
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
        """Ask for more wherever there is room: of this topic, where some may be new, or of others.

        The topics take turns. Each call is for as many as are worth one.
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

    async def take(self, name: str) -> bool:
        """Ask for messages of a topic and wait for the answer; False: there is no room."""
        topic = self._slots.topics[name]
        room = self._slots.room(topic)
        if self._stopped or self.on_hold or topic in self._pausing or room <= 0:
            return False
        await asyncio.wait([self._begin(topic, room)])
        return True

    async def stop(self, seconds: float) -> None:
        """Ask no more; wait so long for the answers that are still to come."""
        self._stopped = True
        for pause in self._pausing.values():
            pause.cancel()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=seconds)
            for task in late:  # what they would have brought, its lease brings back
                task.cancel()

    def _ask(self, topic: TopicSlots) -> bool:
        """Ask for messages of a topic, if there is room; say whether there was."""
        asked = False
        while self._calls[topic] < OUTSTANDING and (room := self._slots.worth(topic)):
            _ = self._begin(topic, room)
            asked = True
        if asked:
            self._slots.ready[topic] = self._slots.ready.pop(topic)  # the others come first now
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
                alone=topic.handler.ordered,
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, the dispatcher goes on
            self._complaints.failed(error)
            self._answered(ask, [], began)
            self._pause(topic)
            return
        messages = taken.messages
        self._answered(ask, messages, began)
        self._backoffs[topic].reset()
        topic.clock.heard(taken.now, began)
        if messages:
            self._on_taken()
        if len(messages) == count:  # so there is more
            self._slots.ready[topic] = None
            self.fill(topic)
        elif messages and topic.handler.ordered:  # what came behind them, others were refused
            self._slots.ready[topic] = None
        else:  # the next ring will tell
            self._slots.ready.pop(topic, None)
            self.listen_again(topic)

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
