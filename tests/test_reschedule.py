"""mq.reschedule: another due time for a message that waits."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import InvalidInput, MessageQueue, Worker
from mx_rmq.core import events
from mx_rmq.core.message import State
from tests.runtime.stage import Seen, on_a_server, on_servers, queue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from tests.lab.servers import Server


@pytest.fixture
async def mq(raw: Redis, server: Server) -> AsyncIterator[MessageQueue]:
    async with queue(server.url) as mq:
        yield mq


async def due_in(mq: MessageQueue, id: str) -> float | None:
    """Return in how many seconds a delayed message is due; None: it is not delayed."""
    found = await mq.admin.get("t", id)
    assert found is not None
    return None if found.due is None else found.due - await mq.admin.now()


@on_servers
async def test_a_delayed_message_runs_when_it_is_rescheduled_to_now(mq: MessageQueue) -> None:
    ran = asyncio.Event()

    @mq.handler("t")
    async def handle(_: Any) -> None:
        ran.set()

    seen = Seen(mq.events)
    async with Worker(mq):
        id = await mq.produce("t", 1, delay=3600)
        assert await mq.reschedule("t", id, delay=0) is True
        await ran.wait()
        completed = await seen.one(events.Completed)
        assert completed.waited is not None
        assert completed.waited < 10
        assert await mq.reschedule("t", id, delay=1) is False


@on_a_server
async def test_an_earlier_due_time_wakes_the_scheduler(mq: MessageQueue) -> None:
    @mq.handler("t")
    async def handle(_: Any) -> None: ...

    seen = Seen(mq.events)
    async with Worker(mq):
        id = await mq.produce("t", 1, delay=3600)
        assert await mq.reschedule("t", id, delay=0.2)
        completed = await seen.one(events.Completed)
    assert completed.waited is not None
    assert completed.waited < 5


@on_a_server
async def test_a_pending_message_can_be_put_off(mq: MessageQueue) -> None:
    id = await mq.produce("t", 1, ttl=600)
    assert await mq.reschedule("t", id, delay=60)
    assert 55 < (await due_in(mq, id) or 0) <= 60
    later = datetime.now(UTC) + timedelta(hours=1)
    assert await mq.reschedule("t", id, at=later)
    assert 3500 < (await due_in(mq, id) or 0) < 3700
    found = await mq.admin.get("t", id)
    assert found is not None
    assert found.expires_at is not None
    assert found.expires_at - (found.created_at or 0) == 600
    *_, last = await mq.admin.history("t", id)
    assert last.what == "rescheduled"
    assert last.about.startswith("due in ")
    assert (await mq.admin.stats("t")).totals.rescheduled == 2


@on_a_server
async def test_a_message_that_runs_is_not_moved(mq: MessageQueue) -> None:
    moved = list[bool]()

    @mq.handler("t")
    async def handle(id: str) -> None:
        moved.append(await mq.reschedule("t", id, delay=60))

    await mq.produce("t", "own", id="own")
    await Worker(mq).drain()
    assert moved == [False]
    assert await mq.reschedule("t", "unknown", delay=60) is False


@on_a_server
async def test_a_message_is_found_in_its_partition(mq: MessageQueue) -> None:
    @mq.handler("t", partitions=4)
    async def handle(_: Any) -> None: ...

    ids = await mq.produce_many("t", range(8), keys=[f"k{n}" for n in range(8)])
    assert [await mq.reschedule("t", id, delay=60) for id in ids] == [True] * 8
    assert (await mq.admin.stats("t")).delayed == 8


@on_a_server
async def test_another_thread_can_do_it(mq: MessageQueue) -> None:
    id = await mq.produce("t", 1)
    assert await asyncio.to_thread(mq.sync.reschedule, "t", id, delay=60)
    found = await mq.admin.get("t", id)
    assert found is not None
    assert found.state is State.DELAYED
    await asyncio.to_thread(mq.sync.close)


@on_a_server
@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ({}, "pass either delay or at"),
        ({"delay": 1, "at": 1}, "pass either delay or at"),
        ({"delay": -1}, "delay=-1 is not"),
        ({"at": "soon"}, "at='soon' is not"),
        ({"at": datetime(2030, 1, 1)}, "has no time zone"),  # noqa: DTZ001 - to be refused
    ],
)
async def test_what_is_no_time_is_refused(
    mq: MessageQueue, when: dict[str, Any], expected: str
) -> None:
    id = await mq.produce("t", 1)
    with pytest.raises(InvalidInput, match=expected):
        await mq.reschedule("t", id, **when)


@on_a_server
async def test_an_unreadable_message_is_refused(mq: MessageQueue, raw: Redis) -> None:
    id = await mq.produce("t", 1)
    await raw.hset(mq.store.keys.of("t").payload, id, b"junk")
    with pytest.raises(InvalidInput, match="cannot be rescheduled, because no worker could"):
        await mq.reschedule("t", id, delay=1)
    await mq.admin.cancel("t", id)
