"""Samples all topics every two seconds and keeps one hour of figures for pages and charts."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from array import array
from dataclasses import dataclass, field
from math import isnan, nan
from statistics import fmean
from typing import TYPE_CHECKING, Final

from mx_rmq.core.errors import MxRmqError
from mx_rmq.doctor.topics import check_overview
from mx_rmq.safe_log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from mx_rmq.admin import Stats, WorkerView
    from mx_rmq.dashboard.queries import Queries
    from mx_rmq.doctor.finding import Finding

logger = get_logger(__name__)

EVERY: Final = 2.0  # minimum seconds between two samples

SHARE: Final = 10
"""A sample that took one second is followed by a pause of ten: with many topics they are less
frequent, so that the load on the server stays low."""

ROWS: Final = 200  # topics on a page
WITHIN: Final = 8.0  # seconds that a sample may take

KEPT: Final = 3600.0  # seconds of figures

DEPTHS: Final = ("pending", "processing", "delayed", "waiting", "dead", "quarantined")
RATES: Final = ("produced", "completed", "failed")
FIGURES: Final = (*DEPTHS, "oldest", *RATES)
"""The values of a point. `oldest` is an age in seconds, rates are per second."""

_WIDTH: Final = 1 + len(FIGURES)
_OLD: Final = 64  # points too old are dropped in chunks of this many

Point = dict[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """How all topics were doing at one time."""

    at: float
    stats: dict[str, Stats]
    points: dict[str, Point]
    all: Point  # all topics together
    away: Mapping[str, Exception]  # topics that could not be reached, and why
    workers: list[WorkerView]
    findings: list[Finding]  # what is wrong, the worst first
    known: int  # how many topics there are, including those that were left out
    events: dict[tuple[str | None, int], str] = field(default_factory=dict)
    """The server-sent events made from it, by topic and page number."""

    @property
    def alive(self) -> int:
        return sum(worker.alive for worker in self.workers)

    @property
    def findings_key(self) -> str:
        """Changes when other kinds of findings appear, but not with every count in them."""
        kinds = repr([(one.severity, one.topic, one.cure) for one in self.findings])
        return hashlib.blake2b(kinds.encode("utf-8", "backslashreplace"), digest_size=8).hexdigest()

    @property
    def pages(self) -> int:
        """How many pages its topics take."""
        return max(1, -(-len(self.stats) // ROWS))

    def page(self, number: int) -> list[str]:
        """Return the topics on a page, from 1 on."""
        return list(self.stats)[(number - 1) * ROWS : number * ROWS]


class Series:
    """Points in time, oldest first. About 80 bytes per point."""

    def __init__(self) -> None:
        self._numbers = array("d")

    def __len__(self) -> int:
        return len(self._numbers) // _WIDTH

    def add(self, at: float, point: Mapping[str, float | None]) -> None:
        """Add the newest point; drop those that are too old."""
        self._numbers.append(at)
        values = (point.get(name) for name in FIGURES)
        self._numbers.extend(nan if value is None else value for value in values)
        if len(self) > _OLD and self._numbers[_OLD * _WIDTH] < at - KEPT:
            del self._numbers[: _OLD * _WIDTH]

    def chart(self, since: float, most: int) -> dict[str, list[float | None]]:
        """Return at most `most` points from a time on, one column per figure.

        Where several points become one, a rate is their mean and everything else the largest: a
        chart must not hide a peak.
        """
        times = self._numbers[::_WIDTH]
        first = next((place for place, at in enumerate(times) if at >= since), len(times))
        step = max(1, -(-(len(times) - first) // most))
        starts = range(first, len(times), step)
        columns: dict[str, list[float | None]] = {
            "at": [times[min(start + step, len(times)) - 1] for start in starts]
        }
        for place, name in enumerate(FIGURES, 1):
            column = self._numbers[place::_WIDTH]
            merge = fmean if name in RATES else max
            columns[name] = [_merged(column[start : start + step], merge) for start in starts]
        return columns


class Sampler:
    """Takes the samples. It starts when first needed and runs until `close`."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries
        self._series: dict[str, Series] = {}
        self._all = Series()
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Condition()
        self._closed = False
        self._number = 0  # of the latest sample, failed ones included
        self.listeners = 0  # open event streams
        self.latest: Sample | None = None
        self.error: MxRmqError | TimeoutError | None = None  # why the latest sample failed

    def start(self) -> None:
        """Start, unless it runs already."""
        if self._task is None or self._task.done():
            self._closed = False
            self._task = asyncio.create_task(self._run(), name="mx-rmq dashboard sampler")

    async def close(self) -> None:
        """Stop sampling; event streams end."""
        await self.end_streams()
        task, self._task = self._task, None
        if task is not None and not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def end_streams(self) -> None:
        self._closed = True
        async with self._news:
            self._news.notify_all()

    async def first(self) -> Sample:
        """Return the latest sample, or wait for the first one. Raises what the sampling raised."""
        self.start()
        if self.latest is None and self.error is None:
            await self.next(0)
        if self.error is not None:
            raise self.error
        if self.latest is None:
            raise TimeoutError("the dashboard is being closed")
        return self.latest

    async def next(self, number: int) -> int | None:
        """Wait for a sample after this number; return its number. None: there will be no more."""
        self.start()
        async with self._news:
            await self._news.wait_for(lambda: self._closed or self._number > number)
        return None if self._closed else self._number

    def series(self, topic: str | None) -> Series:
        """Return the figures of a topic, or of all topics."""
        return self._all if topic is None else self._series.get(topic, Series())

    async def _run(self) -> None:
        while True:
            began = time.monotonic()
            try:
                async with asyncio.timeout(WITHIN):
                    await self.sample()
                self.error = None
            except (MxRmqError, TimeoutError) as error:
                self.error = error
            except Exception as error:  # whatever it is, it must not end the sampling
                logger.exception("sampling the topics failed")
                self.error = TimeoutError(f"{type(error).__name__}: {error}")
            self._number += 1
            async with self._news:
                self._news.notify_all()
            took = 0.0 if self.error else time.monotonic() - began
            await asyncio.sleep(max(EVERY, SHARE * took))

    async def sample(self) -> None:
        overview = await self._queries.overview()
        workers = await self._queries.workers()
        at, before = time.time(), self.latest
        points = {topic: _point(stats, before, at) for topic, stats in overview.topics.items()}
        everything = _total(points.values())
        for topic, point in points.items():
            self._series.setdefault(topic, Series()).add(at, point)
        for gone in self._series.keys() - points.keys() - overview.away.keys():
            del self._series[gone]
        self._all.add(at, everything)
        self.latest = Sample(
            at=at,
            stats=overview.topics,
            points=points,
            all=everything,
            away=overview.away,
            workers=workers,
            findings=check_overview(overview, workers, now=at),
            known=overview.known,
        )


def _point(stats: Stats, before: Sample | None, at: float) -> Point:
    point: Point = {name: float(getattr(stats, name)) for name in DEPTHS}
    point["oldest"] = stats.oldest_pending
    point.update(dict.fromkeys(RATES))
    earlier = before.stats.get(stats.topic) if before else None
    if before is not None and earlier is not None and at > before.at:
        new, old = stats.totals, earlier.totals
        grown = {name: getattr(new, name) - getattr(old, name) for name in RATES}
        if min(grown.values()) >= 0:  # else the topic was wiped, or a failover lost some
            point |= {name: round(more / (at - before.at), 3) for name, more in grown.items()}
    return point


def _total(points: Iterable[Point]) -> Point:
    """Add up the points of all topics. The age is that of the oldest; None: unknown."""
    every = list(points)
    total: Point = {name: sum(point[name] or 0 for point in every) for name in DEPTHS}
    ages = [age for point in every if (age := point["oldest"]) is not None]
    total["oldest"] = max(ages, default=None)
    for name in RATES:
        known = [rate for point in every if (rate := point[name]) is not None]
        total[name] = sum(known) if known or not every else None
    return total


def _merged(values: Iterable[float], merge: Callable[[list[float]], float]) -> float | None:
    known = [value for value in values if not isnan(value)]
    return round(merge(known), 3) if known else None
