"""How long a flow takes: from the end of its block until the caller has the parent's result."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from bench.own.crew import Crew
from bench.own.figure import Figure, at_most, share
from bench.own.load import TOPIC, payload

if TYPE_CHECKING:
    from bench.own.place import Place
    from bench.own.size import Size
    from mx_rmq.queue import MessageQueue

CHILDREN: Final = 100
WITHIN: Final = 60.0
"""Milliseconds that they and their parent may take."""
PATIENCE: Final = 30.0


async def measure(place: Place, size: Size) -> list[Figure]:
    """Measure flows one after the other, in a queue that does nothing else."""
    async with place.queue() as mq, Crew(mq) as crew:
        hand = await crew.hire([TOPIC], handler="answer")
        await hand.go()
        await _flow(mq)  # warms up
        times = [await _flow(mq) for _ in range(max(3, size.paced // 10))]
        await hand.stop()
    return [
        Figure(
            name="flows.parent",
            what=f"a flow of {CHILDREN} messages and one that waits for them, p50",
            value=share(times, 0.5) * 1000,
            unit="ms",
            goal=at_most(WITHIN),
            note=f"p99 {share(times, 0.99) * 1000:.1f} ms",
        )
    ]


async def _flow(mq: MessageQueue) -> float:
    began = time.perf_counter()
    async with mq.flow() as flow:
        children = [flow.produce(TOPIC, payload(order=number)) for number in range(CHILDREN)]
        parent = flow.produce(TOPIC, payload(order=CHILDREN), after=children)
    await mq.result(TOPIC, parent, timeout=PATIENCE)
    return time.perf_counter() - began
