"""Concurrent produce calls share script calls; each caller gets his own answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import (
    InvalidInput,
    PayloadTooLarge,
    ProduceUnknown,
    QueueFull,
    ServerUnavailable,
)
from mx_rmq.runtime.producer import BYTES, CHUNK, chunks
from tests.lab.messages import draft, drafts
from tests.lab.proxy import Proxy
from tests.runtime.stage import commands, on_servers, queue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from redis.asyncio import Redis

    from mx_rmq import MessageQueue
    from tests.lab.servers import Server


@pytest.fixture
async def mq(raw: Redis, server: Server) -> AsyncIterator[MessageQueue]:
    async with queue(server.url) as mq:
        await mq.produce("warm", 0)  # the scripts are loaded
        yield mq


async def pending(mq: MessageQueue, topic: str = "t") -> list[Any]:
    """Return the payloads that are pending, the next one first."""
    page = await mq.admin.list(topic, "pending", limit=1000)
    return [message.payload for message in page.messages]


@on_servers
async def test_a_hundred_callers_at_once_make_few_calls(mq: MessageQueue, raw: Redis) -> None:
    before = (await commands(raw))["evalsha"]
    ids = await asyncio.gather(*(mq.produce("t", number) for number in range(100)))
    assert (await commands(raw))["evalsha"] - before <= 3
    assert len(set(ids)) == 100
    for number, id in enumerate(ids):
        message = await mq.admin.get("t", id)
        assert message is not None
        assert message.payload == number


@on_servers
async def test_a_lone_caller_is_sent_at_once(mq: MessageQueue, raw: Redis) -> None:
    before = (await commands(raw))["evalsha"]
    for number in range(10):
        await mq.produce("t", number)
    assert (await commands(raw))["evalsha"] - before == 10


@on_servers
async def test_what_one_caller_produces_keeps_its_order(mq: MessageQueue) -> None:
    async def caller(name: str) -> None:
        for number in range(20):
            await mq.produce("t", [name, number])

    await asyncio.gather(*(caller(name) for name in "abcd"))
    found = await pending(mq)
    for name in "abcd":
        assert [number for who, number in found if who == name] == list(range(20))


@on_servers
async def test_calls_that_were_begun_in_an_order_are_stored_in_it(mq: MessageQueue) -> None:
    await asyncio.gather(*(mq.produce("t", number) for number in range(200)))
    assert await pending(mq) == list(range(200))


@on_servers
async def test_immediate_and_delayed_ones_go_their_own_ways(mq: MessageQueue) -> None:
    await asyncio.gather(
        *(mq.produce("t", number, delay=60 if number % 2 else None) for number in range(50))
    )
    stats = await mq.admin.stats("t")
    assert (stats.pending, stats.delayed) == (25, 25)


@on_servers
@pytest.mark.parametrize(
    "bad", [{"payload": object()}, {"payload": "x" * 2_000_000}, {"delay": -1}, {"topic": "a b"}]
)
async def test_one_bad_message_does_not_hurt_the_others(
    mq: MessageQueue, bad: dict[str, Any]
) -> None:
    asked = {"topic": "t", "payload": 1, **bad}
    results = await asyncio.gather(
        *(mq.produce("t", number) for number in range(20)),
        mq.produce(**asked),
        *(mq.produce("t", number) for number in range(20)),
        return_exceptions=True,
    )
    errors = [result for result in results if isinstance(result, BaseException)]
    assert len(errors) == 1
    assert isinstance(results[20], InvalidInput)
    assert (await mq.admin.stats("t")).pending == 40


@on_servers
@pytest.mark.parametrize("bad", [{"id": "not an id"}, {"headers": {"h": "x" * 70_000}}])
async def test_one_bad_id_or_header_does_not_hurt_the_others(
    mq: MessageQueue, bad: dict[str, Any]
) -> None:
    results = await asyncio.gather(
        *(mq.produce("t", number) for number in range(20)),
        mq.produce("t", 1, **bad),
        *(mq.produce("t", number) for number in range(20)),
        return_exceptions=True,
    )
    assert isinstance(results[20], InvalidInput)
    assert [result for result in results if isinstance(result, BaseException)] == [results[20]]
    assert (await mq.admin.stats("t")).pending == 40


@on_servers
async def test_of_callers_at_a_full_queue_some_may_still_get_in(raw: Redis, server: Server) -> None:
    async with queue(server.url, max_pending=7) as mq:
        results = await asyncio.gather(
            *(mq.produce("t", number) for number in range(20)), return_exceptions=True
        )
        refused = [result for result in results if isinstance(result, QueueFull)]
        ids = [result for result in results if isinstance(result, str)]
        assert (len(ids), len(refused)) == (7, 13)
        assert await pending(mq) == list(range(7))
        assert refused[0].topic == "t"
        assert refused[0].limit == 7


@on_servers
async def test_an_own_id_that_is_taken_makes_no_second_message(mq: MessageQueue) -> None:
    ids = await asyncio.gather(*(mq.produce("t", number, id="mine") for number in range(20)))
    assert set(ids) == {"mine"}
    assert await pending(mq) == [0]


@on_servers
async def test_a_produce_whose_reply_is_lost_tells_each_caller_his_own_id(
    raw: Redis, server: Server, tmp_path: Path
) -> None:
    async with (
        Proxy(server.socket, tmp_path / "p.sock") as proxy,
        queue(proxy.url, patience=0.3) as mq,
    ):
        await mq.produce("t", "first")
        proxy.cut_reply(100, match=b"lost-")
        results = await asyncio.gather(
            *(mq.produce("t", number, id=f"lost-{number}") for number in range(30)),
            return_exceptions=True,
        )
        for number, result in enumerate(results):
            assert isinstance(result, ProduceUnknown)
            assert result.ids == (f"lost-{number}",)
        proxy._orders.clear()
        again = await asyncio.gather(
            *(mq.produce("t", number, id=f"lost-{number}") for number in range(30))
        )
        assert again == [f"lost-{number}" for number in range(30)]
        assert sorted((await pending(mq))[1:]) == list(range(30))


@on_servers
async def test_a_reply_that_is_lost_once_is_asked_for_again_unnoticed(
    raw: Redis, server: Server, tmp_path: Path
) -> None:
    async with Proxy(server.socket, tmp_path / "p.sock") as proxy, queue(proxy.url) as mq:
        await mq.produce("t", "first")
        proxy.cut_reply(2)
        proxy.cut_request(2)
        ids = await asyncio.gather(*(mq.produce("t", number) for number in range(30)))
        assert len(set(ids)) == 30
        assert sorted((await pending(mq))[1:]) == list(range(30))


@on_servers
async def test_a_caller_that_is_cancelled_hurts_no_other_one(mq: MessageQueue) -> None:
    tasks = [asyncio.create_task(mq.produce("t", number)) for number in range(50)]
    await asyncio.sleep(0)
    for task in tasks[10:20]:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results[10:20])
    assert all(isinstance(result, str) for result in results[:10] + results[20:])
    found = await pending(mq)
    assert [number for number in found if not 10 <= number < 20] == [*range(10), *range(20, 50)]
    assert await mq.produce("t", "next")


@on_servers
async def test_closing_waits_for_what_is_being_produced(raw: Redis, server: Server) -> None:
    async with queue(server.url) as mq:
        tasks = [asyncio.create_task(mq.produce("t", number)) for number in range(2500)]
        await asyncio.sleep(0)
    assert len(set(await asyncio.gather(*tasks))) == 2500
    assert await raw.llen("mx-rmq:{t}:pending") == 2500


@on_servers
async def test_a_server_that_is_away_is_told_to_every_caller(
    raw: Redis, server: Server, tmp_path: Path
) -> None:
    proxy = Proxy(server.socket, tmp_path / "p.sock")
    async with proxy, queue(proxy.url, patience=0.2, audit=False) as mq:
        await mq.produce("t", 1)
        await proxy.close()
        results = await asyncio.gather(
            *(mq.produce("t", number) for number in range(10)), return_exceptions=True
        )
        assert {type(result) for result in results} <= {ServerUnavailable, ProduceUnknown}
        await proxy.__aenter__()
        assert await mq.produce("t", 1)


# chunks


def test_a_chunk_holds_500_messages() -> None:
    sizes = [len(chunk) for chunk in chunks(drafts(2 * CHUNK + 1))]
    assert sizes == [CHUNK, CHUNK, 1]


def test_a_chunk_holds_a_megabyte_or_one_message() -> None:
    large = [draft("x" * 400_000) for _ in range(5)]
    assert [len(chunk) for chunk in chunks(large)] == [2, 2, 1]
    huge = [draft(1), draft("x" * BYTES), draft("x" * BYTES), draft(1)]
    assert [len(chunk) for chunk in chunks(huge)] == [1, 1, 1, 1]


def test_chunks_keep_the_order_and_part_at_a_change_of_script() -> None:
    mixed = [draft(1), draft(2), draft(3, delay=5), draft(4, at=7), draft(5)]
    assert [[bytes(one.payload) for one in chunk] for chunk in chunks(mixed)] == [
        [b"1", b"2"],
        [b"3", b"4"],
        [b"5"],
    ]


def test_nothing_makes_no_chunk() -> None:
    assert list(chunks([])) == []


@on_servers
async def test_many_large_payloads_go_out_in_calls_of_a_megabyte(
    raw: Redis, server: Server, tmp_path: Path
) -> None:
    async with Proxy(server.socket, tmp_path / "p.sock") as proxy, queue(proxy.url) as mq:
        await mq.produce("t", 1)
        before = len(proxy.requests)
        await asyncio.gather(*(mq.produce("t", "x" * 200_000) for _ in range(20)))
        calls = [request for request in proxy.requests[before:] if b"EVALSHA" in request]
        assert len(calls) >= 4
        assert max(map(len, calls)) < BYTES + 300_000
        with pytest.raises(PayloadTooLarge):
            await mq.produce("t", "x" * BYTES)
