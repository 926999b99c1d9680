"""How many messages per second a worker handles, and the CPU time that takes.

The queue is filled first; the rate is from the start of the first handler to that of the last.
"""

from __future__ import annotations

import asyncio
import os
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bench.own.crew import SETTLE, Crew, until_begun
from bench.own.figure import Figure, at_least, at_most
from bench.own.load import PAYLOAD, Trouble, topics

if TYPE_CHECKING:
    from bench.own.place import Place
    from bench.own.size import Size

CONCURRENCY: Final = 200
THREADS: Final = 8
WAITING: Final = 500
FEW: Final = 10

FULL: Final = 0.8
"""The share of all cores from which on they count as full."""


@dataclass(frozen=True, slots=True)
class Drained:
    """The cost of one drain."""

    rate: float
    """Messages per second."""
    worker: float
    server: float
    """Milliseconds of CPU time per 1,000 messages."""
    busy: float
    """Microseconds per message in the server's commands."""
    full: float
    """Share of a core that the server used."""


async def drain(
    place: Place,
    messages: int,
    *,
    handler: str = "nothing",
    concurrency: int = CONCURRENCY,
    workers: int = 1,
    over: int = 1,
) -> Drained:
    """Fill `over` topics, and drain them with `workers` processes."""
    names = topics(over)
    each = messages // over
    total = each * over
    async with place.queue() as mq, Crew(mq) as crew:
        for topic in names:
            await mq.produce_many(topic, [PAYLOAD] * each)
        hands = [
            await crew.hire(names, handler=handler, concurrency=concurrency) for _ in range(workers)
        ]
        before = await place.gauge.read()
        for hand in hands:
            await hand.go()
        await until_begun(total, *hands)
        await asyncio.sleep(SETTLE)
        after = await place.gauge.read()
        reports = [await hand.report() for hand in hands]
        for hand in hands:
            await hand.stop()
        left = [await mq.admin.stats(topic) for topic in names]
        if any(stats.total for stats in left):
            raise Trouble("a drain left messages behind")
    began = min(report.first for report in reports if report.count)
    seconds = max(report.last for report in reports) - began
    return Drained(
        rate=total / seconds,
        worker=sum(report.cpu for report in reports) / total * 1e6,
        server=(after.cpu - before.cpu) / total * 1e6,
        busy=(after.busy - before.busy) / total,
        full=(after.cpu - before.cpu) / seconds,
    )


async def measure(place: Place, size: Size) -> list[Figure]:
    """Measure handlers that do nothing."""
    turns = [await drain(place, size.drained) for _ in range(size.turns)]
    return [
        Figure(
            name="drain.rate",
            what="drain, async handlers that do nothing",
            value=statistics.median(turn.rate for turn in turns),
            unit="/s",
            goal=at_least(60_000),
            note=f"concurrency {CONCURRENCY}",
        ),
        Figure(
            name="drain.worker",
            what="drain, worker CPU per 1,000",
            value=statistics.median(turn.worker for turn in turns),
            unit="ms",
            goal=at_most(14),
        ),
        Figure(
            name="drain.server",
            what="drain, server CPU per 1,000",
            value=statistics.median(turn.server for turn in turns),
            unit="ms",
            goal=at_most(10),
            others=True,
        ),
    ]


async def measure_threads(place: Place, size: Size) -> list[Figure]:
    """Measure plain handlers, which run in threads."""
    turns = [
        await drain(place, size.drained // 4, handler="thread", concurrency=THREADS)
        for _ in range(size.turns)
    ]
    return [
        Figure(
            name="threads.rate",
            what="drain, plain handlers in threads",
            value=statistics.median(turn.rate for turn in turns),
            unit="/s",
            beside="≥ 3× Dramatiq and Huey",
            note=f"{THREADS} threads",
        )
    ]


async def measure_waiting(place: Place, size: Size) -> list[Figure]:
    """Measure handlers that wait for a millisecond."""
    turns = [
        await drain(place, size.drained, handler="wait", concurrency=WAITING)
        for _ in range(size.turns)
    ]
    return [
        Figure(
            name="waiting.rate",
            what="drain, async handlers of 1 ms",
            value=statistics.median(turn.rate for turn in turns),
            unit="/s",
            goal=at_least(40_000),
            note=f"concurrency {WAITING}",
        )
    ]


async def measure_two(place: Place, size: Size) -> list[Figure]:
    """Measure two worker processes against one, turn by turn."""
    return [
        await _two(place, size, "nothing", CONCURRENCY, "two.ratio", "that do nothing"),
        await _two(place, size, "wait", FEW, "two.waiting", f"of 1 ms, {FEW} at a time"),
    ]


async def _two(
    place: Place, size: Size, handler: str, concurrency: int, name: str, which: str
) -> Figure:
    ratios, full, messages = [], [], size.drained // (1 if handler == "nothing" else 2)
    for _ in range(size.turns):
        one = await drain(place, messages, handler=handler, concurrency=concurrency)
        two = await drain(place, messages * 2, workers=2, handler=handler, concurrency=concurrency)
        ratios.append(two.rate / one.rate)
        full.append(two.full + two.worker * two.rate / 1e6)
    cores = os.cpu_count() or 1
    used = statistics.median(full)
    return Figure(
        name=name,
        what=f"two worker processes against one, handlers {which}",
        value=statistics.median(ratios),
        unit="×",
        goal=at_least(1.5),
        excuse="no core is free" if used >= FULL * cores else "",
        note=f"server and both workers use {used:.1f} of {cores} cores",
    )
