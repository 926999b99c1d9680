"""What an idle worker costs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from bench.own.crew import Crew
from bench.own.figure import Figure, at_most
from bench.own.load import topics

if TYPE_CHECKING:
    from bench.own.place import Place
    from bench.own.size import Size

LEVELS: Final = (1, 200)
CALM: Final = 2.0
"""Seconds until a worker has settled down."""
LONG_ENOUGH: Final = 10.0
"""Seconds needed to distinguish few commands from none."""


async def measure(place: Place, size: Size) -> list[Figure]:
    """Watch a worker of one topic, and one of two hundred."""
    judged = size.idle >= LONG_ENOUGH
    figures = []
    for level in LEVELS:
        what = f"idle worker, {level} topic{'s' * (level > 1)}"
        calls, cpu = await _watch(place, level, size.idle)
        figures += [
            Figure(
                name=f"idle.commands_{level}",
                what=f"{what}: commands",
                value=calls,
                unit="/s",
                goal=at_most(0.5) if judged else None,
                beside=f"≤ 0.5 /s, over {LONG_ENOUGH:g} s or more",
                note=f"in {size.idle:g} s",
                others=True,
            ),
            Figure(
                name=f"idle.cpu_{level}",
                what=f"{what}: CPU",
                value=cpu * 100,
                unit="%",
                goal=at_most(0.2),
            ),
        ]
    return figures


async def _watch(place: Place, level: int, seconds: float) -> tuple[float, float]:
    """Return commands per second, and the share of a core."""
    async with place.queue() as mq, Crew(mq) as crew:
        hand = await crew.hire(topics(level))
        await hand.go()
        await asyncio.sleep(CALM)
        before, reading = await hand.cpu(), await place.gauge.read()
        await asyncio.sleep(seconds)
        after, later = await hand.cpu(), await place.gauge.read()
        await hand.stop()
    calls = (later.calls - reading.calls) / seconds
    return calls, (after.cpu - before.cpu) / (after.seconds - before.seconds)
