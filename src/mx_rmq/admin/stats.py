"""How topics are doing: messages by state, totals, rates, and an overview of all topics."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from mx_rmq.admin.fanout import ask_all
from mx_rmq.admin.models import seconds
from mx_rmq.core import codec
from mx_rmq.core.errors import DecodeError, MxRmqError
from mx_rmq.core.message import ARCHIVES, State
from mx_rmq.store.messages import levels

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

    from mx_rmq.store import Store
    from mx_rmq.store.line_reads import TopicLines
    from mx_rmq.store.reads import Counts

T = TypeVar("T")

MOST: Final = 1000  # topics in one overview, unless the caller asks for more


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """How often each thing has happened to a message, since the topic was created."""

    produced: int = 0  # including delayed ones
    due: int = 0  # moved from delayed to pending: retries, and messages produced with a delay
    dispatched: int = 0
    completed: int = 0
    retried: int = 0
    snoozed: int = 0  # their handler asked for them later
    parked: int = 0  # they waited for signals or for other messages
    noted: int = 0  # steps that were noted
    signalled: int = 0  # signals that were kept
    died: int = 0  # including aborted ones
    aborted: int = 0
    quarantined: int = 0
    released: int = 0
    rescheduled: int = 0
    postponed: int = 0  # handed back, because only a newer release can read them
    taken_over: int = 0
    replaced: int = 0  # by a produce with the same id
    fanned_out: int = 0  # copied to every subscription
    duplicate: int = 0  # not copied: the subscription had a message with this id
    requeued: int = 0
    discarded: int = 0
    cancelled: int = 0
    trimmed: int = 0  # dropped from an archive, for their age or because it was full
    repaired: int = 0

    @property
    def failed(self) -> int:
        """How many attempts did not succeed."""
        return self.retried + self.died + self.quarantined


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """How a topic is doing. The counts are of one moment, for each partition."""

    topic: str
    pending: int
    processing: int
    delayed: int
    dead: int
    quarantined: int
    oldest_pending: float | None
    """Seconds that the next message to dispatch has waited since it was produced, requeued, due or
    to be retried; the maximum over priorities and partitions, and over the keys that come next.
    None: nothing is pending, only paused keys have something pending, or the next messages cannot
    be read."""
    paused: bool  # dispatch is paused, for at least one partition; also for a while
    dropped: int  # ids without a message, ever; above 0, another program wrote to the keys
    delayed_overdue: float | None = None
    """How many seconds ago the first delayed message was due; None: none is due. A worker moves it
    at once, or within about ten seconds if no worker serves the topic."""
    lease_overdue: float | None = None
    """How many seconds ago the first lease ran out; None: none has. A worker takes the message over
    at once, or within about 40 seconds if no worker serves the topic."""
    partitions: int = 1
    waiting: int = 0  # for signals or for other messages
    completed: int = 0
    """Results that are kept. Expired ones count until a worker has dropped them: within about ten
    seconds, or a minute if no worker serves the topic."""
    dead_bytes: int = 0
    quarantined_bytes: int = 0
    completed_bytes: int = 0  # these three: what the archives use of their budgets
    dead_budget: int = 0
    quarantined_budget: int = 0
    completed_budget: int = 0  # bytes over which the oldest are dropped; 0: no limit
    overflowed_at: float | None = None  # when an archive last dropped messages to save bytes
    keys_waiting: int = 0  # keys with messages in line
    keys_blocked: int = 0  # how many of them may not start now: limited, snoozed or paused
    running_limit: int | None = None
    """Messages that may run at a time; None: no limit, or the topic is idle and only its handler
    declares one."""
    held_back: bool = False  # a limit of the topic, or a pause for a while, lets nothing start now
    pause_reason: str = ""  # why it is paused, if the operator said so
    subscriptions: tuple[str, ...] = ()
    totals: Totals = field(default_factory=Totals)

    @property
    def total(self) -> int:
        """How many messages there are, in any state but completed."""
        live = self.pending + self.processing + self.delayed + self.waiting
        return live + self.dead + self.quarantined


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Messages per second, measured over a short time."""

    topic: str
    produced: float
    completed: float
    failed: float


@dataclass(frozen=True, slots=True)
class Overview(Generic[T]):
    """One answer per topic."""

    topics: dict[str, T]
    away: dict[str, MxRmqError | TimeoutError]  # topics that could not be reached, and why
    known: int  # how many topics there are, including those that were left out

    @property
    def left_out(self) -> int:
        """How many topics were not asked, because there are too many."""
        return self.known - len(self.topics) - len(self.away)


_SUMMED: Final = (*State, "dropped", "dead_bytes", "quarantined_bytes", "completed_bytes")


async def count_topic(store: Store, topic: str, parts: Sequence[str]) -> Stats:
    """Count the messages of a topic in all its partitions."""
    found = await ask_all(parts, lambda part: _count(store, part))
    counts, lines = [one.counts for one in found], [one.lines for one in found]
    limits = [one.in_force.running for one in lines]
    paused = [one for one in lines if one.set.is_paused(one.at)]
    budgets = {
        f"{state}_budget": sum([await store.budget(part, state) for part in parts])
        for state in ARCHIVES
    }
    return Stats(
        topic=topic,
        **{name: sum(getattr(one, name) for one in counts) for name in _SUMMED},
        oldest_pending=_largest(one.waited for one in found),
        paused=bool(paused) or any(one.paused for one in counts),
        delayed_overdue=seconds(_largest(one.delayed_overdue for one in counts)),
        lease_overdue=seconds(_largest(one.lease_overdue for one in counts)),
        partitions=len(parts),
        **budgets,
        overflowed_at=seconds(_largest(one.overflowed for one in counts)),
        keys_waiting=sum(one.keys for one in lines),
        keys_blocked=sum(one.blocked for one in lines),
        running_limit=sum(filter(None, limits)) if None not in limits else None,
        held_back=any(one.is_held_back for one in lines),
        pause_reason=paused[0].set.reason if paused else "",
        subscriptions=counts[0].subscriptions,
        totals=_totals(one.ever for one in counts),
    )


class _PartCount(NamedTuple):
    """What was counted of a partition."""

    counts: Counts
    lines: TopicLines
    waited: float | None  # how long the next message to dispatch has waited, seconds


async def _count(store: Store, part: str) -> _PartCount:
    counts = await store.views.counts(part)
    lines = await store.views.lines.counted_lines(part, counts)
    in_lines = bool(lines.waiting)
    records = await store.views.pages.next_records(part, lines=in_lines) if counts.pending else []
    ready = [at for at in map(_ready_at, records) if at is not None]
    waited = max(0, lines.now - min(ready)) / 1000 if ready else None
    return _PartCount(counts, lines, waited)


def _ready_at(record: bytes) -> int | None:
    """Return since when a message could have been dispatched, ms; None: unknown."""
    try:
        return codec.decode(record).ready_at
    except DecodeError:
        return None


def _largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _totals(counted: Iterable[Mapping[str, int]]) -> Totals:
    sums = {one.name: 0 for one in fields(Totals)}
    for ever in counted:
        for what, number in ever.items():
            name = "produced" if what == "delayed" else what
            if name in sums:
                sums[name] += number
    return Totals(**sums)


async def count_between(
    store: Store, parts: Sequence[str], state: State, low: float, high: float
) -> int:
    """Count the messages of a state whose times are in this range, ms. Pending ones have none."""

    async def count(part: str) -> int:
        if state is State.PENDING:
            return (await store.views.counts(part)).pending
        pages, each = store.views.pages, range(levels(state))
        found = sum([await pages.count(part, state, level, low, high) for level in each])
        if state is State.DELAYED:  # those that wait are in its index, too
            found -= await store.views.waits.count_ends(part, low, high)
        return found

    return sum(await ask_all(parts, count))


async def measure_rates(
    topics: Sequence[str], ask: Callable[[str], Awaitable[Stats]], seconds: float
) -> dict[str, Rates]:
    """Ask for the totals of these topics twice, some seconds apart; return the rates."""
    before = await ask_all(topics, ask)
    began = time.monotonic()
    await asyncio.sleep(seconds)
    after = await ask_all(topics, ask)
    passed = time.monotonic() - began
    return {
        one.topic: rates(one.topic, one.totals, later.totals, passed)
        for one, later in zip(before, after, strict=True)
    }


def rates(topic: str, before: Totals, after: Totals, seconds: float) -> Rates:
    """Return the rates between two readings."""

    def rate(name: str) -> float:
        more: int = getattr(after, name) - getattr(before, name)
        return max(0, more) / seconds

    return Rates(
        topic=topic, produced=rate("produced"), completed=rate("completed"), failed=rate("failed")
    )


async def ask_topics(
    every: Sequence[str],
    ask: Callable[[str], Awaitable[T]],
    *,
    most: int | None = MOST,
    first: Collection[str] = (),
    each: float | None = None,
    within: float | None = None,
) -> Overview[T]:
    """Ask every topic, several at a time. One that cannot be reached hides no other.

    If there are more than `most`, those in `first` are asked, then the first ones by name. `each`
    is the time limit for one answer, `within` for all of them, in seconds.
    """
    wanted = set(sorted(every, key=lambda topic: topic not in first)[:most])
    chosen = [topic for topic in every if topic in wanted]
    found: dict[str, T] = {}
    away: dict[str, MxRmqError | TimeoutError] = {}

    async def one(topic: str) -> None:
        try:
            async with asyncio.timeout(each):
                found[topic] = await ask(topic)
        except (MxRmqError, TimeoutError) as error:
            away[topic] = error

    with suppress(TimeoutError):
        async with asyncio.timeout(within):
            await ask_all(chosen, one)
    return Overview(
        {topic: found[topic] for topic in chosen if topic in found},
        {topic: away.get(topic, TimeoutError()) for topic in chosen if topic not in found},
        len(every),
    )
