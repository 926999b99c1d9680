"""How many messages per second can be produced: in bulk, by many callers at once, by one alone."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import TYPE_CHECKING, Final

from bench.own.figure import Figure, at_least
from bench.own.load import PAYLOAD, TOPIC

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from bench.own.place import Place
    from bench.own.size import Size
    from mx_rmq.queue import MessageQueue

CALLERS: Final = 100
SHARE: Final = 12
"""The single caller produces a 12th of the messages, to save time."""


async def measure(place: Place, size: Size) -> list[Figure]:
    """Measure all three, turn by turn, each turn in an empty queue."""
    many, together, alone = [], [], []
    for _ in range(size.turns):
        async with place.queue() as mq:
            await _lone(mq, 100)  # connections are made, scripts are loaded
            bulk = mq.produce_many(TOPIC, [PAYLOAD] * size.produced)
            many.append(await _rate(bulk, size.produced))
            each = size.produced // CALLERS
            callers = asyncio.gather(*(_lone(mq, each) for _ in range(CALLERS)))
            together.append(await _rate(callers, each * CALLERS))
            alone.append(await _rate(_lone(mq, size.produced // SHARE), size.produced // SHARE))
    return [
        Figure(
            name="produce.many",
            what="produce_many",
            value=statistics.median(many),
            unit="/s",
            goal=at_least(80_000),
        ),
        Figure(
            name="produce.together",
            what=f"produce, {CALLERS} callers at once",
            value=statistics.median(together),
            unit="/s",
            goal=at_least(50_000),
        ),
        Figure(
            name="produce.alone",
            what="produce, one caller",
            value=statistics.median(alone),
            unit="/s",
            beside="ahead of every asyncio peer",
        ),
    ]


async def _lone(mq: MessageQueue, count: int) -> None:
    for _ in range(count):
        await mq.produce(TOPIC, PAYLOAD)


async def _rate(work: Awaitable[object], count: int) -> float:
    began = time.perf_counter()
    await work
    return count / (time.perf_counter() - began)
