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

from mx_rmq.store.store import Store
from mx_rmq.store.wire import Wire, Wires
from tests.lab.proxy import Proxy
from tests.lab.servers import Kind
from tests.runtime.stage import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from pathlib import Path

    from redis.asyncio.connection import AbstractConnection

    from tests.lab.servers import Server


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
                with pytest.raises(redis_errors.ConnectionError, match="connecting to"):
                    await echo(some, "anybody?")

    play(test())


def test_bytes_that_are_no_reply_end_the_connection(play: Any, tmp_path: Path) -> None:
    async def test() -> None:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while request := await reader.read(65536):
                said = b"what?\r\n" if b"ECHO" in request else b"+OK\r\n" * request.count(b"*")
                writer.write(said)
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
        with pytest.raises(redis_errors.ConnectionError, match="lost"):
            await wire.ask(b"PING\r\n", 1.0)
        await wire.gone
        await client.aclose()

    play(test())


async def test_who_waits_for_a_wire_gets_one_though_others_come_at_once(server: Server) -> None:
    client = Redis.from_url(server.url)
    some = Wires(client.connection_pool.make_connection, most=2)
    turns = [0] * 5
    end = time.monotonic() + 1.0

    async def caller(number: int) -> None:
        while time.monotonic() < end:
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
    wires = store._connection.wires
    assert wires is not None
    await until(lambda: not wires._all, within=3.0)
