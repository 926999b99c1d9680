"""How full a queue is, as an operator sees it: asked for by `mq.admin`, rendered afterwards.

However many ask, the server is asked once in a few seconds, and for so many topics at the most.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from mx_rmq.core.errors import InvalidInput, MxRmqError
from mx_rmq.core.message import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from prometheus_client import Metric

    from mx_rmq.admin import Admin
    from mx_rmq.admin.view import Stats

logger = logging.getLogger(__name__)

MOST: Final = 1000
"""Topics that are looked at, the first ones by name."""
AT_ONCE: Final = 16
"""Topics that are asked for at the same time."""
KEEP: Final = 5.0
"""Seconds for which an answer is given again."""
WITHIN: Final = 5.0
"""Seconds that the server has to answer."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was seen in one look."""

    seconds: float
    """How long that took."""
    topics: int = 0
    """How many there are, also if that is more than are looked at."""
    stats: tuple[Stats, ...] = ()
    alive: int = 0
    silent: int = 0
    failed: bool = False


class Depth(Collector):
    """Counts the messages of topics by state. `refresh` first, then render `registry`."""

    def __init__(self, admin: Callable[[], Admin], topics: Sequence[str] | None = None) -> None:
        """`admin` returns that of an open queue; `topics` None: all there are."""
        self._admin = admin
        self._topics = None if topics is None else sorted(topics)
        self._seen: _Seen | None = None
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
                async with asyncio.timeout(WITHIN):
                    self._seen = await self._look(self._admin(), began)
            except (MxRmqError, TimeoutError) as error:
                logger.warning(
                    "the depth of the queue cannot be had: %s", str(error) or "no answer"
                )
                self._seen = _Seen(time.monotonic() - began, failed=True)
            self._fresh_until = time.monotonic() + KEEP

    async def _look(self, admin: Admin, began: float) -> _Seen:
        topics = await admin.topics() if self._topics is None else self._topics
        free = asyncio.Semaphore(AT_ONCE)

        async def ask(topic: str) -> Stats | None:
            async with free:
                try:
                    return await admin.stats(topic)
                except InvalidInput:  # nobody has produced to it or served it yet
                    return None

        found = await asyncio.gather(*map(ask, topics[:MOST]))
        workers = await admin.workers()
        alive = sum(one.alive for one in workers)
        return _Seen(
            seconds=time.monotonic() - began,
            topics=len(topics),
            stats=tuple(one for one in found if one is not None),
            alive=alive,
            silent=len(workers) - alive,
        )

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
        yield GaugeMetricFamily("mx_rmq_topics", "Topics there are.", seen.topics)
        workers = GaugeMetricFamily(
            "mx_rmq_workers", "Workers that were heard of lately.", labels=["state"]
        )
        workers.add_metric(["alive"], seen.alive)
        workers.add_metric(["silent"], seen.silent)
        yield workers
        yield from _topics(seen.stats)


def _topics(found: Sequence[Stats]) -> Iterator[Metric]:
    depth = GaugeMetricFamily(
        "mx_rmq_depth", "Messages of a topic that are in a state.", labels=["topic", "state"]
    )
    oldest = GaugeMetricFamily(
        "mx_rmq_oldest_pending_seconds",
        "Age of the oldest of those messages that are taken next; 0: nothing is pending.",
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
    for stats in found:
        topic = [stats.topic]
        for what, count in asdict(stats.totals).items():
            happened.add_metric([stats.topic, what], count)
        for state in State:
            depth.add_metric([stats.topic, state], getattr(stats, state))
        oldest.add_metric(topic, stats.oldest_pending or 0)
        paused.add_metric(topic, stats.paused)
        partitions.add_metric(topic, stats.partitions)
        dropped.add_metric(topic, stats.dropped)
    yield from (depth, oldest, paused, partitions, dropped, happened)
