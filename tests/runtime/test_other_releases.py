"""Records that another release wrote: unknown fields are carried along, newer formats wait."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import InvalidInput, Reject, Worker
from mx_rmq.admin import Admin
from mx_rmq.core import events
from mx_rmq.core.message import VERSION, WITH_STEPS, State
from tests.lab.messages import TOPIC, bring, rewrite
from tests.runtime.stage import Seen, on_a_server, queue, until, until_so

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from mx_rmq import MessageQueue
    from mx_rmq.store.store import Store
    from tests.lab.servers import Server

pytestmark = on_a_server

LATER = {"colour": "red", "é": {"deep": [1, None]}}


@pytest.fixture
async def mq(raw: Redis, server: Server) -> AsyncIterator[MessageQueue]:
    async with queue(server.url) as mq:
        yield mq


async def later_fields(raw: Redis, key: str, id: str) -> dict[str, Any]:
    found = json.loads(await raw.hget(key, id) or b"")
    return {name: found.get(name) for name in LATER}


# unknown fields


@pytest.mark.parametrize("edits", [False, True], ids=["requeue", "edit"])
async def test_unknown_fields_survive_retry_death_and_requeue(
    mq: MessageQueue, raw: Redis, edits: bool
) -> None:
    seen, keys = Seen(mq.events), mq.store.keys.of(TOPIC)
    runs: list[int] = []

    @mq.handler(TOPIC, retry=0.01)
    async def handle(payload: int) -> None:
        runs.append(payload)
        if len(runs) == 1:
            raise ValueError("again")
        if len(runs) == 2:
            raise Reject("no")

    id = await mq.produce(TOPIC, 1, delay=0.2)
    await rewrite(raw, keys.payload, id, **LATER)
    async with Worker(mq):
        await seen.one(events.Retried)
        assert await later_fields(raw, keys.payload, id) == LATER
        await seen.one(events.Died)
        assert await later_fields(raw, keys.dlq_payload, id) == LATER
        await mq.admin.pause(TOPIC)
        if edits:
            assert await mq.admin.edit(TOPIC, id, 2)
        else:
            assert await mq.admin.requeue(TOPIC, id)
        assert await later_fields(raw, keys.payload, id) == LATER
        await mq.admin.resume(TOPIC)
        await seen.one(events.Completed)
    assert runs == [1, 1, 2 if edits else 1]


# newer formats


async def test_a_newer_record_waits_unchanged_and_uncounted(
    mq: MessageQueue, raw: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    seen, keys = Seen(mq.events), mq.store.keys.of(TOPIC)
    handled: list[int] = []

    @mq.handler(TOPIC)
    async def handle(payload: int) -> None:
        handled.append(payload)

    ids = [await mq.produce(TOPIC, number, delay=0.2, priority="low") for number in range(2)]
    data = [
        await rewrite(raw, keys.payload, id, v=WITH_STEPS + 1, payload={"all": 1}) for id in ids
    ]
    async with Worker(mq):
        told = await seen.wait(events.Postponed, 2)
        assert {one.id for one in told} == set(ids)
        assert all(0.7 < one.delay < 1.3 for one in told)
        assert "newer" in told[0].reason
        stats = await mq.admin.stats(TOPIC)
        assert (stats.delayed, stats.quarantined, stats.dead) == (2, 0, 0)
        assert (stats.totals.postponed, stats.totals.failed) == (2, 0)
        assert await raw.zcard(keys.delay_tasks_low) == 2
        assert [await raw.hget(keys.payload, id) for id in ids] == data
        (last, *_) = reversed(await mq.admin.history(TOPIC, ids[0]))
        assert last.what == "postponed"
        assert last.about.startswith("retrying in ")
        # Nothing spins: each is offered again after its wait, not before.
        taken = stats.totals.dispatched
        assert taken == 2
        for id in ids:  # what a newer worker would do with them
            await rewrite(raw, keys.payload, id, v=VERSION, payload=7)
        await until(lambda: handled == [7, 7])
    lines = [one.getMessage() for one in caplog.records if "newer release" in one.getMessage()]
    assert len(lines) == 1, "one line a minute and topic"
    assert "upgrade this worker" in lines[0]
    assert seen.of(events.Completed)[0].attempt == 1


@pytest.mark.usefixtures("ten_ahead")
async def test_a_newer_record_that_was_handed_back_keeps_its_priority(
    mq: MessageQueue, raw: Redis
) -> None:
    keys, blocked = mq.store.keys.of(TOPIC), []

    @mq.handler(TOPIC)
    async def handle(payload: int) -> None:
        blocked.append(payload)
        await asyncio.Event().wait()

    await mq.produce(TOPIC, 1)
    worker = Worker(mq, concurrency=1, prefetch=5, grace=0)
    async with worker:
        await until(lambda: blocked == [1])
        id = await mq.produce(TOPIC, 2, priority="high")
        await rewrite(raw, keys.payload, id, v=WITH_STEPS + 1)
        await until_so(lambda: raw.hexists(keys.processing, id))
    assert await raw.lrange(keys.pending_high, 0, -1) == [id.encode()]


@pytest.mark.corrupts  # the bytes of the archive change under its count
@pytest.mark.parametrize("state", [State.DEAD, State.QUARANTINED])
async def test_an_older_tool_neither_requeues_nor_edits_a_newer_record(
    store: Store, raw: Redis, state: State
) -> None:
    admin = Admin(store)
    one = await bring(store, state)
    _, contents = store.keys.of(TOPIC).archive_of(state)
    kept: Any = await raw.hget(contents, one.id) or b""
    line, newline, record = kept.rpartition(b"\n")
    newer = json.dumps({**json.loads(record), "v": WITH_STEPS + 1}).encode()
    await raw.hset(contents, one.id, line + newline + newer)
    for act in (admin.requeue(TOPIC, one.id), admin.edit(TOPIC, one.id, 2)):
        with pytest.raises(InvalidInput, match=r"by this release: record format 3 .* Upgrade it"):
            await act
    assert await admin.requeue_all(TOPIC, state) == 0
    found = await admin.get(TOPIC, one.id)
    assert found is not None
    assert (found.state, found.newer) == (state, True)
