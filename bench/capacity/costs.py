"""What a message costs, by payload and batch: on the server, phase by phase, and in Python.

The server's share is measured with the store's own calls, whose batches are exact. Python's is
measured with a real producer and a real worker in this process. The median of several rounds
counts. CPU time is measured, so other work on the machine disturbs less than with wall time.
"""

from __future__ import annotations

import asyncio
import os
import platform
import socket
import statistics
import tempfile
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from bench.capacity.model import PHASES, Cell, Costs, Share, Spent, Weight
from bench.own.load import TOPIC, Cycle, Trouble, payload
from bench.own.place import OwnServer, place
from mx_rmq.worker import Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from bench.own.gauge import Gauge
    from bench.own.place import Place
    from mx_rmq.queue import MessageQueue
    from mx_rmq.store.results import Claim

PAYLOADS: Final = (100, 1_000, 10_000, 100_000)
BATCHES: Final = (1, 10, 100, 500)
WEIGHED: Final = (100, 200, 1_000, 10_000, 100_000)
MOST: Final = 1_048_576
"""Bytes in one call: a producer makes no larger ones."""
WORKED: Final = ((1, 0), (10, 0), (200, 1_000))
"""Concurrency and prefetch of the workers that are measured."""
CALLERS: Final = 100
LEAST: Final = 0.01
"""Microseconds, at least: a formula is fitted by ratios, so nothing may cost 0."""
WITHIN: Final = 120.0
"""Seconds in which a drain must end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How much is measured."""

    rounds: int = 5
    calls: int = 300
    """At most this many calls of each script per round."""
    messages: int = 10_000
    volume: int = 20_000_000
    """At most this many messages and payload bytes per round and cell."""

    def count(self, size: int, batch: int) -> int:
        """Return how many messages a cell gets: whole batches, at least two."""
        most = min(self.calls * batch, self.messages, self.volume // size)
        return batch * max(2, most // batch)


USUAL: Final = Extent()
QUICK: Final = Extent(rounds=1, calls=20, messages=1_000, volume=2_000_000)


class Stopwatch:
    """Reads the server's counters, without the cost of reading them."""

    def __init__(self, gauge: Gauge) -> None:
        self._gauge = gauge
        self._own = 0.0
        self._script, self._cpu = 0, 0.0

    async def start(self) -> None:
        """Begin again."""
        own = []
        for _ in range(3):
            before = await self._gauge.read()
            after = await self._gauge.read()
            own.append(after.cpu - before.cpu)
        self._own, self._script, self._cpu = statistics.median(own), after.busy, after.cpu

    async def lap(self, messages: int) -> Spent:
        """Return what a message cost since the start or the last lap."""
        now = await self._gauge.read()
        script = (now.busy - self._script) / messages
        cpu = (now.cpu - self._cpu - self._own) / messages * 1e6
        spent = Spent(max(LEAST, script), max(LEAST, cpu))
        self._script, self._cpu = now.busy, now.cpu
        return spent


async def measure(
    where: Place, extent: Extent, tell: Callable[[str], None] = lambda _: None
) -> Costs:
    """Measure it all."""
    cells: dict[tuple[int, int], list[dict[str, Spent]]] = {}
    produced: dict[tuple[int, str], list[Share]] = {}
    worked: dict[tuple[int, int], list[Share]] = {}
    for number in range(extent.rounds):
        tell(f"  round {number + 1} of {extent.rounds}")
        for size in PAYLOADS:
            for batch in (one for one in BATCHES if one == 1 or one * size <= MOST):
                found = await _life(where, size, batch, extent.count(size, batch))
                cells.setdefault((size, batch), []).append(found)
            for name, share in (await _producers(where, size, extent)).items():
                produced.setdefault((size, name), []).append(share)
            for concurrency, prefetch in WORKED:
                share = await _worker(where, size, extent, concurrency, prefetch)
                worked.setdefault((size, concurrency), []).append(share)
    tell("  memory")
    nature = where.nature
    return Costs(
        date=datetime.now(UTC).date().isoformat(),
        server=f"{nature.name} {nature.version}"
        + (f", a cluster of {nature.nodes}" if nature.nodes > 1 else ""),
        python=platform.python_version(),
        machine=f"{os.cpu_count()} cores, {platform.machine()}",
        rounds=extent.rounds,
        cells=[
            Cell(size, batch, *(_middle(one[phase] for one in found) for phase in PHASES))
            for (size, batch), found in cells.items()
        ],
        producer=[_middle_share(found) for found in produced.values()],
        worker=[_middle_share(found) for found in worked.values()],
        memory=[await _weigh(where, size, extent) for size in WEIGHED],
    )


# the server


async def _life(where: Place, size: int, batch: int, count: int) -> dict[str, Spent]:
    """Take messages through their lives, all of them phase by phase."""
    async with where.store() as store:
        cycle = Cycle(store, payload=payload(size))
        await cycle.produce(1)
        await cycle.complete(await cycle.dispatch(1))  # connections are made, scripts are loaded
        watch = Stopwatch(where.gauge)
        await watch.start()
        await cycle.produce(count, batch=batch)
        produced = await watch.lap(count)
        held: list[list[Claim]] = [await cycle.dispatch(batch) for _ in range(count // batch)]
        dispatched = await watch.lap(count)
        for claims in held:
            await cycle.complete(claims)
        completed = await watch.lap(count)
    return dict(zip(PHASES, (produced, dispatched, completed), strict=True))


async def _weigh(where: Place, size: int, extent: Extent) -> Weight:
    count = max(20, min(extent.messages * 2, extent.volume // size))
    batch = max(1, min(500, MOST // size))
    async with where.store() as store:
        cycle = Cycle(store, payload=payload(size))
        await cycle.produce(1)
        before = await where.memory()
        await cycle.produce(count, batch=batch)
        return Weight(size, (await where.memory() - before) / count)


# Python


async def _producers(where: Place, size: int, extent: Extent) -> dict[str, Share]:
    """Produce alone, by a hundred callers at once, and in bulk."""
    one = payload(size)
    few, many = extent.count(size, 1), extent.count(size, CALLERS)
    async with where.queue() as mq:
        await mq.produce(TOPIC, one)
        alone = await _share(where, size, _call(mq, one, few), few)
        callers = (_call(mq, one, many // CALLERS) for _ in range(CALLERS))
        together = await _share(where, size, _gather(callers), many)
        bulk = await _share(where, size, mq.produce_many(TOPIC, [one] * many), many)
    return {"alone": alone, "together": together, "bulk": bulk}


async def _call(mq: MessageQueue, one: dict[str, Any], count: int) -> None:
    for _ in range(count):
        await mq.produce(TOPIC, one)


async def _gather(callers: Iterable[Any]) -> None:
    await asyncio.gather(*callers)


async def _share(where: Place, size: int, work: Any, count: int) -> Share:
    calls, cpu = (await where.gauge.read()).calls, time.process_time()
    await work
    cpu = time.process_time() - cpu
    calls = (await where.gauge.read()).calls - calls
    return Share(size, count / max(1, calls), cpu / count * 1e6)


async def _worker(
    where: Place, size: int, extent: Extent, concurrency: int, prefetch: int
) -> Share:
    """Let a worker drain; what counts is from the start of the first handler to the last's."""
    count = extent.count(size, min(concurrency, 100))
    begun, first, last = 0, 0.0, 0.0
    done = asyncio.Event()

    async def nothing(payload: dict[str, Any]) -> None:
        nonlocal begun, first, last
        begun += 1
        if begun == 1:
            first = time.process_time()
        elif begun == count:
            last = time.process_time()
            done.set()

    async with where.queue() as mq:
        mq.handler(TOPIC)(nothing)
        await mq.produce_many(TOPIC, [payload(size)] * count)
        before = (await where.gauge.read()).calls
        async with Worker(mq, concurrency=concurrency, prefetch=prefetch):
            try:
                async with asyncio.timeout(WITHIN):
                    await done.wait()
            except TimeoutError:
                raise Trouble(f"{begun:,} of {count:,} messages were handled") from None
            calls = (await where.gauge.read()).calls - before
    return Share(size, 2 * count / max(2, calls), (last - first) / (count - 1) * 1e6)


# the middle


def _middle(spent: Iterable[Spent]) -> Spent:
    found = list(spent)
    return Spent(
        statistics.median(one.script for one in found), statistics.median(one.cpu for one in found)
    )


def _middle_share(found: list[Share]) -> Share:
    return Share(
        found[0].payload,
        statistics.median(one.batch for one in found),
        statistics.median(one.cpu for one in found),
    )


# its own server


@asynccontextmanager
async def own_place(*, prefix: str, patience: float) -> AsyncIterator[Place]:
    """Start a server that is reached over TCP, like one on another machine."""
    with (
        tempfile.TemporaryDirectory(prefix="mx-rmq-bench-") as directory,
        OwnServer.start(directory, port=_free_port()) as server,
    ):
        url = f"redis://127.0.0.1:{server.port}{server.login}"
        async with place(url, prefix=prefix, patience=patience) as where:
            yield where


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
