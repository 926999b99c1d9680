"""History, tail and rates, as an operator asks for them."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from mx_rmq import Delivery, MessageQueue, Worker
from mx_rmq.admin import Happening, What
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.message import State
from tests.lab.archives import archived
from tests.lab.crew import until
from tests.lab.messages import TOPIC
from tests.lab.servers import Kind
from tests.runtime.stage import queue

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from tests.lab.servers import Server

pytestmark = pytest.mark.parametrize("kind", [Kind.VALKEY_9_1])


async def whats(mq: MessageQueue, id: str) -> list[What]:
    return [one.what for one in await mq.admin.history("t", id)]


async def test_the_life_of_a_message_that_failed_once_is_told_after_its_end(
    raw: Redis, server: Server
) -> None:
    async with queue(server.url) as mq:

        @mq.handler("t", retry=0.25)
        async def handle(payload: int, delivery: Delivery) -> None:
            if delivery.attempt == 1:
                raise ValueError("not yet")

        id = await mq.produce("t", 1)
        worker = Worker(mq)
        await worker.drain(delayed=True)
        life = await mq.admin.history("t", id)
        assert await mq.admin.get("t", id) is None
        assert [one.what for one in life] == [
            What.PRODUCED,
            What.DISPATCHED,
            What.RETRIED,
            What.DUE,
            What.DISPATCHED,
            What.COMPLETED,
        ]
        assert [one.by for one in life[1:3]] == [worker.name] * 2
        assert life[2].about == "retrying in 0.25 s: ValueError: not yet"
        assert all(one.ids == (id,) and one.topic == "t" for one in life)
        assert await mq.admin.history("t", "unknown") == []
        assert (await mq.admin.stats("t")).totals.failed == 1


async def test_an_operator_stands_by_what_he_did(raw: Redis, server: Server) -> None:
    async with queue(server.url) as mq:
        id = await mq.produce("t", 1, delay=60)
        await mq.admin.as_operator("ann").cancel("t", id)
        *_, last = await mq.admin.history("t", id)
        assert (last.what, last.by) == (What.CANCELLED, "ann")


async def test_an_edit_is_told_apart_from_a_requeue(raw: Redis, server: Server) -> None:
    async with queue(server.url) as mq:
        (id,) = await archived(mq.store, State.DEAD)
        assert await mq.admin.as_operator("anna").edit(TOPIC, id, 2)
        last = (await mq.admin.history(TOPIC, id))[-1]
        assert (last.what, last.by, last.about) == (What.REQUEUED, "anna", "with another payload")


async def test_the_history_of_a_partition_is_the_topics(raw: Redis, server: Server) -> None:
    async with queue(server.url) as mq:
        await mq.produce("t", 0)
        await mq.admin.grow("t", 3)
    async with queue(server.url) as mq:
        ids = await mq.produce_many("t", range(20))
        for id in ids:
            assert await whats(mq, id) == [What.PRODUCED]


async def test_tail_tells_of_old_and_new_topics_as_it_happens(raw: Redis, server: Server) -> None:
    async with queue(server.url) as mq:
        await mq.produce("t", 0)
        seen: list[Happening] = []

        async def follow() -> None:
            async for one in mq.admin.tail():
                seen.append(one)  # noqa: PERF401 - as it comes

        following = asyncio.create_task(follow())
        try:
            async with asyncio.timeout(15):
                while not seen:  # from when it follows, nobody can know
                    await mq.produce("t", 1)
                    await asyncio.sleep(0.05)
            await mq.produce("new", 1)
            await until(lambda: any(one.topic == "new" for one in seen))
        finally:
            following.cancel()
        assert {one.what for one in seen} == {What.PRODUCED}


async def test_a_broken_topic_ends_neither_tail_nor_history(raw: Redis, server: Server) -> None:
    async with queue(server.url, audit=False) as mq:
        id = await mq.produce("bad", 0)
        await mq.produce("t", 0)
        await raw.delete("mx-rmq:{bad}:history")
        await raw.set("mx-rmq:{bad}:history", "no stream")
        await raw.hset("mx-rmq:topics", "no topic!", "x")
        assert await mq.admin.history("bad", id) == []
        async for one in mq.admin.tail(since=0):
            assert one.topic == "t"
            break
        with pytest.raises(InvalidInput, match="no topic 'other'"):
            await anext(aiter(mq.admin.tail("other")))


async def test_rates_are_what_came_and_went_meanwhile(raw: Redis, server: Server) -> None:
    async with queue(server.url) as mq:
        await mq.produce("t", 0)
        begun, count = time.monotonic(), 0
        measuring = asyncio.create_task(mq.admin.rates("t", over=0.5))
        while not measuring.done():
            await mq.produce_many("t", range(10))
            count += 10
        rates = (await measuring)["t"]
        assert 10 / (time.monotonic() - begun) <= rates.produced <= count / 0.5
        assert (rates.completed, rates.failed) == (0, 0)
        with pytest.raises(InvalidInput, match="over=0"):
            await mq.admin.rates(over=0)
