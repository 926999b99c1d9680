"""Connections for script calls: the bytes of a call out, the reply in, and little between them.

The client library connects (sockets, TLS, login, database) and then steps aside: its own way of
sending and reading costs more than everything else in a call. See docs/performance.md.
"""

from __future__ import annotations

import asyncio
from collections import deque
from math import inf
from typing import TYPE_CHECKING, Any, Final, cast

import hiredis
from redis import exceptions as redis_errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis.asyncio.connection import AbstractConnection

    from mx_rmq.store.script import Value

_NOT_YET: Final = object()
_pack = cast("Callable[[tuple[Value, ...]], bytes]", hiredis.pack_command)


class Wire(asyncio.Protocol):
    """One connection. It carries one call at a time."""

    def __init__(self, connection: AbstractConnection, transport: asyncio.Transport) -> None:
        self._connection = connection
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._replies = hiredis.Reader(
            protocolError=redis_errors.InvalidResponse,
            replyError=connection._parser.parse_error,
            notEnoughData=_NOT_YET,
        )
        self._waiter: asyncio.Future[Any] | None = None
        self._within = 0.0
        self._deadline = inf
        """When the reply must be there, on the loop's clock."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf
        self.is_open = True
        self.gone: asyncio.Future[None] = self._loop.create_future()
        """Done when the connection is no more."""

    @classmethod
    async def open(cls, connection: AbstractConnection) -> Wire:
        """Connect and log in; from then on nobody but the wire reads from the connection."""
        await connection.connect()  # type: ignore[no-untyped-call] # the client's own gap
        writer = connection._writer  # there is no public way to it
        if writer is None:
            raise redis_errors.ConnectionError("lost while connecting to the server")
        transport = cast("asyncio.Transport", writer.transport)
        wire = cls(connection, transport)
        transport.set_protocol(wire)
        if transport.is_closing():  # it broke before anybody could tell us
            wire.connection_lost(None)
        return wire

    async def ask(self, call: bytes, within: float) -> Any:
        """Send a call and wait for its reply. Whatever interrupts that, ends the connection."""
        if not self.is_open:
            raise redis_errors.ConnectionError("the connection was lost")
        waiter = self._waiter = self._loop.create_future()
        self._transport.write(call)
        self._within, self._deadline = within, self._loop.time() + within
        if self._deadline < self._timer_at:
            self._set_timer()
        try:
            return await waiter
        except asyncio.CancelledError:
            self.close()  # or the reply would be taken for another call's
            raise
        finally:
            self._waiter = None

    def close(self) -> None:
        """Hang up."""
        self.is_open = False
        self._clear_timer()
        self._transport.abort()
        self._part()

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        self._replies.feed(data)
        try:
            while (reply := self._replies.gets()) is not _NOT_YET:
                if not isinstance(reply, hiredis.PushNotification):
                    self._answer(reply)
        except redis_errors.InvalidResponse as error:
            self._answer(redis_errors.ConnectionError(f"the reply cannot be read: {error}"))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """The other side has hung up, or we have."""
        self.is_open = False
        self._clear_timer()
        if not self.gone.done():
            self.gone.set_result(None)
        why = f": {exc}" if exc is not None else ""
        self._answer(redis_errors.ConnectionError(f"the connection was lost{why}"))
        self._part()

    def _part(self) -> None:
        """Tell the client library's connection, which would complain that nobody closed it."""
        self._connection._close()  # type: ignore[no-untyped-call]

    def _answer(self, reply: Any) -> None:
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        if isinstance(reply, Exception):
            waiter.set_exception(reply)
        else:
            waiter.set_result(reply)

    def _set_timer(self) -> None:
        """One timer serves many calls: it is not moved for each, but strikes and looks again."""
        self._clear_timer()
        self._timer_at = self._deadline
        self._timer = self._loop.call_at(self._deadline, self._look)

    def _clear_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = None, inf

    def _look(self) -> None:
        """See whether a reply is overdue."""
        self._timer, self._timer_at = None, inf
        if self._waiter is None:
            return
        if self._loop.time() < self._deadline:
            self._set_timer()
            return
        self._answer(redis_errors.TimeoutError(f"no reply within {self._within:g} s"))
        self.close()


class Wires:
    """As many wires to one server as there are calls at the same time, up to a limit."""

    def __init__(self, connect: Callable[[], AbstractConnection], *, most: int) -> None:
        self._connect = connect
        self._most = most
        self._idle: list[Wire] = []
        self._all: set[Wire] = set()
        self._opening = 0
        self._queue: deque[asyncio.Future[Wire | None]] = deque()
        self._closed = False

    async def send(self, words: tuple[Value, ...], within: float) -> Any:
        """Send one command on a wire that nobody else uses; wait so many seconds for its reply."""
        if self._closed:
            raise redis_errors.ConnectionError("closed; not connecting to the server any more")
        call = pack(words)
        wire = self._idle.pop() if self._idle else await self._open(within)
        try:
            return await wire.ask(call, within)
        finally:
            if wire.is_open:  # else it is handed on when it is gone
                self._hand_on(wire)

    async def close(self) -> None:
        """Hang up everywhere."""
        self._closed = True
        wires = list(self._all)
        for wire in wires:
            wire.close()
        if wires:
            await asyncio.wait([wire.gone for wire in wires], timeout=1.0)

    async def _open(self, within: float) -> Wire:
        """Return a wire, a new one unless there are too many: then the next that is free."""
        while len(self._all) + self._opening >= self._most:
            turn: asyncio.Future[Wire | None] = asyncio.get_running_loop().create_future()
            self._queue.append(turn)
            try:
                wire = await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():  # it was ours; it is another's now
                    self._hand_on(turn.result())
                raise
            if wire is not None and wire.is_open:
                return wire
        self._opening += 1
        try:
            async with asyncio.timeout(within):
                wire = await Wire.open(self._connect())
            self._all.add(wire)
        except TimeoutError as error:
            raise redis_errors.TimeoutError("no answer when connecting to the server") from error
        finally:
            self._opening -= 1
            if len(self._all) + self._opening < self._most:
                self._hand_on(None)
        wire.gone.add_done_callback(lambda _: self._forget(wire))
        if self._closed:
            wire.close()
        return wire

    def _forget(self, wire: Wire) -> None:
        self._all.discard(wire)
        if wire in self._idle:
            self._idle.remove(wire)
        self._hand_on(None)

    def _hand_on(self, wire: Wire | None) -> None:
        """Give a wire, or without one the leave to open one, to whoever waits longest.

        It never lies about while somebody waits, or those who come again at once would take it
        every time.
        """
        free = wire if wire is not None and wire.is_open else None
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(free)
                return
        if free is not None:
            self._idle.append(free)


def pack(words: tuple[Value, ...]) -> bytes:
    """Return a command as the server reads it."""
    try:
        return _pack(words)
    except UnicodeEncodeError:  # an id that is not text: its bytes go back as they came
        return _pack(tuple(_exact(word) for word in words))


def _exact(word: Value) -> Value:
    return word.encode("utf-8", "surrogateescape") if isinstance(word, str) else word
