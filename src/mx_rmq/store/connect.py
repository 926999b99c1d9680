"""URL -> client.

The client never resends by itself (call.py does) and never decodes: ids and records are bytes of
anybody.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, unquote, urlsplit

from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from mx_rmq.core.errors import InvalidInput
from mx_rmq.embedded import EmbeddedServer
from mx_rmq.store.wire import Wires

if TYPE_CHECKING:
    from redis.asyncio.client import Redis as RedisClient

CONNECTIONS: Final = 50
"""Calls under way at once; more wait for their turn."""

CONNECT_WITHIN: Final = 5.0
"""Seconds that a connection may take."""

_OURS: Final = frozenset(
    ("protocol", "decode_responses", "encoding", "encoding_errors", "socket_timeout", "retry")
)
SCHEMES: Final = ("redis", "rediss", "valkey", "valkeys", "unix", "embedded")


@dataclass(slots=True)
class Connection:
    """A client, wires for the script calls, and the server behind them if that is our own."""

    client: RedisClient
    server: EmbeddedServer | None = None
    wires: Wires | None = None

    @classmethod
    def of(cls, client: RedisClient, server: EmbeddedServer | None = None) -> Connection:
        """Return a client with wires like its own connections."""
        return cls(client, server, Wires(client.connection_pool.make_connection, most=CONNECTIONS))

    async def close(self) -> None:
        """Close all connections, then stop the server if we started it."""
        try:
            if self.wires is not None:
                await self.wires.close()
            await self.client.aclose()
        finally:
            if self.server is not None:
                await asyncio.shield(_stop(self.server))


async def _stop(server: EmbeddedServer) -> None:
    try:
        await asyncio.to_thread(server.stop)
    except RuntimeError:  # the interpreter is ending and starts no threads any more
        server.stop()


def check_url(url: str) -> None:
    """Refuse what is not the URL of a server. Connects to nothing."""
    scheme, rest = _parts(url)
    if scheme != "embedded":
        _ = _client(f"{scheme}://{rest}")


async def connect(url: str) -> Connection:
    """Make a client for a URL. `embedded://DIR` starts its own server, or joins the running one."""
    scheme, rest = _parts(url)
    if scheme == "embedded":
        server = await _start(rest)
        return Connection.of(_client(server.url), server)
    return Connection.of(_client(f"{scheme}://{rest}"))


def _parts(url: str) -> tuple[str, str]:
    """Split a URL into a scheme that the client knows, or embedded, and the rest."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in SCHEMES:
        raise InvalidInput(
            f"URL {without_password(url)!r} does not begin with one of "
            + ", ".join(f"{known}://" for known in SCHEMES)
        )
    if scheme == "embedded" and not rest:
        raise InvalidInput("embedded:// names no directory: embedded://./data, for example")
    return {"valkey": "redis", "valkeys": "rediss"}.get(scheme, scheme), rest


def another(connection: Connection) -> Connection:
    """Return a connection like this one, with sockets of its own."""
    pool = connection.client.connection_pool
    options = dict(pool.connection_kwargs)
    return Connection.of(
        Redis.from_pool(ConnectionPool(connection_class=pool.connection_class, **options))
    )


async def _start(directory: str) -> EmbeddedServer:
    starting = asyncio.create_task(asyncio.to_thread(EmbeddedServer.start, directory))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        server = await starting  # the thread cannot be stopped, so its server must be
        await asyncio.to_thread(server.stop)
        raise


def without_password(url: str) -> str:
    """Return a URL as it may be shown."""
    scheme, separator, rest = url.partition("://")
    rest, question, query = (rest if separator else url).partition("?")
    rest += question + "&".join(
        f"{name}=***" if unquote(name).lower() == "password" else name + equals + value
        for name, equals, value in (one.partition("=") for one in query.split("&"))
    )
    before, at, host = rest.rpartition("@")
    user, colon, _ = before.partition(":")
    shown = f"{user}:***@{host}" if at and colon else rest
    return scheme + separator + shown if separator else shown


def _client(url: str) -> RedisClient:
    try:
        parts = urlsplit(url)
        if parts.scheme != "unix" and not re.fullmatch(r"/?\d*", parts.path):
            raise ValueError  # the client would take database 0 instead
        if _OURS & parse_qs(parts.query).keys():
            raise ValueError  # these decide how we read replies
        client = Redis.from_url(
            url,
            decode_responses=False,
            encoding_errors="surrogateescape",
            retry=Retry(NoBackoff(), 0),
            retry_on_error=[],
            socket_timeout=None,
            socket_connect_timeout=CONNECT_WITHIN,
        )
        pool = client.connection_pool
        pool.connection_class(**pool.connection_kwargs)  # refuses options that nobody knows
    except (ValueError, TypeError):  # whose words may hold a piece of the password
        raise InvalidInput(
            f"URL {without_password(url)!r} is not one: in a password, write / as %2F, # as %23, "
            "? as %3F and @ as %40; ports and databases are numbers; options behind a ? are those "
            "of the redis client"
        ) from None
    return client
