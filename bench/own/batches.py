"""How many rows per second a worker inserts: one per call, or hundreds in a batch.

The handler waits for a millisecond, like a database. Both kinds take turns, with as many calls at
a time as a small pool has connections.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Final

from bench.own.drain import drain
from bench.own.figure import Figure, at_least

if TYPE_CHECKING:
    from bench.own.place import Place
    from bench.own.size import Size

CONNECTIONS: Final = 10
"""Calls at a time."""
FEWER: Final = 2
"""Single handlers get half of the messages, so that they do not take forever."""


async def measure(place: Place, size: Size) -> list[Figure]:
    """Measure both kinds of handlers, turn by turn."""
    ratios, rates, singles = [], [], []
    for _ in range(size.turns):
        single = await drain(
            place, size.drained // FEWER, handler="insert", concurrency=CONNECTIONS
        )
        batch = await drain(place, size.drained, handler="bulk", concurrency=CONNECTIONS)
        ratios.append(batch.rate / single.rate)
        rates.append(batch.rate)
        singles.append(single.rate)
    return [
        Figure(
            name="batches.ratio",
            what="batches of 500 against single messages, handlers of 1 ms",
            value=statistics.median(ratios),
            unit="×",
            goal=at_least(5),
            note=f"{statistics.median(rates):,.0f} / {statistics.median(singles):,.0f} messages "
            f"per second, {CONNECTIONS} calls at a time",
        )
    ]
