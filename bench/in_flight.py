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
    from mx_rmq.store.answers import Claim

TOPIC = "order.created"
BATCH = 100
LEVELS = (100, 1_000, 10_000)
LIMIT = 1.5
TURNS = 7


async def measure_in_flight(url: str, *, rounds: int) -> None:
    """Print the cost at each level, and how much it grows."""
    turns: list[dict[int, tuple[float, float]]] = []
    with Redis.from_url(url) as raw:
        for _ in range(TURNS):
            turn = {}
            for level in LEVELS:
                raw.flushall()
                turn[level] = await _level(url, raw, level, rounds)
            turns.append(turn)
    print(f"\nserver µs a message, batches of {BATCH}, completed in random order")
    print(f"{'in flight':>10} {'dispatch':>9} {'complete':>9} {'both':>7}")
    for level in LEVELS:
        dispatch = statistics.median(turn[level][0] for turn in turns)
        complete = statistics.median(turn[level][1] for turn in turns)
        print(f"{level:>10,} {dispatch:>9.2f} {complete:>9.2f} {dispatch + complete:>7.2f}")
    # A ratio a turn, then the middle one: the machine's mood changes from turn to turn.
    growth = statistics.median(sum(turn[LEVELS[-1]]) / sum(turn[LEVELS[0]]) for turn in turns)
    print(f"{LEVELS[-1]:,} in flight against {LEVELS[0]}: {growth:.2f}× (goal: at most {LIMIT}×)")


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
            finished = [_pop_any(held) for _ in range(BATCH)]
            stopwatch.start()
            settled = await store.complete_message(TOPIC, WORKER, finished)
            complete += stopwatch.stop()
            assert all(settled)
    return dispatch / rounds / BATCH, complete / rounds / BATCH


def _pop_any(held: list[Claim]) -> Claim:
    """Take a random one, at the same cost at every level: a shuffle would empty the caches."""
    position = random.randrange(len(held))
    held[position], held[-1] = held[-1], held[position]
    return held.pop()


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
