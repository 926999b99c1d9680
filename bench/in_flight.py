"""Does the server's work for a message grow with the number of messages in flight?

With so many leases out, batches of 100 are dispatched and 100 random leases are completed. The
server's own stopwatch (INFO commandstats) counts, so neither the client nor the network does.
"""

from __future__ import annotations

import random
import statistics
from typing import TYPE_CHECKING

from redis import Redis

from bench.load import WORKER, payloads
from mx_rmq.store.store import Store

if TYPE_CHECKING:
    from mx_rmq.store.transitions import Claim

TOPIC = "order.created"
BATCH = 100
LEVELS = (100, 1_000, 10_000)
LIMIT = 1.5


async def measure_in_flight(url: str, *, rounds: int) -> None:
    """Print the cost at each level, and how much it grows."""
    print(f"\nserver µs a message, batches of {BATCH}, completed in random order")
    print(f"{'in flight':>10} {'dispatch':>9} {'complete':>9} {'both':>7}")
    both = {}
    with Redis.from_url(url) as raw:
        # Each level several times, in turns: a machine's mood must not pick the winner.
        figures: dict[int, list[tuple[float, float]]] = {level: [] for level in LEVELS}
        for _ in range(3):
            for level in LEVELS:
                raw.flushall()
                figures[level].append(await _level(url, raw, level, rounds))
    for level, found in figures.items():
        dispatch = statistics.median(figure[0] for figure in found)
        complete = statistics.median(figure[1] for figure in found)
        both[level] = dispatch + complete
        print(f"{level:>10,} {dispatch:>9.2f} {complete:>9.2f} {both[level]:>7.2f}")
    growth = both[LEVELS[-1]] / both[LEVELS[0]]
    spread = max(both.values()) / min(both.values())
    print(f"{LEVELS[-1]:,} in flight against {LEVELS[0]}: {growth:.2f}× (goal: at most {LIMIT}×)")
    print(f"dearest against cheapest: {spread:.2f}×")


async def _level(url: str, raw: Redis, in_flight: int, rounds: int) -> tuple[float, float]:
    held: list[Claim] = []
    stopwatch = _Stopwatch(raw)
    async with await Store.open(url) as store:
        while len(held) < in_flight:
            await store.produce_normal_message(TOPIC, payloads(BATCH))
            held += await _dispatch(store)
        dispatch = complete = 0.0
        for _ in range(rounds):
            await store.produce_normal_message(TOPIC, payloads(BATCH))
            stopwatch.start()
            held += await _dispatch(store)
            dispatch += stopwatch.stop()
            random.shuffle(held)
            finished, held = held[:BATCH], held[BATCH:]
            stopwatch.start()
            settled = await store.complete_message(TOPIC, WORKER, finished)
            complete += stopwatch.stop()
            assert all(settled)
    return dispatch / rounds / BATCH, complete / rounds / BATCH


async def _dispatch(store: Store) -> list[Claim]:
    taken = await store.dispatch_message(TOPIC, WORKER, count=BATCH, lease=600_000)
    assert len(taken.messages) == BATCH
    return [leased.claim for leased in taken.messages]


class _Stopwatch:
    """The server's own time in scripts, µs."""

    def __init__(self, raw: Redis) -> None:
        self._raw = raw
        self._began = 0.0

    def start(self) -> None:
        self._began = self._read()

    def stop(self) -> float:
        return self._read() - self._began

    def _read(self) -> float:
        stats = self._raw.info("commandstats")
        return float(stats.get("cmdstat_evalsha", {}).get("usec", 0))
