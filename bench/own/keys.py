"""What a key costs the server: time per message, whether that grows with the keys, and memory.

Server time is from the server's own stopwatch (INFO commandstats), in batches of 100. The levels
and the plain topic take turns. Messages have random keys, so at 100,000 keys nearly every message
of a batch has a different one. A key that is idle again leaves nothing behind.
"""

from __future__ import annotations

import statistics
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

from bench.own.figure import Figure, at_most
from bench.own.load import BATCH, BULK, Cycle

if TYPE_CHECKING:
    from bench.own.place import Place
    from bench.own.size import Size

OVER_PLAIN: Final = 2.0
"""The most that a message with a key may cost, relative to one without."""
GROWTH: Final = 1.5
"""The most that a message may cost with the most keys waiting, relative to the fewest."""
IDLE_BYTES: Final = 1.0
"""The most that an idle key may take: nothing, except noise of the allocator."""

Level = tuple[int, bool]
"""How many messages wait, and whether each has a different key."""


async def measure(place: Place, size: Size) -> list[Figure]:
    """Measure time at each number of waiting keys, then memory."""
    levels: dict[Level, Cycle] = {}
    costs: dict[Level, list[float]] = {}
    async with AsyncExitStack() as stack:
        for waiting in size.keys:
            for keyed in (False, True):
                store = await stack.enter_async_context(place.store())
                cycle = Cycle(store, keys=waiting if keyed else 0)
                if keyed:
                    await cycle.produce_each(
                        number % waiting for number in range(_pending(waiting))
                    )
                else:
                    await cycle.produce(_pending(waiting))
                levels[waiting, keyed], costs[waiting, keyed] = cycle, []
        for _ in range(size.ratios * size.rounds):  # single batches: the middle one is undisturbed
            for level, cycle in levels.items():
                before = await place.gauge.busy()
                await cycle.produce(BATCH)
                await cycle.complete(await cycle.dispatch())
                costs[level].append((await place.gauge.busy() - before) / BATCH)
    middle = {level: statistics.median(some) for level, some in costs.items()}
    return [*_time(middle, size.keys), *await _memory(place, size)]


def _pending(waiting: int) -> int:
    return max(waiting, 10 * BATCH)


def _time(middle: dict[Level, float], keys: tuple[int, ...]) -> list[Figure]:
    low, high = keys[0], keys[-1]
    shown = " / ".join(f"{middle[waiting, True]:.1f}" for waiting in keys)
    plain = " / ".join(f"{middle[waiting, False]:.1f}" for waiting in keys)
    return [
        *(
            Figure(
                name=f"keys.over-plain-{waiting}",
                what=f"server time, {waiting:,} keys waiting, against no keys",
                value=middle[waiting, True] / middle[waiting, False],
                unit="×",
                goal=at_most(OVER_PLAIN),
                others=True,
            )
            for waiting in keys
        ),
        Figure(
            name="keys.growth",
            what=f"server time, {high:,} keys waiting against {low:,}",
            value=middle[high, True] / middle[low, True],
            unit="×",
            goal=at_most(GROWTH),
            note=f"{shown} µs per message; without keys {plain}",
            others=True,
        ),
    ]


async def _memory(place: Place, size: Size) -> list[Figure]:
    """Measure what a waiting key takes over a plain message, and what all idle keys take."""
    high = size.keys[-1]
    taken = {}
    for keyed in (False, True):
        async with place.store() as store:
            cycle = Cycle(store, keys=size.all_keys if keyed else 0)
            await cycle.produce(BATCH)
            await cycle.complete(await cycle.dispatch())
            before = await place.memory()
            if keyed:
                await cycle.produce_each(range(high))
            else:
                await cycle.produce(high)
            taken[keyed] = (await place.memory() - before) / high
    async with place.queue(history=0) as mq:
        cycle = Cycle(mq.store, keys=size.all_keys)
        for first in range(0, size.all_keys, BULK):
            await cycle.produce_each(range(first, min(first + BULK, size.all_keys)))
            for _ in range(0, min(BULK, size.all_keys - first), BATCH):
                await cycle.complete(await cycle.dispatch())
            if first == 0:
                before = await place.memory()
        left = await place.memory() - before
    return [
        Figure(
            name="keys.memory",
            what="memory of a waiting key, over a plain message",
            value=taken[True] - taken[False],
            unit="B",
            note=f"{high:,} waiting; {taken[True]:.0f} B against {taken[False]:.0f} B",
            others=True,
        ),
        Figure(
            name="keys.idle",
            what=f"memory of an idle key, of {size.all_keys:,}",
            value=max(0, left) / size.all_keys,
            unit="B",
            goal=at_most(IDLE_BYTES),
            others=True,
        ),
    ]
