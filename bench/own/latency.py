"""The time from produce to the start of the handler, and how late delayed messages are.

The payload carries the time at which it was due, and the handler notes how much later it is.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from bench.own.crew import Crew, until_begun
from bench.own.figure import Figure, at_most, share
from bench.own.load import TOPIC, payload

if TYPE_CHECKING:
    from bench.own.crew import Hand
    from bench.own.place import Place
    from bench.own.size import Size
    from mx_rmq.queue import MessageQueue

EVERY: Final = 0.01
"""Seconds between two messages."""
WARM: Final = 20
"""Warm-up messages."""
DELAY: Final = 1.0


async def measure(place: Place, size: Size) -> list[Figure]:
    """Measure how soon an idle worker starts."""
    async with place.queue() as mq, Crew(mq) as crew:
        hand = await crew.hire([TOPIC], handler="late")
        await hand.go()
        late = await pace(mq, hand, TOPIC, size.paced)
        await hand.stop()
    note = f"a message every {EVERY * 1000:g} ms"
    return _figures("latency", "latency of an idle worker", late, (0.9, 2), note)


async def measure_delayed(place: Place, size: Size) -> list[Figure]:
    """Measure how late delayed messages are."""
    async with place.queue() as mq, Crew(mq) as crew:
        hand = await crew.hire([TOPIC], handler="late")
        await hand.go()
        late = await pace(mq, hand, TOPIC, size.paced, delay=DELAY)
        await hand.stop()
    note = f"one due every {EVERY * 1000:g} ms"
    return _figures("delayed", "delayed messages are late", late, (2, 10), note)


async def pace(
    mq: MessageQueue, hand: Hand, topic: str, count: int, *, delay: float = 0.0
) -> list[float]:
    """Produce messages at an even pace; return how many seconds late the handler had each."""
    before = await hand.count()
    begin = time.monotonic() + EVERY
    for number in range(WARM + count):
        await asyncio.sleep(max(0.0, begin + number * EVERY - time.monotonic()))
        if delay:
            await mq.produce(topic, payload(due=time.monotonic() + delay), delay=delay)
        else:
            await mq.produce(topic, payload(due=time.monotonic()))
    await until_begun(before + WARM + count, hand)
    return (await hand.report()).noted[before + WARM :]


def _figures(
    part: str, what: str, late: list[float], limits: tuple[float, float], note: str
) -> list[Figure]:
    """Return the median, and the 99th percentile."""
    return [
        Figure(
            name=f"{part}.{name}",
            what=f"{what}, {name}",
            value=share(late, below) * 1000,
            unit="ms",
            goal=at_most(limit),
            note=note,
        )
        for name, below, limit in zip(("p50", "p99"), (0.5, 0.99), limits, strict=True)
    ]
