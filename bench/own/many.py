"""Does a message cost more, or arrive later, if its worker serves a thousand topics?

One message at a time, each to a random topic, at a rate that keeps no worker busy, so every message
rings a doorbell. The two workers, one with few topics and one with many, are measured in turn.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final, NamedTuple

from bench.own.crew import Crew, until_begun
from bench.own.figure import Figure, at_most, growth, share
from bench.own.load import payload, topics

if TYPE_CHECKING:
    from bench.own.crew import Hand
    from bench.own.place import Place
    from bench.own.size import Size
    from mx_rmq.queue import MessageQueue

RATE: Final = 150
"""Messages per second."""
CALM: Final = 3.0
"""Seconds until workers have finished starting."""
LIMIT: Final = 2.0
"""The goal: many topics cost at most this many times as much as few."""


class Paced(NamedTuple):
    """The figures of one turn."""

    cpu: float
    """Microseconds of the worker's CPU time per message."""
    p50: float
    p99: float
    """Seconds from the produce to the start of the handler."""


async def measure(place: Place, size: Size) -> list[Figure]:
    """Compare a worker of ten topics with one of a thousand."""
    turns: list[dict[int, Paced]] = []
    async with AsyncExitStack() as stack:
        workers: dict[int, tuple[MessageQueue, Hand]] = {}
        for level in size.many:
            mq = await stack.enter_async_context(place.queue())
            crew = await stack.enter_async_context(Crew(mq))
            hand = await crew.hire(topics(level), handler="late")
            await hand.go()
            workers[level] = mq, hand
            for topic in topics(level):
                await mq.produce(topic, payload(due=time.monotonic()))
            await until_begun(level, hand)
        await asyncio.sleep(CALM)
        turns += [
            {level: await _pace(*worker, level, size.paced) for level, worker in workers.items()}
            for _ in range(size.turns)
        ]
        for _, hand in workers.values():
            await hand.stop()
    levels = f"{size.many[1]:,} topics against {size.many[0]}"
    return [
        Figure(
            name=f"many.{name}",
            what=f"{what}, {levels}",
            value=growth(
                [{level: getattr(one, name) for level, one in turn.items()} for turn in turns]
            ),
            unit="×",
            goal=at_most(LIMIT),
            note=" / ".join(f"{_middle(turns, level, name) * scale:,.2f}" for level in size.many)
            + f" {unit}, {RATE} messages per second",
        )
        for name, what, scale, unit in (
            ("cpu", "CPU of a worker for a message", 1.0, "µs"),
            ("p50", "latency, p50", 1000.0, "ms"),
            ("p99", "latency, p99", 1000.0, "ms"),
        )
    ]


async def _pace(mq: MessageQueue, hand: Hand, level: int, count: int) -> Paced:
    """Produce messages to random topics, at an even pace."""
    names = topics(level)
    before, began = await hand.count(), await hand.cpu()
    begin = time.monotonic()
    for number in range(count):
        await asyncio.sleep(max(0.0, begin + number / RATE - time.monotonic()))
        topic = random.choice(names)
        await mq.produce(topic, payload(due=time.monotonic()))
    await until_begun(before + count, hand)
    cpu = (await hand.cpu()).cpu - began.cpu
    late = (await hand.report()).noted[before:]
    return Paced(cpu / count * 1e6, share(late, 0.5), share(late, 0.99))


def _middle(turns: list[dict[int, Paced]], level: int, name: str) -> float:
    return statistics.median(float(getattr(turn[level], name)) for turn in turns)
