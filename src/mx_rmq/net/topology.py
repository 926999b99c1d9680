"""Which server a key lives on: the only server, or a node of a cluster (cluster.py).

A *site* is where topics live together: all of them on a single server, those of one slot in a
cluster. One call may use any keys of one site: they share a server, its clock and its outages.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

from redis import exceptions as redis_errors
from redis.asyncio import ConnectionPool, Redis

from mx_rmq.in_thread import in_thread
from mx_rmq.net.connection import LATE, Unreached, Wires

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from redis.asyncio.client import Redis as RedisClient

    from mx_rmq.embedded import EmbeddedServer
    from mx_rmq.net.connection import Check, Value

CONNECTIONS: Final = 50  # calls under way at once on one server; more wait for their turn


class Node:
    """One server: a client for plain commands, and wires for script calls."""

    def __init__(self, client: RedisClient) -> None:
        connect = client.connection_pool.make_connection
        self.client = client
        self.wires = Wires(connect, most=CONNECTIONS)
        self._patient = Wires(connect, most=CONNECTIONS)  # for calls that wait for replicas
        # Asks others whether calls may still go here; None: it cannot be replaced.
        self.still_primary: Callable[[], Awaitable[bool]] | None = None
        self._answered_at = 0.0  # when it last answered, on the monotonic clock
        self._free = asyncio.Semaphore(CONNECTIONS)

    @property
    def name(self) -> str:
        """Its address, without secrets."""
        options = self.client.connection_pool.connection_kwargs
        return str(options.get("path") or f"{options.get('host')}:{options.get('port')}")

    def another(self) -> Node:
        """Return a node for the same server, with separate connections."""
        pool = self.client.connection_pool
        options = dict(pool.connection_kwargs)
        return Node(
            Redis.from_pool(ConnectionPool(connection_class=pool.connection_class, **options))
        )

    async def send(
        self, words: tuple[Value, ...], within: float, check: Check | None = None
    ) -> Any:
        """Send a script call; wait up to `within` seconds for its reply. See `Wires.send`."""
        if self.still_primary is None:
            return await self.wires.send(words, within, check)
        await self._refuse_if_replaced()
        answer = await self.wires.send(words, within, check)
        self._answered_at = time.monotonic()
        return answer

    async def send_all(
        self,
        commands: Sequence[tuple[Value, ...]],
        within: float,
        check: Check | None = None,
    ) -> list[Any]:
        """Send commands together on one connection; return all replies, errors included."""
        await self._refuse_if_replaced()
        self._patient.on_late = self.wires.on_late
        answers = await self._patient.send_all(commands, within, check)
        self._answered_at = time.monotonic()
        return answers

    def hang_up(self) -> None:
        """Close all wires: the server has been replaced."""
        self.wires.hang_up()
        self._patient.hang_up()

    async def _refuse_if_replaced(self) -> None:
        """If the server was silent for a while, ask others whether it is still the primary.

        It may have been frozen and replaced, and would accept our writes and lose them.
        """
        quiet = time.monotonic() - self._answered_at > LATE
        if quiet and self.still_primary is not None and not await self.still_primary():
            raise Unreached(f"not connecting to {self.name}, which has been replaced")

    async def execute(self, words: tuple[Value, ...], within: float) -> Any:
        """Send a plain command through the client, which knows the types of replies.

        The time limit is ours, not the client's: before Python 3.12 its way of waiting could
        swallow a cancellation.
        """
        execute: Callable[..., Awaitable[Any]] = self.client.execute_command
        async with self._free:
            try:
                async with asyncio.timeout(within):
                    return await execute(*words)
            except TimeoutError as error:
                raise redis_errors.TimeoutError(f"no reply within {within:g} s") from error

    async def close(self) -> None:
        """Close all connections, even if this is cancelled."""
        try:
            await self.wires.close()
            await self._patient.close()
        finally:
            await asyncio.shield(self.client.aclose())


class Servers(Protocol):
    """The servers that a URL names."""

    def site_of(self, key: str) -> int:
        """Return the site of a key."""

    def node_at(self, site: int) -> Node:
        """Return the server of a site, as far as we know."""

    def nodes(self) -> list[Node]:
        """Return every server that holds keys."""

    def key_of_each(self, name: Callable[[int], str]) -> list[str]:
        """Return one key per server: the first one that `name` makes from 0, 1, 2, … for it."""

    def redirected(self, error: redis_errors.AskError) -> Node:
        """Return the server that a redirect names, and update what we know."""

    async def find_servers(self) -> None:
        """Find out which server has which keys, at first or because one did not answer."""

    def another(self) -> Servers:
        """Return the same servers with separate connections, for another event loop."""

    async def close(self) -> None:
        """Close all connections, then stop the server if we started it."""


class OneServer:
    """One server: a fixed one, or the current primary behind Sentinel."""

    def __init__(
        self,
        node: Node,
        embedded: EmbeddedServer | None = None,
        *,
        renew: Callable[[], Node] | None = None,
    ) -> None:
        self.node = node
        self._embedded = embedded
        self._renew = renew or node.another

    def site_of(self, key: str) -> int:
        return 0

    def node_at(self, site: int) -> Node:
        return self.node

    def nodes(self) -> list[Node]:
        return [self.node]

    def key_of_each(self, name: Callable[[int], str]) -> list[str]:
        return [name(0)]

    def redirected(self, error: redis_errors.AskError) -> Node:
        """Refuse: a server that redirects is a node of a cluster."""
        raise redis_errors.ResponseError(
            f"the server is a node of a cluster: use redis+cluster:// for it ({error})"
        ) from error

    async def find_servers(self) -> None:
        """Do nothing: every new connection looks up the server or the primary itself."""

    def another(self) -> OneServer:
        """Return the same server with separate connections; only this one stops an embedded one."""
        return OneServer(self._renew(), renew=self._renew)

    async def close(self) -> None:
        try:
            await self.node.close()
        finally:
            if self._embedded is not None:
                await asyncio.shield(_stop(self._embedded))


async def _stop(server: EmbeddedServer) -> None:
    try:
        await in_thread(server.stop)
    except RuntimeError:  # the interpreter is shutting down and starts no threads
        server.stop()
