"""The server goes away and comes back, the network lies: workers and producers carry on."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import pytest
from redis.asyncio import Redis

from mx_rmq import MessageQueue, ProduceUnknown, ServerUnavailable
from tests.lab.crew import TOPIC, Member, crew, until
from tests.lab.servers import Kind, Server, chosen

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tests.lab.crew import History

on_both = pytest.mark.parametrize("kind", chosen(Kind.VALKEY_9_1, Kind.REDIS_7_0))
on_one = pytest.mark.parametrize("kind", chosen(Kind.VALKEY_9_1))

LEASE = 2.0
BACK_WITHIN = 5.0
"""Seconds after the server's return by which a worker must be at work again."""


@pytest.fixture
def own(kind: Kind, short_path: Path) -> Iterator[Server]:
    """A server of this test alone, which survives its own death."""
    with Server(kind, short_path, "--appendonly", "yes", "--appendfsync", "always") as server:
        yield server


@pytest.fixture
async def mq(own: Server) -> AsyncIterator[MessageQueue]:
    async with MessageQueue(own.url, lease=LEASE, patience=20) as mq:
        yield mq
        for topic in await mq.admin.topics():
            assert await mq.admin.audit(topic) == []


class Load:
    """A producer that goes on all the time, and knows what it produced."""

    def __init__(self, mq: MessageQueue) -> None:
        self._mq = mq
        self._task = asyncio.create_task(self._run())
        self.ids: list[str] = []

    async def _run(self) -> None:
        while True:
            self.ids.append(await self._mq.produce(TOPIC, {"sleep": 0.01}))

    async def stop(self) -> list[str]:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        return self.ids


async def ready(start: Any, **options: Any) -> Member:
    member: Member = start(lease=LEASE, **options)
    await asyncio.to_thread(member.until_ready)
    return member


def more(history: History, count: int) -> bool:
    return len(history.ids("end")) > count


async def handled(mq: MessageQueue, history: History, member: Member) -> None:
    """A message that is produced now is handled within the time that we promise.

    It goes past what a load has heaped up meanwhile: that is no part of the promise.
    """
    id = await mq.produce(TOPIC, {}, priority="high")
    try:
        await until(lambda: id in history.ids("end"), BACK_WITHIN)
    except AssertionError:
        raise AssertionError(member.output()) from None


async def until_empty(mq: MessageQueue) -> None:
    async def empty() -> bool:
        stats = await mq.admin.stats(TOPIC)
        return not (stats.pending or stats.processing or stats.delayed)

    await until(empty, 30)


@on_both
async def test_a_server_that_is_killed_and_restarted_under_load_loses_nothing(
    own: Server, mq: MessageQueue, tmp_path: Path
) -> None:
    with crew(own.url, tmp_path) as (start, history):
        member = await ready(start, concurrency=20)
        load = Load(mq)
        for _ in range(3):
            seen = len(history.ids("end"))
            await until(partial(more, history, seen + 50))
            own.kill()
            own.start()
        await handled(mq, history, member)
        ids = await load.stop()
        await until_empty(mq)
        assert set(ids) <= set(history.ids("end"))
        assert (await mq.admin.stats(TOPIC)).dead == 0


@on_one
async def test_an_outage_longer_than_the_lease_costs_nobody_his_message(
    own: Server, mq: MessageQueue, tmp_path: Path
) -> None:
    with crew(own.url, tmp_path) as (start, history):
        members = [await ready(start, concurrency=8) for _ in range(2)]
        ids = await mq.produce_many(TOPIC, [{"sleep": 8}] * 6)
        await until(lambda: len(history.ids("start")) == 6)
        own.kill()
        await asyncio.sleep(2.5 * LEASE)  # an outage has a length
        own.start()
        await handled(mq, history, members[0])
        await until_empty(mq)
        # The leases ran out while nobody could extend them; the monitors gave the holders time.
        again = [line for line in history.lines("start") if line.id in ids and line.attempt > 1]
        assert again == []
        for member in members:
            output = member.output()
            assert output.count("the server is unreachable") == 1, output
            assert output.count("the server is back") == 1, output
            assert output.count("ERROR") == 0, output


@on_both
async def test_a_flush_of_scripts_and_killed_clients_go_unnoticed(
    own: Server, mq: MessageQueue, tmp_path: Path
) -> None:
    with crew(own.url, tmp_path) as (start, history):
        member = await ready(start, concurrency=20)
        load = Load(mq)
        raw = Redis.from_url(own.url)
        for _ in range(3):
            await raw.script_flush()
            await raw.client_kill_filter(_type="normal", skipme=True)
            await handled(mq, history, member)
        await raw.aclose()
        ids = await load.stop()
        await until_empty(mq)
        assert sorted(set(ids)) == sorted(set(ids) & set(history.ids("end")))
        assert "ERROR" not in member.output()


class BlackHole:
    """A network that can swallow everything and still keep its connections open."""

    def __init__(self, server: str) -> None:
        self._server = server
        self.port = 0
        self.passing = asyncio.Event()
        self.passing.set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def swallow(self) -> None:
        """Let the connections of now be half-open for ever; new ones are not answered either."""
        self.passing.clear()

    def heal(self) -> None:
        """Let new connections through. The old ones stay silent."""
        self.passing = asyncio.Event()
        self.passing.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        passing = self.passing
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with suppress(OSError, asyncio.CancelledError):
            source, target = await asyncio.open_unix_connection(self._server)
            try:
                await asyncio.gather(
                    self._pipe(reader, target, passing), self._pipe(source, writer, passing)
                )
            finally:
                writer.transport.abort()
                target.transport.abort()

    async def _pipe(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, passing: asyncio.Event
    ) -> None:
        while data := await source.read(65_536):
            await passing.wait()
            target.write(data)
        target.close()


@on_one
async def test_half_open_connections_are_left_behind(
    own: Server, mq: MessageQueue, tmp_path: Path
) -> None:
    async with BlackHole(str(own.socket)) as network:
        with crew(f"redis://127.0.0.1:{network.port}", tmp_path) as (start, history):
            member = await ready(start, concurrency=20)
            await handled(mq, history, member)
            network.swallow()
            await until(lambda: "the server is unreachable" in member.output(), 20)
            network.heal()
            id = await mq.produce(TOPIC, {})
            await until(lambda: id in history.ids("end"), 15)
            assert member.output().count("the server is unreachable") == 1
            await handled(mq, history, member)


@on_both
async def test_a_producer_whose_server_is_away_says_so_in_time_and_makes_no_duplicate(
    own: Server, kind: Kind
) -> None:
    async with MessageQueue(own.url, patience=1.5) as mq:
        await mq.produce(TOPIC, {})
        own.kill()
        began = time.monotonic()
        with pytest.raises(ProduceUnknown) as unknown:  # sent on a connection that was just dead
            await mq.produce(TOPIC, {})
        with pytest.raises(ServerUnavailable, match="nothing was changed"):
            await mq.produce(TOPIC, {})
        assert time.monotonic() - began < 10
        own.start()
        (id,) = unknown.value.ids
        for _ in range(2):
            assert await mq.produce(TOPIC, {}, id=id) == id
        assert (await mq.admin.stats(TOPIC)).pending == 2


@contextmanager
def silent_port() -> Iterator[int]:
    """A port that takes connections and never says a word."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(50)
        yield listener.getsockname()[1]


@on_one
async def test_a_server_that_never_answers_is_given_up_in_time(kind: Kind) -> None:
    with silent_port() as port:
        began = time.monotonic()
        with pytest.raises(ServerUnavailable, match="cannot use redis://127"):
            async with MessageQueue(f"redis://127.0.0.1:{port}", patience=1):
                pass
        assert time.monotonic() - began < 15


@on_one
async def test_a_server_that_comes_back_with_nothing_knows_the_topics_again_at_once(
    kind: Kind, short_path: Path
) -> None:
    with Server(kind, short_path) as server:
        async with MessageQueue(server.url, patience=20) as mq:
            await mq.produce(TOPIC, {})
            server.kill()
            producing = asyncio.create_task(mq.produce(TOPIC, {}))
            await until(mq.store.links.lost)
            server.start()
            await producing

            async def listed() -> bool:
                return TOPIC in await mq.admin.topics()

            await until(listed, BACK_WITHIN)
