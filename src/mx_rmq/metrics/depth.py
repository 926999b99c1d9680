"""How full a queue is: read through `mq.admin.overview()`, rendered afterwards.

Every worker reports all topics, so a topic is watched as long as any worker runs; and the servers,
if this user has the right. However many scrape it, the server is asked once every few seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from mx_rmq.admin.stats import MOST
from mx_rmq.core.errors import MxRmqError
from mx_rmq.core.message import State
from mx_rmq.safe_log import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from prometheus_client import Metric

    from mx_rmq.admin import Admin, ServerView, Stats, WorkerView

logger = get_logger(__name__)

T = TypeVar("T")

KEEP: Final = 5.0
"""Seconds for which an answer is reused."""
WITHIN: Final = 5.0
"""Seconds that the server has to answer."""
EACH: Final = 2.0
"""Seconds that one question may take, so that a node that is away does not delay the others."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """One look at the queue."""

    seconds: float
    """How long that took."""
    topics: int = 0
    """How many there are, including those that were left out."""
    stats: tuple[Stats, ...] = ()
    unknown: tuple[str, ...] = ()
    """Topics that could not be reached."""
    left_out: int = 0
    """Topics that were not asked for, because there are too many."""
    servers: tuple[ServerView, ...] = ()
    workers: _Workers | None = None
    """None: could not be counted."""
    failed: bool = False


@dataclass(frozen=True, slots=True)
class _Workers:
    """How many workers there are."""

    alive: int
    silent: int
    serving: Counter[str]
    """Live workers by topic."""


class Depth(Collector):
    """Counts the messages of topics by state. `refresh` first, then render `registry`."""

    def __init__(self, admin: Callable[[], Admin], first: Sequence[str] = ()) -> None:
        """`admin` returns that of an open queue; `first`: topics never to leave out."""
        self._admin = admin
        self._first = frozenset(first)
        self._seen: _Seen | None = None
        self._said: set[str] = set()
        self._fresh_until = float("-inf")
        self._looking = asyncio.Lock()
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)

    async def refresh(self) -> None:
        """Look, unless the last look is recent. A failure shows in what is rendered."""
        async with self._looking:
            if time.monotonic() < self._fresh_until:
                return
            began = time.monotonic()
            try:
                self._seen = await self._look(self._admin(), began)
            except (MxRmqError, TimeoutError) as error:
                self._warn([f"cannot read the depth of the queue: {_said(error)}"])
                self._seen = _Seen(time.monotonic() - began, failed=True)
            self._fresh_until = time.monotonic() + KEEP

    async def _look(self, admin: Admin, began: float) -> _Seen:
        overview, workers, servers = await asyncio.gather(
            _asked(
                admin.overview(most=MOST, first=self._first, each=EACH, within=WITHIN),
                WITHIN + EACH,
            ),
            _asked(admin.workers(), EACH),
            _asked(admin.servers(), EACH),  # a user need not have the right to run INFO
        )
        if isinstance(overview, Exception):
            raise overview
        away = overview.away
        if away and not overview.topics:
            raise next(iter(away.values()))
        troubles = []
        if away:
            first, error = next(iter(away.items()))
            troubles.append(
                f"cannot read the depth of {first} and of {len(away) - 1} other topics: "
                f"{_said(error)}"
            )
        if isinstance(workers, Exception):
            troubles.append(f"cannot count the workers: {_said(workers)}")
        if isinstance(servers, Exception) or not servers:
            untold = servers if isinstance(servers, Exception) else None
            troubles.append(f"cannot read the state of the server: {_said(untold)}")
        if overview.left_out:
            troubles.append(
                f"{overview.left_out:,} of {overview.known:,} topics are not watched: there are "
                f"more than {MOST:,}"
            )
        self._warn(troubles)
        return _Seen(
            seconds=time.monotonic() - began,
            topics=overview.known,
            stats=tuple(overview.topics.values()),
            unknown=tuple(away),
            left_out=overview.left_out,
            workers=None if isinstance(workers, Exception) else _counted(workers),
            servers=() if isinstance(servers, Exception) else tuple(servers),
        )

    def _warn(self, troubles: Sequence[str]) -> None:
        """Log what is wrong, unless it was already wrong at the last look."""
        for trouble in troubles:
            if trouble not in self._said:
                logger.warning("%s", trouble)
        self._said = {*troubles}

    def collect(self) -> Iterator[Metric]:
        seen = self._seen
        if seen is None:
            return
        yield GaugeMetricFamily(
            "mx_rmq_depth_up", "1 if the depth of the queue could be read.", not seen.failed
        )
        yield GaugeMetricFamily("mx_rmq_depth_scrape_seconds", "How long that took.", seen.seconds)
        if seen.failed:  # old numbers would be taken for new ones
            return
        yield GaugeMetricFamily("mx_rmq_topics", "Number of topics.", seen.topics)
        yield GaugeMetricFamily(
            "mx_rmq_topics_not_shown",
            f"Topics not shown here, because there are more than {MOST:,}.",
            seen.left_out,
        )
        workers = GaugeMetricFamily(
            "mx_rmq_workers", "Workers that were seen recently.", labels=["state"]
        )
        serving = GaugeMetricFamily(
            "mx_rmq_topic_workers", "Live workers that serve a topic.", labels=["topic"]
        )
        if seen.workers is not None:
            workers.add_metric(["alive"], seen.workers.alive)
            workers.add_metric(["silent"], seen.workers.silent)
            for stats in seen.stats:
                serving.add_metric([stats.topic], seen.workers.serving[stats.topic])
        yield from (workers, serving)
        up = GaugeMetricFamily(
            "mx_rmq_topic_up", "1 if the depth of the topic could be read.", labels=["topic"]
        )
        for stats in seen.stats:
            up.add_metric([stats.topic], 1)
        for topic in seen.unknown:
            up.add_metric([topic], 0)
        yield up
        yield from _topics(seen.stats)
        yield from _servers(seen.servers)


async def _asked(answer: Awaitable[T], within: float) -> T | MxRmqError | TimeoutError:
    """Return an answer, or why there is none."""
    try:
        async with asyncio.timeout(within):
            return await answer
    except (MxRmqError, TimeoutError) as error:
        return error


def _counted(workers: Sequence[WorkerView]) -> _Workers:
    alive = [one for one in workers if one.alive]
    serving = Counter(topic for one in alive for topic in {*one.topics})
    return _Workers(len(alive), len(workers) - len(alive), serving)


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
        "Ids without a message: above 0, something else wrote to the keys.",
        labels=["topic"],
    )
    happened = CounterMetricFamily(
        "mx_rmq_happened",
        "How many messages of a topic each thing has happened to.",
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
