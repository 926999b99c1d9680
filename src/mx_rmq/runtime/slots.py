"""The slots of a worker: what it holds, what runs, and how much more it may take.

A worker takes no more than it has slots for, and a little ahead: as many as it finishes in 20 ms,
and never more than `prefetch`. So fast handlers never wait for the server. What has waited here for
a second is handed back: another worker may run it at once.

Topics share the slots fairly: free slots go round among the topics that have something waiting,
and a busy topic leaves one slot to each topic of which nothing runs (up to a quarter of all), so
that no topic waits for the handlers of another. What is taken ahead is not shared evenly: quick
topics get a batch each, in turn, because calls for a message or two cost more than the messages.
"""

from __future__ import annotations

import time
from collections import deque
from enum import Enum
from math import inf
from typing import TYPE_CHECKING, Final

from mx_rmq.runtime.clock import ServerClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mx_rmq.core.handler import Handler
    from mx_rmq.core.message import Message
    from mx_rmq.core.outcome import Outcome
    from mx_rmq.store.results import Leased

AHEAD: Final = 0.02
"""Seconds of work that may be taken ahead of free slots."""

MEASURE: Final = 0.05
"""Seconds over which the rate is measured."""

WEIGHT: Final = 0.05
"""How much the last handler counts in what its topic's handlers take."""

INSTANT: Final = 1e-6
"""Seconds that a handler takes at the least."""

CHUNK: Final = 64
"""Messages that are worth a call, if they are handled quickly."""


class Stopped(Enum):
    """Why a handler was interrupted."""

    TIMEOUT = "it took longer than its timeout"
    LEASE_LOST = "its lease is lost"
    SHUTDOWN = "the worker stops"
    NO_THREAD = "no thread could be started for it"


class Held:
    """A message that is leased to this worker."""

    __slots__ = (
        "claim",
        "ended_at",
        "extended_at",
        "interrupt",
        "message",
        "outcome",
        "record",
        "settling",
        "started_at",
        "stopped",
        "taken_at",
        "topic",
        "unsure",
    )

    def __init__(self, topic: TopicSlots, leased: Leased, at: float) -> None:
        self.topic = topic
        self.claim = leased
        self.record = leased.record
        self.message: Message | None = None
        """None until it is decoded."""
        self.taken_at = at
        self.extended_at = at
        """When the lease was last known to be whole, on the monotonic clock."""
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.interrupt: Callable[[], object] | None = None
        """Interrupts the handler, while it runs."""
        self.stopped: Stopped | None = None
        self.outcome: Outcome | None = None
        """What has become of it, once that is decided."""
        self.settling = False
        """Its outcome is on its way to the server."""
        self.unsure = False
        """A settling call was sent and never answered."""

    def stop(self, why: Stopped, *, again: bool = False) -> None:
        """Interrupt the handler if it runs: once, for the first reason, or `again`."""
        if self.interrupt is not None and (again or self.stopped is None):
            self.stopped = self.stopped or why
            self.interrupt()


class TopicSlots:
    """What this worker has of one topic, or of one partition of it."""

    def __init__(self, handler: Handler, name: str, limit: int, clock: ServerClock) -> None:
        self.handler = handler
        self.topic = handler.topic
        self.name = name
        """What the store calls it: the topic, or topic/number."""
        self.ordered = handler.ordered
        self.limit = limit
        self.clock = clock
        """The clock of the server where it lives."""
        self.waiting: deque[Held] = deque()
        self.running = 0
        self.held = 0
        """Messages that are here, or asked for: waiting, running, settling, on their way."""
        self.in_turn = False
        """It stands in the line of the topics of which something may start."""
        self.handed_back_at = -1
        """How many handlers had ended when a message was handed back because no slot was free."""
        self.took = inf
        """Seconds that its handler takes, about; it becomes known when the first one has ended."""


class Slots:
    """The slots of one worker."""

    def __init__(self, handlers: Iterable[Handler], *, concurrency: int, prefetch: int) -> None:
        self.concurrency = concurrency
        self.prefetch = prefetch
        self.topics: dict[str, TopicSlots] = {}
        """By what the store calls them."""
        self.held: dict[Held, None] = {}
        """Every message that is leased to this worker, in the order in which they came.

        Read by the thread that keeps the leases: `held.copy()` is one atomic step.
        """
        self.ready: dict[TopicSlots, None] = {}
        """The topics of which more may be pending on the server, in order."""
        self.running = 0
        self.waiting = 0
        """Messages that are here and wait for a slot."""
        self._held = 0
        self._finished = 0
        """Handlers that have ended since the rate was last measured."""
        self._ended = 0
        """Handlers that have ended, ever."""
        self._since = time.monotonic()
        self._rate = 0.0
        self._resting = 0
        """Topics of which nothing runs."""
        self._turns: deque[TopicSlots] = deque()
        """The topics below their limit that have something waiting, the next one first."""
        for handler in handlers:
            self.add(handler, handler.topic, ServerClock())

    def add(self, handler: Handler, name: str, clock: ServerClock) -> TopicSlots:
        """Serve a topic, or a partition of one."""
        limit = min(handler.concurrency or self.concurrency, self.concurrency)
        topic = self.topics[name] = TopicSlots(handler, name, limit, clock)
        self._resting += 1
        return topic

    def ahead(self, topic: TopicSlots) -> int:
        """Return how many messages of a topic may be taken ahead of free slots."""
        return min(self._pace(), int(topic.limit * AHEAD / topic.took))

    def is_full(self) -> bool:
        """Return whether the worker is full, except for a topic of which it holds nothing."""
        return self._held >= self.concurrency + self._pace()

    def room(self, topic: TopicSlots) -> int:
        """Return how many more messages of a topic may be taken now."""
        if topic.held and topic.ordered:  # the server gives none while we have some
            return 0
        return self._room(topic, self.ahead(topic))

    def worth(self, topic: TopicSlots) -> int:
        """Return how many to ask for now; 0: it is better to wait until there is more room."""
        ahead = self.ahead(topic)
        if topic.held >= topic.limit + ahead or (topic.held and topic.ordered):
            return 0
        room = self._room(topic, ahead)
        if ahead >= CHUNK:
            return room if room >= CHUNK // 2 else 0
        return room if not topic.waiting or room * 4 >= topic.limit else 0

    def _room(self, topic: TopicSlots, ahead: int) -> int:
        room = self._share(topic, ahead, len(self.ready) - (topic in self.ready))
        if room <= 0 and self._held < self.concurrency:  # then share with those that can take more
            others = sum([other.held < other.limit for other in self.ready if other is not topic])
            room = self._share(topic, ahead, others)
        return max(room, self._least(topic, ahead))

    def _share(self, topic: TopicSlots, ahead: int, others: int) -> int:
        """Return how many messages a topic may take if it shares the room with some others."""
        capacity = self.concurrency - self._left_free(topic, but=others) + ahead
        share = max(capacity // (1 + others), min(ahead, CHUNK))
        return min(topic.limit + ahead - topic.held, share - topic.held, capacity - self._held)

    def _least(self, topic: TopicSlots, ahead: int) -> int:
        """Return how many messages a full worker may take of a topic of which it holds nothing.

        One, so that a topic need not wait for the handlers of others. A batch if it is quick: with
        many topics, one message per call would be so slow that it never became a batch. None if
        one was handed back and no slot has become free since.
        """
        if topic.held or ahead >= CHUNK or topic.handed_back_at == self._ended:
            return 0
        return max(1, min(ahead, self.concurrency + self.prefetch - self._held))

    def _pace(self) -> int:
        """Return how many messages may be taken ahead, at the present rate."""
        now = time.monotonic()
        passed = now - self._since
        if passed >= MEASURE:
            rate = self._finished / passed
            self._rate = rate + (self._rate - rate) * 0.5 ** (passed / MEASURE)
            self._finished, self._since = 0, now
        return min(self.prefetch, int(self._rate * AHEAD))

    def ask(self, topic: TopicSlots, count: int) -> None:
        """Reserve room for messages that are asked for."""
        topic.held += count
        self._held += count

    def answered(
        self, topic: TopicSlots, count: int, messages: Sequence[Leased], at: float
    ) -> None:
        """Take in the messages that came, of `count` asked for at time `at`."""
        topic.held += len(messages) - count
        self._held += len(messages) - count
        for leased in messages:
            held = Held(topic, leased, at)
            self.held[held] = None
            topic.waiting.append(held)
        self.waiting += len(messages)
        self._line_up(topic)

    def startable(self) -> int:
        """Return how many messages may start now, at the most."""
        return min(self.waiting, self.concurrency - self.running) if self._turns else 0

    def next(self) -> Held | None:
        """Give the next message a slot; None: nothing may start now."""
        turns = self._turns
        free = self.concurrency - self.running
        for _ in range(len(turns) if free > 0 else 0):
            topic = turns.popleft()
            if topic.running and self._resting and free <= self._left_free(topic):
                turns.append(topic)
                continue
            topic.in_turn = False
            if not topic.waiting:  # they were taken back
                continue
            held = topic.waiting.popleft()
            self.waiting -= 1
            if not topic.running:
                self._resting -= 1
            topic.running += 1
            self.running += 1
            self._line_up(topic)
            return held
        return None

    def finished(self, held: Held) -> None:
        """Its handler has ended: the slot is free, and the message is being settled."""
        topic = held.topic
        now = time.monotonic()
        held.ended_at = now
        took = max(now - (held.started_at or now), INSTANT)
        topic.took = took if topic.took == inf else topic.took + (took - topic.took) * WEIGHT
        self._finished += 1
        self._ended += 1
        topic.running -= 1
        self.running -= 1
        if not topic.running:
            self._resting += 1
        held.settling = True
        self._line_up(topic)

    def gone(self, held: Held) -> None:
        """It is settled, or no longer this worker's."""
        if held in self.held:
            del self.held[held]
            held.topic.held -= 1
            self._held -= 1

    def take_back(self, taken_before: float = inf) -> list[Held]:
        """Empty the waiting lines of what was taken before a time; it is on its way out."""
        taken: list[Held] = []
        for topic in self.topics.values():
            while topic.waiting and topic.waiting[0].taken_at < taken_before:
                taken.append(topic.waiting.popleft())
                topic.handed_back_at = self._ended
                topic.took = inf  # too slow to be taken ahead, until one has ended
        self.waiting -= len(taken)
        for held in taken:
            held.settling = True
        return taken

    def forget_waiting(self, held: Held) -> None:
        """Drop a waiting message that another worker has now."""
        if held in held.topic.waiting:
            held.topic.waiting.remove(held)
            self.waiting -= 1
        self.gone(held)

    def _line_up(self, topic: TopicSlots) -> None:
        """Put a topic at the end of the line, if one more of its messages may run."""
        if topic.waiting and not topic.in_turn and topic.running < topic.limit:
            topic.in_turn = True
            self._turns.append(topic)

    def _left_free(self, topic: TopicSlots, but: int = 0) -> int:
        """Return how many slots a topic leaves to those of which nothing runs, `but` some."""
        resting = self._resting - (topic.running == 0) - but
        return min(max(0, resting), self.concurrency // 4)
