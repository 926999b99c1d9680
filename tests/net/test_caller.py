"""Many callers, cancelled callers, forked callers."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from mx_rmq.core.errors import InvalidInput, QueueFull, ServerUnavailable
from mx_rmq.net.topology import CONNECTIONS
from mx_rmq.settings import Limits
from mx_rmq.store.results import Placed
from mx_rmq.store.store import Store
from tests.lab.messages import TOPIC, draft, pending
from tests.lab.snapshot import snapshot

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from tests.lab.clock import Clock
    from tests.lab.servers import Server


async def test_more_callers_than_connections_wait_for_their_turn(store: Store) -> None:
    callers = 4 * CONNECTIONS
    produced = await asyncio.gather(
        *(store.produce_normal_message(TOPIC, [draft()]) for _ in range(callers))
    )
    assert {placed for ((_, placed),) in produced} == {Placed.STORED}
    assert len({id for ((id, _),) in produced}) == callers


async def test_a_cancelled_call_is_cancelled_and_never_done_twice(store: Store, raw: Redis) -> None:
    await pending(store)
    cancelled = 0
    for turn in range(60):
        task = asyncio.create_task(store.produce_normal_message(TOPIC, [draft()]))
        for _ in range(turn % 12):
            await asyncio.sleep(0)
        done = task.done()
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            cancelled += 1
        else:
            assert done, "the cancellation was swallowed"
    assert cancelled
    assert len((await snapshot(raw, TOPIC)).records) <= 61


async def test_a_fork_shares_no_lane_with_its_parent(store: Store) -> None:
    await pending(store)
    before = store.lanes._idle[TOPIC][0].name
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writing, store.lanes.lane(TOPIC).name.encode())
        os._exit(0)
    os.waitpid(child, 0)
    name = os.read(reading, 100).decode()
    os.close(reading)
    os.close(writing)
    assert name != before
    assert store.lanes.lane(TOPIC).name == before


async def test_refusals_use_up_no_lanes(raw: Redis, server: Server, clock: Clock) -> None:
    async with await Store.open(server.url, clock=clock, limits=Limits(max_pending=1)) as store:
        await pending(store)
        for _ in range(5):
            with pytest.raises(QueueFull):
                await store.produce_normal_message(TOPIC, [draft()])
            with pytest.raises(InvalidInput):
                await store.produce_normal_message(TOPIC, [draft(id="bad id")])
        receipts = [key async for key in raw.scan_iter("*:receipt:*")]
        assert len(receipts) == 1


async def test_a_closed_store_says_so_at_once(raw: Redis, server: Server) -> None:
    async with await Store.open(server.url) as store:
        pass
    with pytest.raises(ServerUnavailable, match="the store is closed"):
        await store.produce_normal_message(TOPIC, [draft()])


@pytest.mark.parametrize("patience", [-1, 301, float("nan"), float("inf")])
async def test_patience_is_shorter_than_the_memory_of_receipts(
    server: Server, patience: float
) -> None:
    with pytest.raises(InvalidInput, match="from 0 to 300"):
        await Store.open(server.url, patience=patience)
