"""A primary, its replicas, and three Sentinels that watch them."""

from __future__ import annotations

import subprocess
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, Self
from urllib.parse import quote

from redis import Redis
from redis.exceptions import ResponseError

from tests.lab.nodes import Node, until_true
from tests.lab.ports import free_ports
from tests.lab.servers import Kind, binary, die_with_parent

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.lab.tls import Tls

NAME: Final = "shop"
"""The Sentinels' name for their primary."""

SENTINELS: Final = 3
QUORUM: Final = 2

HASTE: Final = ("INFO-PERIOD", 200, "PUBLISH-PERIOD", 500, "ASK-PERIOD", 200)
"""Milliseconds between two checks of a Sentinel. The default is ten seconds."""


class Promoted(NamedTuple):
    """A new primary, and when it was first seen to accept writes, in monotonic time."""

    node: Node
    at: float


class Sentinel(Node):
    """One Sentinel. It keeps what it learns in its configuration file."""

    def __init__(
        self,
        kind: Kind,
        directory: Path,
        settings: Sequence[str],
        *,
        port: int,
        password: str,
        tls: Tls | None,
    ) -> None:
        super().__init__(kind, directory, port=port, password=password, tls=tls)
        self._settings = settings

    def start(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.socket.unlink(missing_ok=True)
        log, file = self.directory / "server.log", self.directory / "sentinel.conf"
        if not file.exists():
            lines = [f"port {self.port}", "bind 127.0.0.1", f"unixsocket {self.socket}"]
            lines += [f"dir {self.directory}", f"logfile {log}"]
            pairs = zip(self._options[::2], self._options[1::2], strict=True)
            lines += [f'{name.removeprefix("--")} "{value}"' for name, value in pairs]
            file.write_text("\n".join((*lines, *self._settings, "")))
        self._process = subprocess.Popen(
            ["redis-sentinel", str(file), "--sentinel"],
            executable=binary(self.kind),
            stdin=subprocess.DEVNULL,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - before any thread of ours
        )
        deadline = time.monotonic() + 20
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"the Sentinel did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.005)
        with Redis.from_url(self.url) as client, suppress(ResponseError):  # 6.2 does not know it
            client.execute_command("SENTINEL", "DEBUG", *HASTE)
        return self


class Watched:
    """`async with Watched(directory) as watched: …`

    `nodes` are the data servers; the first one is the primary at the beginning.
    """

    def __init__(
        self,
        directory: Path,
        *options: str,
        replicas: int = 2,
        kind: Kind = Kind.VALKEY_9_1,
        aof: bool = False,
        down_after: float = 0.5,
        failover_timeout: float = 3.0,
        password: str = "",
        users: Sequence[str] = (),
        sentinel_password: str = "",
        tls: Tls | None = None,
    ) -> None:
        self._password = password
        self._scheme = "redis+sentinel" if tls is None else "rediss+sentinel"
        ports = free_ports(1 + replicas + SENTINELS)
        options = (
            *("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"),
            *(("--appendonly", "yes", "--appendfsync", "always") if aof else ()),
            *options,
        )
        self.nodes = [
            Node(
                kind,
                directory / f"node{number}",
                *options,
                port=port,
                password=password,
                users=users,
                tls=tls,
            )
            for number, port in enumerate(ports[: 1 + replicas])
        ]
        settings = [
            f"sentinel monitor {NAME} 127.0.0.1 {ports[0]} {QUORUM}",
            f"sentinel down-after-milliseconds {NAME} {int(down_after * 1000)}",
            f"sentinel failover-timeout {NAME} {int(failover_timeout * 1000)}",
            f"sentinel parallel-syncs {NAME} {max(1, replicas)}",
            *([f'sentinel auth-pass {NAME} "{password}"'] if password else []),
        ]
        self.sentinels = [
            Sentinel(
                kind,
                directory / f"sentinel{number}",
                settings,
                port=port,
                password=sentinel_password,
                tls=tls,
            )
            for number, port in enumerate(ports[1 + replicas :])
        ]

    @property
    def url(self) -> str:
        """The Sentinels' addresses and the primary's name; the login is the data servers'."""
        return self.url_of()

    def url_of(self, user: str = "", password: str | None = None, db: int | None = None) -> str:
        """Return the URL for a user of the data servers."""
        password = self._password if password is None else password
        login = f"{quote(user)}:{quote(password)}@" if user or password else ""
        hosts = ",".join(sentinel.address for sentinel in self.sentinels)
        return f"{self._scheme}://{login}{hosts}/{NAME}" + ("" if db is None else f"/{db}")

    # state

    async def primary(self) -> Node:
        """Return the primary that most Sentinels name."""
        named = [await self._named_by(one) for one in self.sentinels if one.is_up]
        port = max(named, key=named.count)
        return next(node for node in self.nodes if node.port == port)

    async def replicas(self) -> list[Node]:
        """Return the data servers that are up and follow one."""
        return [node for node in self.nodes if node.is_up and not await node.takes_writes()]

    async def until_settled(self, seconds: float = 30) -> None:
        """Wait until the Sentinels know each other and all servers, and these are in step."""
        await until_true(self._is_settled, "the Sentinels know all servers", seconds)

    async def until_promoted(self, away_from: Node, seconds: float = 30) -> Promoted:
        """Wait until the Sentinels that are up name another primary, and it accepts writes."""

        async def promoted() -> Promoted | None:
            ports = {await self._named_by(one) for one in self.sentinels if one.is_up}
            if len(ports) != 1 or away_from.port in ports:
                return None
            (node,) = (node for node in self.nodes if node.port in ports)
            return Promoted(node, time.monotonic()) if await node.takes_writes() else None

        found = await until_true(promoted, "the Sentinels promote another server", seconds)
        assert isinstance(found, Promoted)
        return found

    # what a test does; killing, freezing and restarting is done to a node

    async def fail_over(self, seconds: float = 30) -> Promoted:
        """Let a Sentinel promote a replica while the primary works; return the new primary."""
        before = await self.primary()
        await self.sentinels[0].ask("SENTINEL", "FAILOVER", NAME)
        return await self.until_promoted(before, seconds)

    # start and end

    async def __aenter__(self) -> Self:
        try:
            for node in self.nodes:
                node.start()
            for node in self.nodes[1:]:
                await node.ask("REPLICAOF", "127.0.0.1", self.nodes[0].port)
            for node in self.nodes:
                await until_true(node.is_in_step, f"{node.address} follows")
            count = len(self.nodes) - 1
            await until_true(lambda: self.nodes[0].is_followed(count), "the replicas follow it")
            for sentinel in self.sentinels:
                sentinel.start()
            await self.until_settled()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for node in (*self.sentinels, *self.nodes):
            node.kill()

    async def _named_by(self, sentinel: Sentinel) -> int:
        _, port = await sentinel.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)
        return int(port)

    async def _is_settled(self) -> bool:
        primary = await self.primary()
        followers = {node.port for node in self.nodes if node.is_up and node is not primary}
        for sentinel in self.sentinels:
            if sentinel.is_up and not await self._knows(sentinel, primary.port, followers):
                return False
        return primary.is_up and await primary.takes_writes()

    async def _knows(self, sentinel: Sentinel, primary: int, followers: set[int]) -> bool:
        others = await sentinel.ask("SENTINEL", "SENTINELS", NAME)
        away = (b"s_down", b"disconnected")
        seen = sum(not any(flag in one[b"flags"] for flag in away) for one in others)
        up = sum(one.is_up for one in self.sentinels) - 1
        well = {
            int(one[b"port"])
            for one in await sentinel.ask("SENTINEL", "REPLICAS", NAME)
            if (one[b"flags"], one[b"master-link-status"]) == (b"slave", b"ok")
            and int(one[b"master-port"]) == primary
        }
        return seen == up and well == followers
