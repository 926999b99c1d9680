"""What a message costs a shard of a cluster, compared with one server that does the same work.

The places take turns, a b c d and then d c b a. Each ratio is from one round, and the median
counts, because the machine's speed changes from round to round. The work that a server does every
second even when idle is measured separately; costs are given without it and with it. The calls go
shard by shard and, measured separately, from shard to shard in turn, where all compete for the same
caches.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.capacity.costs import Stopwatch
from bench.capacity.spread import slot_of
from bench.own.crew import Crew
from bench.own.drain import drain
from bench.own.load import TOPIC, Cycle, payload, topics
from bench.own.place import PREFIX, place, prefix_of_its_own
from mx_rmq.core.partition import partitions
from tests.lab.cluster import Cluster
from tests.lab.nodes import Node
from tests.lab.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from bench.own.place import Place
    from tests.lab.servers import Kind

Results = dict[str, Any]

ONE = "one server"
AOF = "one server, append-only file"
THREE = "three shards"
REPLICAS = "three shards, a replica each"

PARTS = 24
PAYLOAD = 1_000
BATCH = 100
CALM = 3.0
"""Seconds until a worker has settled down."""
PATIENCE = 10.0


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is measured."""

    rounds: int = 7
    batches: int = 8
    """Of each partition, a round."""
    drained: int = 48_000
    drains: int = 3
    """Rounds in which a worker drains, too."""
    idle: float = 15.0
    """Seconds for which an idle worker is watched."""
    chores: float = 3.0
    """Seconds for which an idle server is watched."""


USUAL = Extent()
QUICK = Extent(rounds=1, batches=1, drained=2_400, drains=1, idle=2.0, chores=0.5)


@dataclass(frozen=True, slots=True)
class Ground:
    """A place, and its primaries."""

    place: Place
    nodes: Sequence[Node]

    async def counted(self, section: str, name: str) -> int:
        """Return one counter, summed over all servers."""
        return sum([int((await node.ask("INFO", section))[name]) for node in self.nodes])


async def compare(directory: Path, kind: Kind, extent: Extent) -> Results:
    """Measure everything, everywhere."""
    calls: dict[str, list[dict[str, float]]] = {}
    in_turn: dict[str, list[dict[str, float]]] = {}
    drains: dict[str, list[dict[str, float]]] = {}
    async with AsyncExitStack() as stack:
        grounds = await _prepare(stack, directory, kind)
        chores = {name: await _chores(grounds[name], extent) for name in grounds}
        for number in range(extent.rounds):
            print(f"bench: shards, round {number + 1} of {extent.rounds}", flush=True)
            for name in _turn(grounds, number):
                for found, mixed in ((calls, False), (in_turn, True)):
                    found.setdefault(name, []).append(
                        await _calls(grounds[name], extent, chores[name], mixed=mixed)
                    )
            if number < extent.drains:
                for name in _turn(grounds, number):
                    drains.setdefault(name, []).append(await _drain(grounds[name], extent))
        print("bench: shards, an idle worker", flush=True)
        idle = {name: await _idle(grounds[name], extent) for name in (ONE, THREE)}
        nature = grounds[ONE].place.nature
    return {
        "server": f"{nature.name} {nature.version}",
        "payload": PAYLOAD,
        "batch": BATCH,
        "partitions": PARTS,
        "rounds": extent.rounds,
        "calls": {name: _summary(found, calls[ONE]) for name, found in calls.items()},
        "in_turn": {name: _summary(found, in_turn[ONE]) for name, found in in_turn.items()},
        "drain": {name: _summary(found, drains[ONE]) for name, found in drains.items()},
        "idle": idle,
        "chores": {name: chores[name] / len(grounds[name].nodes) for name in grounds},
    }


# where


async def _prepare(stack: AsyncExitStack, directory: Path, kind: Kind) -> dict[str, Ground]:
    one, logged = (
        stack.enter_context(Node(kind, directory / name, *options, port=port))
        for name, options, port in zip(
            ("one", "aof"),
            ((), ("--appendonly", "yes", "--appendfsync", "everysec")),
            free_ports(2),
            strict=True,
        )
    )
    three = await stack.enter_async_context(
        Cluster(directory / "three", kind=kind, node_timeout=15)
    )
    doubled = await stack.enter_async_context(
        Cluster(directory / "six", kind=kind, node_timeout=15, replicas=1)
    )
    return {
        ONE: await stack.enter_async_context(_ground(f"redis://{one.address}", [one])),
        AOF: await stack.enter_async_context(_ground(f"redis://{logged.address}", [logged])),
        THREE: await stack.enter_async_context(_ground(three.url, three.nodes)),
        REPLICAS: await stack.enter_async_context(_ground(doubled.url, doubled.nodes[:3])),
    }


@asynccontextmanager
async def _ground(url: str, nodes: Sequence[Node]) -> AsyncIterator[Ground]:
    async with place(url, prefix=prefix_of_its_own(PREFIX), patience=PATIENCE) as where:
        yield Ground(where, nodes)


def _turn(grounds: dict[str, Ground], number: int) -> list[str]:
    names = list(grounds)
    return names if number % 2 == 0 else names[::-1]


# what


async def _chores(ground: Ground, extent: Extent) -> float:
    """Return the CPU time per second of idle servers."""
    before, began = (await ground.place.gauge.read()).cpu, time.monotonic()
    await asyncio.sleep(extent.chores)
    spent = (await ground.place.gauge.read()).cpu - before
    return spent / (time.monotonic() - began)


async def _calls(ground: Ground, extent: Extent, chores: float, *, mixed: bool) -> dict[str, float]:
    """Take messages through their lives by the store's own calls.

    Slot by slot, so a shard does its share at once, as on its own machine; or, if `mixed`, a batch
    of every partition in turn, so that the next call mostly goes to another shard.
    """
    count = PARTS * extent.batches * BATCH
    async with ground.place.store() as store:
        names = partitions(TOPIC, PARTS)
        if not mixed:
            names.sort(key=slot_of)
        cycles = [Cycle(store, topic=name, payload=payload(PAYLOAD)) for name in names]
        for cycle in cycles:  # connections are made, scripts are loaded
            await cycle.produce(1)
            await cycle.complete(await cycle.dispatch(1))
        before = [await ground.counted("stats", f"total_net_{way}_bytes") for way in _WAYS]
        watch = Stopwatch(ground.place.gauge)
        await watch.start()
        began = time.monotonic()
        for cycle in cycles * extent.batches if mixed else _repeated(cycles, extent.batches):
            await cycle.produce(BATCH, batch=BATCH)
            await cycle.complete(await cycle.dispatch(BATCH))
        spent = await watch.lap(count)
        aside = chores * (time.monotonic() - began) / count * 1e6
        after = [await ground.counted("stats", f"total_net_{way}_bytes") for way in _WAYS]
    received, sent = (
        (late - early) / count - PAYLOAD for early, late in zip(before, after, strict=True)
    )
    return {
        "script": spent.script,
        "cpu": spent.cpu - aside,
        "whole": spent.cpu,
        "received": received,
        "sent": sent,
    }


_WAYS = ("input", "output")


def _repeated(cycles: list[Cycle], times: int) -> list[Cycle]:
    """Return each of them this often, one after another."""
    return [cycle for cycle in cycles for _ in range(times)]


async def _drain(ground: Ground, extent: Extent) -> dict[str, float]:
    """Let a real worker drain this many topics."""
    found = await drain(ground.place, extent.drained, over=PARTS)
    return {
        "script": found.busy,
        "cpu": found.server,
        "worker": found.worker,
        "rate": found.rate,
    }


async def _idle(ground: Ground, extent: Extent) -> dict[str, float]:
    """Watch an idle worker with this many topics."""
    async with ground.place.queue() as mq, Crew(mq) as crew:
        before = await ground.counted("clients", "connected_clients")
        hand = await crew.hire(topics(PARTS))
        await hand.go()
        await asyncio.sleep(CALM)
        connections = await ground.counted("clients", "connected_clients") - before
        calls = (await ground.place.gauge.read()).calls
        await asyncio.sleep(extent.idle)
        calls = (await ground.place.gauge.read()).calls - calls
        await hand.stop()
    return {"connections": connections, "commands": calls / extent.idle}


def _summary(found: list[dict[str, float]], one: list[dict[str, float]]) -> dict[str, float]:
    """Return the median of each figure, and of each cost's ratio to that of one server."""
    middle = {name: statistics.median(turn[name] for turn in found) for name in found[0]}
    for name in ("script", "cpu", "whole", "worker"):
        if name in middle:
            middle[f"{name}_ratio"] = statistics.median(
                turn[name] / beside[name] for turn, beside in zip(found, one, strict=True)
            )
    return middle
