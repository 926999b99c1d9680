"""Ids that look like URLs and addresses, and topics with colons, work everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from mx_rmq import Delivery, Reject, State, Worker
from mx_rmq.core.partition import number_for, partition
from mx_rmq.dashboard import Dashboard
from mx_rmq.doctor.unlisted_topics import unlisted_topics
from tests.cli.calls import run, run_json
from tests.dashboard.visitor import Visitor
from tests.runtime.stage import on_a_server, queue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from mx_rmq import MessageQueue
    from tests.lab.servers import Server

pytestmark = on_a_server

TOPIC = "shop:order.created"
IDS = [
    "tenant:42/order+7=~x@example.org",
    "https://shop.example/orders/1",
    "a/1",
    "shop:order.created/1",
    "order-17.3",  # ends like an id that was generated for partition 3
    "a" * 13 + "-1/2.3",
    "+~@=/:",
    "x" * 128,
]


@pytest.fixture
async def mq(raw: Redis, server: Server) -> AsyncIterator[MessageQueue]:
    async with queue(server.url) as mq:
        yield mq


@pytest.mark.parametrize("parts", [1, 4])
async def test_a_message_with_such_an_id_is_handled_and_found_in_its_partition(
    mq: MessageQueue, parts: int
) -> None:
    seen = []

    @mq.handler(TOPIC, partitions=parts)
    async def handle(payload: int, delivery: Delivery) -> None:
        seen.append(delivery.id)
        if payload % 2:
            raise Reject("odd")

    assert await mq.produce_many(TOPIC, range(len(IDS)), ids=IDS) == IDS
    for id in IDS:
        view = await mq.admin.get(TOPIC, id)
        assert view is not None
        assert partition(TOPIC, view.partition) == partition(TOPIC, number_for(id, parts))
        assert await mq.produce(TOPIC, 0, id=id) == id  # no second message
    assert (await mq.admin.stats(TOPIC)).pending == len(IDS)
    assert (await Worker(mq).drain()).dead == len(IDS) // 2
    assert sorted(seen) == sorted(IDS)
    for number, id in enumerate(IDS):
        told = [one.what for one in await mq.admin.history(TOPIC, id)]
        assert told == ["produced", "dispatched", "died" if number % 2 else "completed"]
    for id in IDS[1::2]:
        assert await mq.admin.requeue(TOPIC, id)
        assert await mq.admin.cancel(TOPIC, id)
    assert await mq.admin.audit(TOPIC) == []


async def test_a_generated_id_of_a_partition_leads_back_to_it(mq: MessageQueue) -> None:
    await mq.store.register_topics({TOPIC: 4})
    for id in await mq.produce_many(TOPIC, range(64)):
        view = await mq.admin.get(TOPIC, id)
        assert view is not None
        assert id.endswith(f".{view.partition}" if view.partition else id[-1])


async def test_doctor_finds_such_a_topic_when_the_registry_lost_it(
    mq: MessageQueue, raw: Redis
) -> None:
    await mq.store.register_topics({TOPIC: 2})
    await mq.produce_many(TOPIC, range(64))
    store = mq.store
    assert not (await unlisted_topics(store.caller, store.keys, store.keys.scratch(0))).bad
    await raw.delete(store.keys.topics)
    found = await unlisted_topics(store.caller, store.keys, store.keys.scratch(0))
    assert f"{TOPIC}, {TOPIC}/1" in str(found)
    await store.register_topics({TOPIC: 2})


async def test_the_dashboard_shows_and_changes_such_a_message(mq: MessageQueue) -> None:
    await mq.produce_many(TOPIC, range(len(IDS)), ids=IDS)
    async with Visitor(Dashboard(mq, allow_all=True)) as visitor:
        listing = (await visitor.get(f"/topics/{quote(TOPIC, safe='')}?state=pending")).text
        for id in IDS:
            address = f"/topics/{quote(TOPIC, safe='')}/message?id={quote(id, safe='')}"
            assert address in listing
            page = await visitor.get(address)
            assert page.status_code == 200
            assert id in page.text
            await visitor.submit(address.replace("/message?", "/cancel?"), "Cancel")
            assert await mq.admin.get(TOPIC, id) is None


async def test_the_command_line_takes_such_an_id(mq: MessageQueue, server: Server) -> None:
    id, other, *_ = IDS
    made = await run(server, "produce", TOPIC, "1", "--id", id)
    assert made.stdout.strip() == id
    for words in ((TOPIC, id), (id,)):
        assert (await run_json(server, "show", *words))["id"] == id
    assert (await run(server, "cancel", TOPIC, id, "--yes")).exit_code == 0
    assert (await run(server, "show", TOPIC, other)).exit_code != 0


async def test_a_retry_keeps_such_an_id(mq: MessageQueue) -> None:
    attempts = []

    @mq.handler(TOPIC, retry=0)
    async def handle(payload: int, delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        if delivery.attempt == 1:
            raise ValueError

    await mq.produce_many(TOPIC, range(len(IDS)), ids=IDS)
    assert (await Worker(mq).drain(delayed=True)).completed == len(IDS)
    assert await mq.admin.get(TOPIC, IDS[0]) is None
    assert (await mq.admin.list(TOPIC, State.PENDING)).messages == []
