"""A cluster: 16,384 slots spread over nodes, and the map that says which node has which slot.

The map is read from any node that answers, and again whenever a node redirects us or is gone.
Calls go where the map says, and caller.py retries them.
"""

from __future__ import annotations

import asyncio
import random
from functools import lru_cache, partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from redis import exceptions as redis_errors
from redis.asyncio import ConnectionPool, Redis
from redis.crc import key_slot

from mx_rmq.net.connection import Unreached
from mx_rmq.net.topology import Node
from mx_rmq.safe_log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis.asyncio.connection import AbstractConnection

logger = get_logger(__name__)

SLOTS: Final = 16_384

MAP_WITHIN: Final = 1.0  # seconds that a node has to return the map
ASK_AT_ONCE: Final = 3  # nodes that are asked for the map at once; the first answer counts

Address = tuple[str, int]


class Cluster:
    """The nodes of one cluster. The others are found through the `seeds`."""

    def __init__(
        self,
        seeds: list[Address],
        connection_class: type[AbstractConnection],
        options: dict[str, Any],
    ) -> None:
        self._seeds = seeds
        self._connection_class = connection_class
        self._options = options
        self._known: dict[Address, Node] = {}  # every node that we have connections to
        self._map: list[Node | None] = [None] * SLOTS
        self._reading: asyncio.Task[None] | None = None
        self._why: redis_errors.RedisError | None = None  # why there is no map
        self._doubts: dict[Address, asyncio.Task[None]] = {}  # tasks that ask others about a node
        self._closing: set[asyncio.Task[None]] = set()

    def site_of(self, key: str) -> int:
        return slot_of(key)

    def node_at(self, site: int) -> Node:
        """Return the primary that has a slot."""
        node = self._map[site]
        if node is not None:
            return node
        if self._why is not None:
            refused = isinstance(self._why, redis_errors.ResponseError)
            raise (redis_errors.ResponseError if refused else Unreached)(
                str(self._why)
            ) from self._why
        raise redis_errors.ClusterDownError(f"no node of the cluster has slot {site}")

    def nodes(self) -> list[Node]:
        """Return every primary that has slots."""
        return [node for node in dict.fromkeys(self._map) if node is not None]

    def key_of_each(self, name: Callable[[int], str]) -> list[str]:
        """Return one key per primary, each made from the smallest number that fits."""
        missing = set(self.nodes())
        keys: list[str] = []
        for number in count():
            if not missing:
                return keys
            key = name(number)
            node = self._map[slot_of(key)]
            if node in missing:
                missing.discard(node)
                keys.append(key)
        raise AssertionError

    def redirected(self, error: redis_errors.AskError) -> Node:
        """Return the node that a redirect names; if the slot has moved there, update the map."""
        node = self._node((error.host, error.port)) if error.host else self.node_at(error.slot_id)
        if isinstance(error, redis_errors.MovedError):
            self._map[error.slot_id] = node
            _ = self._read_soon()  # other slots have probably moved, too
        return node

    async def find_servers(self) -> None:
        """Read the map again. Concurrent callers share one read."""
        await asyncio.wait([self._read_soon()])

    def another(self) -> Cluster:
        seeds = list(dict.fromkeys([*self._known, *self._seeds]))
        other = Cluster(seeds, self._connection_class, self._options)
        other._map = [None if node is None else other._node(_address(node)) for node in self._map]
        return other

    async def close(self) -> None:
        reading = [*self._doubts.values(), *([self._reading] if self._reading else [])]
        for task in reading:
            task.cancel()
        if reading:
            await asyncio.wait(reading)
        if self._closing:
            await asyncio.wait(self._closing)
        for node in self._known.values():
            await node.close()

    def _node(self, address: Address) -> Node:
        node = self._known.get(address)
        if node is None:
            host, port = address
            options = {**self._options, "host": host, "port": port}
            pool = ConnectionPool(connection_class=self._connection_class, **options)
            node = self._known[address] = Node(Redis.from_pool(pool))
            node.still_primary = partial(self._is_primary, address)
            node.wires.on_late = self._read_soon
        return node

    async def _is_primary(self, address: Address) -> bool:
        """Ask the other nodes whether a node still has slots; if none answers, assume it has."""
        asking = self._doubts.get(address)
        if asking is None:
            asking = asyncio.create_task(self._read(but=address), name="mx-rmq cluster map")
            self._doubts[address] = asking
            asking.add_done_callback(lambda _: self._doubts.pop(address))
        await asyncio.wait([asking])
        return self._known.get(address) in self.nodes()

    def _read_soon(self) -> asyncio.Task[None]:
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read(), name="mx-rmq cluster map")
        return self._reading

    async def _read(self, but: Address | None = None) -> None:
        """Ask a few nodes at a time, in random order, until one answers."""
        addresses = list(dict.fromkeys([*self._known, *self._seeds]))
        random.shuffle(addresses)
        if but in addresses:
            addresses.remove(but)
        for start in range(0, len(addresses), ASK_AT_ONCE):
            asking = [
                asyncio.create_task(self._ask(address), name="mx-rmq cluster map")
                for address in addresses[start : start + ASK_AT_ONCE]
            ]
            try:
                for answer in asyncio.as_completed(asking):
                    address, shards = await answer
                    if shards:
                        self._build_map(shards, asked=address)
                        return
            finally:
                for task in asking:
                    task.cancel()
                await asyncio.gather(*asking, return_exceptions=True)

    async def _ask(self, address: Address) -> tuple[Address, list[Any]]:
        """Return the map as one node describes it; empty if it does not answer."""
        try:
            wires = self._node(address).wires
            return address, await wires.send(("CLUSTER", "SLOTS"), MAP_WITHIN)
        except redis_errors.RedisError as error:
            logger.debug("no cluster map from %s:%d: %s", *address, error)
            if "cluster support disabled" in str(error):
                host, port = address
                error = redis_errors.ResponseError(
                    f"{host}:{port} is not a node of a cluster: use redis:// for it"
                )
            if not any(self._map):
                self._why = error
            return address, []

    def _build_map(self, shards: list[Any], *, asked: Address) -> None:
        """Build the map from a node's reply: first slot, last slot, primary, replicas."""
        drawn: list[Node | None] = [None] * SLOTS
        alive: set[Address] = set()
        for first, last, *members in shards:
            addresses = [_address_listed(member, asked) for member in members]
            alive.update(addresses)
            node = self._node(addresses[0])
            drawn[first : last + 1] = [node] * (last + 1 - first)
        for empty in {*self._map} - {*drawn}:  # it has no slots any more, and may not answer
            if empty is not None:
                empty.hang_up()
        self._map, self._why = drawn, None
        for address in self._known.keys() - alive:  # it has left the cluster
            closing = asyncio.create_task(self._known.pop(address).close(), name="mx-rmq close")
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)


@lru_cache(maxsize=65_536)
def slot_of(key: str) -> int:
    return key_slot(key.encode())


def _address_listed(member: list[Any], asked: Address) -> Address:
    """Return a node's address. One that does not know its host gets the host that we asked."""
    host = (member[0] or b"").decode()
    return (host if host not in ("", "?") else asked[0]), int(member[1])


def _address(node: Node) -> Address:
    options = node.client.connection_pool.connection_kwargs
    return options["host"], options["port"]
