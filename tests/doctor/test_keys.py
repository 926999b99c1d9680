"""The doctor on keys and limits: stuck, paused for long, limited to nothing."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from mx_rmq import Limit, MessageQueue
from mx_rmq.core.limits import declared
from mx_rmq.core.partition import partition
from mx_rmq.doctor.finding import Severity
from mx_rmq.doctor.keys import LONG, check_keys
from mx_rmq.doctor.topics import check_stats
from mx_rmq.store.keys import Keys
from tests.runtime.stage import on_a_server, queue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from mx_rmq.doctor.finding import Finding
    from tests.lab.servers import Server

pytestmark = on_a_server

T = "t"


@pytest.fixture
async def mq(raw: Redis, server: Server) -> AsyncIterator[MessageQueue]:
    async with queue(server.url, audit=False) as mq:  # some tests break the keys
        yield mq


async def produce(mq: MessageQueue, key: str, *, ago: float = 0.0, count: int = 1) -> None:
    """Produce messages that have been pending for `ago` seconds."""
    for _ in range(count):
        await mq.produce(T, 1, key=key, at=time.time() - ago if ago else None)
    await mq.store.process_delay_message(T, count=100)


async def findings(mq: MessageQueue, *, served: bool = True) -> list[Finding]:
    return await check_keys(mq.admin, await mq.admin.stats(T), served=served)


async def test_nothing_is_said_of_keys_that_are_well(mq: MessageQueue) -> None:
    await produce(mq, "a", ago=2 * LONG, count=3)
    await mq.admin.limit(T, "b", running=0)
    await mq.admin.pause(T, "c")
    assert await findings(mq) == []
    await mq.produce("plain", 1)
    assert await check_keys(mq.admin, await mq.admin.stats("plain"), served=True) == []


async def test_a_key_without_a_turn_is_stuck_even_while_others_run(
    mq: MessageQueue, raw: Redis
) -> None:
    await produce(mq, "lost", ago=100)
    await raw.zrem(Keys().of(T).ring, "lost")
    await produce(mq, "other", ago=100)
    taken = await mq.store.dispatch_in_turn(T, "w", count=1, lease=60_000)
    assert len(taken.messages) == 1
    (one,) = await findings(mq)
    assert (one.severity, one.note) == (Severity.BAD, "stuck keys")
    assert "1 key could start, but no worker has checked it for up to 1 min" in one.what
    assert one.what.endswith("'lost'")
    assert "mx-rmq audit t --repair" in one.cure


async def test_a_key_that_nobody_looks_at_after_its_limit_ended_is_stuck(
    mq: MessageQueue, raw: Redis
) -> None:
    await produce(mq, "a", ago=200)
    keys = Keys().of(T)
    await raw.zrem(keys.ring, "a")
    await raw.zadd(keys.blocked, {"a": round(time.time() * 1000) - 100_000})
    (one,) = await findings(mq)
    assert one.note == "stuck keys"
    assert await findings(mq, served=False) == []  # that there is no worker is said elsewhere
    await mq.admin.pause(T)  # then nobody should
    assert await findings(mq) == []
    await mq.admin.resume(T)
    await raw.zadd(keys.blocked, {"a": round(time.time() * 1000) - 1000})
    assert await findings(mq) == []


async def test_a_key_that_is_paused_for_long_needs_attention(mq: MessageQueue) -> None:
    await produce(mq, "a", ago=LONG + 100)
    await produce(mq, "b", ago=LONG - 100)
    await mq.admin.pause(T, "a", reason="their API is down")
    await mq.admin.pause(T, "b")
    (one,) = await findings(mq)
    assert (one.severity, one.note) == (Severity.WARN, "keys paused")
    assert one.what == (
        "1 key paused, with messages that have waited for up to 1 h 1 min: 'a' (their API is down)"
    )
    assert "mx-rmq resume t --key KEY" in one.cure


async def test_what_is_limited_to_nothing_needs_attention(mq: MessageQueue) -> None:
    for key in "abcde":
        await produce(mq, key)
        await mq.admin.limit(T, key, running=0)
    (keys,) = await findings(mq)
    assert keys.note == "keys limited to 0"
    assert keys.what.endswith("'a', 'b', 'c', …")


async def test_a_topic_that_is_limited_to_nothing_needs_attention(mq: MessageQueue) -> None:
    await mq.produce(T, 1)
    await mq.admin.grow(T, 2)
    await mq.admin.limit(T, running=0)
    (one,) = check_stats(await mq.admin.stats(T), served=True, now=0)
    assert (one.note, one.what) == ("limited to 0", "limited to 0 running, 1 pending")
    await mq.admin.limit(T, running=None)
    assert [*check_stats(await mq.admin.stats(T), served=True, now=0)] == []


async def test_a_running_limit_below_the_number_of_partitions_is_reported(
    mq: MessageQueue,
) -> None:
    await mq.produce(T, 1)
    await mq.admin.grow(T, 4)
    await mq.admin.limit(T, running=8)
    assert await findings(mq) == []
    await mq.admin.limit(T, running=2)
    (one,) = await findings(mq)
    assert one.severity == Severity.WARN
    assert "1 in each of 4 partitions, so 4 run at a time" in one.what
    await mq.admin.limit(T, running=None)
    limits = [declared(Limit(running=3), None, number, 4) for number in range(4)]
    for number, text in enumerate(limits):
        name = partition(T, number)
        await mq.store.dispatch_in_turn(name, "w", count=1, lease=60_000, limits=text)
    await mq.produce_many(T, list(range(20)))
    (one,) = await findings(mq)
    assert "even if it was set lower" in one.what


async def test_keys_in_findings_are_escaped(mq: MessageQueue) -> None:
    await produce(mq, "\u202etxet")
    await mq.admin.limit(T, "\u202etxet", running=0)
    (one,) = await findings(mq)
    assert one.what.isprintable()
