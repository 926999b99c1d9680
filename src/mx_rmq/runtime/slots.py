"""The local slots of a worker: what it has taken, what runs, and how much more it may take.

A worker takes no more than it has slots for, and a little ahead: as many as it finishes in 20 ms,
and never more than `prefetch`. So fast handlers never wait for the server. What has waited here for
a second is handed back: another worker may run it at once.

Topics share the slots fairly: free slots go round among the topics that have something waiting,
and a busy topic leaves one slot to each topic of which nothing runs (up to a quarter of all), so
that nobody waits for the end of its handlers.
"""

from __future__ import annotations

import time
from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, Final

from mx_rmq.store.answers import Claim

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mx_rmq.core.handler import Handler
    from mx_rmq.core.message import Message
    from mx_rmq.store.answers import Leased

AHEAD: Final = 0.02
"""Seconds of work that may be taken ahead of free slots."""

MEASURE: Final = 0.05
"""Seconds over which the rate is measured."""


class Stopped(Enum):
    """Why a handler was interrupted."""

    TIMEOUT = "it took longer than its timeout"
    LEASE_LOST = "its lease is lost"
    SHUTDOWN = "the worker stops"


class Held:
    """A message that is leased to this worker."""

    __slots__ = (
        "claim",
        "extended_at",
        "interrupt",
        "message",
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
        self.claim = Claim(leased.id, leased.token)
        self.record = leased.record
        self.message: Message | None = None
        """None until it is decoded."""
        self.taken_at = at
        self.extended_at = at
        """When the lease was last known to be whole, on the monotonic clock."""
        self.started_at: float | None = None
        self.interrupt: Callable[[], object] | None = None
        """Interrupts the handler, while it runs."""
        self.stopped: Stopped | None = None
        self.settling = False
        """Its outcome is decided, and on its way to the server."""
        self.unsure = False
        """A settling call was sent and never answered."""

    @property
    def key(self) -> tuple[str, str, int]:
        """Return what no two held messages have in common."""
        return (self.topic.topic, self.claim.id, self.claim.token)

    def stop(self, why: Stopped, *, again: bool = False) -> None:
        """Interrupt the handler if it runs: once, for the first reason, or `again`."""
        if self.interrupt is not None and (again or self.stopped is None):
            self.stopped = self.stopped or why
            self.interrupt()


class TopicSlots:
    """What this worker has of one topic."""

    def __init__(self, handler: Handler, limit: int) -> None:
        self.handler = handler
        self.topic = handler.topic
        self.limit = limit
        self.waiting: deque[Held] = deque()
        self.running = 0
        self.held = 0
        """Messages that are here, or asked for: waiting, running, settling, on their way."""
        self._finished = 0
        self._since = time.monotonic()
        self._rate = 0.0

    def ahead(self, most: int) -> int:
        """Return how many messages may be taken ahead of free slots."""
        now = time.monotonic()
        passed = now - self._since
        if passed >= MEASURE:
            self._rate = (self._rate + self._finished / passed) / 2
            self._finished, self._since = 0, now
        return min(most, int(self._rate * AHEAD))

    def finished(self) -> None:
        """One more handler has ended."""
        self._finished += 1


class Slots:
    """The slots of one worker."""

    def __init__(self, handlers: Iterable[Handler], *, concurrency: int, prefetch: int) -> None:
        self.concurrency = concurrency
        self.prefetch = prefetch
        self.topics = {
            handler.topic: TopicSlots(handler, min(handler.concurrency or concurrency, concurrency))
            for handler in handlers
        }
        self.held: dict[tuple[str, str, int], Held] = {}
        """Every message that is leased to this worker, by topic, id and token.

        Read by the thread that keeps the leases: `held.copy()` is one atomic step.
        """
        self.ready: dict[TopicSlots, None] = {}
        """The topics of which more may be pending on the server, in order."""
        self.running = 0
        self._held = 0
        self._resting = len(self.topics)
        """Topics of which nothing runs."""
        self._turns: deque[TopicSlots] = deque()
        """The topics that have something waiting, the next one first."""

    def room(self, topic: TopicSlots) -> int:
        """Return how many more messages of a topic may be taken now."""
        ahead = topic.ahead(self.prefetch)
        others = len(self.ready) - (topic in self.ready)
        capacity = self.concurrency - self._left_free(topic, but=others) + ahead
        own = min(topic.limit + ahead, capacity // (1 + others)) - topic.held
        return max(min(own, capacity - self._held), 0 if topic.held else 1)

    def ask(self, topic: TopicSlots, count: int) -> None:
        """Reserve room for messages that are asked for."""
        topic.held += count
        self._held += count

    def answered(
        self, topic: TopicSlots, count: int, messages: Sequence[Leased], at: float
    ) -> None:
        """Take in what came of `count` messages asked for at a time."""
        topic.held += len(messages) - count
        self._held += len(messages) - count
        empty = not topic.waiting
        for leased in messages:
            held = Held(topic, leased, at)
            self.held[held.key] = held
            topic.waiting.append(held)
        if empty and topic.waiting:
            self._turns.append(topic)

    def next(self) -> Held | None:
        """Give the message that shall run next a slot; None: nothing may start now."""
        for _ in range(len(self._turns) if self.running < self.concurrency else 0):
            topic = self._turns.popleft()
            if not topic.waiting:
                continue
            if not self._may_start(topic):
                self._turns.append(topic)
                continue
            held = topic.waiting.popleft()
            if topic.waiting:
                self._turns.append(topic)
            self._resting -= topic.running == 0
            topic.running += 1
            self.running += 1
            return held
        return None

    def finished(self, held: Held) -> None:
        """Its handler has ended: the slot is free, and the message is on its way out."""
        held.topic.running -= 1
        self._resting += held.topic.running == 0
        held.topic.finished()
        self.running -= 1
        held.settling = True

    def gone(self, held: Held) -> None:
        """It is settled, or no longer this worker's."""
        if self.held.pop(held.key, None) is not None:
            held.topic.held -= 1
            self._held -= 1

    def take_back(self, taken_before: float = float("inf")) -> list[Held]:
        """Empty the waiting lines of what was taken before a time; it is on its way out."""
        taken: list[Held] = []
        for topic in self.topics.values():
            while topic.waiting and topic.waiting[0].taken_at < taken_before:
                taken.append(topic.waiting.popleft())
        for held in taken:
            held.settling = True
        return taken

    def forget_waiting(self, held: Held) -> None:
        """Drop a waiting message that is somebody else's now."""
        if held in held.topic.waiting:
            held.topic.waiting.remove(held)
        self.gone(held)

    @property
    def waiting(self) -> int:
        """How many messages wait for a slot."""
        return sum(len(topic.waiting) for topic in self.topics.values())

    def _may_start(self, topic: TopicSlots) -> bool:
        free = self.concurrency - self.running
        if free <= 0 or topic.running >= topic.limit:
            return False
        return topic.running == 0 or free > self._left_free(topic)

    def _left_free(self, topic: TopicSlots, but: int = 0) -> int:
        """Return how many slots a topic leaves to those of which nothing runs, `but` some."""
        resting = self._resting - (topic.running == 0) - but
        return min(max(0, resting), self.concurrency // 4)
