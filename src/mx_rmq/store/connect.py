"""URL -> client.

The client never resends by itself (call.py does) and never decodes: ids and records are bytes of
anybody.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit, urlunsplit

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from mx_rmq.core.errors import InvalidInput
from mx_rmq.embedded import EmbeddedServer

if TYPE_CHECKING:
    from redis.asyncio.client import Redis as RedisClient

SOCKET_TIMEOUT: Final = 5.0
SCHEMES: Final = ("redis", "rediss", "valkey", "valkeys", "unix", "embedded")


@dataclass(slots=True)
class Connection:
    """A client, and the server behind it if that is our own."""

    client: RedisClient
    server: EmbeddedServer | None = None

    async def close(self) -> None:
        """Close the client, then stop the server if we started it."""
        await self.client.aclose()
        if self.server is not None:
            await asyncio.to_thread(self.server.stop)


async def connect(url: str) -> Connection:
    """Make a client for a URL. `embedded://DIR` starts its own server, or joins the running one."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in SCHEMES:
        raise InvalidInput(
            f"URL {without_password(url)!r} does not begin with one of "
            + ", ".join(f"{known}://" for known in SCHEMES)
        )
    if scheme == "embedded":
        if not rest:
            raise InvalidInput("embedded:// names no directory: embedded://./data, for example")
        server = await asyncio.to_thread(EmbeddedServer.start, rest)
        return Connection(_client(server.url), server)
    return Connection(_client(url.replace("valkey", "redis", 1) if "valkey" in scheme else url))


def without_password(url: str) -> str:
    """Return a URL as it may be shown."""
    try:
        parts = urlsplit(url)
        if parts.password is None:
            return url
    except ValueError:
        return url.partition("://")[0] + "://…"
    _, _, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{parts.username or ''}:***@{host}"))


def _client(url: str) -> RedisClient:
    try:
        return Redis.from_url(
            url,
            decode_responses=False,
            retry=Retry(NoBackoff(), 0),
            retry_on_error=[],
            socket_timeout=SOCKET_TIMEOUT,
            socket_connect_timeout=SOCKET_TIMEOUT,
        )
    except ValueError as error:
        raise InvalidInput(f"URL {without_password(url)!r}: {error}") from error
