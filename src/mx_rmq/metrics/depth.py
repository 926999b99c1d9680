"""How full a queue is, as an operator sees it: asked for by `mq.admin`, rendered afterwards.

All topics are told of, so that each is watched as long as anybody is there to tell, also one that
nobody serves; and the servers, as far as this user may ask them. However many ask, the server is
asked once in a few seconds, and for so many topics at the most: how many were left out is told. A
topic that cannot be reached hides no other.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from mx_rmq.core.errors import MxRmqError
from mx_rmq.core.message import State
from mx_rmq.safe_log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from prometheus_client import Metric

    from mx_rmq.admin import Admin, ServerView
    from mx_rmq.admin.view import Stats

logger = get_logger(__name__)

MOST: Final = 1000
"""Topics that are looked at: those that were named, then the first ones by name."""
AT_ONCE: Final = 16
"""Topics that are asked for at the same time."""
KEEP: Final = 5.0
"""Seconds for which an answer is given again."""
WITHIN: Final = 5.0
"""Seconds that the server has to answer."""
EACH: Final = 2.0
"""Seconds of these that one question may take, so that a node that is away holds up no other."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was seen in one look."""

    seconds: float
    """How long that took."""
    topics: int = 0
    """How many there are, also if that is more than are looked at."""
    stats: tuple[Stats, ...] = ()
    unknown: tuple[str, ...] = ()
    """Topics of which nobody told."""
    left_out: int = 0
    """Topics that were not asked for, because there are too many."""
    servers: tuple[ServerView, ...] = ()
    workers: _Workers | None = None
    """None: nobody told."""
    failed: bool = False


@dataclass(frozen=True, slots=True)
class _Workers:
    """How many workers there are."""

    alive: int
    silent: int
    serving: Counter[str]
    """Of the living, by topic."""


class Depth(Collector):
    """Counts the messages of topics by state. `refresh` first, then render `registry`."""

    def __init__(self, admin: Callable[[], Admin], first: Sequence[str] = ()) -> None:
        """`admin` returns that of an open queue; `first`: topics not to leave out of very many."""
        self._admin = admin
        self._first = frozenset(first)
        self._seen: _Seen | None = None
        self._said: set[str] = set()
        self._fresh_until = float("-inf")
        self._looking = asyncio.Lock()
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)

    async def refresh(self) -> None:
        """Look, unless somebody has just done it. A failure is seen in what is rendered."""
        async with self._looking:
            if time.monotonic() < self._fresh_until:
                return
            began = time.monotonic()
            try:
                self._seen = await self._look(self._admin(), began)
            except (MxRmqError, TimeoutError) as error:
                self._warn([f"the depth of the queue cannot be had: {_said(error)}"])
                self._seen = _Seen(time.monotonic() - began, failed=True)
            self._fresh_until = time.monotonic() + KEEP

    async def _look(self, admin: Admin, began: float) -> _Seen:
        end = asyncio.get_running_loop().time() + WITHIN
        async with asyncio.timeout_at(end):
            topics = await admin.topics()
        look, chosen = _Look(admin), self._chosen(topics)
        with suppress(TimeoutError):  # what is known by then is shown
            async with asyncio.timeout_at(end):
                await asyncio.gather(look.workers(), look.servers(), *map(look.topic, chosen))
        unknown = [topic for topic in chosen if topic not in look.told]
        error = next(iter(look.errors), None)
        if unknown and not look.told:
            raise error or TimeoutError()
        troubles = []
        if unknown:
            others = len(unknown) - 1
            troubles.append(
                f"the depth of {unknown[0]} cannot be had, nor of {others} other topics: "
                f"{_said(error)}"
            )
        if look.counted is None:
            troubles.append(f"the workers cannot be counted: {_said(look.refused)}")
        if not look.seen:
            troubles.append(f"cannot read the state of the server: {_said(look.untold)}")
        if len(chosen) < len(topics):
            troubles.append(
                f"{len(topics) - len(chosen):,} of {len(topics):,} topics are not watched: there "
                f"are more than {MOST:,}"
            )
        self._warn(troubles)
        return _Seen(
            seconds=time.monotonic() - began,
            topics=len(topics),
            stats=tuple(look.told[topic] for topic in chosen if topic in look.told),
            unknown=tuple(unknown),
            left_out=len(topics) - len(chosen),
            workers=look.counted,
            servers=tuple(look.seen),
        )

    def _chosen(self, topics: Sequence[str]) -> list[str]:
        """Return the topics that are looked at."""
        if len(topics) <= MOST:
            return [*topics]
        return sorted(topics, key=lambda topic: topic not in self._first)[:MOST]

    def _warn(self, troubles: Sequence[str]) -> None:
        """Log what is wrong, unless it was so at the look before."""
        for trouble in troubles:
            if trouble not in self._said:
                logger.warning("%s", trouble)
        self._said = {*troubles}

    def collect(self) -> Iterator[Metric]:
        seen = self._seen
        if seen is None:
            return
        yield GaugeMetricFamily(
            "mx_rmq_depth_up", "1 if the server told how full the queue is.", not seen.failed
        )
        yield GaugeMetricFamily(
            "mx_rmq_depth_scrape_seconds", "How long it took to ask for that.", seen.seconds
        )
        if seen.failed:  # old numbers would be taken for new ones
            return
        yield GaugeMetricFamily("mx_rmq_topics", "Number of topics.", seen.topics)
        yield GaugeMetricFamily(
            "mx_rmq_topics_not_shown",
            f"Topics of which nothing is shown here, because there are more than {MOST:,}.",
            seen.left_out,
        )
        workers = GaugeMetricFamily(
            "mx_rmq_workers", "Workers that were heard of lately.", labels=["state"]
        )
        serving = GaugeMetricFamily(
            "mx_rmq_topic_workers", "Living workers that serve a topic.", labels=["topic"]
        )
        if seen.workers is not None:
            workers.add_metric(["alive"], seen.workers.alive)
            workers.add_metric(["silent"], seen.workers.silent)
            for stats in seen.stats:
                serving.add_metric([stats.topic], seen.workers.serving[stats.topic])
        yield from (workers, serving)
        up = GaugeMetricFamily(
            "mx_rmq_topic_up", "1 if the server told how full the topic is.", labels=["topic"]
        )
        for stats in seen.stats:
            up.add_metric([stats.topic], 1)
        for topic in seen.unknown:
            up.add_metric([topic], 0)
        yield up
        yield from _topics(seen.stats)
        yield from _servers(seen.servers)


class _Look:
    """One look at topics and workers, several of them at a time."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._free = asyncio.Semaphore(AT_ONCE)
        self.told: dict[str, Stats] = {}
        self.counted: _Workers | None = None
        self.errors: list[MxRmqError | TimeoutError] = []
        """Why nobody told of topics."""
        self.refused: MxRmqError | TimeoutError | None = None
        """Why nobody told of the workers."""
        self.seen: list[ServerView] = []
        self.untold: MxRmqError | TimeoutError | None = None
        """Why the servers could not be read."""

    async def topic(self, topic: str) -> None:
        async with self._free:
            try:
                async with asyncio.timeout(EACH):
                    self.told[topic] = await self._admin.stats(topic)
            except (MxRmqError, TimeoutError) as error:
                self.errors.append(error)

    async def workers(self) -> None:
        try:
            async with asyncio.timeout(EACH):
                found = await self._admin.workers()
        except (MxRmqError, TimeoutError) as error:
            self.refused = error
            return
        alive = [one for one in found if one.alive]
        serving = Counter(topic for one in alive for topic in {*one.topics})
        self.counted = _Workers(len(alive), len(found) - len(alive), serving)

    async def servers(self) -> None:
        try:
            async with asyncio.timeout(EACH):
                self.seen = await self._admin.servers()
        except (MxRmqError, TimeoutError) as error:  # a user need not have the right to run INFO
            self.untold = error


def _said(error: Exception | None) -> str:
    return str(error or "") or "no answer"


def _topics(found: Sequence[Stats]) -> Iterator[Metric]:
    depth = GaugeMetricFamily(
        "mx_rmq_depth", "Messages of a topic that are in a state.", labels=["topic", "state"]
    )
    oldest = GaugeMetricFamily(
        "mx_rmq_oldest_pending_seconds",
        "How long the message that is taken next has waited; 0: nothing is pending.",
        labels=["topic"],
    )
    due = GaugeMetricFamily(
        "mx_rmq_delayed_overdue_seconds",
        "How long ago the first delayed message was due; 0: none is due.",
        labels=["topic"],
    )
    lease = GaugeMetricFamily(
        "mx_rmq_lease_overdue_seconds",
        "How long ago the first lease ran out; 0: none has.",
        labels=["topic"],
    )
    paused = GaugeMetricFamily(
        "mx_rmq_paused", "1 while workers take nothing of a topic.", labels=["topic"]
    )
    partitions = GaugeMetricFamily("mx_rmq_partitions", "Partitions of a topic.", labels=["topic"])
    dropped = CounterMetricFamily(
        "mx_rmq_dropped",
        "Ids without a message: above 0, somebody else wrote to the keys.",
        labels=["topic"],
    )
    happened = CounterMetricFamily(
        "mx_rmq_happened",
        "To how many messages of a topic each thing has happened, whoever did it.",
        labels=["topic", "what"],
    )
    held = GaugeMetricFamily(
        "mx_rmq_archive_bytes",
        "Bytes that the dead letters and the quarantine of a topic take on the server.",
        labels=["topic", "state"],
    )
    budget = GaugeMetricFamily(
        "mx_rmq_archive_budget_bytes",
        "Bytes that they may take; over it the oldest are dropped. 0: no bound.",
        labels=["topic", "state"],
    )
    for stats in found:
        topic = [stats.topic]
        held.add_metric([stats.topic, State.DEAD], stats.dead_bytes)
        held.add_metric([stats.topic, State.QUARANTINED], stats.quarantined_bytes)
        budget.add_metric([stats.topic, State.DEAD], stats.dead_budget)
        budget.add_metric([stats.topic, State.QUARANTINED], stats.quarantined_budget)
        for what, count in asdict(stats.totals).items():
            happened.add_metric([stats.topic, what], count)
        for state in State:
            depth.add_metric([stats.topic, state], getattr(stats, state))
        oldest.add_metric(topic, stats.oldest_pending or 0)
        due.add_metric(topic, stats.delayed_overdue or 0)
        lease.add_metric(topic, stats.lease_overdue or 0)
        paused.add_metric(topic, stats.paused)
        partitions.add_metric(topic, stats.partitions)
        dropped.add_metric(topic, stats.dropped)
    yield from (depth, held, budget, oldest, due, lease, paused, partitions, dropped, happened)


def _servers(found: Sequence[ServerView]) -> Iterator[Metric]:
    def gauge(name: str, what: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"mx_rmq_server_{name}", what, labels=["server"])

    memory = gauge("memory_bytes", "Memory that a server uses.")
    limit = gauge("memory_limit_bytes", "Memory that it may use (maxmemory); 0: no limit is set.")
    aof = gauge("aof_enabled", "1 if it keeps an append-only file.")
    ok = GaugeMetricFamily(
        "mx_rmq_server_disk_ok",
        "1 if its latest write to disk succeeded: to the append-only file, of a new such file, of "
        "a snapshot.",
        labels=["server", "what"],
    )
    delayed = CounterMetricFamily(
        "mx_rmq_server_delayed_fsyncs", "Times that it waited for the disk.", labels=["server"]
    )
    evicted = CounterMetricFamily(
        "mx_rmq_server_evicted_keys", "Keys evicted to free memory.", labels=["server"]
    )
    replicas = gauge("replicas", "Replicas that are connected to it.")
    behind = gauge("replica_behind_bytes", "Bytes that the slowest replica is behind.")
    for one in found:
        name = [one.name]
        memory.add_metric(name, one.memory)
        limit.add_metric(name, one.maxmemory)
        aof.add_metric(name, one.aof)
        ok.add_metric([one.name, "aof_write"], one.aof_write_ok)
        ok.add_metric([one.name, "aof_rewrite"], one.aof_rewrite_ok)
        ok.add_metric([one.name, "snapshot"], one.snapshot_ok)
        delayed.add_metric(name, one.delayed_fsyncs)
        evicted.add_metric(name, one.evicted)
        replicas.add_metric(name, one.replicas)
        behind.add_metric(name, one.behind)
    yield from (memory, limit, aof, ok, delayed, evicted, replicas, behind)
