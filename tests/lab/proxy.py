"""A network that fails when a test says so.

The proxy sits on a socket in front of a server's. It passes one request and its reply at a time,
for our client sends no second request before the first reply.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    Then = Callable[[], Awaitable[None]]


class Fault(Enum):
    """What happens to a request."""

    CUT_REQUEST = auto()
    """The connection is reset before the server hears of it."""
    CUT_REPLY = auto()
    """The server runs it; the connection is reset instead of the reply."""
    HOLD_REPLY = auto()
    """The server runs it; the connection stays open and silent."""
    DELAY_REPLY = auto()
    """The server runs it; the reply comes after something else."""


class _Order(NamedTuple):
    fault: Fault
    match: bytes
    then: Then | None


class Proxy:
    """`async with Proxy(server.socket, path) as proxy: … proxy.url …`"""

    def __init__(self, server: Path, path: Path) -> None:
        self.url = f"unix://{path}"
        self.requests: list[bytes] = []
        """Every request that came, as it stood on the wire."""
        self.cuts = dict.fromkeys(Fault, 0)
        """How often each fault has happened."""
        self._server = server
        self._path = path
        self._orders: list[_Order] = []
        self._open: set[asyncio.Task[None]] = set()
        self._errors: list[BaseException] = []

    def cut_request(self, n: int = 1, match: bytes = b"EVALSHA", then: Then | None = None) -> None:
        """Reset the connection of the next n requests that contain `match`, before the server."""
        self._orders += [_Order(Fault.CUT_REQUEST, match, then)] * n

    def cut_reply(self, n: int = 1, match: bytes = b"EVALSHA", then: Then | None = None) -> None:
        """Let the server run the next n requests with `match`, then reset instead of the reply.

        `then` runs in between: what others do before the client can send again.
        """
        self._orders += [_Order(Fault.CUT_REPLY, match, then)] * n

    def hold_reply(self, n: int = 1, match: bytes = b"EVALSHA", then: Then | None = None) -> None:
        """Let the server run the next n requests with `match`, and say nothing ever after."""
        self._orders += [_Order(Fault.HOLD_REPLY, match, then)] * n

    def delay_reply(self, n: int = 1, match: bytes = b"EVALSHA", then: Then | None = None) -> None:
        """Pass the replies of the next n requests with `match` only after `then`."""
        self._orders += [_Order(Fault.DELAY_REPLY, match, then)] * n

    def count(self, match: bytes = b"EVALSHA") -> int:
        """Return how many requests with `match` have come."""
        return sum(match in request for request in self.requests)

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_unix_server(self._serve, self._path)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Go away with every connection; raise what a `then` has raised."""
        self._listener.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        await self._listener.wait_closed()
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
            pass  # either end went away, or the test is over: so do we
        except BaseException as error:  # noqa: BLE001 - raised again by close()
            self._errors.append(error)
        finally:
            self._open.discard(task)
            for writer in (client, server):
                if writer is not None:
                    writer.transport.abort()
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
        order = next((order for order in self._orders if order.match in request), None)
        if order is not None:
            self._orders.remove(order)
            self.cuts[order.fault] += 1
        if order is None or order.fault is not Fault.CUT_REQUEST:
            server.write(request)
            reply = await _value(source)
        if order is not None and order.then is not None:
            await order.then()
        if order is None or order.fault is Fault.DELAY_REPLY:
            client.write(reply)
            return True
        if order.fault is Fault.HOLD_REPLY:
            await reader.read()  # until the client gives up
        return False


async def _value(reader: asyncio.StreamReader) -> bytes:
    """Read one value of RESP 2 or 3, as it stands on the wire."""
    line = await reader.readuntil(b"\r\n")
    kind, length = line[:1], line[1:-2]
    if kind in b"$=!" and length != b"-1":
        return line + await reader.readexactly(int(length) + 2)
    if kind in b"*~>%" and length != b"-1":
        count = int(length) * (2 if kind == b"%" else 1)
        return line + b"".join([await _value(reader) for _ in range(count)])
    return line
