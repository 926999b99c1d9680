"""A primary dies or freezes under load; a replica takes its place; workers and producers go on.

What asynchronous replication had not carried over is lost, counted here, and was all produced in
the last moments of the old primary. What a produce with confirm="replicated" returned is not lost.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

import pytest

from mx_rmq import MessageQueue
from mx_rmq.core.partition import partition
from mx_rmq.net.connection import LATE
from tests.lab.cluster import Cluster, slot_of
from tests.lab.sentinel import Watched
from tests.lab.servers import Kind
from tests.lab.traffic import PARTITIONS, TOPIC, Traffic, traffic

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.lab.cluster import ClusterNode
    from tests.lab.nodes import Node

logger = logging.getLogger(__name__)

BACK_WITHIN = 5.0
"""Seconds after a new primary is known by which a worker must have handled a new message."""

AFTER = 50
"""Messages that are handled after that. A producer without replicas waits for each in vain."""

WINDOW = 1.0
"""Seconds before its end for which the old primary's word may not count."""

AT_THE_END = 0.4
"""Seconds after its end in which its last words may still be read: nobody is promoted yet."""

pytestmark = pytest.mark.timeout(120)


async def partitions_on(cluster: Cluster, node: ClusterNode) -> set[int]:
    found = set()
    for number in range(PARTITIONS):
        if await cluster.primary_of(slot_of(partition(TOPIC, number))) is node:
            found.add(number)
    return found


def tell(what: str, seen: Traffic, promoted: float, back: float) -> None:
    """Log the figures of the report: pytest -o log_cli=true -o log_cli_level=INFO"""
    logger.info(
        "%s: %d produced, %d lost, %d run again, %d unknown, %d refused; promoted after %.1f s, "
        "back %.1f s after that",
        *(what, len(seen.produced), len(seen.lost), seen.again, len(seen.unknown)),
        *(len(seen.refused), promoted, back),
    )


def only_the_last_moments(seen: Traffic, end: float, gone: float, confirm: str) -> None:
    """Whatever is lost was produced just before the end of the old primary.

    A killed one is waited for, from `end` to `gone`; what it has said is read after that.
    """
    if confirm == "replicated":
        assert seen.lost == {}
    for id, at in seen.lost.items():
        assert seen.begun[id] <= end, f"lost, though produced {seen.begun[id] - end:.2f} s later"
        assert end - WINDOW <= at <= gone + AT_THE_END, f"lost, {end - at:.2f} s before the end"


@pytest.mark.parametrize(
    ("how", "confirm"), [("kill", "stored"), ("kill", "replicated"), ("freeze", "replicated")]
)
async def test_a_node_of_a_cluster_fails_under_load(
    short_path: Path, how: str, confirm: str
) -> None:
    async with Cluster(short_path, replicas=1) as cluster:
        async with traffic(cluster.url, confirm=confirm, confirm_within=0.2) as seen:
            await seen.until_handled(300)
            victim = await cluster.primary_of(slot_of(TOPIC))
            its = await partitions_on(cluster, victim)
            end = time.monotonic()
            getattr(victim, how)()
            gone = time.monotonic()
            await cluster.until_moved(slot_of(TOPIC), victim)
            promoted = time.monotonic()
            back = await seen.until_back(end, its)
            await seen.until_handled(AFTER)
            await seen.until_settled()
            only_the_last_moments(seen, end, gone, confirm)
            for number in range(PARTITIONS):
                assert await seen.mq.store.audit.topic(partition(TOPIC, number)) == []
        assert back - promoted < BACK_WITHIN
        tell(f"cluster, {how}, {confirm}", seen, promoted - end, back - promoted)


@pytest.mark.parametrize(
    ("kind", "how", "confirm"),
    [
        (Kind.VALKEY_9_1, "kill", "replicated"),
        (Kind.VALKEY_9_1, "freeze", "stored"),
        (Kind.REDIS_7_0, "kill", "stored"),
        (Kind.REDIS_7_0, "freeze", "replicated"),
    ],
)
async def test_the_primary_behind_sentinel_fails_under_load(
    short_path: Path, how: str, confirm: str, kind: Kind
) -> None:
    async with Watched(short_path, replicas=1, kind=kind) as watched:
        async with traffic(watched.url, confirm=confirm, confirm_within=0.2) as seen:
            await seen.until_handled(300)
            victim = await watched.primary()
            end = time.monotonic()
            getattr(victim, how)()
            gone = time.monotonic()
            promoted = await watched.until_promoted(victim)
            back = await seen.until_back(end, set(range(PARTITIONS)))
            await seen.until_handled(AFTER)
            await seen.until_settled()
            only_the_last_moments(seen, end, gone, confirm)
            for number in range(PARTITIONS):
                assert await seen.mq.store.audit.topic(partition(TOPIC, number)) == []
        assert back - promoted.at < BACK_WITHIN
        tell(f"{kind}, {how}, {confirm}", seen, promoted.at - end, back - promoted.at)


async def lost_after_thaw(
    mq: MessageQueue, old: Node, replaced: Callable[[], Awaitable[object]]
) -> list[str]:
    """Freeze an idle producer's primary, replace it, thaw it: return what was told and is lost."""
    await mq.produce(TOPIC, 0)
    heard = time.monotonic()
    await asyncio.sleep(0.2)
    old.freeze()
    await replaced()
    await asyncio.sleep(max(0, heard + LATE + 0.1 - time.monotonic()))  # until it is not believed
    thaw = asyncio.get_running_loop().call_later(0.02, old.thaw)
    told = list(await asyncio.gather(*(mq.produce(TOPIC, n, delay=60) for n in range(30))))
    for number in range(100):
        told.append(await mq.produce(TOPIC, number))
        await asyncio.sleep(0.01)
    assert thaw.when() < asyncio.get_running_loop().time()
    return told


async def test_an_idle_producer_does_not_believe_a_primary_that_was_replaced_meanwhile(
    short_path: Path,
) -> None:
    async with (
        Watched(short_path / "s", replicas=1) as watched,
        MessageQueue(watched.url) as mq,
    ):
        old = await watched.primary()
        told = await lost_after_thaw(mq, old, lambda: watched.until_promoted(old))
        await watched.until_settled()
        assert [id for id in told if await mq.admin.get(TOPIC, id) is None] == []
    async with (
        Cluster(short_path / "c", replicas=1) as cluster,
        MessageQueue(cluster.url) as mq,
    ):
        node = await cluster.primary_of(slot_of(TOPIC))
        told = await lost_after_thaw(mq, node, lambda: cluster.until_moved(slot_of(TOPIC), node))
        await cluster.until_agreed()
        assert [id for id in told if await mq.admin.get(TOPIC, id) is None] == []
