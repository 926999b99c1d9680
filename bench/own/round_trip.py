"""The time from produce until the caller has the handler's result, and the rate of many callers."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import TYPE_CHECKING, Final

from bench.own.crew import Crew
from bench.own.figure import Figure, at_least, at_most, share
from bench.own.load import TOPIC, Trouble, payload
from bench.own.produce import CALLERS

if TYPE_CHECKING:
    from bench.own.place import Place
    from bench.own.size import Size
    from mx_rmq.queue import MessageQueue

ALONE: Final = 20
"""The single caller makes one in 20 of the round trips."""
PATIENCE: Final = 30.0


async def measure(place: Place, size: Size) -> list[Figure]:
    """Measure one caller, then many, turn by turn, each turn in an empty queue."""
    alone: list[float] = []
    rates = []
    for _ in range(size.turns):
        async with place.queue() as mq, Crew(mq) as crew:
            hand = await crew.hire([TOPIC], handler="answer")
            await hand.go()
            await asyncio.gather(*(_trips(mq, 2) for _ in range(CALLERS)))  # warms up
            alone += await _trips(mq, size.trips // ALONE)
            began = time.perf_counter()
            await asyncio.gather(*(_trips(mq, size.trips // CALLERS) for _ in range(CALLERS)))
            rates.append(size.trips / (time.perf_counter() - began))
            await hand.stop()
    return [
        *(
            Figure(
                name=f"round-trip.{name}",
                what=f"produce, handler, result: one caller, {name}",
                value=share(alone, part) * 1000,
                unit="ms",
                goal=at_most(limit),
            )
            for name, part, limit in (("p50", 0.5, 1), ("p99", 0.99, 3))
        ),
        Figure(
            name="round-trip.together",
            what=f"the same, {CALLERS} callers at once",
            value=statistics.median(rates),
            unit="/s",
            goal=at_least(10_000),
        ),
    ]


async def _trips(mq: MessageQueue, count: int) -> list[float]:
    """Make round trips one after the other; return the seconds that each took."""
    took = []
    for number in range(count):
        began = time.perf_counter()
        id = await mq.produce(TOPIC, payload(order=number))
        if await mq.result(TOPIC, id, timeout=PATIENCE) != number:
            raise Trouble("a result belongs to another message")
        took.append(time.perf_counter() - began)
    return took
