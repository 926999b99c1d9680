"""Samples all topics every two seconds and keeps one hour of figures for pages and charts."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from mx_rmq.core.errors import MxRmqError
from mx_rmq.dashboard.queries import Queries
from mx_rmq.dashboard.series import DEPTHS, RATES, Series
from mx_rmq.doctor.topics import check_overview
from mx_rmq.safe_log import get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mx_rmq.admin import Stats, WorkerView
    from mx_rmq.dashboard.series import Point
    from mx_rmq.doctor.finding import Finding

logger = get_logger(__name__)

EVERY: Final = 2.0
"""Minimum seconds between two samples."""

SHARE: Final = 10
"""A sample that took one second is followed by a pause of ten: with many topics they are less
frequent, so that the load on the server stays low."""

ROWS: Final = 200
"""Topics on a page."""

WITHIN: Final = 8.0
"""Seconds that a sample may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One sample of all topics."""

    at: float
    stats: dict[str, Stats]
    points: dict[str, Point]
    all: Point
    """The same over all topics."""
    away: Mapping[str, Exception]
    """Topics that could not be reached, and why."""
    workers: list[WorkerView]
    findings: list[Finding] = field(default_factory=list)
    """What is wrong, the worst first."""
    known: int
    """How many topics there are, including those that were left out."""
    told: dict[tuple[str | None, int], str] = field(default_factory=dict)
    """Events for pages of each kind, made once."""

    @property
    def findings_key(self) -> str:
        """What changes when the kinds of findings change, and not with every count."""
        kinds = repr([(one.severity, one.topic, one.cure) for one in self.findings])
        return hashlib.blake2b(kinds.encode("utf-8", "backslashreplace"), digest_size=8).hexdigest()

    @property
    def pages(self) -> int:
        """On how many pages its topics are shown."""
        return max(1, -(-len(self.stats) // ROWS))

    def page(self, number: int) -> list[str]:
        """Return the topics on a page, from 1 on."""
        return list(self.stats)[(number - 1) * ROWS : number * ROWS]


class Sampler:
    """Takes the samples. It starts when first needed and runs until `close`."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries
        self._series: dict[str, Series] = {}
        self._all = Series()
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Condition()
        self._closed = False
        self._looks = 0
        self.listeners = 0
        """Pages that wait for samples."""
        self.latest: Round | None = None
        self.trouble: MxRmqError | TimeoutError | None = None
        """Why the latest sample failed; None: it did not."""

    def start(self) -> None:
        """Begin, unless it has begun."""
        if self._task is None or self._task.done():
            self._closed = False
            self._task = asyncio.create_task(self._run(), name="mx-rmq dashboard sampler")

    async def close(self) -> None:
        """Stop sampling; waiting pages get no more samples."""
        await self.hush()
        task, self._task = self._task, None
        if task is not None and not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def hush(self) -> None:
        """Release every page that waits for a sample."""
        self._closed = True
        async with self._news:
            self._news.notify_all()

    async def first(self) -> Round:
        """Return the latest round, or wait for the first one. Raises what the sample raised."""
        self.start()
        if self.latest is None and self.trouble is None:
            await self.next(0)
        if self.trouble is not None:
            raise self.trouble
        if self.latest is None:
            raise TimeoutError("the dashboard is being closed")
        return self.latest

    async def next(self, seen: int) -> int | None:
        """Wait for a sample newer than number `seen`; None: there will be no more."""
        self.start()
        async with self._news:
            await self._news.wait_for(lambda: self._closed or self._looks > seen)
        return None if self._closed else self._looks

    def series(self, topic: str | None) -> Series:
        """Return the figures of a topic, or of all topics."""
        return self._all if topic is None else self._series.get(topic, Series())

    async def _run(self) -> None:
        while True:
            began = time.monotonic()
            try:
                async with asyncio.timeout(WITHIN):
                    await self.look()
                self.trouble = None
            except (MxRmqError, TimeoutError) as error:
                self.trouble = error
            except Exception as error:  # whatever it is, it must not end the sampling
                logger.exception("sampling the topics failed")
                self.trouble = TimeoutError(f"{type(error).__name__}: {error}")
            self._looks += 1
            async with self._news:
                self._news.notify_all()
            took = 0.0 if self.trouble else time.monotonic() - began
            await asyncio.sleep(max(EVERY, SHARE * took))

    async def look(self) -> Round:
        """Take one sample."""
        overview = await self._queries.overview()
        workers = await self._queries.workers()
        at, before = time.time(), self.latest
        points = {
            topic: _point(stats, before.stats.get(topic) if before else None, before, at)
            for topic, stats in overview.topics.items()
        }
        everything = _together(points)
        for topic, point in points.items():
            self._series.setdefault(topic, Series()).add(at, point)
        for gone in self._series.keys() - points.keys() - overview.away.keys():
            del self._series[gone]
        self._all.add(at, everything)
        self.latest = Round(
            at=at,
            stats=overview.topics,
            points=points,
            all=everything,
            away=overview.away,
            workers=workers,
            findings=check_overview(overview, workers, now=at),
            known=overview.known,
        )
        return self.latest


def _point(stats: Stats, earlier: Stats | None, before: Round | None, at: float) -> Point:
    point: Point = {name: float(getattr(stats, name)) for name in DEPTHS}
    point["oldest"] = stats.oldest_pending
    point.update(dict.fromkeys(RATES))
    if earlier is not None and before is not None and at > before.at:
        new, old = Queries.ever(stats), Queries.ever(earlier)
        grown = [now - then for now, then in zip(new, old, strict=True)]
        if min(grown) >= 0:  # else the topic was wiped, or a failover forgot some
            rates = [round(more / (at - before.at), 3) for more in grown]
            point.update(zip(RATES, rates, strict=True))
    return point


def _together(points: dict[str, Point]) -> Point:
    """Add the topics up; of ages, take the largest."""
    total: Point = {name: sum(point[name] or 0 for point in points.values()) for name in DEPTHS}
    ages = [age for point in points.values() if (age := point["oldest"]) is not None]
    total["oldest"] = max(ages, default=None)
    for name in RATES:
        known = [rate for point in points.values() if (rate := point[name]) is not None]
        total[name] = sum(known) if known or not points else None
    return total
