"""The labs do what they say: clusters, Sentinels, certificates and a broken network."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    NoPermissionError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError

from tests.lab.cluster import NODES, Cluster, ClusterNode, slot_of
from tests.lab.nodes import Node, until_true
from tests.lab.ports import SHARES, free_ports
from tests.lab.proxy import Fault, Order, Proxy
from tests.lab.sentinel import NAME, Watched
from tests.lab.servers import USUAL, Kind, Server, chosen
from tests.lab.tls import HOSTS, Authority, Tls, trust

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

ROOT = Path(__file__).parents[2]
TOPIC = "work"
WORKER = "worker on >secret ~x:* +get +client +hello"

every_kind = pytest.mark.parametrize("kind", chosen(*USUAL))


async def another(cluster: Cluster, than: ClusterNode) -> ClusterNode:
    """Return a primary other than this one."""
    first, *_ = [one for one in cluster.nodes if one is not than and await one.takes_writes()]
    return first


async def execute(client: Redis, *words: str) -> Any:
    run: Callable[..., Awaitable[Any]] = client.execute_command
    return await run(*words)


# clusters


@every_kind
async def test_a_cluster_promotes_a_replica_of_a_killed_primary_and_takes_that_one_back(
    kind: Kind, short_path: Path
) -> None:
    async with Cluster(short_path, replicas=1, kind=kind, aof=True) as cluster:
        before = await cluster.primary_of(TOPIC)
        assert cluster.nodes[cluster.node_of(slot_of(TOPIC))] is before
        await before.ask("SET", f"{{{TOPIC}}}:1", "kept")
        (replica,) = await cluster.replicas_of(before)
        await before.ask("WAIT", 1, 5000)
        before.kill()
        assert await cluster.until_moved(TOPIC, before) is replica
        assert await replica.ask("GET", f"{{{TOPIC}}}:1") == b"kept"
        before.restart()
        await cluster.until_agreed()
        assert await cluster.replicas_of(replica) == [before]


async def test_a_frozen_primary_is_replaced_and_comes_back_as_a_replica(short_path: Path) -> None:
    async with Cluster(short_path, replicas=1) as cluster:
        before = await cluster.primary_of(TOPIC)
        before.freeze()
        after = await cluster.until_moved(TOPIC, before)
        before.thaw()
        await cluster.until_agreed()
        assert await cluster.replicas_of(after) == [before]
        await cluster.promote(before)
        assert await cluster.primary_of(TOPIC) is before


@every_kind
async def test_a_slot_is_on_two_nodes_while_it_moves_key_by_key(
    kind: Kind, short_path: Path
) -> None:
    async with Cluster(short_path, kind=kind, password="secret") as cluster:
        source = await cluster.primary_of(TOPIC)
        target = await another(cluster, than=source)
        keys = [f"{{{TOPIC}}}:{number}" for number in range(3)]
        for key in keys:
            await source.ask("SET", key, key)
        seen = []

        async def look(moved: int, left: int) -> None:
            seen.append((moved, left))
            if left == 1:
                with pytest.raises(TryAgainError):
                    await target_asking(target, "MGET", *keys)

        await cluster.move(TOPIC, target, pause=look)
        assert seen == [(0, 3), (1, 2), (2, 1), (3, 0)]
        assert await cluster.primary_of(TOPIC) is target
        assert sorted(await target.keys_in(slot_of(TOPIC))) == [key.encode() for key in keys]
        async with RedisCluster.from_url(f"redis://:secret@{source.address}") as client:
            assert await client.mget(*keys) == [key.encode() for key in keys]


async def target_asking(node: ClusterNode, *words: str) -> Any:
    async with Redis.from_url(node.url, single_connection_client=True) as client:
        await execute(client, "ASKING")
        return await execute(client, *words)


async def test_a_slot_moves_at_once_to_a_primary_that_joined_later(short_path: Path) -> None:
    async with Cluster(short_path) as cluster:
        source = await cluster.primary_of(TOPIC)
        await source.ask("SET", f"{{{TOPIC}}}:1", "kept")
        fourth = await cluster.add_primary()
        assert len(cluster.nodes) == NODES + 1
        await cluster.move_atomically(TOPIC, fourth)
        assert await fourth.ask("GET", f"{{{TOPIC}}}:1") == b"kept"
        replica = await cluster.add_replica(fourth)
        assert await cluster.replicas_of(fourth) == [replica]


# Sentinels


async def test_sentinels_replace_a_primary_that_is_told_to_go_or_dies(short_path: Path) -> None:
    async with Watched(short_path, sentinel_password="other") as watched:
        first = await watched.primary()
        assert first is watched.nodes[0]
        second = (await watched.fail_over()).node
        await watched.until_settled()
        assert first in await watched.replicas()
        second.kill()
        third = await watched.until_promoted(second)
        await third.node.ask("SET", "x", "y")
        assert third.node is await watched.primary()
        second.start()
        await watched.until_settled()
        assert second in await watched.replicas()


@every_kind
async def test_sentinels_have_another_password_than_the_servers(
    kind: Kind, short_path: Path
) -> None:
    async with Watched(
        short_path,
        kind=kind,
        replicas=1,
        password="secret",
        sentinel_password="other",
        users=[WORKER],
    ) as watched:
        assert watched.url.startswith("redis+sentinel://:secret@127.0.0.1:")
        assert watched.url_of("worker", "secret", 3).endswith(f"/{NAME}/3")
        primary = await watched.primary()
        primary.freeze()
        after = (await watched.until_promoted(primary)).node
        async with Redis.from_url(f"redis://worker:secret@{after.address}") as client:
            assert await client.get("x:1") is None
            with pytest.raises(NoPermissionError):
                await client.get("y:1")
        retry = Retry(NoBackoff(), 0)
        async with Redis.from_url(f"redis://{watched.sentinels[0].address}", retry=retry) as client:
            with pytest.raises(AuthenticationError):
                await execute(client, "SENTINEL", "MASTERS")


# TLS


async def test_a_cluster_and_sentinels_speak_nothing_but_tls(short_path: Path) -> None:
    authority = Authority(short_path / "ca")
    tls = Tls(authority, authority.issue(*HOSTS), clients=True)
    client = authority.issue("client")
    async with Cluster(short_path / "c", replicas=1, kind=Kind.REDIS_7_0, tls=tls) as cluster:
        assert cluster.url.startswith("rediss+cluster://")
        target = await another(cluster, than=await cluster.primary_of(TOPIC))
        await cluster.move(TOPIC, target)
        url = f"rediss://{cluster.nodes[0].address}?{trust(authority, client)}"
        async with RedisCluster.from_url(url) as known:
            assert await known.set(f"{{{TOPIC}}}", "x")
    async with Watched(short_path / "w", replicas=1, kind=Kind.REDIS_7_0, tls=tls) as watched:
        assert watched.url.startswith("rediss+sentinel://")
        (after, _) = await watched.fail_over()
        async with Redis.from_url(f"rediss://{after.address}?{trust(authority)}") as stranger:
            with pytest.raises(RedisConnectionError):
                await stranger.set("x", "y")


# nodes


def test_a_killed_node_comes_back_with_its_data_on_the_port_that_it_had(short_path: Path) -> None:
    (port,) = free_ports(1)
    options = ("--appendonly", "yes", "--appendfsync", "always")
    with Node(Kind.VALKEY_9_1, short_path, *options, port=port) as node:
        pid = node.pid
        node.freeze()
        assert not node.is_up
        node.restart()
        assert node.is_up
        assert node.pid != pid
        assert node.address == f"127.0.0.1:{port}"


PROGRAM = """
import asyncio, pathlib, sys
from tests.lab.cluster import Cluster

async def main():
    async with Cluster(pathlib.Path(sys.argv[1])) as cluster:
        print(*(node.pid for node in cluster.nodes), flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_servers_die_with_the_process_that_started_them(short_path: Path) -> None:
    program = [sys.executable, "-c", PROGRAM, str(short_path)]
    with subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert len(pids) == NODES
        process.send_signal(signal.SIGKILL)
    await until_true(lambda: not any(_runs(pid) for pid in pids), "they are dead", 10)


def _runs(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_processes_with_temporary_directories_of_their_own_share_no_port(short_path: Path) -> None:
    program = "from tests.lab.ports import free_port; print(free_port(), flush=True); input()"
    shares = []
    with ExitStack() as stack:
        for name in "ab":
            (short_path / name).mkdir()
            process = subprocess.Popen(
                [sys.executable, "-c", program],
                cwd=ROOT,
                env={**os.environ, "TMPDIR": str(short_path / name)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            stack.callback(process.communicate, b"\n")
            assert process.stdout is not None
            shares.append(int(process.stdout.readline()) % SHARES)
    assert shares[0] != shares[1]


# the proxy


SET = b"*3\r\n$3\r\nSET\r\n$1\r\nx\r\n$5\r\nvalue\r\n"
GET = b"*2\r\n$3\r\nGET\r\n$1\r\nx\r\n"


@asynccontextmanager
async def through(proxy: Proxy) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connect to a proxy by hand, to see every byte and how it ends."""
    host, _, port = proxy.url.removeprefix("redis://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    yield reader, writer
    writer.close()


async def heard(reader: asyncio.StreamReader, sure: int, within: float) -> tuple[bytes, str]:
    """Return what comes before the connection ends, and how it ends.

    So many bytes are sure to come; after them, nothing for so many seconds is silence.
    """
    data = await reader.readexactly(sure)
    while True:
        try:
            async with asyncio.timeout(within):
                more = await reader.read(1)
        except TimeoutError:
            return data, "silence"
        except ConnectionResetError:
            return data, "reset"
        if not more:
            return data, "end"
        data += more


@pytest.mark.parametrize(
    ("fault", "answer", "ending", "stored"),
    [
        (Fault.CUT_REQUEST, b"", "reset", None),
        (Fault.CUT_IN_REQUEST, b"", "reset", None),
        (Fault.SWALLOW_REQUEST, b"", "silence", None),
        (Fault.CUT_REPLY, b"", "reset", b"value"),
        (Fault.CUT_IN_REPLY, b"+OK", "reset", b"value"),
        (Fault.HOLD_REPLY, b"", "silence", b"value"),
        (Fault.TRICKLE_REPLY, b"+OK\r\n$5\r\nvalue\r\n", "silence", b"value"),
        (Fault.SLOW, b"+OK\r\n$5\r\nvalue\r\n", "silence", b"value"),
    ],
)
async def test_a_proxy_breaks_what_it_is_told_to_and_what_is_sent_behind_that(
    short_path: Path, fault: Fault, answer: bytes, ending: str, stored: bytes | None
) -> None:
    with Server(Kind.VALKEY_9_1, short_path) as server:
        async with Proxy(server.socket) as proxy, Redis.from_url(server.url) as direct:
            proxy.order(Order(fault, b"SET", part=0.6, late=(0.01, 0.01)))
            async with through(proxy) as (reader, writer):
                writer.write(SET + GET)
                within = 0.3 if ending == "silence" else 30
                assert await heard(reader, len(answer), within) == (answer, ending)
            if stored is not None:  # the server may take longer than the silence
                await until_true(lambda: direct.exists("x"), "it is stored")
            assert await direct.get("x") == stored
            assert proxy.cuts[fault] == 1
            assert proxy.passed[b"SET"] == (stored is not None)
            assert proxy.count(b"GET") == (answer != b"" and ending == "silence")
            async with through(proxy) as (reader, writer):
                writer.write(GET)
                found = b"$5\r\nvalue\r\n" if stored else b"$-1\r\n"
                assert await reader.readexactly(len(found)) == found


async def test_a_proxy_asks_what_shall_happen_to_each_request(short_path: Path) -> None:
    with Server(Kind.VALKEY_9_1, short_path) as server:
        async with Proxy(server.socket) as proxy:
            proxy.choose = lambda request: Order(Fault.CUT_REPLY) if b"GET" in request else None
            async with through(proxy) as (reader, writer):
                writer.write(SET + SET + GET + SET)
                assert await heard(reader, 10, 30) == (b"+OK\r\n+OK\r\n", "reset")
