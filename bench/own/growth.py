"""Does the server's work per message grow with messages in flight or pending, or with topics?

The server's own stopwatch (INFO commandstats) counts, so client and network do not matter. The
levels take turns, each in its own queue, which stays equally full.
"""

from __future__ import annotations

import random
import statistics
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

from bench.own.drain import drain
from bench.own.figure import Figure, at_most, growth
from bench.own.load import BATCH, Cycle

if TYPE_CHECKING:
    from bench.own.place import Place
    from bench.own.size import Size
    from mx_rmq.store.results import Claim

LIMIT: Final = 1.5
"""The most that a message may cost at the highest level, relative to the lowest."""

Turns = list[dict[int, float]]
"""Level -> server µs per message, turn by turn."""


async def measure_in_flight(place: Place, size: Size) -> list[Figure]:
    """Dispatch and complete batches in random order, with this many leases in flight."""
    turns: Turns = []
    async with AsyncExitStack() as stack:
        levels: dict[int, tuple[Cycle, list[Claim]]] = {}
        for level in size.in_flight:
            cycle = Cycle(await stack.enter_async_context(place.store()))
            held: list[Claim] = []
            while len(held) < level:
                await cycle.produce(BATCH)
                held += await cycle.dispatch()
            levels[level] = cycle, held
        for _ in range(size.ratios):
            turn = {}
            for level, (cycle, held) in levels.items():
                await cycle.produce(size.rounds * BATCH)
                before = await place.gauge.busy()
                for _ in range(size.rounds):
                    held.extend(await cycle.dispatch())
                    await cycle.complete([_pop_any(held) for _ in range(BATCH)])
                spent = await place.gauge.busy() - before
                turn[level] = spent / size.rounds / BATCH
            turns.append(turn)
    return _figures(turns, "in-flight", "in flight")


async def measure_pending(place: Place, size: Size) -> list[Figure]:
    """Produce, dispatch and complete batches at each number of pending messages."""
    turns: Turns = []
    async with AsyncExitStack() as stack:
        levels: dict[int, Cycle] = {}
        for level in size.pending:
            levels[level] = Cycle(await stack.enter_async_context(place.store()))
            await levels[level].produce(level)
        for _ in range(size.ratios):
            turn = {}
            for level, cycle in levels.items():
                before = await place.gauge.busy()
                for _ in range(size.rounds):
                    await cycle.produce(BATCH)
                    await cycle.complete(await cycle.dispatch())
                spent = await place.gauge.busy() - before
                turn[level] = spent / size.rounds / BATCH
            turns.append(turn)
    return _figures(turns, "pending", "pending")


async def measure_topics(place: Place, size: Size) -> list[Figure]:
    """Let one worker drain the same number of messages from one topic and from many."""
    drained = [
        {over: await drain(place, size.spread, over=over) for over in size.topics}
        for _ in range(size.turns)
    ]
    turns: Turns = [{over: one.busy for over, one in turn.items()} for turn in drained]
    rates = [statistics.median(turn[over].rate for turn in drained) for over in size.topics]
    note = f"{' / '.join(f'{rate:,.0f}' for rate in rates)} messages per second"
    return _figures(turns, "topics", "topics", note)


def _figures(turns: Turns, part: str, what: str, note: str = "") -> list[Figure]:
    levels = sorted(turns[0])
    costs = [f"{statistics.median(turn[level] for turn in turns):.1f}" for level in levels]
    return [
        Figure(
            name=f"{part}.growth",
            what=f"server time, {levels[-1]:,} {what} against {levels[0]:,}",
            value=growth(turns),
            unit="×",
            goal=at_most(LIMIT),
            note=f"{' / '.join(costs)} µs per message{'; ' * bool(note)}{note}",
            others=True,
        )
    ]


def _pop_any(held: list[Claim]) -> Claim:
    """Take a random one, at the same cost at every level: a shuffle would flush the caches."""
    position = random.randrange(len(held))
    held[position], held[-1] = held[-1], held[position]
    return held.pop()
