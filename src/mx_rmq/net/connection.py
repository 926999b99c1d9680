"""Connections for script calls: send the bytes of a call, read the reply, and little else.

The client library connects (sockets, TLS, login, database) and then steps aside: its own sending
and reading costs more than everything else in a call. See docs/performance.md.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from math import inf
from typing import TYPE_CHECKING, Any, Final, cast

import hiredis
from redis import exceptions as redis_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from redis.asyncio.connection import AbstractConnection

    Check = Callable[[], None]

Value = str | bytes | int  # a word of a command


class Unreached(redis_errors.ConnectionError):
    """The connection failed, so nothing was sent."""


LATE: Final = 1.0  # seconds without a reply after which we check whether the server was replaced
ALERT_WITHIN: Final = 1.0  # seconds that a server has to say over TLS why it hung up

KEEP_ALIVE: Final = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}
"""After five seconds of silence, probe a connection three times, two seconds apart."""

READ_BUFFER: Final = 65_536
"""Bytes to read at once, into a buffer that each wire keeps. asyncio's default is a new 256 KiB
buffer per read, which fragments the heap until it grows forever."""

_NOT_YET: Final = object()
_ASKING: Final = hiredis.pack_command(("ASKING",))
_pack = cast("Callable[[tuple[Value, ...]], bytes]", hiredis.pack_command)


class Wire(asyncio.BufferedProtocol):
    """One connection. It carries one call at a time."""

    def __init__(self, connection: AbstractConnection, transport: asyncio.Transport) -> None:
        self.on_late: Callable[[], object] | None = None  # called repeatedly while a reply is late
        self.on_push: Callable[[list[Any]], None] | None = None  # gets what comes without a call
        self._connection = connection
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._replies = hiredis.Reader(
            protocolError=redis_errors.InvalidResponse,
            replyError=connection._parser.parse_error,
            notEnoughData=_NOT_YET,
        )
        self._feed = cast("Callable[[memoryview, int, int], None]", self._replies.feed)
        self._read = memoryview(bytearray(READ_BUFFER))
        self._waiter: asyncio.Future[Any] | None = None
        self._received: list[Any] = []  # the replies received so far
        self._expected: int | None = None  # replies to collect; None: one reply is the answer
        self._within = 0.0
        self._deadline = inf  # when the call times out, on the loop's clock
        self._late = inf  # when the reply counts as late
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf
        self.is_open = True
        self.gone: asyncio.Future[None] = self._loop.create_future()  # done when it is closed

    @classmethod
    async def open(cls, connection: AbstractConnection) -> Wire:
        """Connect and log in. From then on only the wire reads from the connection."""
        try:
            await connection.connect()  # type: ignore[no-untyped-call] # redis-py leaves it untyped
        except BaseException:  # it may be connected already, half logged in
            if connection._writer is not None:
                connection._writer.transport.abort()
            connection._close()  # type: ignore[no-untyped-call] # redis-py leaves it untyped
            raise
        writer = connection._writer  # not public, but there is no other access
        if writer is None:
            raise redis_errors.ConnectionError("connection lost while connecting to the server")
        transport = cast("asyncio.Transport", writer.transport)
        wire = cls(connection, transport)
        transport.set_protocol(wire)
        if transport.is_closing():  # it broke before we were its protocol
            wire.connection_lost(None)
        return wire

    @property
    def address(self) -> tuple[Any, Any]:
        return getattr(self._connection, "host", None), getattr(self._connection, "port", None)

    async def ask(
        self, call: bytes, within: float, replies: int | None = None, late: float = LATE
    ) -> Any:
        """Send a call and wait for its reply. Any interruption closes the connection.

        For a call of several commands, pass the number of `replies`: they are returned as a list,
        errors included.
        """
        if not self.is_open:
            raise Unreached("the connection was lost")
        waiter = self._waiter = self._loop.create_future()
        self._expected = replies
        if self._received:
            self._received = []
        self._transport.write(call)
        now = self._loop.time()
        self._within, self._deadline, self._late = within, now + within, now + late
        if self._late < self._timer_at or self._deadline < self._timer_at:
            self._set_timer()
        try:
            return await waiter
        except redis_errors.ReadOnlyError:
            self.close()  # the server became a replica: the next connection finds the primary
            raise
        except asyncio.CancelledError:
            self.close()  # or the next call would read this reply
            raise
        finally:
            self._waiter = None

    def keep_alive(self) -> None:
        """Turn on TCP keep-alive, which detects a dead connection while nothing is sent."""
        connection = self._transport.get_extra_info("socket")
        if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
            return
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEP_ALIVE.items():
            if hasattr(socket, name):  # not every platform has them all
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def close(self) -> None:
        """Hang up."""
        self.is_open = False
        self._clear_timer()
        self._transport.abort()
        self._close_client()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._read

    def buffer_updated(self, nbytes: int) -> None:
        self._feed(self._read, 0, nbytes)
        try:
            while (reply := self._replies.gets()) is not _NOT_YET:
                if not isinstance(reply, hiredis.PushNotification):
                    self._take(reply)
                elif self.on_push is not None:
                    self.on_push(reply)
        except redis_errors.InvalidResponse as error:
            self.answer(redis_errors.ConnectionError(f"the reply cannot be read: {error}"))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the pending call: the server or we closed the connection."""
        self.is_open = False
        self._clear_timer()
        if not self.gone.done():
            self.gone.set_result(None)
        why = f": {exc}" if exc is not None else ""
        lost = redis_errors.ConnectionError(f"the connection was lost{why}")
        lost.__cause__ = exc
        self.answer(lost)
        self._close_client()

    def _close_client(self) -> None:
        """Close the client library's connection, which would otherwise warn that it is open."""
        self._connection._close()  # type: ignore[no-untyped-call] # redis-py leaves it untyped

    def _take(self, reply: Any) -> None:
        """Deliver a reply, or collect it if more are expected."""
        if self._expected is None:
            self.answer(reply)
            return
        self._received.append(reply)
        if len(self._received) == self._expected:
            self.answer(self._received)

    def answer(self, reply: Any) -> None:
        """End the pending call with this reply, or with this error."""
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        if isinstance(reply, Exception):
            waiter.set_exception(reply)
        else:
            waiter.set_result(reply)

    def _set_timer(self) -> None:
        """Set the timer. To save time, it is not moved for each call: it fires and is set again."""
        self._clear_timer()
        self._timer_at = min(self._late, self._deadline)
        self._timer = self._loop.call_at(self._timer_at, self._check_deadline)

    def _clear_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = None, inf

    def _check_deadline(self) -> None:
        """Check whether a reply is late or has timed out."""
        self._timer, self._timer_at = None, inf
        if self._waiter is None:
            return
        now = self._loop.time()
        if now < self._deadline:
            if now >= self._late:
                self._late = now + LATE
                if self.on_late is not None:
                    self.on_late()
            self._set_timer()
            return
        self.answer(redis_errors.TimeoutError(f"no reply within {self._within:g} s"))
        self.close()


class Wires:
    """A pool: one wire per concurrent call to a server, up to a limit.

    The server may change: behind Sentinel, each new wire goes to the current primary. If that is
    not the one from before, the old wires are closed.
    """

    def __init__(self, connect: Callable[[], AbstractConnection], *, most: int) -> None:
        self.on_late: Callable[[], object] | None = None
        """Called while a reply is late: another server may be the primary now."""
        self._connect = connect
        self._most = most
        self._idle: list[Wire] = []
        self._all: set[Wire] = set()
        self._separate: set[Wire] = set()
        self._address: tuple[Any, Any] | None = None
        self._opening = 0
        self._queue: deque[asyncio.Future[Wire | None]] = deque()
        self._closed = False

    async def send(
        self, words: tuple[Value, ...], within: float, check: Check | None = None
    ) -> Any:
        """Send one command on a free wire; wait up to `within` seconds for its reply.

        `check` runs right before the write. It may raise to prevent it.
        """
        call = pack(words)
        wire = self._idle.pop() if self._idle else await self._next(within)
        try:
            if check is not None:
                check()
            return await wire.ask(call, within)
        finally:
            if wire.is_open:  # else `_forget` frees its place once it is closed
                self._hand_on(wire)

    async def send_asking(
        self, words: tuple[Value, ...], within: float, check: Check | None = None
    ) -> Any:
        """Send one command for a slot that is being moved to this server."""
        answer = (await self._send_many(_ASKING + pack(words), within, 2, check))[1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def send_all(
        self,
        commands: Sequence[tuple[Value, ...]],
        within: float,
        check: Check | None = None,
    ) -> list[Any]:
        """Send commands together on one wire; return all replies, errors included."""
        return await self._send_many(b"".join(map(pack, commands)), within, len(commands), check)

    async def _send_many(
        self, call: bytes, within: float, replies: int, check: Check | None
    ) -> list[Any]:
        wire = self._idle.pop() if self._idle else await self._next(within)
        try:
            if check is not None:
                check()
            answers: list[Any] = await wire.ask(call, within, replies)
            if any(isinstance(answer, redis_errors.ReadOnlyError) for answer in answers):
                wire.close()
            return answers
        finally:
            if wire.is_open:
                self._hand_on(wire)

    async def open_separate(self, within: float) -> Wire:
        """Open a wire outside the pool, for a caller that blocks on it."""
        wire = await self._open(within)
        wire.keep_alive()
        self._separate.add(wire)
        wire.gone.add_done_callback(lambda _: self._separate.discard(wire))
        return wire

    def is_connected(self) -> bool:
        """Return whether a wire is open."""
        return any(wire.is_open for wire in (*self._all, *self._separate))

    def goes_elsewhere(self, address: tuple[Any, Any]) -> bool:
        """Return whether the wires go to a different server."""
        return self._address not in (None, address)

    def hang_up(self) -> list[Wire]:
        """Close all wires, because they go to the wrong server. New ones may be opened."""
        wires = [*self._all, *self._separate]
        for wire in wires:
            wire.close()
        return wires

    async def close(self) -> None:
        """Close all wires for good."""
        self._closed = True
        wires = self.hang_up()
        if wires:
            await asyncio.wait([wire.gone for wire in wires], timeout=1.0)

    async def _next(self, within: float) -> Wire:
        """Open a wire or, at the limit, wait for the next free one."""
        while len(self._all) + self._opening >= self._most:
            turn: asyncio.Future[Wire | None] = asyncio.get_running_loop().create_future()
            self._queue.append(turn)
            try:
                async with asyncio.timeout(within):
                    wire = await turn
            except (TimeoutError, asyncio.CancelledError) as error:
                if turn.done() and not turn.cancelled():  # we got one too late: pass it on
                    self._hand_on(turn.result())
                if isinstance(error, TimeoutError):
                    busy = "connecting to the server: all connections are busy"
                    raise Unreached(busy) from error
                raise
            if wire is not None and wire.is_open:
                return wire
        self._opening += 1
        try:
            wire = await self._open(within)
            self._all.add(wire)
        finally:
            self._opening -= 1
            if len(self._all) + self._opening < self._most:
                self._hand_on(None)
        wire.gone.add_done_callback(lambda _: self._forget(wire))
        return wire

    async def _open(self, within: float) -> Wire:
        self._refuse_if_closed()
        connection = self._connect()
        try:
            async with asyncio.timeout(within):
                wire = await Wire.open(connection)
        except (redis_errors.RedisError, OSError) as error:  # TimeoutError is an OSError
            cause = await _tls_alert(connection, error)
            raise Unreached(f"connecting to the server: {str(cause) or 'no answer'}") from cause
        try:
            self._refuse_if_closed()
        except Unreached:
            wire.close()
            raise
        if self.goes_elsewhere(wire.address):
            self.hang_up()
        self._address = wire.address
        wire.on_late = self._tell_late
        return wire

    def _tell_late(self) -> None:
        if self.on_late is not None:
            self.on_late()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise Unreached("closed: not connecting to the server any more")

    def _forget(self, wire: Wire) -> None:
        self._all.discard(wire)
        if wire in self._idle:
            self._idle.remove(wire)
        self._hand_on(None)

    def _hand_on(self, wire: Wire | None) -> None:
        """Pass a wire, or with None the permission to open one, to the longest waiter.

        A wire is never idle while a call waits: otherwise callers that return at once would take
        it every time.
        """
        free = wire if wire is not None and wire.is_open else None
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(free)
                return
        if free is not None:
            self._idle.append(free)


async def _tls_alert(connection: AbstractConnection, error: Exception) -> Exception:
    """Return why a server hung up during login, if it says so over TLS.

    It checks a client's certificate only after the handshake, when we have already written. Then
    the connection is reset and its alert is lost. So connect again and only read.
    """
    context = getattr(connection, "ssl_context", None)
    lost = ConnectionResetError | BrokenPipeError
    if context is None or not isinstance(error.__cause__ or error.__context__, lost):
        return error
    host, port = getattr(connection, "host", None), getattr(connection, "port", None)
    try:
        async with asyncio.timeout(ALERT_WITHIN):
            reader, writer = await asyncio.open_connection(host, port, ssl=context.get())
            try:
                await reader.read(1)
            finally:
                writer.transport.abort()
    except ssl.SSLError as alert:
        return alert
    except OSError:  # TimeoutError included: the cause was something else
        pass
    return error


def pack(words: tuple[Value, ...]) -> bytes:
    """Return a command in the server's protocol."""
    try:
        return _pack(words)
    except UnicodeEncodeError:  # an id that is not UTF-8: send its original bytes
        return _pack(tuple(_exact(word) for word in words))


def _exact(word: Value) -> Value:
    return word.encode("utf-8", "surrogateescape") if isinstance(word, str) else word
