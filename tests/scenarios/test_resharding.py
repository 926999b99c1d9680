"""Slots move to other nodes under load: nothing is lost, nothing runs twice, nobody stays deaf."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from mx_rmq import MessageQueue, Worker
from mx_rmq.core.partition import partition
from tests.lab.cluster import Cluster, slot_of
from tests.lab.servers import Kind
from tests.lab.traffic import PARTITIONS, PRODUCERS, TOPIC, traffic

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.lab.traffic import Traffic

BACK_WITHIN = 5.0

pytestmark = pytest.mark.timeout(120)


async def assert_whole(seen: Traffic) -> None:
    """Everything was handled, once each, and every partition is in order."""
    await seen.until_settled()
    assert seen.lost == {}
    assert seen.refused == []
    assert seen.unknown == set()
    assert seen.again == 0
    for number in range(PARTITIONS):
        assert await seen.mq.store.audit.topic(partition(TOPIC, number)) == []


@pytest.fixture
async def cluster(short_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(short_path) as cluster:
        yield cluster


@pytest.mark.parametrize("how", ["move", "move_atomically"])
async def test_slots_move_to_a_new_node_under_load(cluster: Cluster, how: str) -> None:
    async with traffic(cluster.url) as seen:
        await seen.until_handled(300)
        target = await cluster.add_primary()
        for number in range(0, PARTITIONS, 3):
            name = partition(TOPIC, number)
            await getattr(cluster, how)(slot_of(name), target)
            moved = time.monotonic()
            assert await cluster.primary_of(slot_of(name)) is target
            back = await seen.until_back(moved, {number})
            assert back - moved < BACK_WITHIN
        await assert_whole(seen)


async def test_a_slot_that_is_on_two_nodes_for_a_while_is_waited_for(short_path: Path) -> None:
    async with (
        Cluster(short_path, kind=Kind.REDIS_7_0) as cluster,
        traffic(cluster.url, patience=90) as seen,
    ):
        await seen.until_handled(200)
        slot = slot_of(partition(TOPIC, 1))
        source = await cluster.primary_of(slot)
        target = next(node for node in cluster.nodes if node is not source)

        async def pause(moved: int, left: int) -> None:
            await asyncio.sleep(0.1)  # everybody has noticed

        await cluster.move(slot, target, pause=pause)
        moved = time.monotonic()
        assert await seen.until_back(moved, {1}) - moved < BACK_WITHIN
        await assert_whole(seen)


async def test_the_registries_may_move_too(cluster: Cluster) -> None:
    async with MessageQueue(cluster.url) as mq:
        keys = mq.store.keys

        @mq.handler("first")
        async def first(_: int) -> None: ...

        async with Worker(mq, name="one"):
            for key in (keys.topics, keys.workers):
                source = await cluster.primary_of(slot_of(key))
                target = next(node for node in cluster.nodes if node is not source)
                await cluster.move(slot_of(key), target)
            await mq.produce("second", 1)
            assert await mq.admin.topics() == ["first", "second"]
            assert [worker.name for worker in await mq.admin.workers()] == ["one"]


async def test_a_key_that_has_moved_before_its_slot_is_asked_for_where_it_is(
    cluster: Cluster,
) -> None:
    async with MessageQueue(cluster.url, patience=1) as mq:
        await mq.produce("first", 1)
        slot = slot_of(mq.store.keys.topics)
        source = await cluster.primary_of(slot)
        target = next(node for node in cluster.nodes if node is not source)

        async def pause(moved: int, left: int) -> None:
            if not left:  # the slot is still the source's, for as long as we like
                await mq.produce("second", 2)

        await cluster.move(slot, target, pause=pause)
        assert await mq.admin.topics() == ["first", "second"]


async def test_a_handover_to_a_replica_is_hardly_felt(short_path: Path) -> None:
    async with (
        Cluster(short_path, replicas=1) as cluster,
        traffic(cluster.url) as seen,
    ):
        await seen.until_handled(300)
        before = await cluster.primary_of(slot_of(TOPIC))
        (replica,) = await cluster.replicas_of(before)
        await cluster.promote(replica)
        promoted = time.monotonic()
        assert await seen.until_back(promoted, {0}) - promoted < BACK_WITHIN
        await assert_whole(seen)


async def test_a_shard_that_is_away_does_not_hold_up_the_others(short_path: Path) -> None:
    async with Cluster(short_path, "--cluster-require-full-coverage", "no") as cluster:
        mq = MessageQueue(cluster.url, lease=2, patience=2)
        done: list[str] = []
        topics = [f"t{number}" for number in range(9)]

        def declare(topic: str) -> None:
            @mq.handler(topic)
            async def handle(_: int) -> None:
                done.append(topic)

        for topic in topics:
            declare(topic)
        async with mq, Worker(mq):
            victim = await cluster.primary_of(slot_of(topics[0]))
            mine = [one for one in topics if await cluster.primary_of(slot_of(one)) is not victim]
            assert 0 < len(mine) < len(topics)
            victim.freeze()
            for _ in range(3):
                done.clear()
                began = time.monotonic()
                for topic in mine:
                    await mq.produce(topic, 1)
                    await mq.produce(topic, 2, delay=0.2)
                async with asyncio.timeout(3):
                    while len(done) < 2 * len(mine):  # noqa: ASYNC110 - nobody announces it
                        await asyncio.sleep(0.01)
                assert time.monotonic() - began < 2
                await asyncio.sleep(1)
            victim.thaw()
            done.clear()
            await cluster.until_agreed()
            await mq.produce(topics[0], 3)
            async with asyncio.timeout(BACK_WITHIN):
                while topics[0] not in done:  # noqa: ASYNC110 - nobody announces it
                    await asyncio.sleep(0.01)


@pytest.mark.parametrize("how", ["kill", "freeze"])
async def test_messages_without_a_key_go_past_a_shard_that_is_away(
    short_path: Path, how: str
) -> None:
    async with (
        Cluster(short_path, "--cluster-require-full-coverage", "no") as cluster,
        traffic(cluster.url, patience=3) as seen,
    ):
        await seen.until_handled(200)
        victim = await cluster.primary_of(slot_of(TOPIC))
        getattr(victim, how)()
        await asyncio.sleep(4)  # whoever waits for it has given up
        await seen.until_produced(100)
        given_up = len(seen.refused) + len(seen.unknown)
        assert given_up <= PRODUCERS, "the shard that is away was tried again and again"
        if how == "freeze":
            victim.thaw()
            back = time.monotonic()
            assert await seen.until_back(back, {0}) - back < 2 * BACK_WITHIN
            await seen.until_settled()
            assert seen.lost == {}
