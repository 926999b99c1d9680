"""The slots of a worker: which messages it holds, which run, and how many more it may take.

A worker takes as many messages as it has free slots, plus as many as it finishes in 20 ms (at most
`prefetch`), so that fast handlers do not wait for the server. A message that has waited here for a
second is handed back, because another worker may have a free slot.

Topics share the slots fairly. Topics with waiting messages take turns for the free slots. A busy
topic leaves one slot to each idle topic (up to a quarter of all slots), so that no topic waits for
the handlers of another. Messages taken ahead of free slots are not shared evenly: quick topics get
one batch each, in turn, because a call for a message or two costs more than the messages.

A batch takes one slot, however many messages it has. A topic with a batch handler may hold a full
batch per slot. A batch that lingers, because it is not full yet, takes no slot from others.

Of a topic with limits, only messages that can start at once are taken: the server counts a message
as started when it is taken. Their slots are kept free for them, from the request on.
"""

from __future__ import annotations

import time
from collections import deque
from math import inf
from typing import TYPE_CHECKING, Final

from mx_rmq.core.partition import number_of
from mx_rmq.runtime.held import HeldMessage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.core.handler import Handler
    from mx_rmq.net.server_clock import ServerClock
    from mx_rmq.store.results import Leased

AHEAD: Final = 0.02  # seconds of work that may be taken ahead of free slots
MEASURE: Final = 0.05  # seconds over which the rate is measured
WEIGHT: Final = 0.05  # weight of the latest handler in its topic's average
INSTANT: Final = 1e-6  # seconds; a handler that took less counts as this long
CHUNK: Final = 64  # messages that make a call worthwhile, if they are handled quickly


class TopicSlots:
    """The messages of one topic, or of one of its partitions, that this worker holds."""

    def __init__(self, handler: Handler, name: str, limit: int, clock: ServerClock) -> None:
        self.handler = handler
        self.topic = handler.topic
        self.subscription = handler.subscription
        self.name = name  # as the store knows it: the topic, or topic/number
        self.ordered = handler.ordered
        self.limit = limit
        self.batch = _batch_size(handler)  # messages per call, at most; 0: no batch handler
        self.per_slot = self.batch or 1
        self.linger = 0.0 if self.ordered else handler.linger or 0.0
        """Seconds to wait for a full batch. An ordered topic gives no more while we have some."""
        self.limited = handler.limit is not None or handler.per_key is not None
        self.in_turn = self.limited
        """Whether to ask by `dispatch_in_turn`: it has limits, or messages with keys."""
        self.limits = ""  # as the server gets them
        self._parts = 0  # how many partitions share the limits
        self.clock = clock  # of the server that has the topic
        self.waiting: deque[HeldMessage] = deque()
        self.running = 0
        self.asked = 0  # messages asked for that have not come yet
        self.committed = 0  # its messages here, in any stage, plus those asked for
        self.promised = 0  # slots kept free for its batches, if it has limits
        self.has_turn = False  # it is in `Slots._turns`
        self.handed_back_at = -1  # value of `Slots._ended` when a message was last handed back
        self.handler_seconds = inf  # how long its handler takes on average; inf: not known yet

    def share_limits(self, parts: int) -> None:
        """Learn how many partitions the topic has: they share its limits."""
        if parts != self._parts:
            self._parts = parts
            self.limits = self.handler.limits_of(number_of(self.name), parts)

    def starts_at(self) -> float:
        """Return when its next batch starts, at the latest: when it was full, or has lingered."""
        lingered = self.waiting[0].taken_at + self.linger
        if len(self.waiting) < self.batch:
            return lingered
        return min(lingered, self.waiting[self.batch - 1].taken_at)


def _batch_size(handler: Handler) -> int:
    """Return how many messages make a full batch: no more than its limit allows to run."""
    if handler.batch is None:
        return 0
    running = None if handler.limit is None else handler.limit.running
    return handler.batch if running is None else min(handler.batch, running)


class Slots:
    """The slots of one worker."""

    def __init__(self, *, concurrency: int, prefetch: int) -> None:
        self.concurrency = concurrency
        self.prefetch = prefetch
        self.topics: dict[str, TopicSlots] = {}  # by the names that the store knows
        self.held: dict[HeldMessage, None] = {}
        """Every message leased to this worker, oldest first.

        The lease keeper's thread reads it: `held.copy()` is one atomic step.
        """
        self.backlog: dict[TopicSlots, None] = {}
        """Topics that probably have pending messages on the server, in the order to ask."""
        self.running = 0
        self.waiting = 0  # messages here that wait for a slot
        self._committed = 0  # the messages in `held`, plus those asked for; full batches count as 1
        self._newly_ended = 0  # handlers that ended since the rate was last measured
        self._ended = 0  # handlers that ended, ever
        self._measured_at = time.monotonic()
        self._rate = 0.0  # handlers that end per second
        self._idle_topics = 0  # topics without a running handler
        self.limited: list[TopicSlots] = []  # topics with limits
        self._promised = 0  # slots kept free for messages of `limited`: asked for, or just here
        self._last_started: TopicSlots | None = None
        self._turns: deque[TopicSlots] = deque()
        """Topics with waiting messages that are below their limit, in the order of their turns."""
        self.lingering: dict[TopicSlots, float] = {}
        """Topics whose next batch is not full yet, and when it starts anyway."""
        self.gathered: dict[HeldMessage, list[HeldMessage]] = {}
        """The messages of a batch that was given a slot, by its first; its consumer takes them."""

    def add(self, handler: Handler, name: str, clock: ServerClock, parts: int = 1) -> TopicSlots:
        """Serve a topic, or one of its partitions."""
        limit = min(handler.concurrency or self.concurrency, self.concurrency)
        topic = self.topics[name] = TopicSlots(handler, name, limit, clock)
        topic.share_limits(parts)
        if topic.limited:
            self.limited.append(topic)
        self._idle_topics += 1
        return topic

    # how many to take

    def room(self, topic: TopicSlots, ahead: int | None = None) -> int:
        """Return how many more messages of a topic may be taken now.

        A topic without messages here gets one even if the worker is full, so that it need not wait
        for the handlers of others. If its handler is quick it gets a batch: with many topics, one
        message per call would keep it too slow to ever earn a batch. It gets nothing if one of its
        messages was handed back and no handler has ended since.
        """
        if topic.committed and topic.ordered:  # the server gives none while we have some
            return 0
        ahead = self.ahead(topic) if ahead is None else ahead
        if topic.limited:
            return self._room_to_start(topic, ahead)
        others = len(self.backlog) - (topic in self.backlog)
        room = self._share(topic, ahead, others)
        if room <= 0 and self._committed < self.concurrency:
            # Slots are free: share only with topics that are below their own limit.
            below = [one.committed < one.limit for one in self.backlog if one is not topic]
            others = sum(below)
            room = self._share(topic, ahead, others)
        if topic.batch and not topic.running and topic.handed_back_at != self._ended:
            return max(room, topic.batch - topic.committed, 0)  # one batch, as others one message
        if topic.committed or ahead >= CHUNK or topic.handed_back_at == self._ended:
            return max(room, 0)
        return max(room, 1, min(ahead, self.concurrency + self.prefetch - self._committed))

    def _room_to_start(self, topic: TopicSlots, settling: int) -> int:
        """Return how many messages of a topic with limits may be taken: they can start at once.

        Messages that are being settled have no slot any more, so `settling` more may be held. If
        they cannot be settled, no more are taken.
        """
        free = self.concurrency - self.running - self._promised
        promised = topic.asked + len(topic.waiting)
        if topic.batch:
            promised = topic.promised
        left = promised * topic.per_slot - topic.asked - len(topic.waiting)  # in promised slots
        if free <= 0:
            return left
        wanting = {*self.backlog, *self._turns} - {topic}
        others = sum(one.running < one.limit for one in wanting)
        left_free = self._left_free(topic, others)
        share = (self.concurrency - left_free) // (1 + others)
        if not share:  # fewer slots than topics: they take turns
            share = int(self._last_started is not topic)
        room = min(
            min(topic.limit, share) - topic.running - promised,
            self.concurrency
            + settling
            - sum(-(-one.committed // one.per_slot) for one in self.limited),
            free - left_free,
        )
        idle = not topic.committed and share and topic.handed_back_at != self._ended
        return max(room, 1 if idle else 0) * topic.per_slot + left

    def worth_asking(self, topic: TopicSlots) -> int:
        """Return how many messages to ask for now; 0: better wait until there is more room."""
        ahead = self.ahead(topic)
        if topic.committed >= (topic.limit + ahead) * topic.per_slot:
            return 0
        room = self.room(topic, ahead)
        if topic.limited or topic.batch:
            return room
        if ahead >= CHUNK:
            return room if room >= CHUNK // 2 else 0
        return room if not topic.waiting or room * 4 >= topic.limit else 0

    def _share(self, topic: TopicSlots, ahead: int, others: int) -> int:
        """Return how many messages a topic may take if it shares the room with `others` topics."""
        capacity = self.concurrency - self._left_free(topic, others) + ahead
        share = max(capacity // (1 + others), min(ahead, CHUNK))
        free = capacity - self._committed + topic.committed // topic.per_slot
        return min(topic.limit + ahead, share, free) * topic.per_slot - topic.committed

    def _left_free(self, topic: TopicSlots, others: int = 0) -> int:
        """Return how many slots a topic leaves to idle topics, not counting `others` of them."""
        idle = self._idle_topics - (topic.running == 0) - others
        return min(max(0, idle), self.concurrency // 4)

    def ahead(self, topic: TopicSlots) -> int:
        """Return how many messages of a topic may be taken ahead of free slots."""
        ahead = min(self._pace(), int(topic.limit * AHEAD / topic.handler_seconds))
        return min(ahead, max(1, self.prefetch // topic.batch)) if topic.batch else ahead

    def is_full(self) -> bool:
        """Return whether the worker is full, except for topics without messages here."""
        return self._committed >= self.concurrency + self._pace()

    def _pace(self) -> int:
        """Return how many messages may be taken ahead at the current rate."""
        now = time.monotonic()
        passed = now - self._measured_at
        if passed >= MEASURE:
            rate = self._newly_ended / passed
            self._rate = rate + (self._rate - rate) * 0.5 ** (passed / MEASURE)
            self._newly_ended, self._measured_at = 0, now
        return min(self.prefetch, int(self._rate * AHEAD))

    # a message, from the request to its settlement

    def reserve(self, topic: TopicSlots, count: int) -> None:
        """Reserve room for messages that are being asked for."""
        self._commit(topic, count)
        topic.asked += count
        if topic.limited:
            self._promise(topic, count)

    def receive(
        self, topic: TopicSlots, reserved: int, messages: Sequence[Leased], asked_at: float
    ) -> None:
        """Hold the messages that came, and free the rest of the reserved room."""
        self._commit(topic, len(messages) - reserved)
        topic.asked -= reserved
        for leased in messages:
            held = HeldMessage(topic, leased, asked_at, asked_at)
            self.held[held] = None
            topic.waiting.append(held)
        self.waiting += len(messages)
        if topic.limited:
            self._promise(topic, len(messages) - reserved)
        self._give_turn(topic)

    def _commit(self, topic: TopicSlots, count: int) -> None:
        """Add `count` messages that are here or asked for; below 0, remove them."""
        before = topic.committed // topic.per_slot
        topic.committed += count
        self._committed += topic.committed // topic.per_slot - before

    def _promise(self, topic: TopicSlots, count: int) -> None:
        """Keep slots free for `count` more messages of a topic with limits; below 0, fewer."""
        if topic.batch:
            slots = -(-(topic.asked + len(topic.waiting)) // topic.batch)
            count, topic.promised = slots - topic.promised, slots
        self._promised += count

    def startable(self) -> int:
        """Return an upper bound on how many messages may start now."""
        return min(self.waiting, self.concurrency - self.running) if self._turns else 0

    def start_next(self) -> HeldMessage | None:
        """Give the next message a slot; None: nothing may start now."""
        turns = self._turns
        free = self.concurrency - self.running
        for _ in range(len(turns) if free > 0 else 0):
            topic = turns.popleft()
            if not topic.limited and (
                (topic.running and self._idle_topics and free <= self._left_free(topic))
                or (self.limited and self._leaves_slot(topic, free))
            ):
                turns.append(topic)
                continue
            topic.has_turn = False
            if not topic.waiting:  # they were handed back
                continue
            held = topic.waiting.popleft()
            self.waiting -= 1
            if topic.batch:
                self._gather(held)
            if topic.limited:
                self._promise(topic, -1)
            self._last_started = topic
            if not topic.running:
                self._idle_topics -= 1
            topic.running += 1
            self.running += 1
            self._give_turn(topic)
            return held
        return None

    def _gather(self, first: HeldMessage) -> None:
        """Take the messages of a batch, whose first is already taken.

        They may come from several calls, so they are sorted as the server gave them out.
        """
        waiting = first.topic.waiting
        count = min(len(waiting), first.topic.batch - 1)
        batch = [first, *(waiting.popleft() for _ in range(count))]
        batch.sort(key=lambda held: held.leased.token)
        self.gathered[first] = batch
        self.waiting -= count

    def _leaves_slot(self, topic: TopicSlots, free: int) -> bool:
        """Return whether a topic leaves a free slot to topics with limits.

        They take nothing ahead, so they have no turn here. The slot is theirs if it is promised, or
        if they have pending messages and this topic already has its share of the slots.
        """
        if free <= self._promised:
            return True
        wanting = sum(one.limited and one.running < one.limit for one in self.backlog)
        if not wanting:
            return False
        share = self.concurrency // (1 + wanting)
        return topic.running >= share if share else self._last_started is topic

    def finished(self, held: HeldMessage) -> None:
        """Its handler has ended: the slot is free, and the message is being settled."""
        topic = held.topic
        now = time.monotonic()
        held.ended_at = now
        seconds = max(now - (held.started_at or now), INSTANT)
        before = topic.handler_seconds
        topic.handler_seconds = seconds if before == inf else before + (seconds - before) * WEIGHT
        self._newly_ended += 1
        self._ended += 1
        topic.running -= 1
        self.running -= 1
        if not topic.running:
            self._idle_topics += 1
        held.settling = True
        self._give_turn(topic)

    def _give_turn(self, topic: TopicSlots) -> None:
        """Put a topic at the end of the turns, if one more of its messages may run."""
        if topic.waiting and not topic.has_turn and topic.running < topic.limit:
            if topic.batch and (starts_at := topic.starts_at()) > time.monotonic():
                self.lingering[topic] = starts_at
                return
            topic.has_turn = True
            self._turns.append(topic)

    def end_lingering(self, *, early: bool = False) -> None:
        """Let batches start that have lingered, or those for which the server has no more."""
        for topic in list(self.lingering):
            del self.lingering[topic]
            self._give_turn(topic)
            last = topic in self.lingering and not topic.asked and topic not in self.backlog
            if early and last:
                del self.lingering[topic]
                topic.has_turn = True
                self._turns.append(topic)

    def forget(self, held: HeldMessage) -> None:
        """Forget a message that is settled, or no longer this worker's."""
        if held in self.held:
            del self.held[held]
            if held.topic.batch:
                self._commit(held.topic, -1)
            else:  # as `_commit` does, without a call per message
                held.topic.committed -= 1
                self._committed -= 1

    def forget_waiting(self, held: HeldMessage) -> None:
        """Forget a message that waits for a slot: another worker has it now."""
        if held in held.topic.waiting:
            held.topic.waiting.remove(held)
            self.waiting -= 1
            if held.topic.limited:
                self._promise(held.topic, -1)
        self.forget(held)

    def take_back(self, taken_before: float = inf) -> list[HeldMessage]:
        """Remove and return waiting messages taken before a time, to be handed back."""
        taken: list[HeldMessage] = []
        for topic in self.topics.values():
            while topic.waiting and _waits_since(topic) < taken_before:
                count = min(topic.per_slot, len(topic.waiting))
                taken += [topic.waiting.popleft() for _ in range(count)]
                if topic.limited:
                    self._promise(topic, -1)
                topic.handed_back_at = self._ended
                topic.handler_seconds = inf  # take none ahead until a handler has ended
        self.waiting -= len(taken)
        for held in taken:
            held.settling = True
        return taken


def _waits_since(topic: TopicSlots) -> float:
    """Return since when its first message, or its first batch, has waited for a slot."""
    return topic.starts_at() if topic.batch else topic.waiting[0].taken_at
