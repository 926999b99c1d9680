"""The connections of `mx-rmq dashboard`: how many may be open, and for how long without a request
or without reading the response. uvicorn limits neither.

With TLS a connection is a Handshake first, which has its own limits: asyncio waits 60 seconds for a
silent client.
"""

from __future__ import annotations

import asyncio
import resource
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import ssl

IDLE: Final = 5.0
"""Seconds for a whole request to arrive, from connecting or from the last response."""

STUCK: Final = 5.0
"""Seconds a client may stop reading a response. After that its connection may be dropped if another
one needs the room."""

BACKLOG: Final = 20
"""Connections accepted at a time. When no files are left, Python logs a traceback for each of them,
every second."""


def _most() -> int:
    """Return how many connections may be open: a third of the files that this process may open."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1000 if files == resource.RLIM_INFINITY else max(8, min(1000, files // 3))


MOST: Final = _most()

HANDSHAKE: Final = 5.0
"""Seconds that a TLS handshake may take, or the shutdown at the end."""

HANDSHAKES: Final = max(8, MOST // 3)
"""Handshakes in progress at the same time, in addition to open connections."""


class HttpConnection(H11Protocol):
    """One connection. If there are too many, the one that has been quiet longest is dropped."""

    _idle_since = 0.0
    _stuck_since: float | None = None
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()
        if len(self.connections) > MOST:
            connections = (one for one in self.connections if isinstance(one, HttpConnection))
            quiet = {one: since for one in connections if (since := one.quiet_since) is not None}
            min(quiet, key=quiet.__getitem__).drop()  # at the least, this one is

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stuck_since = self.loop.time()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stuck_since = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    @property
    def is_busy(self) -> bool:
        """Whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def quiet_since(self) -> float | None:
        """Since when it sent no request or read no response; None: it is being answered."""
        if self._stuck_since is not None and self.loop.time() - self._stuck_since > STUCK:
            return self._stuck_since
        return None if self.is_busy else self._idle_since

    def drop(self) -> None:
        """Close it at once, whatever has arrived of a request."""
        self._forget()
        self.connections.discard(self)
        self.transport.abort()

    def _watch(self) -> None:
        """Start the timer while no request is complete: single bytes do not restart it."""
        if self.is_busy or self.transport.is_closing():
            self._forget()
        elif self._late is None:
            self._idle_since = self.loop.time()
            self._late = self.loop.call_later(IDLE, self.drop)

    def _forget(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


class Tls:
    """Makes a connection's protocol, as uvicorn asks for it, and counts the handshakes."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.context = context
        self._under_way: dict[Handshake, str] = {}
        """The peer of each, oldest first."""

    def __call__(self, **options: Any) -> Handshake:
        return Handshake(self, HttpConnection(**options))

    def begin(self, handshake: Handshake, peer: str) -> None:
        """Count a handshake. If there are too many, drop the oldest of the peer with the most."""
        self._under_way[handshake] = peer
        if len(self._under_way) > HANDSHAKES:
            [(most, _)] = Counter(self._under_way.values()).most_common(1)
            next(one for one, peer in self._under_way.items() if peer == most).drop()

    def end(self, handshake: Handshake) -> None:
        self._under_way.pop(handshake, None)


class Handshake(asyncio.Protocol):
    """A connection that agrees on TLS, to be handed to an HttpConnection."""

    _transport: asyncio.Transport
    _task: asyncio.Task[None]

    def __init__(self, tls: Tls, connection: HttpConnection) -> None:
        self._tls = tls
        self._connection = connection
        self._early = b""
        """What came right behind the handshake, before the HttpConnection was there."""
        self._lost = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._task = self._connection.loop.create_task(self._agree(), name="mx-rmq TLS handshake")
        peer = transport.get_extra_info("peername")
        self._tls.begin(self, peer[0] if isinstance(peer, tuple) else "")

    def data_received(self, data: bytes) -> None:
        self._early += data

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True

    def drop(self) -> None:
        """Close it at once."""
        self._tls.end(self)
        self._task.cancel()
        self._transport.abort()

    async def _agree(self) -> None:
        try:
            transport = await self._connection.loop.start_tls(
                self._transport,
                self,
                self._tls.context,
                server_side=True,
                ssl_handshake_timeout=HANDSHAKE,
                ssl_shutdown_timeout=HANDSHAKE,
            )
        except OSError:  # it took too long, went away or does not speak TLS
            self._transport.abort()
            return
        finally:
            self._tls.end(self)
        if transport is None or self._lost:  # it went away just now
            return
        transport.set_protocol(self._connection)
        self._connection.connection_made(transport)
        if self._early:
            self._connection.data_received(self._early)
