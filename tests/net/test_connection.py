"""Wires: one call at a time each, on asyncio's own loop and on uvloop."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import uvloop
from redis import exceptions as redis_errors
from redis.asyncio import Redis

from mx_rmq.net.connection import Unreached, Wire, Wires
from mx_rmq.store.store import Store
from tests.lab.ports import free_port
from tests.lab.proxy import Proxy
from tests.lab.servers import Kind, Server
from tests.runtime.stage import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
    from pathlib import Path

    from redis.asyncio.connection import AbstractConnection


@pytest.fixture
def server(running: Callable[[Kind], Server]) -> Server:
    return running(Kind.VALKEY_9_1)


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def play(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    """Run a test in an event loop of this kind."""

    def run(test: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(test)

    return run


@asynccontextmanager
async def wires(url: str, most: int = 4) -> AsyncIterator[Wires]:
    client = Redis.from_url(url)
    some = Wires(client.connection_pool.make_connection, most=most)
    yield some
    await some.close()
    await client.aclose()


async def echo(some: Wires, word: str, within: float = 5.0) -> str:
    reply: bytes = await some.send(("ECHO", word), within)
    return reply.decode()


def test_a_call_gets_its_own_reply(play: Any, server: Server) -> None:
    async def test() -> None:
        async with wires(server.url) as some:
            words = [f"word-{number}" for number in range(200)]
            assert await asyncio.gather(*(echo(some, word) for word in words)) == words
            assert 1 <= len(some._all) <= 4

    play(test())


def test_a_wire_is_used_again_and_again(play: Any, server: Server) -> None:
    async def test() -> None:
        async with wires(server.url) as some:
            for number in range(50):
                assert await echo(some, str(number)) == str(number)
            assert len(some._all) == 1

    play(test())


def test_a_reply_of_many_packets_arrives_whole(play: Any, server: Server) -> None:
    async def test() -> None:
        async with wires(server.url) as some:
            large = "x" * 20_000_000
            assert await echo(some, large) == large

    play(test())


def test_bytes_that_are_no_text_go_there_and_back(play: Any, server: Server) -> None:
    async def test() -> None:
        async with wires(server.url) as some:
            strange = b"\xff\x00id".decode("utf-8", "surrogateescape")
            assert await some.send(("ECHO", strange), 5.0) == b"\xff\x00id"
            assert await some.send(("ECHO", 42), 5.0) == b"42"

    play(test())


def test_a_refusal_is_an_error_of_its_kind_and_the_wire_goes_on(play: Any, server: Server) -> None:
    async def test() -> None:
        async with wires(server.url) as some:
            with pytest.raises(redis_errors.NoScriptError):
                await some.send(("EVALSHA", "0" * 40, 0), 5.0)
            with pytest.raises(redis_errors.ResponseError, match="unknown command"):
                await some.send(("NOSUCH",), 5.0)
            assert await echo(some, "still") == "still"
            assert len(some._all) == 1

    play(test())


def test_a_cancelled_call_leaves_its_reply_to_nobody(play: Any, server: Server) -> None:
    async def test() -> None:
        async with wires(server.url, most=1) as some:
            for turn in range(40):
                task = asyncio.create_task(echo(some, "cancelled"))
                for _ in range(turn % 8):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                assert await echo(some, str(turn)) == str(turn)
            assert len(some._all) == 1

    play(test())


def test_those_who_wait_for_a_wire_can_be_cancelled(play: Any, server: Server) -> None:
    async def test() -> None:
        async with wires(server.url, most=2) as some:
            tasks = [asyncio.create_task(echo(some, str(number))) for number in range(60)]
            for _ in range(3):
                await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert results[1::2] == [str(number) for number in range(1, 60, 2)]
            assert await echo(some, "next") == "next"

    play(test())


def test_a_connection_that_was_closed_while_idle_is_replaced(play: Any, server: Server) -> None:
    async def test() -> None:
        async with wires(server.url) as some, Redis.from_url(server.url) as other:
            await asyncio.gather(*(echo(some, str(number)) for number in range(4)))
            before = set(some._all)
            await other.client_kill_filter(_type="normal", skipme=True)
            await asyncio.wait([wire.gone for wire in before], timeout=5)
            assert await echo(some, "again") == "again"
            assert not before & some._all

    play(test())


def test_a_lost_connection_is_told_to_the_caller(play: Any, server: Server, tmp_path: Path) -> None:
    async def test() -> None:
        async with Proxy(server.socket, tmp_path / "p.sock") as proxy, wires(proxy.url) as some:
            await echo(some, "warm")
            proxy.cut_reply(1, match=b"ECHO")
            with pytest.raises(redis_errors.ConnectionError, match="lost"):
                await echo(some, "cut")
            assert await echo(some, "again") == "again"

    play(test())


def test_a_reply_that_does_not_come_ends_the_connection(
    play: Any, server: Server, tmp_path: Path
) -> None:
    async def test() -> None:
        async with Proxy(server.socket, tmp_path / "p.sock") as proxy, wires(proxy.url) as some:
            await echo(some, "warm")
            proxy.hold_reply(1, match=b"ECHO")
            with pytest.raises(redis_errors.TimeoutError, match=r"no reply within 0\.2 s"):
                await echo(some, "held", within=0.2)
            assert await echo(some, "again") == "again"

    play(test())


def test_a_server_that_is_not_there_is_no_lost_reply(play: Any, tmp_path: Path) -> None:
    async def test() -> None:
        async with wires(f"unix://{tmp_path}/nobody.sock") as some:
            for _ in range(10):  # more than there may be wires: each must give its place back
                with pytest.raises(Unreached, match="connecting to"):
                    await echo(some, "anybody?")

    play(test())


def test_bytes_that_are_no_reply_end_the_connection(play: Any, tmp_path: Path) -> None:
    async def test() -> None:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while request := await reader.read(65536):
                answer = b"what?\r\n" if b"ECHO" in request else b"+OK\r\n" * request.count(b"*")
                writer.write(answer)
            writer.close()

        path = str(tmp_path / "odd.sock")
        async with await asyncio.start_unix_server(talk, path):
            client = Redis.from_url(f"unix://{path}", protocol=2)
            some = Wires(client.connection_pool.make_connection, most=2)
            with pytest.raises(redis_errors.ConnectionError, match="cannot be read"):
                await echo(some, "hello")
            await some.close()
            await client.aclose()

    play(test())


def test_closing_ends_what_is_under_way(play: Any, server: Server) -> None:
    async def test() -> None:
        client = Redis.from_url(server.url)
        some = Wires(client.connection_pool.make_connection, most=2)
        waiting = asyncio.create_task(some.send(("BLPOP", "nothing", 30), 60.0))
        while not any(wire._waiter for wire in some._all):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)
        await some.close()
        with pytest.raises(redis_errors.ConnectionError):
            await waiting
        assert not some._all
        await client.aclose()

    play(test())


def test_a_wire_that_is_lost_refuses_the_next_call(play: Any, server: Server) -> None:
    async def test() -> None:
        client = Redis.from_url(server.url)
        connect: Callable[[], AbstractConnection] = client.connection_pool.make_connection
        wire = await Wire.open(connect())
        wire.close()
        with pytest.raises(Unreached, match="lost"):
            await wire.ask(b"PING\r\n", 1.0)
        await wire.gone
        await client.aclose()

    play(test())


async def test_who_waits_for_a_wire_gets_one_though_others_come_at_once(server: Server) -> None:
    client = Redis.from_url(server.url)
    some = Wires(client.connection_pool.make_connection, most=2)
    turns = [0] * 5

    async def caller(number: int) -> None:
        while sum(turns) < 2000:
            await some.send(("ECHO", str(number)), 5.0)
            turns[number] += 1

    await asyncio.gather(*(caller(number) for number in range(5)))
    await some.close()
    await client.aclose()
    assert min(turns) > max(turns) / 2


async def test_what_is_connecting_when_wires_close_is_closed_too(
    raw: Redis, server: Server
) -> None:
    store = await Store.open(server.url, patience=2.0)
    await raw.client_pause(300)
    calls = [asyncio.create_task(store.get_next_delay_task("t")) for _ in range(5)]
    await asyncio.sleep(0.05)
    await store.close()
    await asyncio.gather(*calls, return_exceptions=True)
    wires = store.caller.servers.node_at(0).wires
    await until(lambda: not wires._all)


# several commands at once


def test_commands_that_go_together_are_answered_in_order(play: Any, server: Server) -> None:
    async def test() -> None:
        async with wires(server.url, most=2) as some:
            words = [[f"{caller}-{number}" for number in range(5)] for caller in range(20)]
            sent = (some.send_all([("ECHO", word) for word in row], 5.0) for row in words)
            assert await asyncio.gather(*sent, echo(some, "beside")) == [
                *([word.encode() for word in row] for row in words),
                "beside",
            ]
            assert await some.send_all([("ECHO", "one")], 5.0) == [b"one"]
            assert await echo(some, "after") == "after"

    play(test())


def test_commands_that_go_together_share_a_connection(play: Any, server: Server) -> None:
    async def test() -> None:
        async with wires(server.url) as some:
            name, _, found = await some.send_all(
                [("CLIENT", "ID"), ("CLIENT", "SETNAME", "us"), ("CLIENT", "LIST")], 5.0
            )
            assert f"id={name} " in next(
                line for line in found.decode().splitlines() if "name=us" in line
            )

    play(test())


def test_an_error_is_one_of_the_replies_and_the_wire_goes_on(play: Any, server: Server) -> None:
    async def test() -> None:
        async with wires(server.url) as some:
            before, error, after = await some.send_all(
                [("ECHO", "before"), ("EVALSHA", "0" * 40, 0), ("ECHO", "after")], 5.0
            )
            assert (before, after) == (b"before", b"after")
            assert isinstance(error, redis_errors.NoScriptError)
            assert await echo(some, "still") == "still"
            assert len(some._all) == 1

    play(test())


def test_replies_of_many_packets_arrive_whole_and_apart(play: Any, server: Server) -> None:
    async def test() -> None:
        async with wires(server.url) as some:
            large = ["x" * 3_000_000, "", "y" * 5_000_000]
            replies = await some.send_all([("ECHO", word) for word in large], 5.0)
            assert [reply.decode() for reply in replies] == large

    play(test())


def test_when_not_all_replies_come_the_caller_is_told_and_nobody_gets_the_rest(
    play: Any, server: Server
) -> None:
    async def test() -> None:
        async with wires(server.url, most=1) as some:
            commands = [("ECHO", "first"), ("BLPOP", "nothing", 30)]
            await echo(some, "connected")  # so that only the reply may take too long
            with pytest.raises(redis_errors.TimeoutError, match=r"no reply within 0\.1 s"):
                await some.send_all(commands, 0.1)
            assert await echo(some, "next") == "next"
            waiting = asyncio.create_task(some.send_all(commands, 5.0))
            await until(lambda: any(wire._received for wire in some._all))
            waiting.cancel()
            await asyncio.wait([waiting])
            assert await echo(some, "again") == "again"

    play(test())


def test_a_command_for_a_slot_on_its_way_is_announced(
    play: Any, server: Server, tmp_path: Path
) -> None:
    async def test() -> None:
        async with Proxy(server.socket, tmp_path / "p.sock") as proxy, wires(proxy.url) as some:
            assert await some.send_asking(("ECHO", "here"), 5.0) == b"here"
            assert [b"ASKING" in one or b"ECHO" in one for one in proxy.requests[-2:]] == [True] * 2
            assert b"ASKING" in proxy.requests[-2]
            with pytest.raises(redis_errors.NoScriptError):
                await some.send_asking(("EVALSHA", "0" * 40, 0), 5.0)
            assert await echo(some, "still") == "still"
            assert len(some._all) == 1

    play(test())


# a server that changes sides


@pytest.fixture
async def replica(raw: Redis, server: Server) -> AsyncIterator[Server]:
    """A server that has become a replica of nobody who is there."""
    execute: Callable[..., Any] = raw.execute_command
    await execute("REPLICAOF", "127.0.0.1", free_port())
    yield server
    await execute("REPLICAOF", "NO", "ONE")


@pytest.mark.parametrize("together", [False, True])
async def test_a_wire_to_a_server_that_has_become_a_replica_is_given_up(
    replica: Server, together: bool
) -> None:
    async with wires(replica.url, most=1) as some:
        assert await echo(some, "warm") == "warm"
        (before,) = some._all
        write = ("SET", "key", "value")
        if together:
            first, refused = await some.send_all([("ECHO", "first"), write], 5.0)
            assert first == b"first"
            assert isinstance(refused, redis_errors.ReadOnlyError)
        else:
            with pytest.raises(redis_errors.ReadOnlyError):
                await some.send(write, 5.0)
        await asyncio.wait_for(before.gone, 5)
        assert await echo(some, "new") == "new"
        assert before not in some._all


@pytest.fixture
def pair(short_path: Path) -> Iterator[list[Server]]:
    """Two servers with addresses of their own."""
    with (
        Server(Kind.VALKEY_9_1, short_path / "a", port=free_port()) as one,
        Server(Kind.VALKEY_9_1, short_path / "b", port=free_port()) as other,
    ):
        yield [one, other]


async def test_when_new_wires_lead_elsewhere_the_old_ones_are_given_up(pair: list[Server]) -> None:
    clients = [Redis.from_url(f"redis://127.0.0.1:{server.port}") for server in pair]
    primary = clients[0]

    def connect() -> AbstractConnection:
        make: Callable[[], AbstractConnection] = primary.connection_pool.make_connection
        return make()

    some = Wires(connect, most=4)
    await asyncio.gather(*(echo(some, str(number)) for number in range(4)))
    apart = await some.open_separate(5.0)
    old = {*some._all, apart}
    blocked = asyncio.create_task(some.send(("BLPOP", "nothing", 30), 60.0))
    await until(lambda: any(wire._waiter for wire in some._all))

    primary = clients[1]
    new = await some.open_separate(5.0)
    with pytest.raises(redis_errors.ConnectionError):
        await blocked
    await asyncio.wait([wire.gone for wire in old], timeout=5)
    assert not any(wire.is_open for wire in old)
    assert new.is_open
    assert await some.send(("CONFIG", "GET", "port"), 5.0) == {b"port": str(pair[1].port).encode()}
    await some.close()
    assert not new.is_open
    for client in clients:
        await client.aclose()


async def test_a_wire_apart_is_lent_to_nobody(server: Server) -> None:
    async with wires(server.url, most=1) as some:
        apart = await some.open_separate(5.0)
        assert await echo(some, "beside") == "beside"
        assert apart not in some._all
    assert not apart.is_open


async def test_a_wire_that_is_handed_on_at_the_last_moment_is_not_lost(server: Server) -> None:
    async with wires(server.url, most=1) as some:
        assert await echo(some, "first") == "first"
        wire = some._idle.pop()  # the only one is in use
        waiting = asyncio.create_task(echo(some, "late", within=0.05))
        await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        loop.call_at(loop.time() + 0.04, some._hand_on, wire)
        time.sleep(0.2)  # both are due when the loop comes to it
        with pytest.raises(Unreached, match="all connections are busy"):
            await waiting
        assert await echo(some, "next") == "next"
