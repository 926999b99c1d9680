"""Subscriptions in a cluster, with partitions on every node, and through a failover by Sentinel."""

from __future__ import annotations

from collections import Counter
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from mx_rmq import Delivery, MessageQueue, Worker
from tests.lab.cluster import Cluster
from tests.lab.nodes import until_true
from tests.lab.sentinel import Watched

if TYPE_CHECKING:
    from pathlib import Path

T = "order.created"
NAMES = ("billing", "search", "analytics")


def service(url: str, name: str, got: Counter[tuple[str, int]], **options: int) -> MessageQueue:
    mq = MessageQueue(url, lease=2, patience=30)

    @mq.handler(T, subscription=name, **options)  # type: ignore[arg-type] # only partitions
    async def handle(payload: int, delivery: Delivery) -> None:
        got[name, payload] += 1

    return mq


async def test_every_subscription_gets_every_message_of_every_partition(short_path: Path) -> None:
    got: Counter[tuple[str, int]] = Counter()
    async with Cluster(short_path) as cluster, AsyncExitStack() as stack:
        for name in NAMES:
            mq = service(cluster.url, name, got, partitions=6)
            await stack.enter_async_context(mq)
            await stack.enter_async_context(Worker(mq))
        await mq.produce_many(T, list(range(200)), keys=[f"k{n}" for n in range(200)])
        await mq.produce_many(T, list(range(200, 300)))
        wanted = {(name, number): 1 for name in NAMES for number in range(300)}
        await until_true(lambda: got == wanted, "every copy is handled")
        assert {one.lag for one in await mq.admin.subscriptions(T)} == {0}
        for topic in await mq.admin.topics():
            assert (await mq.admin.stats(topic)).partitions == 6
            assert await mq.admin.audit(topic) == []


async def test_a_failover_loses_no_copy_that_was_confirmed(short_path: Path) -> None:
    got: Counter[tuple[str, int]] = Counter()
    async with Watched(short_path, replicas=1) as watched, AsyncExitStack() as stack:
        for name in NAMES:
            mq = service(watched.url, name, got)
            await stack.enter_async_context(mq)
            await stack.enter_async_context(Worker(mq))
        for number in range(20):
            await mq.produce(T, number, confirm="replicated")
        victim = await watched.primary()
        victim.kill()
        await watched.until_promoted(victim)
        for number in range(20, 40):
            await mq.produce(T, number)
        wanted = {(name, number) for name in NAMES for number in range(40)}
        await until_true(lambda: got.keys() >= wanted, "every copy is handled")
