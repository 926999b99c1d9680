"""A server of a cluster or Sentinel group: it can freeze and return, and may need a password."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import socket
import time
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

from redis.asyncio import Redis
from redis.exceptions import RedisError

from tests.lab.servers import Kind, Server

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from tests.lab.tls import Tls


class Node(Server):
    """`with Node(kind, directory, port=…) as node: …`

    The password is that of the user `default`; other users are written as in a configuration file:
    "worker on >secret ~mx-rmq:* +@all". With `tls`, its port speaks nothing else.
    """

    def __init__(
        self,
        kind: Kind,
        directory: Path,
        *options: str,
        port: int,
        password: str = "",
        users: Sequence[str] = (),
        tls: Tls | None = None,
    ) -> None:
        if password:
            options += ("--requirepass", password, "--masterauth", password)
        for user in users:
            options += ("--user", *user.split())
        if tls is not None:
            options += tls.options(port)
        super().__init__(kind, directory, *options, port=port)
        self.password = password
        self.is_frozen = False

    def __repr__(self) -> str:
        return f"<{self.directory.name} at {self.address}>"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """The test's URL: the socket, as the user with all rights."""
        login = f":{quote(self.password)}@" if self.password else ""
        return f"unix://{login}{self.socket}"

    @property
    def is_up(self) -> bool:
        """Whether it runs and is not frozen."""
        return self._process is not None and not self.is_frozen

    def freeze(self) -> None:
        """Freeze it: its connections stay open and silent."""
        os.kill(self.pid, signal.SIGSTOP)
        self.is_frozen = True

    def thaw(self) -> None:
        """Let it continue."""
        os.kill(self.pid, signal.SIGCONT)
        self.is_frozen = False

    def restart(self) -> Self:
        """Start it with what it has on disk; kill it first if it runs."""
        self.kill()
        return self.start()

    async def ask(self, *words: str | int | bytes) -> Any:
        """Send one command and return the reply."""
        async with Redis.from_url(self.url, socket_timeout=5, protocol=3) as client:
            execute: Callable[..., Awaitable[Any]] = client.execute_command
            return await execute(*words)

    async def takes_writes(self) -> bool:
        """Return whether it is, and knows it is, a primary."""
        try:
            role, *_ = await self.ask("ROLE")
        except (RedisError, OSError):
            return False
        return bool(role == b"master")

    async def is_in_step(self) -> bool:
        """Return whether it is a primary, or a replica that has all its primary's data."""
        role, *rest = await self.ask("ROLE")
        return bool(role == b"master" or rest[2] == b"connected")

    async def is_followed(self, count: int) -> bool:
        """Return whether this many replicas confirm its writes now. Not possible in a cluster.

        A replica says that it is connected a moment before it gets its primary's writes.
        """
        async with Redis.from_url(self.url, socket_timeout=5) as client:
            await client.set("lab", "?")
            confirmed = await client.wait(count, 1000)
            await client.delete("lab")
        return int(confirmed) >= count

    def _end(self, number: signal.Signals) -> None:
        if self.is_frozen and number != signal.SIGKILL:
            self.thaw()
        self.is_frozen = False
        super()._end(number)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(1)
            try:
                client.connect(str(self.socket))
                client.sendall(b"PING\r\n")
                return client.recv(100).startswith((b"+PONG", b"-NOAUTH"))
            except OSError:
                return False


async def until_true(fact: Callable[[], Any], what: str, seconds: float = 30) -> Any:
    """Wait until a fact is true and return it. A server that does not answer means no."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            found = fact()
            if inspect.isawaitable(found):
                found = await found
        except (RedisError, OSError):
            found = None
        if found:
            return found
        assert time.monotonic() < deadline, f"gave up after {seconds:g} s: {what}"
        await asyncio.sleep(0.02)
