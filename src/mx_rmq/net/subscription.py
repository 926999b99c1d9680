"""Listen to channels, on separate connections: one per server that has any of them.

A message that is published while a connection is broken is lost. So a lost message may only cost
its listener time: after each reconnect `on_gap` says that some may have been missed.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from redis import exceptions as redis_errors

from mx_rmq.net.connection import pack
from mx_rmq.safe_log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from mx_rmq.net.caller import Caller
    from mx_rmq.net.connection import Wire
    from mx_rmq.net.topology import Node, Servers

logger = get_logger(__name__)

PING_EVERY: Final = 2.0  # seconds after which a silent connection is checked
WITHIN: Final = 2.0  # seconds that one reply may take
FIRST_PAUSE: Final = 0.05  # seconds, after a failure
LONGEST_PAUSE: Final = 2.0
ASK_AGAIN: Final = 60.0  # seconds after which a channel that this user may not hear is tried again

_FAILURES: Final = (redis_errors.RedisError, OSError)  # a TimeoutError is an OSError


class Subscription:
    """The channels that one part of a process listens to.

    `on_message` gets the channel and the bytes. `on_gap` gets a channel that is heard again after
    messages may have been missed. Neither may raise.
    """

    def __init__(
        self,
        caller: Caller,
        on_message: Callable[[str, bytes], None],
        on_gap: Callable[[str], None] | None = None,
        *,
        ping_every: float = PING_EVERY,
    ) -> None:
        self.ping_every = ping_every
        self._servers = caller.servers
        self._on_message = on_message
        self._on_gap = on_gap
        self._lines: dict[Node, _Line] = {}
        self._line_of: dict[str, _Line] = {}
        self._waiting: dict[str, asyncio.Future[bool]] = {}  # those who wait to hear a channel
        self._refused: dict[str, float] = {}  # channels we may not hear: when to try again
        self._lost: set[str] = set()  # channels that were heard, and are not at the moment
        self._closed = False

    def hears(self, channel: str) -> bool:
        """Return whether the server sends us what is published on a channel."""
        line = self._line_of.get(channel)
        return line is not None and channel in line.heard

    async def add(self, channel: str) -> bool:
        """Listen to a channel; return whether it is heard from now on.

        If the server is away, this returns False, and the channel is added once it is back. A
        channel that this user may not hear is tried again every minute.
        """
        if self.hears(channel):
            return True
        if self._refused.get(channel, 0.0) > time.monotonic():
            return False
        waiting = self._waiting.get(channel)
        if waiting is None:
            waiting = self._waiting[channel] = asyncio.get_running_loop().create_future()
        self._place(channel)
        with suppress(TimeoutError):
            async with asyncio.timeout(WITHIN):
                return await asyncio.shield(waiting)
        return False

    def drop(self, channel: str) -> None:
        """Stop listening to a channel."""
        line = self._line_of.pop(channel, None)
        if line is not None:
            line.wanted.discard(channel)
            line.changed.set()
        self._lost.discard(channel)
        self._tell(channel, heard=False)

    async def close(self) -> None:
        """Stop listening, and close the connections."""
        self._closed = True
        for channel in [*self._line_of]:
            self.drop(channel)
        for line in [*self._lines.values()]:
            await line.stop()
        self._lines.clear()

    def _place(self, channel: str) -> None:
        """Let the line to the channel's server listen to it."""
        if self._closed:
            self._tell(channel, heard=False)
            return
        old = self._line_of.get(channel)
        try:
            node = self._servers.node_at(self._servers.site_of(channel))
        except redis_errors.RedisError:  # no server has it: its old line, or any, keeps trying
            known = [old.node] if old is not None else self._servers.nodes()
            if not known:
                self._tell(channel, heard=False)
                return
            node = known[0]
        line = self._lines.get(node)
        if line is None:
            line = self._lines[node] = _Line(self, node, self._servers)
        if old is not None and old is not line:
            old.wanted.discard(channel)
            old.changed.set()
        self._line_of[channel] = line
        line.wanted.add(channel)
        line.changed.set()

    # what a line reports

    def message(self, channel: str, data: bytes) -> None:
        if channel in self._line_of:
            self._on_message(channel, data)

    def heard(self, channel: str) -> None:
        self._refused.pop(channel, None)
        self._tell(channel, heard=True)
        if channel in self._lost:
            self._lost.discard(channel)
            if self._on_gap is not None:
                self._on_gap(channel)

    def refused(self, channel: str, error: Exception) -> None:
        if channel not in self._refused:
            logger.warning(
                "cannot listen to %s, so we learn late what is published there: %s", channel, error
            )
        self._refused[channel] = time.monotonic() + ASK_AGAIN
        self.drop(channel)

    def broke(self, line: _Line) -> None:
        """Note what a broken connection no longer hears, and where to listen instead."""
        self._lost |= line.heard
        for channel in [*line.wanted]:
            self._place(channel)

    def ended(self, line: _Line) -> None:
        if self._lines.get(line.node) is line:
            del self._lines[line.node]

    def _tell(self, channel: str, *, heard: bool) -> None:
        waiting = self._waiting.pop(channel, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(heard)


class _Line:
    """One connection, which exists while it has channels."""

    def __init__(self, owner: Subscription, node: Node, servers: Servers) -> None:
        self.node = node
        self.wanted: set[str] = set()
        self.heard: set[str] = set()
        self.changed = asyncio.Event()
        self._owner = owner
        self._servers = servers
        self._wire: Wire | None = None
        self._task = asyncio.create_task(self._run(), name="mx-rmq subscription")

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        pause = FIRST_PAUSE
        try:
            await asyncio.sleep(0)  # until its channels are known
            while self.wanted:
                try:
                    await self._listen()
                    pause = FIRST_PAUSE
                except _FAILURES as error:
                    logger.debug("subscription: %s; connecting again in %.2f s", error, pause)
                    await self._hang_up()
                    await self._servers.find_servers()
                    self._owner.broke(self)
                    self.heard.clear()
                    await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
                    pause = min(pause * 2, LONGEST_PAUSE)
        finally:
            self.heard.clear()
            self._owner.ended(self)
            await self._hang_up()

    async def _listen(self) -> None:
        """Make the server send what is wanted, or check that it is still there."""
        wire = self._wire or await self._open()
        self.changed.clear()
        for channel in self.heard - self.wanted:
            self.heard.discard(channel)
            await self._try(wire, "UNSUBSCRIBE", channel)
        for channel in self.wanted - self.heard:
            try:
                await wire.ask(pack(("SUBSCRIBE", channel)), WITHIN)
            except redis_errors.NoPermissionError as error:
                self._owner.refused(channel, error)
                continue
            self.heard.add(channel)
            self._owner.heard(channel)
        try:
            async with asyncio.timeout(self._owner.ping_every):
                await self.changed.wait()
        except TimeoutError:
            await self._try(wire, "PING")
        if not wire.is_open:
            raise redis_errors.ConnectionError("the connection was lost")

    async def _try(self, wire: Wire, *words: str) -> None:
        """Make a call that this user may not be allowed to make; a refusal is an answer, too."""
        with suppress(redis_errors.NoPermissionError):
            await wire.ask(pack(words), WITHIN)

    async def _open(self) -> Wire:
        wire = self._wire = await self.node.wires.open_separate(WITHIN)
        wire.gone.add_done_callback(lambda _: self.changed.set())
        # Since protocol 3 a message cannot be mistaken for a reply.
        await wire.ask(pack(("HELLO", 3)), WITHIN)

        def on_push(push: list[Any]) -> None:
            kind, channel, data = push
            if kind == b"message":
                self._owner.message(channel.decode(), data)
            else:  # the server's reply to SUBSCRIBE or UNSUBSCRIBE
                wire.answer(push)

        wire.on_push = on_push
        return wire

    async def _hang_up(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()
            await wire.gone
