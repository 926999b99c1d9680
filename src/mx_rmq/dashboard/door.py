"""The door of `mx-rmq dashboard`: how many connections are open, and for how long they may be so
without asking for anything, or without taking the answer. uvicorn itself sets no bound to any.

With TLS a connection becomes a Door when the handshake is done. Until then it is a Handshake, which
has bounds of its own: asyncio waits 60 seconds for a client that says nothing.
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
"""Seconds from its begin, or from an answer, in which a connection must bring a whole request."""

STUCK: Final = 5.0
"""Seconds for which nobody need read on while an answer is sent. After them the connection is not
closed, but it may have to go for another one."""

BACKLOG: Final = 20
"""Connections that are taken at a time, before we see the first of them. When there are no files
left, Python logs a traceback for as many, every second."""


def _most() -> int:
    """Return how many connections may be open: a third of the files that this process may open."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1000 if files == resource.RLIM_INFINITY else max(8, min(1000, files // 3))


MOST: Final = _most()

HANDSHAKE: Final = 5.0
"""Seconds that a TLS handshake may take, or the goodbye at the end."""

HANDSHAKES: Final = max(8, MOST // 3)
"""Handshakes that may be under way at the same time, beside the connections that are open."""


class Door(H11Protocol):
    """One connection. If there are too many, the one that has been quiet longest has to go."""

    _idle_since = 0.0
    _stuck_since: float | None = None
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()
        if len(self.connections) > MOST:
            doors = (one for one in self.connections if isinstance(one, Door))
            quiet = {one: since for one in doors if (since := one.quiet_since) is not None}
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
        """Since when nothing was asked for, or no answer taken; None: it is being answered."""
        if self._stuck_since is not None and self.loop.time() - self._stuck_since > STUCK:
            return self._stuck_since
        return None if self.is_busy else self._idle_since

    def drop(self) -> None:
        """Close it at once, whatever has arrived of a request."""
        self._forget()
        self.connections.discard(self)
        self.transport.abort()

    def _watch(self) -> None:
        """Let the time run while nothing is asked for: it does not begin anew with every byte."""
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
        """Whom each is with, the oldest first."""

    def __call__(self, **options: Any) -> Handshake:
        return Handshake(self, Door(**options))

    def begin(self, handshake: Handshake, peer: str) -> None:
        """Count a handshake. If there are too many, drop the oldest of the peer with the most."""
        self._under_way[handshake] = peer
        if len(self._under_way) > HANDSHAKES:
            [(most, _)] = Counter(self._under_way.values()).most_common(1)
            next(one for one, peer in self._under_way.items() if peer == most).drop()

    def end(self, handshake: Handshake) -> None:
        self._under_way.pop(handshake, None)


class Handshake(asyncio.Protocol):
    """A connection that agrees on TLS, to be handed to a Door."""

    _transport: asyncio.Transport
    _task: asyncio.Task[None]

    def __init__(self, tls: Tls, door: Door) -> None:
        self._tls = tls
        self._door = door
        self._early = b""
        """What came right behind the handshake, before the Door was there."""
        self._lost = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._task = self._door.loop.create_task(self._agree(), name="mx-rmq TLS handshake")
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
            transport = await self._door.loop.start_tls(
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
        transport.set_protocol(self._door)
        self._door.connection_made(transport)
        if self._early:
            self._door.data_received(self._early)
