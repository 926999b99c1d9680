"""Which server a key lives on: the one server there is, or a node of a cluster (cluster.py).

A *site* is where topics live together: on one server all of them, in a cluster those of one slot.
Keys of one site may stand in one call; they share a server, its clock, and what befalls it.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

from redis import exceptions as redis_errors
from redis.asyncio import ConnectionPool, Redis

from mx_rmq.store.off_loop import off_loop
from mx_rmq.store.wire import LATE, Unreached, Wires

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from redis.asyncio.client import Redis as RedisClient

    from mx_rmq.embedded import EmbeddedServer
    from mx_rmq.store.script import Value
    from mx_rmq.store.wire import Check, Wire

CONNECTIONS: Final = 50
"""Calls under way at once on one server; more wait for their turn."""


class Node:
    """One server: a client for plain commands, and wires for the calls of scripts."""

    def __init__(self, client: RedisClient, wires: Wires | None = None) -> None:
        self.client = client
        self.wires = wires
        self._patient: Wires | None = None
        """Wires for calls that wait for replicas: they shall not hold up the others."""
        self.still_primary: Callable[[], Awaitable[bool]] | None = None
        """Asks others whether calls may still go here; None: nobody could replace it."""
        self._heard_at = 0.0
        """When it last answered, on the monotonic clock."""
        self._free = asyncio.Semaphore(CONNECTIONS)

    @classmethod
    def of(cls, client: RedisClient) -> Node:
        """Return a node whose wires are like the client's own connections."""
        return cls(client, Wires(client.connection_pool.make_connection, most=CONNECTIONS))

    @property
    def name(self) -> str:
        """Its address, as it may be shown."""
        options = self.client.connection_pool.connection_kwargs
        return str(options.get("path") or f"{options.get('host')}:{options.get('port')}")

    def another(self) -> Node:
        """Return a node for the same server, with connections of its own."""
        pool = self.client.connection_pool
        options = dict(pool.connection_kwargs)
        return Node.of(
            Redis.from_pool(ConnectionPool(connection_class=pool.connection_class, **options))
        )

    async def send(
        self, words: tuple[Value, ...], within: float, check: Check | None = None
    ) -> Any:
        """Send the call of a script; wait `within` seconds for its reply. See `Wires.send`."""
        if self.wires is None:
            return await self.execute(words, within)
        if self.still_primary is None:
            return await self.wires.send(words, within, check)
        await self._make_sure()
        answer = await self.wires.send(words, within, check)
        self._heard_at = time.monotonic()
        return answer

    async def send_asking(
        self, words: tuple[Value, ...], within: float, check: Check | None = None
    ) -> Any:
        """Send the call of a script for a slot that is on its way to this server."""
        return await self._wires().send_asking(words, within, check)

    async def send_all(
        self,
        commands: Sequence[tuple[Value, ...]],
        within: float,
        check: Check | None = None,
    ) -> list[Any]:
        """Send commands together on one connection; return all replies, errors among them."""
        await self._make_sure()
        if self._patient is None:
            self._patient = Wires(self.client.connection_pool.make_connection, most=CONNECTIONS)
            self._patient.on_late = self._wires().on_late
        answers = await self._patient.send_all(commands, within, check)
        self._heard_at = time.monotonic()
        return answers

    def hang_up(self) -> None:
        """Give all connections of calls up: they lead to a server that has been replaced."""
        for wires in (self.wires, self._patient):
            if wires is not None:
                wires.hang_up()

    async def open_apart(self, within: float) -> Wire:
        """Open a wire for one who blocks on it."""
        return await self._wires().open_apart(within)

    async def _make_sure(self) -> None:
        """Ask others about it, if it was not heard of for a while.

        It may have stood still meanwhile, been replaced, and not know it yet: then it takes what
        we write, and loses it.
        """
        quiet = time.monotonic() - self._heard_at > LATE
        if quiet and self.still_primary is not None and not await self.still_primary():
            raise Unreached(f"not connecting to {self.name}, which has been replaced")

    def _wires(self) -> Wires:
        if self.wires is None:
            raise TypeError("only wires carry several commands at once")
        return self.wires

    async def execute(self, words: tuple[Value, ...], within: float) -> Any:
        """Send a plain command by the client, which knows the types of replies.

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
        """Close all connections, also when it is cancelled meanwhile."""
        try:
            for wires in (self.wires, self._patient):
                if wires is not None:
                    await wires.close()
        finally:
            await asyncio.shield(self.client.aclose())


class Servers(Protocol):
    """What there is behind a URL."""

    def site_of(self, key: str) -> int:
        """Return the site of a key."""

    def node_at(self, site: int) -> Node:
        """Return the server of a site, as far as is known."""

    def nodes(self) -> list[Node]:
        """Return every server that holds keys."""

    def key_of_each(self, name: Callable[[int], str]) -> list[str]:
        """Return a key for every server: of those that `name` makes of numbers, the first."""

    def redirected(self, error: redis_errors.AskError) -> Node:
        """Return the server that another one named instead of itself, and learn from it."""

    async def look_again(self) -> None:
        """Find out anew who has what, because a server did not answer."""

    def another(self) -> Servers:
        """Return the same with connections of its own, for another event loop."""

    async def close(self) -> None:
        """Close all connections, then stop the server if we started it."""


class OneServer:
    """One server: a fixed one, or whoever is the primary behind Sentinel."""

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
        """Return the only site."""
        return 0

    def node_at(self, site: int) -> Node:
        """Return the only server."""
        return self.node

    def nodes(self) -> list[Node]:
        """Return the only server."""
        return [self.node]

    def key_of_each(self, name: Callable[[int], str]) -> list[str]:
        """Return a key."""
        return [name(0)]

    def redirected(self, error: redis_errors.AskError) -> Node:
        """Refuse: a server that names others is a part of a cluster."""
        raise redis_errors.ResponseError(
            f"the server is a node of a cluster: use redis+cluster:// for it ({error})"
        ) from error

    async def look_again(self) -> None:
        """Do nothing: every new connection finds the server, or the primary, anew."""

    def another(self) -> OneServer:
        """Return the same with connections of its own; our own server stays with this one."""
        return OneServer(self._renew(), renew=self._renew)

    async def close(self) -> None:
        """Close all connections, then stop the server if we started it."""
        try:
            await self.node.close()
        finally:
            if self._embedded is not None:
                await asyncio.shield(_stop(self._embedded))


async def _stop(server: EmbeddedServer) -> None:
    try:
        await off_loop(server.stop)
    except RuntimeError:  # the interpreter is ending and starts no threads any more
        server.stop()
