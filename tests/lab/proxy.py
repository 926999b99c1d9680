"""A network that fails when a test says so.

The proxy sits on a socket, or on a TCP port, in front of a server's socket. On each connection it
passes one request and its reply at a time. What a client sends after that waits in the proxy, and
is lost with the connection when that is cut: the server never gets it.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import Counter
from contextlib import suppress
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    Then = Callable[[], Awaitable[None]]


class Fault(Enum):
    """What happens to a request."""

    CUT_REQUEST = auto()
    """The connection is reset before the server gets it."""
    CUT_IN_REQUEST = auto()
    """A part of it reaches the server, then the connection is reset."""
    CUT_REPLY = auto()
    """The server runs it; the connection is reset instead of the reply."""
    CUT_IN_REPLY = auto()
    """The server runs it; a part of the reply comes, then the connection is reset."""
    SWALLOW_REQUEST = auto()
    """The server never gets it; the connection stays open and silent."""
    HOLD_REPLY = auto()
    """The server runs it; the connection stays open and silent."""
    DELAY_REPLY = auto()
    """The server runs it; the reply arrives after something else."""
    TRICKLE_REPLY = auto()
    """The server runs it; the reply comes byte by byte."""
    SLOW = auto()
    """The request comes late, and so does the reply."""


UNHEARD: Final = frozenset((Fault.CUT_REQUEST, Fault.CUT_IN_REQUEST, Fault.SWALLOW_REQUEST))
"""Faults in which the server does not run the request."""


class Order(NamedTuple):
    """What will happen to a request."""

    fault: Fault
    match: bytes = b"EVALSHA"
    """Text that the request contains."""
    then: Then | None = None
    """What others do meanwhile."""
    part: float = 0.5
    """How much of a request or a reply arrives before the cut, from 0 to 1."""
    late: tuple[float, float] = (0.0, 0.0)
    """Seconds by which a slow request is late, and then its reply."""


class Proxy:
    """`async with Proxy(server.socket, path) as proxy: … proxy.url …`

    Without a path it listens on a TCP port: then a cut is a real reset.
    """

    def __init__(self, server: Path, path: Path | None = None) -> None:
        self.url = "" if path is None else f"unix://{path}"
        self.requests: list[bytes] = []
        """Every request, as it was on the wire."""
        self.cuts = dict.fromkeys(Fault, 0)
        """How often each fault has happened."""
        self.passed: Counter[bytes] = Counter()
        """How often the server got a whole request that matches an order."""
        self.choose: Callable[[bytes], Order | None] | None = None
        """Called for every request without an order."""
        self._server = server
        self._path = path
        self._orders: list[Order] = []
        self._open: set[asyncio.Task[None]] = set()
        self._errors: list[BaseException] = []

    def cut_request(self, n: int = 1, match: bytes = b"EVALSHA", then: Then | None = None) -> None:
        """Reset the connection of the next n requests with `match`, before the server gets them."""
        self._orders += [Order(Fault.CUT_REQUEST, match, then)] * n

    def cut_reply(self, n: int = 1, match: bytes = b"EVALSHA", then: Then | None = None) -> None:
        """Let the server run the next n requests with `match`, then reset instead of the reply.

        `then` runs in between: what others do before the client can send again.
        """
        self._orders += [Order(Fault.CUT_REPLY, match, then)] * n

    def hold_reply(self, n: int = 1, match: bytes = b"EVALSHA", then: Then | None = None) -> None:
        """Let the server run the next n requests with `match`, and never reply."""
        self._orders += [Order(Fault.HOLD_REPLY, match, then)] * n

    def delay_reply(self, n: int = 1, match: bytes = b"EVALSHA", then: Then | None = None) -> None:
        """Pass the replies of the next n requests with `match` only after `then`."""
        self._orders += [Order(Fault.DELAY_REPLY, match, then)] * n

    def order(self, order: Order, n: int = 1) -> None:
        """Do something to the next n requests with its match."""
        self._orders += [order] * n
        self.passed[order.match] += 0

    def forget(self, match: bytes) -> None:
        """Drop all orders for requests with `match`."""
        self._orders = [order for order in self._orders if order.match != match]

    def count(self, match: bytes = b"EVALSHA") -> int:
        """Return how many requests with `match` arrived."""
        return sum(match in request for request in self.requests)

    async def __aenter__(self) -> Self:
        if self._path is not None:
            self._listener = await asyncio.start_unix_server(self._serve, self._path)
            return self
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"redis://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; raise what a `then` raised."""
        self._listener.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        await self._listener.wait_closed()
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        if self._errors:
            raise self._errors.pop()

    async def _serve(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        server = None
        try:
            source, server = await asyncio.open_unix_connection(self._server)
            while await self._pass(reader, client, source, server):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # one side disconnected, or the test is over
        except BaseException as error:  # noqa: BLE001 - raised again by close()
            self._errors.append(error)
        finally:
            self._open.discard(task)
            for writer in (client, server):
                if writer is not None:
                    _reset(writer)
                    with suppress(OSError):
                        await writer.wait_closed()

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        client: asyncio.StreamWriter,
        source: asyncio.StreamReader,
        server: asyncio.StreamWriter,
    ) -> bool:
        request = await _value(reader)
        self.requests.append(request)
        order = self._next(request)
        fault = None if order is None else order.fault
        if order is not None:
            self.cuts[order.fault] += 1
            if order.fault is Fault.SLOW:
                await asyncio.sleep(order.late[0])
            if order.fault is Fault.CUT_IN_REQUEST:
                server.write(_part(request, order.part))
                await server.drain()
        reply = b""
        if fault not in UNHEARD:
            for match in self.passed:
                self.passed[match] += match in request
            server.write(request)
            reply = await _value(source)
        if order is not None and order.then is not None:
            await order.then()
        if order is None or order.fault is Fault.DELAY_REPLY:
            client.write(reply)
            return True
        return await self._answer(order, reply, reader, client)

    def _next(self, request: bytes) -> Order | None:
        """Return what to do with a request."""
        order = next((order for order in self._orders if order.match in request), None)
        if order is not None:
            self._orders.remove(order)
        elif self.choose is not None:
            order = self.choose(request)
        return order

    async def _answer(
        self,
        order: Order,
        reply: bytes,
        reader: asyncio.StreamReader,
        client: asyncio.StreamWriter,
    ) -> bool:
        """Handle a request with an order; return whether the connection continues."""
        match order.fault:
            case Fault.SLOW:
                await asyncio.sleep(order.late[1])
                client.write(reply)
                return True
            case Fault.TRICKLE_REPLY:
                for at in range(len(reply)):
                    if client.is_closing():
                        return False
                    client.write(reply[at : at + 1])
                    await asyncio.sleep(0)
                return True
            case Fault.CUT_IN_REPLY:
                client.write(_part(reply, order.part))
            case Fault.HOLD_REPLY | Fault.SWALLOW_REQUEST:
                await reader.read()  # until the client gives up
        return False


def _part(data: bytes, part: float) -> bytes:
    """Return the beginning of some bytes: at least one, and never all."""
    return data[: min(len(data) - 1, 1 + int(part * (len(data) - 1)))]


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection as a broken network does."""
    own = writer.get_extra_info("socket")
    if own is not None and own.family == socket.AF_INET:
        with suppress(OSError):
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _value(reader: asyncio.StreamReader) -> bytes:
    """Read one RESP 2 or 3 value, as it is on the wire."""
    line = await reader.readuntil(b"\r\n")
    kind, length = line[:1], line[1:-2]
    if kind in b"$=!" and length != b"-1":
        return line + await reader.readexactly(int(length) + 2)
    if kind in b"*~>%" and length != b"-1":
        count = int(length) * (2 if kind == b"%" else 1)
        return line + b"".join([await _value(reader) for _ in range(count)])
    return line
