"""How full a queue is: read through `mq.admin`, rendered afterwards.

Every worker reports all topics, so a topic is watched as long as any worker runs; and the servers,
if this user may run INFO. However often it is scraped, the server is asked once every few seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from mx_rmq.admin.stats import MOST
from mx_rmq.core.errors import MxRmqError
from mx_rmq.core.message import ARCHIVES, State
from mx_rmq.core.partition import base_topic
from mx_rmq.core.text import count, storable
from mx_rmq.doctor.queue import check_topic_count
from mx_rmq.doctor.topics import unreachable
from mx_rmq.metrics.exposition import counter, gauge
from mx_rmq.safe_log import get_logger

if TYPE_CHECKING:
    from collections.abc import (
        Awaitable,
        Callable,
        Collection,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )

    from prometheus_client import Metric

    from mx_rmq.admin import Admin, KeyList, Overview, ServerView, Stats, WorkerView

logger = get_logger(__name__)

T = TypeVar("T")

KEEP: Final = 5.0  # seconds for which a reading is reused
WITHIN: Final = 5.0  # seconds for reading all topics
TOP_TOPICS: Final = 20  # topics whose keys are read, those with the most keys waiting
EACH: Final = 2.0  # seconds for one question, so that a node that is away does not delay the others

# By metric name: a field of Stats or ServerView, and the help text.

TOPIC_GAUGES: Final = {
    "mx_rmq_oldest_pending_seconds": (
        "oldest_pending",
        "How long the next message to be dispatched has waited; 0: nothing is pending.",
    ),
    "mx_rmq_delayed_overdue_seconds": (
        "delayed_overdue",
        "How long ago the first delayed message was due; 0: none is due.",
    ),
    "mx_rmq_lease_overdue_seconds": (
        "lease_overdue",
        "How long ago the first lease expired; 0: none has.",
    ),
    "mx_rmq_paused": ("paused", "1 while the topic is paused."),
    "mx_rmq_partitions": ("partitions", "Partitions of the topic."),
    "mx_rmq_keys_waiting": ("keys_waiting", "Keys of the topic with messages waiting."),
    "mx_rmq_keys_blocked": (
        "keys_blocked",
        "How many of them may not start now: limited, snoozed or paused.",
    ),
    "mx_rmq_held_back": (
        "held_back",
        "1 while a limit of the topic, or a pause for a while, lets nothing start.",
    ),
}
SERVER_GAUGES: Final = {
    "mx_rmq_server_memory_bytes": ("memory", "Memory that the server uses."),
    "mx_rmq_server_memory_limit_bytes": (
        "maxmemory",
        "Memory that it may use (maxmemory); 0: no limit is set.",
    ),
    "mx_rmq_server_aof_enabled": ("aof", "1 if it keeps an append-only file."),
    "mx_rmq_server_replicas": ("replicas", "Connected replicas."),
    "mx_rmq_server_replica_behind_bytes": ("behind", "Bytes that the slowest replica is behind."),
}
SERVER_COUNTERS: Final = {
    "mx_rmq_server_delayed_fsyncs": ("delayed_fsyncs", "How often it had to wait for its disk."),
    "mx_rmq_server_evicted_keys": ("evicted", "Keys evicted to free memory."),
}


@dataclass(frozen=True, slots=True)
class _QueueReading:
    """What was read at one time."""

    seconds: float  # how long it took
    overview: Overview[Stats] | None  # None: no topic could be read
    workers: Sequence[WorkerView] | None = None  # None: could not be read
    servers: Sequence[ServerView] = ()
    keys: Sequence[KeyList] = ()


class Depth(Collector):
    """Counts the messages of topics by state. `refresh` first, then render `registry`."""

    def __init__(
        self, admin: Callable[[], Admin], first: Sequence[str] = (), top_keys: int = 0
    ) -> None:
        """`admin` returns that of an open queue; `first`: topics that are never left out;
        `top_keys`: how many keys of each topic are named."""
        self._admin = admin
        self._top_keys = top_keys
        self._first = frozenset(first)
        self._reading: _QueueReading | None = None
        self._logged: set[str] = set()
        self._fresh_until = float("-inf")
        self._refreshing = asyncio.Lock()
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)

    async def refresh(self) -> None:
        """Read the queue, unless that was done recently. A failure shows in what is rendered."""
        async with self._refreshing:
            if time.monotonic() < self._fresh_until:
                return
            began = time.monotonic()
            try:
                self._reading = await self._read(self._admin(), began)
            except (MxRmqError, TimeoutError) as error:
                self._log([f"cannot read the depth of the queue: {_reason(error)}"])
                self._reading = _QueueReading(time.monotonic() - began, None)
            self._fresh_until = time.monotonic() + KEEP

    async def _read(self, admin: Admin, began: float) -> _QueueReading:
        overview, workers, servers = await asyncio.gather(
            _result_or_error(
                admin.overview(most=MOST, first=self._first, each=EACH, within=WITHIN),
                WITHIN + EACH,
            ),
            _result_or_error(admin.workers(), EACH),
            _result_or_error(admin.servers(), EACH),  # a user need not have the right to run INFO
        )
        if isinstance(overview, Exception):
            raise overview
        away = overview.away
        if away and not overview.topics:
            raise next(iter(away.values()))
        problems = []
        if away:
            others = f" (and {count(len(away) - 1, 'more topic')})" if len(away) > 1 else ""
            problems.append(f"{unreachable(*next(iter(away.items())))}{others}")
        if isinstance(workers, Exception):
            problems.append(f"cannot count the workers: {_reason(workers)}")
        if isinstance(servers, Exception) or not servers:
            problems.append(f"cannot read the state of the server: {_reason(servers)}")
        if overview.left_out:
            problems.append(str(check_topic_count(overview.known, MOST)))
        keys = await _result_or_error(self._read_keys(admin, overview), EACH)
        if isinstance(keys, Exception):
            problems.append(f"cannot read the keys: {_reason(keys)}")
        self._log(problems)
        return _QueueReading(
            time.monotonic() - began,
            overview,
            None if isinstance(workers, Exception) else workers,
            () if isinstance(servers, Exception) else servers,
            () if isinstance(keys, Exception) else keys,
        )

    async def _read_keys(self, admin: Admin, overview: Overview[Stats]) -> list[KeyList]:
        """Read the keys with the most waiting, of the topics with the most keys."""
        if not self._top_keys:
            return []
        with_keys = [one for one in overview.topics.values() if one.keys_waiting]
        most = sorted(with_keys, key=lambda one: -one.keys_waiting)[:TOP_TOPICS]
        # one more: the messages without a key may be among them
        return [await admin.keys(one.topic, limit=self._top_keys + 1) for one in most]

    def _log(self, problems: Sequence[str]) -> None:
        """Log each problem once, until a refresh does not find it."""
        for problem in problems:
            if problem not in self._logged:
                logger.warning("%s", problem)
        self._logged = {*problems}

    def collect(self) -> Iterator[Metric]:
        reading = self._reading
        if reading is None:
            return
        overview = reading.overview
        yield GaugeMetricFamily(
            "mx_rmq_depth_up", "1 if the depth of the queue could be read.", overview is not None
        )
        yield GaugeMetricFamily(
            "mx_rmq_depth_scrape_seconds", "How long reading it took.", reading.seconds
        )
        if overview is None:  # old numbers would look current
            return
        yield GaugeMetricFamily("mx_rmq_topics", "Number of topics.", overview.known)
        yield GaugeMetricFamily(
            "mx_rmq_topics_not_shown",
            f"Topics not shown here, because there are more than {MOST:,}.",
            overview.left_out,
        )
        if reading.workers is not None:
            yield from _workers(reading.workers, overview.topics)
        up = dict.fromkeys(overview.topics, 1) | dict.fromkeys(overview.away, 0)
        yield gauge(
            "mx_rmq_topic_up",
            "1 if the depth of the topic could be read.",
            ["topic"],
            [([topic], is_up) for topic, is_up in up.items()],
        )
        yield from _topics(overview.topics.values())
        yield from _subscriptions(overview.topics)
        yield from _keys(reading.keys, self._top_keys)
        yield from _servers(reading.servers)


async def _result_or_error(answer: Awaitable[T], within: float) -> T | MxRmqError | TimeoutError:
    try:
        async with asyncio.timeout(within):
            return await answer
    except (MxRmqError, TimeoutError) as error:
        return error


def _reason(error: object) -> str:
    return str(error or "") or "no answer"


def _workers(workers: Sequence[WorkerView], topics: Iterable[str]) -> Iterator[Metric]:
    alive = [one for one in workers if one.alive]
    serving = Counter(
        topic for one in alive for topic in {*one.topics, *map(base_topic, one.topics)}
    )
    yield gauge(
        "mx_rmq_workers",
        "Recently seen workers.",
        ["state"],
        [(["alive"], len(alive)), (["silent"], len(workers) - len(alive))],
    )
    yield gauge(
        "mx_rmq_topic_workers",
        "Live workers that serve the topic.",
        ["topic"],
        [([topic], serving[topic]) for topic in topics],
    )


def _topics(found: Collection[Stats]) -> Iterator[Metric]:
    yield gauge(
        "mx_rmq_depth",
        "Messages of the topic by state.",
        ["topic", "state"],
        [([one.topic, state], getattr(one, state)) for one in found for state in State],
    )
    archives = [(one, state) for one in found for state in ARCHIVES]
    yield gauge(
        "mx_rmq_archive_bytes",
        "Bytes that the dead letters, quarantine and results of the topic take on the server.",
        ["topic", "state"],
        [([one.topic, state], getattr(one, f"{state}_bytes")) for one, state in archives],
    )
    yield gauge(
        "mx_rmq_archive_budget_bytes",
        "Bytes that they may take; beyond that the oldest are dropped. 0: no limit.",
        ["topic", "state"],
        [([one.topic, state], getattr(one, f"{state}_budget")) for one, state in archives],
    )
    for name, (source, what) in TOPIC_GAUGES.items():
        values = [([one.topic], getattr(one, source) or 0) for one in found]
        yield gauge(name, what, ["topic"], values)
    yield gauge(
        "mx_rmq_running_limit",
        "Messages of the topic that may run at the same time; left out if there is no limit.",
        ["topic"],
        [([one.topic], one.running_limit) for one in found if one.running_limit is not None],
    )
    yield counter(
        "mx_rmq_dropped",
        "Ids dropped because there was no message; above 0, something else wrote to the keys.",
        ["topic"],
        [([one.topic], one.dropped) for one in found],
    )
    yield counter(
        "mx_rmq_happened",
        "Messages by what happened to them, since the topic was created.",
        ["topic", "what"],
        [([one.topic, what], n) for one in found for what, n in asdict(one.totals).items()],
    )


def _subscriptions(found: Mapping[str, Stats]) -> Iterator[Metric]:
    copies = [
        (one, name, found[f"{one.topic}@{name}"])
        for one in found.values()
        for name in one.subscriptions
        if f"{one.topic}@{name}" in found
    ]
    yield gauge(
        "mx_rmq_subscription_lag",
        "Messages that a subscription has not started: waiting in it, or in its topic.",
        ["topic", "subscription"],
        [([one.topic, name], one.pending + its.pending + its.delayed) for one, name, its in copies],
    )


def _keys(found: Sequence[KeyList], most: int) -> Iterator[Metric]:
    """The keys with the most waiting. Keys are foreign text: what has no UTF-8 form is escaped."""
    if not most:
        return
    rows = [
        ([one.topic, storable(row.key or "")], row)
        for one in found
        for row in [row for row in one.keys if row.key is not None and row.waiting][:most]
    ]
    yield gauge(
        "mx_rmq_key_waiting",
        "Messages waiting, of the keys of each topic that have the most.",
        ["topic", "key"],
        [(labels, row.waiting) for labels, row in rows],
    )
    yield gauge(
        "mx_rmq_key_oldest_seconds",
        "How long the next message of such a key has waited.",
        ["topic", "key"],
        [(labels, row.oldest or 0) for labels, row in rows],
    )


def _servers(found: Sequence[ServerView]) -> Iterator[Metric]:
    for kind, table in (gauge, SERVER_GAUGES), (counter, SERVER_COUNTERS):
        for name, (source, what) in table.items():
            values = [([one.name], getattr(one, source)) for one in found]
            yield kind(name, what, ["server"], values)
    yield gauge(
        "mx_rmq_server_disk_ok",
        "1 if the latest append to the append-only file, rewrite of it, or snapshot succeeded.",
        ["server", "what"],
        [
            ([one.name, what], getattr(one, f"{what}_ok"))
            for one in found
            for what in ("aof_write", "aof_rewrite", "snapshot")
        ],
    )
