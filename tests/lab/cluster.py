"""Three Valkey nodes that share the slots between them."""

from __future__ import annotations

from contextlib import AsyncExitStack, ExitStack
from typing import TYPE_CHECKING, Any, Final, Self

from redis.asyncio import Redis

from tests.lab.servers import Kind, Server, free_port

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

SLOTS: Final = 16_384
NODES: Final = 3


class Cluster:
    """`async with Cluster(directory) as cluster: …`"""

    def __init__(self, directory: Path) -> None:
        self._nodes = [
            Server(
                Kind.VALKEY_9_1,
                directory / f"node{number}",
                *("--cluster-enabled", "yes", "--cluster-port", str(free_port())),
                port=free_port(),
            )
            for number in range(NODES)
        ]
        self._running = ExitStack()

    @property
    def port(self) -> int:
        """A node's port: a client finds the others by itself."""
        return self._nodes[0].port

    def node_of(self, slot: int) -> int:
        """Return the number of the node that has a slot."""
        return slot * NODES // SLOTS

    async def __aenter__(self) -> Self:
        with ExitStack() as starting:
            for node in self._nodes:
                starting.enter_context(node)
            async with AsyncExitStack() as stack:
                clients = [
                    await stack.enter_async_context(Redis.from_url(node.url))
                    for node in self._nodes
                ]
                await _join(clients, [node.port for node in self._nodes])
            self._running = starting.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._running.close()


async def _join(clients: list[Redis], ports: list[int]) -> None:
    bounds = [-(-SLOTS * number // NODES) for number in range(NODES + 1)]
    for number, client in enumerate(clients):
        await _ask(client, "CLUSTER SET-CONFIG-EPOCH", number + 1)
        await _ask(client, "CLUSTER ADDSLOTSRANGE", bounds[number], bounds[number + 1] - 1)
    for port, peer in zip(ports, clients, strict=True):
        bus = str((await peer.config_get("cluster-port"))["cluster-port"])
        for client in clients:
            if client is not peer:
                await _ask(client, "CLUSTER MEET", "127.0.0.1", port, bus)
    for client in clients:
        while not await _is_whole(client):
            pass  # the nodes gossip


async def _is_whole(client: Redis) -> bool:
    info = await _ask(client, "CLUSTER INFO")
    return bool(info["cluster_state"] == "ok" and int(info["cluster_known_nodes"]) == NODES)


async def _ask(client: Redis, *words: str | int) -> Any:
    execute: Callable[..., Awaitable[Any]] = client.execute_command
    return await execute(*words)
