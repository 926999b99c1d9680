"""How many bytes of server memory a pending message takes, and how many stay after a drain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bench.own.crew import Crew, until_begun
from bench.own.figure import Figure, at_most
from bench.own.load import PAYLOAD, PAYLOAD_BYTES, TOPIC

if TYPE_CHECKING:
    from bench.own.place import Place
    from bench.own.size import Size

GOALS: Final = {"Valkey": 420, "Redis": 480}
"""Bytes per message, on Valkey 9.1 and on Redis 7.0."""

LEFT: Final = 256
"""KiB that may stay for counters, receipts and the allocator, however many messages there were."""


async def measure(place: Place, size: Size) -> list[Figure]:
    """Measure a full queue, and the same queue drained."""
    async with place.queue() as mq, Crew(mq) as crew:
        await mq.produce_many(TOPIC, [PAYLOAD])  # connections are made, scripts are loaded
        before = await place.memory()
        await mq.produce_many(TOPIC, [PAYLOAD] * size.stored)
        pending = await place.memory() - before
        hand = await crew.hire([TOPIC])
        await hand.go()
        await until_begun(size.stored + 1, hand)
        await hand.stop()
        left = await place.memory() - before
    return [
        Figure(
            name="memory.pending",
            what=f"memory of a pending message of {PAYLOAD_BYTES} B",
            value=pending / size.stored,
            unit="B",
            goal=at_most(GOALS[place.nature.name]),
            note=f"{size.stored:,} pending",
            others=True,
        ),
        Figure(
            name="memory.left",
            what="memory left after a drain",
            value=max(0, left) / 1024,
            unit="KiB",
            goal=at_most(LEFT),
            others=True,
        ),
    ]
