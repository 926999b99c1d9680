"""How full a queue is, as an operator sees it: asked for by `mq.admin`, rendered afterwards.

However many ask, the server is asked once in a few seconds, and for so many topics at the most. A
topic that cannot be reached hides no other.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
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
    workers: dict[str, int] | None = None
    """How many are alive and silent. None: nobody told."""
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
                self._seen = await self._look(self._admin(), began)
            except (MxRmqError, TimeoutError) as error:
                logger.warning("the depth of the queue cannot be had: %s", _said(error))
                self._seen = _Seen(time.monotonic() - began, failed=True)
            self._fresh_until = time.monotonic() + KEEP

    async def _look(self, admin: Admin, began: float) -> _Seen:
        end = asyncio.get_running_loop().time() + WITHIN
        async with asyncio.timeout_at(end):
            topics = await admin.topics() if self._topics is None else self._topics
        look, chosen = _Look(admin), topics[:MOST]
        with suppress(TimeoutError):  # what is known by then is shown
            async with asyncio.timeout_at(end):
                await asyncio.gather(look.workers(), *map(look.topic, chosen))
        unknown = [topic for topic in chosen if topic not in look.told]
        if not look.told and (unknown or look.errors):
            raise next(iter(look.errors), TimeoutError())
        if unknown:
            logger.warning(
                "the depth of %s cannot be had, nor of %d other topics: %s",
                unknown[0],
                len(unknown) - 1,
                _said(next(iter(look.errors), None)),
            )
        return _Seen(
            seconds=time.monotonic() - began,
            topics=len(topics),
            stats=tuple(one for topic in topics if (one := look.told.get(topic)) is not None),
            unknown=tuple(unknown),
            workers=look.counted,
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
        yield GaugeMetricFamily("mx_rmq_topics", "Topics that are told of here.", seen.topics)
        workers = GaugeMetricFamily(
            "mx_rmq_workers", "Workers that were heard of lately.", labels=["state"]
        )
        for state, count in (seen.workers or {}).items():
            workers.add_metric([state], count)
        yield workers
        up = GaugeMetricFamily(
            "mx_rmq_topic_up", "1 if the server told how full the topic is.", labels=["topic"]
        )
        for stats in seen.stats:
            up.add_metric([stats.topic], 1)
        for topic in seen.unknown:
            up.add_metric([topic], 0)
        yield up
        yield from _topics(seen.stats)


class _Look:
    """One look at topics and workers, several of them at a time."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._free = asyncio.Semaphore(AT_ONCE)
        self.told: dict[str, Stats | None] = {}
        """None: nobody has produced to the topic or served it yet."""
        self.counted: dict[str, int] | None = None
        self.errors: list[MxRmqError | TimeoutError] = []

    async def topic(self, topic: str) -> None:
        async with self._free:
            try:
                async with asyncio.timeout(EACH):
                    self.told[topic] = await self._admin.stats(topic)
            except InvalidInput:
                self.told[topic] = None
            except (MxRmqError, TimeoutError) as error:
                self.errors.append(error)

    async def workers(self) -> None:
        try:
            async with asyncio.timeout(EACH):
                found = await self._admin.workers()
        except (MxRmqError, TimeoutError) as error:
            self.errors.append(error)
            return
        alive = sum(one.alive for one in found)
        self.counted = {"alive": alive, "silent": len(found) - alive}


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
