"""How much small messages of one topic suffer when payloads of 1 MB go through another one.

They may be late by the time it takes to transfer the large ones there and back, but no more.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Final

from bench.own.crew import Crew
from bench.own.figure import Figure, at_most, share
from bench.own.latency import EVERY, pace
from bench.own.load import TOPIC, WORKER
from bench.own.member import BURST, LARGE, LARGE_BYTES

if TYPE_CHECKING:
    from bench.own.place import Place
    from bench.own.size import Size

PERIOD: Final = 0.5
"""Seconds between two bursts."""


async def measure(place: Place, size: Size) -> list[Figure]:
    """Measure the latency of small messages without large ones, then with them."""
    transfer = await _transfer(place)
    count = round(size.bursts * PERIOD / EVERY)
    async with place.queue() as mq, Crew(mq) as crew:
        worker = await crew.hire([TOPIC, LARGE], handler="late")
        await worker.go()
        quiet = await pace(mq, worker, TOPIC, count)
        producer = await crew.hire([], handler="none", every=PERIOD)
        await producer.go()
        loud = await pace(mq, worker, TOPIC, count)
        await producer.stop()
        await worker.stop()
    figures = []
    for name, below in (("p50", 0.5), ("p99", 0.99)):
        before, beside = share(quiet, below) * 1000, share(loud, below) * 1000
        figures.append(
            Figure(
                name=f"large.{name}",
                what=f"small messages beside 1 MB ones: later by, {name}",
                value=beside - before,
                unit="ms",
                goal=at_most(transfer * 1000),
                note=f"{before:.2f} → {beside:.2f} beside bursts of {BURST}; "
                "goal: such a burst's transfer",
            )
        )
    return figures


async def _transfer(place: Place) -> float:
    """Return the seconds that a burst takes to the server and back, without other traffic."""
    async with place.store() as store:
        draft = store.draft({"text": "x" * LARGE_BYTES})
        turns = []
        for _ in range(3):
            began = time.perf_counter()
            for _ in range(BURST):
                await store.produce_normal_message(LARGE, [draft])
            for _ in range(BURST):
                taken = await store.dispatch_message(LARGE, WORKER, count=1, lease=60_000)
                await store.complete_message(LARGE, WORKER, [taken.messages[0]])
            turns.append(time.perf_counter() - began)
    return statistics.median(turns)
