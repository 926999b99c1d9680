"""Primaries die or freeze under load, behind Sentinel and in a cluster.

Before that, replication is healthy, cut, or delayed. What was only stored may be lost, if it
was produced after that; what was confirmed as replicated may not.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice, pairwise, product
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from mx_rmq.core.partition import partition
from tests.faults.trial import Fault
from tests.lab.cluster import Cluster, ClusterNode, slot_of
from tests.lab.nodes import Node, until_true
from tests.lab.sentinel import Watched
from tests.lab.servers import USUAL, Kind
from tests.lab.traffic import PARTITIONS, TOPIC, traffic

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.faults.trial import Trial
    from tests.lab.traffic import Traffic

BACK_WITHIN: Final = 15.0
"""Seconds after the primary's end by which workers must use the new one."""
WINDOW: Final = 1.0
"""Seconds by which replication may lag, and our clock readings may be late."""
LOAD: Final = 300
"""Messages that are handled before each failover, and again after it."""
UNSAFE: Final = 50
"""Messages that are produced while replication is cut or delayed."""
LATER: Final = 3.0
"""Seconds by which every second message is delayed: it still waits when the primary ends."""
ALL: Final = frozenset(range(PARTITIONS))


class Way(NamedTuple):
    """How a primary is lost."""

    replication: str
    end: str
    confirm: str

    def __str__(self) -> str:
        return f"replication {self.replication}, {self.end}, {self.confirm}"


WAYS: Final = tuple(
    Way(replication, end, confirm)
    for end, replication, confirm in product(
        ("kill", "freeze"), ("healthy", "cut", "delayed"), ("stored", "replicated")
    )
)


class Replicated(Protocol):
    """Servers with replicas."""

    async def replicas_of(self, victim: Node) -> list[Node]: ...


class Site(Replicated, Protocol):
    """Servers that replace a primary on their own."""

    @property
    def url(self) -> str: ...
    async def victim(self) -> Node: ...
    async def partitions_of(self, victim: Node) -> frozenset[int]: ...
    async def until_replaced(self, victim: Node) -> float:
        """Return when another server was seen to be the primary."""
        ...

    async def until_whole(self) -> None: ...


class BehindSentinel(Watched):
    """A primary, its replica, and three Sentinels."""

    async def victim(self) -> Node:
        return await self.primary()

    async def partitions_of(self, _: Node) -> frozenset[int]:
        return ALL

    async def replicas_of(self, _: Node) -> list[Node]:
        return await self.replicas()

    async def until_replaced(self, victim: Node) -> float:
        return (await self.until_promoted(victim)).at

    async def until_whole(self) -> None:
        await self.until_settled(60)
        for node in self.nodes:
            await until_true(node.is_in_step, f"{node!r} follows")


class InCluster(Cluster):
    """Three primaries, each with a replica; the one that has the topic's first partition fails."""

    async def victim(self) -> Node:
        return await self.primary_of(slot_of(TOPIC))

    async def partitions_of(self, victim: Node) -> frozenset[int]:
        owners = [await self.primary_of(slot_of(partition(TOPIC, n))) for n in range(PARTITIONS)]
        return frozenset(n for n, owner in enumerate(owners) if owner is victim)

    async def replicas_of(self, victim: Node) -> list[Node]:  # type: ignore[override]
        assert isinstance(victim, ClusterNode)
        return [*await super().replicas_of(victim)]

    async def until_replaced(self, victim: Node) -> float:
        assert isinstance(victim, ClusterNode)
        await self.until_moved(slot_of(TOPIC), victim)
        return time.monotonic()

    async def until_whole(self) -> None:
        await self.until_agreed(60)


@dataclass
class Row:
    """The results of all failovers of one way."""

    failovers: int = 0
    acknowledged: int = 0
    lost: int = 0
    again: int = 0
    without: list[float] = field(default_factory=list)
    """Seconds until there was another primary."""
    back: list[float] = field(default_factory=list)
    """Seconds until a new message was handled."""
    served: list[float] = field(default_factory=list)
    """Seconds until a new message was handled in each lost partition."""


async def run(trial: Trial) -> None:
    """Fail over this many times behind Sentinel, and a quarter as often in a cluster."""
    for figure in (
        *("Sentinel failovers", "cluster failovers", "acknowledged"),
        *("acknowledged as stored, lost", "confirmed as replicated", "confirmed and lost"),
        *("reported as not confirmed", "of them lost", "unknown", "refused", "run again"),
        *("completed again: the first completion was lost", "completed twice"),
    ):
        trial.count(figure, 0)
    rows = {way: Row() for way in WAYS}
    for place, share in (("Sentinel", trial.size), ("cluster", trial.size // 4)):
        ways = list(islice(cycle(trial.random.sample(WAYS, len(WAYS))), share))
        for number, kind in enumerate(USUAL):
            part = ways[number :: len(USUAL)]
            while part:
                done = await _site(trial, place, kind, part, rows)
                part = part[done:]
    if trial.size:
        _tell(trial, rows)


async def _site(trial: Trial, place: str, kind: Kind, ways: list[Way], rows: dict[Way, Row]) -> int:
    """Start servers and fail their primaries one after the other; return how many failed."""
    done = trial.figures[f"{place} failovers"]
    directory: Path = trial.directory / f"{place[0]}{kind[0]}{kind[-3:]}-{done}"
    async with AsyncExitStack() as stack:
        site: Site = await stack.enter_async_context(
            BehindSentinel(directory, replicas=1, kind=kind)
            if place == "Sentinel"
            else InCluster(directory, replicas=1, kind=kind)
        )
        for number, way in enumerate(ways, 1):
            trial.count(f"{place} failovers")
            trial.say(f"{place}, {kind}: {way}")
            try:
                await _fail_over(trial, f"{place}, {kind}, {way}", site, way, rows[way])
            except AssertionError as error:
                trial.violated(f"{place}, {kind}, {way}: {error}")
                return number
    return len(ways)


async def _fail_over(trial: Trial, what: str, site: Site, way: Way, row: Row) -> None:
    load = traffic(site.url, confirm=way.confirm, confirm_within=0.2, later=LATER)
    async with load as seen:
        await seen.until_handled(LOAD)
        victim = await site.victim()
        away = await site.partitions_of(victim)
        since = time.monotonic()
        behind = await hinder_replication(site, victim, way, partial(_until_unsafe, seen))
        getattr(victim, way.end)()
        end = time.monotonic()
        for replica in behind:
            replica.thaw()
        await asyncio.sleep(0.1)
        heard = time.monotonic()
        replaced = await site.until_replaced(victim)
        served = [await seen.until_back(end, {number}, 60) for number in away]
        back = min(served)
        await bring_back(victim)
        await site.until_whole()
        await seen.until_handled(LOAD)
        await _until_empty(seen)
        wrong = [
            str(one)
            for number in ALL
            for one in await seen.mq.store.audit.topic(partition(TOPIC, number))
        ]
    trial.expect(not wrong, f"{what}: the audit of the new primary says {wrong[:5]}")
    trial.expect(back - end <= BACK_WITHIN, f"{what}: workers were away for {back - end:.1f} s")
    _check_lost(trial, what, seen, way, since, end)
    _check_runs(trial, what, seen, heard)
    row.failovers += 1
    row.acknowledged += len(seen.produced)
    row.lost += len(seen.lost)
    row.again += seen.again
    row.without.append(min(replaced, back) - end)
    row.back.append(back - end)
    row.served.append(max(served) - end)


async def hinder_replication(
    site: Replicated, victim: Node, way: Way, meanwhile: Callable[[], Awaitable[None]]
) -> list[Node]:
    """Cut or delay replication, and wait until it matters; return which nodes to thaw."""
    if way.replication == "healthy":
        return []
    frozen = []
    if way.replication == "cut":
        await victim.ask("ACL", "SETUSER", "default", "-psync", "-sync")
        await victim.ask("CLIENT", "KILL", "TYPE", "replica")
    else:
        frozen = await site.replicas_of(victim)
        for replica in frozen:
            replica.freeze()
    await meanwhile()
    return frozen


async def _until_unsafe(seen: Traffic) -> None:
    """Wait until some messages are produced that no replica has."""
    told = len(seen.produced) + len(seen.unconfirmed) + UNSAFE
    await until_true(
        lambda: len(seen.produced) + len(seen.unconfirmed) >= told, f"{UNSAFE} more are produced"
    )


async def bring_back(victim: Node) -> None:
    """Bring back the old primary, which may still believe that it is the primary."""
    if not victim.is_frozen:
        victim.restart()
        return
    victim.thaw()
    await until_true(
        lambda: victim.ask("ACL", "SETUSER", "default", "+psync", "+sync"), f"{victim!r} thaws"
    )


async def _until_empty(seen: Traffic) -> None:
    """Stop producing; every message that is left must be handled."""
    seen.going = False

    async def is_empty() -> bool:
        return not (await seen.mq.admin.stats(TOPIC)).total

    await until_true(is_empty, "no message is left", 60)


def _check_lost(trial: Trial, what: str, seen: Traffic, way: Way, since: float, end: float) -> None:
    """Count lost messages. None may have been confirmed, or produced at another time."""
    lost = seen.lost
    trial.count("acknowledged", len(seen.produced))
    trial.count("reported as not confirmed", len(seen.unconfirmed))
    trial.count("of them lost", len(seen.unconfirmed.keys() - seen.handled.keys()))
    trial.count("unknown", len(seen.unknown))
    trial.count("refused", len(seen.refused))
    if way.confirm == "replicated":
        trial.count("confirmed as replicated", len(seen.produced))
        trial.count("confirmed and lost", len(lost))
        trial.expect(not lost, f"{what}: confirmed and lost: {sorted(lost)[:5]}")
        return
    trial.count("acknowledged as stored, lost", len(lost))
    others = {
        id: f"{at - end:+.2f} s"
        for id, at in lost.items()
        if not since - WINDOW <= at <= end + WINDOW
    }
    trial.expect(not others, f"{what}: lost, but not produced around the end: {others}")


def _check_runs(trial: Trial, what: str, seen: Traffic, heard: float) -> None:
    """Check that fences grow with every run, and a primary accepts one completion per message."""
    trial.count("run again", seen.again)
    for id, fences in seen.fences.items():
        grows = all(one < other for one, other in pairwise(fences))
        trial.expect(grows, f"{what}: the fences of {id} were {fences}")
    by_old = Counter(id for id, at in seen.completed if at <= heard)
    by_new = Counter(id for id, at in seen.completed if at > heard)
    twice = sorted(id for by in (by_old, by_new) for id, count in by.items() if count > 1)
    trial.count("completed again: the first completion was lost", len(by_old.keys() & by_new))
    trial.count("completed twice", len(twice))
    trial.expect(not twice, f"{what}: a primary accepted two completions of {twice[:5]}")


def _tell(trial: Trial, rows: dict[Way, Row]) -> None:
    """Report the table and the longest times."""
    done = {way: row for way, row in rows.items() if row.failovers}
    without = [seconds for row in done.values() for seconds in row.without]
    back = [seconds for row in done.values() for seconds in row.back]
    served = [seconds for row in done.values() for seconds in row.served]
    trial.figures["longest without a primary, s"] = round(max(without, default=0), 1)
    trial.figures["longest until workers were back, s"] = round(max(back, default=0), 1)
    trial.figures["longest until every partition was served, s"] = round(max(served, default=0), 1)
    trial.tables["Failovers by what was done and what was confirmed"] = [
        [
            *("replication before", "primary", "confirm", "failovers", "acknowledged", "lost"),
            *("run again", "without a primary, s", "workers back after, s"),
        ],
        *(
            [
                *way,
                *map(str, (row.failovers, row.acknowledged, row.lost, row.again)),
                *(f"{min(all):.1f}–{max(all):.1f}" for all in (row.without, row.back)),
            ]
            for way, row in done.items()
        ),
    ]


FAULT: Final = Fault(
    name="failovers",
    title="the primary is killed or frozen under load, behind Sentinel and in a cluster",
    run=run,
    unit="failovers",
    short=0,
    full=20,
)
