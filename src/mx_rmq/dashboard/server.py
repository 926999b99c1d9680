"""Limits the connections of `mx-rmq dashboard`: their number, and how long a client may send no
request or read no response. uvicorn limits neither.

With TLS a connection starts as a Handshake, which has its own limits: asyncio would wait 60 seconds
for a silent client.
"""

from __future__ import annotations

import asyncio
import resource
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import ssl

IDLE: Final = 5.0  # seconds for a whole request to arrive, from connecting or the last response

STUCK: Final = 5.0
"""Seconds a client may stop reading a response. After that its connection may be dropped if another
one needs the room."""

BACKLOG: Final = 20
"""Connections accepted at a time. When the process runs out of files, Python logs a traceback for
each of them, every second."""

_FILES: Final = resource.getrlimit(resource.RLIMIT_NOFILE)[0]

MOST: Final = 1000 if _FILES == resource.RLIM_INFINITY else max(8, min(1000, _FILES // 3))
"""Connections that may be open: a third of the files that this process may open."""

HANDSHAKE: Final = 5.0  # seconds that a TLS handshake may take, or the shutdown at the end
HANDSHAKES: Final = max(8, MOST // 3)  # in progress at the same time, besides open connections


class HttpConnection(H11Protocol):
    """One connection. If there are too many, the one that has been idle longest is dropped."""

    _waiting_since = 0.0
    _stuck_since: float | None = None
    _timer: asyncio.TimerHandle | None = None

    # Override: asyncio gives a stream protocol a Transport, a subclass of what its stub says.
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()
        if len(self.connections) > MOST:
            connections = (one for one in self.connections if isinstance(one, HttpConnection))
            idle = {one: since for one in connections if (since := one.idle_since) is not None}
            min(idle, key=idle.__getitem__).drop()  # never empty: this one is idle

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
        self._stop_timer()
        super().connection_lost(exc)

    @property
    def is_busy(self) -> bool:
        """Whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def idle_since(self) -> float | None:
        """Since when it has sent no request, or read no response; None: it is being answered."""
        if self._stuck_since is not None and self.loop.time() - self._stuck_since > STUCK:
            return self._stuck_since
        return None if self.is_busy else self._waiting_since

    def drop(self) -> None:
        """Close it at once, even in the middle of a request."""
        self._stop_timer()
        self.connections.discard(self)
        self.transport.abort()

    def _watch(self) -> None:
        """Start the timer, unless a request is being answered. Single bytes do not restart it."""
        if self.is_busy or self.transport.is_closing():
            self._stop_timer()
        elif self._timer is None:
            self._waiting_since = self.loop.time()
            self._timer = self.loop.call_later(IDLE, self.drop)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Tls:
    """Makes the protocol of each connection, called by uvicorn, and counts the handshakes."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.context = context
        self._open: dict[Handshake, str] = {}  # the peer of each, oldest first

    def __call__(self, **options: Any) -> Handshake:
        return Handshake(self, HttpConnection(**options))

    def begin(self, handshake: Handshake, peer: str) -> None:
        """Count a handshake. If there are too many, drop the oldest of the peer with the most."""
        self._open[handshake] = peer
        if len(self._open) > HANDSHAKES:
            [(most, _)] = Counter(self._open.values()).most_common(1)
            next(one for one, peer in self._open.items() if peer == most).drop()

    def end(self, handshake: Handshake) -> None:
        self._open.pop(handshake, None)


class Handshake(asyncio.Protocol):
    """A connection during its TLS handshake, before it becomes an HttpConnection."""

    _transport: asyncio.Transport
    _task: asyncio.Task[None]

    def __init__(self, tls: Tls, connection: HttpConnection) -> None:
        self._tls = tls
        self._connection = connection
        self._early = b""  # what arrived before the HttpConnection took over
        self._lost = False

    # Override: asyncio gives a stream protocol a Transport, a subclass of what its stub says.
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._task = self._connection.loop.create_task(
            self._shake_hands(), name="mx-rmq TLS handshake"
        )
        peer = transport.get_extra_info("peername")
        self._tls.begin(self, peer[0] if isinstance(peer, tuple) else "")

    def data_received(self, data: bytes) -> None:
        self._early += data

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True

    def drop(self) -> None:
        self._tls.end(self)
        self._task.cancel()
        self._transport.abort()

    async def _shake_hands(self) -> None:
        try:
            transport = await self._connection.loop.start_tls(
                self._transport,
                self,
                self._tls.context,
                server_side=True,
                ssl_handshake_timeout=HANDSHAKE,
                ssl_shutdown_timeout=HANDSHAKE,
            )
        except OSError:  # too slow, gone, or not TLS
            self._transport.abort()
            return
        finally:
            self._tls.end(self)
        if transport is None or self._lost:  # the client has just gone
            return
        transport.set_protocol(self._connection)
        self._connection.connection_made(transport)
        if self._early:
            self._connection.data_received(self._early)
