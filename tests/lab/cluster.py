"""A real cluster: nodes that share the slots, with or without replicas.

A test can kill, freeze and restart nodes, promote a replica, and move slots while all of it runs.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Self
from urllib.parse import quote

from redis.crc import key_slot

from tests.lab.nodes import Node, until_true
from tests.lab.ports import BUS, free_ports
from tests.lab.servers import Kind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from tests.lab.tls import Tls

    Pause = Callable[[int, int], Awaitable[None]]

SLOTS: Final = 16_384
NODES: Final = 3
"""Primaries at the beginning."""

STEP: Final = 100
"""Keys that one command moves."""


class Seen(NamedTuple):
    """A node, as one of the nodes sees it."""

    id: str
    flags: frozenset[str]
    primary: str
    """The id of its primary, or "-"."""
    epoch: int
    slots: tuple[range, ...]

    def has(self, slot: int) -> bool:
        return any(slot in slots for slots in self.slots)


class ClusterNode(Node):
    """A node of a cluster."""

    id: str = ""
    """Its own name for itself."""

    async def view(self) -> list[Seen]:
        """Return all nodes that it knows, including itself."""
        lines = (await self.ask("CLUSTER", "NODES")).decode().splitlines()
        return [_seen(line) for line in lines]

    async def is_ok(self) -> bool:
        """Return whether it serves: it sees a primary for every slot, and most primaries."""
        return b"cluster_state:ok" in await self.ask("CLUSTER", "INFO")

    async def keys_in(self, slot: int, count: int = STEP) -> list[bytes]:
        """Return some of the keys that it has in a slot."""
        keys: list[bytes] = await self.ask("CLUSTER", "GETKEYSINSLOT", slot, count)
        return keys


class Cluster:
    """`async with Cluster(directory, replicas=1) as cluster: …`

    `nodes` begins with the three primaries; their replicas follow, those of the first one first.
    """

    def __init__(
        self,
        directory: Path,
        *options: str,
        replicas: int = 0,
        kind: Kind = Kind.VALKEY_9_1,
        aof: bool = False,
        node_timeout: float = 1.0,
        password: str = "",
        users: Sequence[str] = (),
        tls: Tls | None = None,
    ) -> None:
        self._directory = directory
        self._kind = kind
        self._password = password
        self._users = users
        self._tls = tls
        self._replicas = replicas
        self._options = (
            *("--cluster-enabled", "yes"),
            *("--cluster-node-timeout", str(int(node_timeout * 1000))),
            *("--cluster-replica-validity-factor", "0"),
            *("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"),
            *(("--appendonly", "yes", "--appendfsync", "always") if aof else ()),
            *options,
        )
        ports = free_ports(NODES * (1 + replicas))
        self.nodes = [self._node(number, port) for number, port in enumerate(ports)]

    def _node(self, number: int, port: int) -> ClusterNode:
        directory = self._directory / f"node{number}"
        return ClusterNode(
            self._kind,
            directory,
            *self._options,
            port=port,
            password=self._password,
            users=self._users,
            tls=self._tls,
        )

    @property
    def port(self) -> int:
        """A node's port: a client finds the other nodes."""
        return self.nodes[0].port

    @property
    def url(self) -> str:
        """The first primaries' addresses; a client finds the other nodes."""
        login = f":{quote(self._password)}@" if self._password else ""
        scheme = "redis" if self._tls is None else "rediss"
        return f"{scheme}+cluster://{login}{','.join(node.address for node in self.nodes[:NODES])}"

    def node_of(self, slot: int) -> int:
        """Return the number of the node that has a slot at the beginning."""
        return slot * NODES // SLOTS

    # state

    async def primary_of(self, where: int | str) -> ClusterNode:
        """Return the node that says it has a slot, or a topic."""
        slot = slot_of(where)
        claims = [
            (seen.epoch, node)
            for node in self.nodes
            if node.is_up
            for seen in await node.view()
            if seen.id == node.id and seen.has(slot)
        ]
        assert claims, f"no node that is up has slot {slot}"
        return max(claims, key=lambda claim: claim[0])[1]

    async def replicas_of(self, primary: ClusterNode) -> list[ClusterNode]:
        """Return the nodes that are up and say that they follow a primary."""
        return [
            node
            for node in self.nodes
            if node.is_up
            for seen in await node.view()
            if seen.id == node.id and seen.primary == primary.id
        ]

    async def agrees(self) -> bool:
        """Return whether all nodes that are up know each other and see the same whole cluster."""
        up = [node for node in self.nodes if node.is_up]
        maps = set()
        for node in up:
            view = await node.view()
            known = {seen.id for seen in view if not seen.flags & {"handshake", "noaddr", "fail"}}
            if not known >= {one.id for one in up} or not await node.is_ok():
                return False
            maps.add(frozenset((seen.id, seen.primary, seen.slots) for seen in view if seen.slots))
        return len(maps) == 1

    async def until_agreed(self, seconds: float = 30) -> None:
        """Wait until all nodes that are up see the same cluster and every replica is in step."""
        await until_true(self.agrees, "the nodes agree", seconds)
        for node in self.nodes:
            if node.is_up:
                await until_true(node.is_in_step, f"{node!r} follows", seconds)

    # what a test does; killing, freezing and restarting is done to a node

    async def until_moved(
        self, where: int | str, away_from: ClusterNode, seconds: float = 30
    ) -> ClusterNode:
        """Wait until another node has a slot, or a topic, and all that are up know; return it."""
        slot = slot_of(where)

        async def moved() -> ClusterNode | None:
            owners = {
                seen.id
                for node in self.nodes
                if node.is_up
                for seen in await node.view()
                if seen.has(slot)
            }
            if len(owners) != 1 or away_from.id in owners or not await self.agrees():
                return None
            return next(node for node in self.nodes if node.id in owners)

        found = await until_true(moved, f"slot {slot} leaves {away_from!r}", seconds)
        assert isinstance(found, ClusterNode)
        return found

    async def promote(self, replica: ClusterNode, *how: str, seconds: float = 30) -> None:
        """Make a replica the primary, with its primary's consent unless `how` is FORCE."""
        await replica.ask("CLUSTER", "FAILOVER", *how)

        async def is_primary() -> bool:
            (own,) = [seen for seen in await replica.view() if seen.id == replica.id]
            return bool(own.slots) and await self.agrees()

        await until_true(is_primary, f"{replica!r} is promoted", seconds)

    async def move(
        self, where: int | str, target: ClusterNode, *, pause: Pause | None = None
    ) -> None:
        """Move a slot, or a topic's slot, key by key, while everything runs.

        `pause(moved, left)` is awaited before the first key and after each: meanwhile the slot is
        on two nodes, and the source answers ASK and TRYAGAIN.
        """
        slot, source = slot_of(where), await self.primary_of(where)
        await target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        await source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id)
        moved = 0
        while True:
            left = int(await source.ask("CLUSTER", "COUNTKEYSINSLOT", slot))
            if pause is not None:
                await pause(moved, left)
            keys = await source.keys_in(slot, 1 if pause is not None else STEP)
            if not keys:
                break
            login = ("AUTH", self._password) if self._password else ()
            words = ("", 0, 5000, "REPLACE", *login, "KEYS", *keys)
            await source.ask("MIGRATE", "127.0.0.1", target.port, *words)
            moved += len(keys)
        for node in (target, source, *(await self._other_primaries(target, source))):
            await node.ask("CLUSTER", "SETSLOT", slot, "NODE", target.id)
        await self.until_moved(slot, source)

    async def move_atomically(self, where: int | str, target: ClusterNode) -> None:
        """Move a slot, or a topic's slot, at once: Valkey 9 does it with one command."""
        slot, source = slot_of(where), await self.primary_of(where)
        await source.ask("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", target.id)
        await self.until_moved(slot, source)

    async def add_primary(self) -> ClusterNode:
        """Add a primary without slots."""
        (port,) = free_ports(1)
        node = self._node(len(self.nodes), port)
        await self._start(node)
        await node.ask("CLUSTER", "MEET", "127.0.0.1", self.port, self.port + BUS)
        await self.until_agreed()
        return node

    async def add_replica(self, primary: ClusterNode) -> ClusterNode:
        """Add a replica."""
        node = await self.add_primary()
        await node.ask("CLUSTER", "REPLICATE", primary.id)
        await self.until_agreed()
        return node

    async def _other_primaries(self, *but: ClusterNode) -> list[ClusterNode]:
        return [
            node
            for node in self.nodes
            if node.is_up and node not in but and await node.takes_writes()
        ]

    # start and end

    async def _start(self, node: ClusterNode) -> None:
        node.start()
        if node not in self.nodes:
            self.nodes.append(node)
        node.id = (await node.ask("CLUSTER", "MYID")).decode()

    async def _join(self) -> None:
        bounds = [-(-SLOTS * number // NODES) for number in range(NODES + 1)]
        for number, node in enumerate(self.nodes):
            await self._start(node)
            await node.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            for met in self.nodes[:number]:
                await node.ask("CLUSTER", "MEET", "127.0.0.1", met.port, met.port + BUS)
        for number, node in enumerate(self.nodes[:NODES]):
            await node.ask("CLUSTER", "ADDSLOTS", *range(bounds[number], bounds[number + 1]))
        for number, node in enumerate(self.nodes[NODES:]):
            primary = self.nodes[number // self._replicas].id
            await until_true(partial(node.ask, "CLUSTER", "REPLICATE", primary), "it follows")
        await self.until_agreed()

    async def __aenter__(self) -> Self:
        try:
            await self._join()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for node in self.nodes:
            node.kill()


def slot_of(where: int | str) -> int:
    """Return the slot of a topic; a slot is its own."""
    return where if isinstance(where, int) else int(key_slot(where.encode()))


def _seen(line: str) -> Seen:
    id, _, flags, primary, _, _, epoch, _, *slots = line.split()
    ranges = [slot.partition("-") for slot in slots if not slot.startswith("[")]
    return Seen(
        id,
        frozenset(flags.split(",")),
        primary,
        int(epoch),
        tuple(range(int(first), int(last or first) + 1) for first, _, last in ranges),
    )
