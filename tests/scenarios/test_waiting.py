"""Those who wait for results: in a cluster, and while a primary fails."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from mx_rmq import Delivery, MessageQueue, State, Worker
from tests.lab.cluster import NODES, Cluster, slot_of
from tests.lab.sentinel import Watched
from tests.lab.servers import Kind

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(120)


def queue(url: str) -> tuple[MessageQueue, asyncio.Event]:
    """Return a queue whose handlers wait until they may go on."""
    mq, go_on = MessageQueue(url, lease=2, patience=20), asyncio.Event()

    async def handle(number: int, delivery: Delivery) -> int:
        delivery.progress(0.5, "waiting")
        await go_on.wait()
        return number

    for topic in (*(f"topic-{number}" for number in range(20)), "spread"):
        partitions = 6 if topic == "spread" else None
        mq.handler(topic, result_ttl=60, partitions=partitions)(handle)
    return mq, go_on


async def listening(mq: MessageQueue, topics: int) -> None:
    waiters = mq._open_waiters()
    async with asyncio.timeout(30):
        while (  # noqa: ASYNC110 - nobody announces it
            sum(map(waiters._subscription.hears, waiters._channels)) < topics
        ):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("kind", [Kind.VALKEY_9_1, Kind.REDIS_6_2])
async def test_results_come_from_every_node_over_one_connection_each(
    short_path: Path, kind: Kind
) -> None:
    async with Cluster(short_path, kind=kind) as cluster:
        mq, go_on = queue(cluster.url)
        async with mq, Worker(mq):
            topics = [f"topic-{number}" for number in range(20)]
            ids = {topic: await mq.produce(topic, number) for number, topic in enumerate(topics)}
            waits = [
                asyncio.create_task(mq.result(topic, id, timeout=60)) for topic, id in ids.items()
            ]
            spread = await mq.produce_many("spread", range(12))
            await listening(mq, len(topics))
            assert len(mq._open_waiters()._subscription._lines) == NODES
            go_on.set()
            assert await asyncio.gather(*waits) == list(range(20))
            for number, id in enumerate(spread):
                assert await mq.result("spread", id, timeout=60) == number
            watched = [one async for one in mq.watch("topic-1", ids["topic-1"])]
            assert [one.state for one in watched] == [State.COMPLETED]


@pytest.mark.parametrize("how", ["kill", "freeze"])
async def test_a_waiter_gets_its_result_when_its_node_fails(short_path: Path, how: str) -> None:
    async with Cluster(short_path, replicas=1) as cluster:
        mq, go_on = queue(cluster.url)
        async with mq, Worker(mq):
            topic = "topic-1"
            ids = [await mq.produce(topic, n, confirm="replicated") for n in range(5)]
            waits = [asyncio.create_task(mq.result(topic, id, timeout=90)) for id in ids]
            await listening(mq, 1)
            victim = await cluster.primary_of(slot_of(topic))
            getattr(victim, how)()
            await cluster.until_moved(slot_of(topic), victim)
            go_on.set()
            assert await asyncio.gather(*waits) == list(range(5))


async def test_a_waiter_gets_its_result_when_the_primary_behind_sentinel_fails(
    short_path: Path,
) -> None:
    async with Watched(short_path, replicas=1) as watched:
        mq, go_on = queue(watched.url)
        async with mq, Worker(mq):
            id = await mq.produce("topic-1", 7, confirm="replicated")
            waiting = asyncio.create_task(mq.result("topic-1", id, timeout=90))
            await listening(mq, 1)
            old = await watched.primary()
            old.kill()
            await watched.until_promoted(old)
            go_on.set()
            assert await waiting == 7
