"""The scheduler: what is due becomes pending at its time."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from mx_rmq import Worker
from mx_rmq.core import events
from mx_rmq.core.errors import ScriptFailed
from mx_rmq.runtime.loop import TRY_AGAIN
from mx_rmq.runtime.scheduler import BATCH, STAND_IN, Scheduler
from mx_rmq.store.store import Store
from tests.lab.messages import TOPIC, delayed, draft
from tests.lab.proxy import Proxy
from tests.runtime.stage import on_a_server, queue, until_so

if TYPE_CHECKING:
    from pathlib import Path

    from redis.asyncio import Redis

    from mx_rmq import MessageQueue
    from tests.lab.clock import Clock
    from tests.lab.servers import Server

pytestmark = on_a_server

steady = pytest.mark.usefixtures("steady")


def scheduler_of(store: Store, *topics: str) -> Scheduler:
    """A scheduler that asks about these topics first."""
    scheduler = Scheduler(store, on_moved=lambda topic, count: None)
    for topic in topics:
        scheduler.on_ring(topic)
    return scheduler


async def pending(store: Store, topic: str = TOPIC) -> int:
    return (await store.views.counts(topic)).pending


async def test_with_nothing_delayed_it_sleeps_until_it_is_woken(store: Store) -> None:
    assert await scheduler_of(store, TOPIC, "other").step() is None


@steady
async def test_it_sleeps_exactly_until_the_next_due_time(store: Store) -> None:
    await delayed(store, 5000)
    pause = await scheduler_of(store, TOPIC).step()
    assert pause == pytest.approx(5.0, abs=0.05)


@steady
async def test_what_is_due_is_moved_and_what_is_not_waits(store: Store, clock: Clock) -> None:
    await delayed(store, 1000)
    await delayed(store, 3000)
    clock.advance(1000)
    pause = await scheduler_of(store, TOPIC).step()
    assert await pending(store) == 1
    assert pause == pytest.approx(2.0, abs=0.05)


@steady
async def test_nothing_is_moved_a_millisecond_early(store: Store, clock: Clock) -> None:
    await delayed(store, 1000)
    clock.advance(999)
    pause = await scheduler_of(store, TOPIC).step()
    assert await pending(store) == 0
    assert pause == pytest.approx(0.001, abs=0.01)


async def test_a_long_queue_is_moved_batch_by_batch_so_others_get_their_turn(
    store: Store, clock: Clock
) -> None:
    for _ in range(3):
        await delayed(store, 10, BATCH)
    clock.advance(10)
    scheduler = scheduler_of(store, TOPIC)
    assert [await scheduler.step() for _ in range(3)] == [0.0, 0.0, None]
    assert await pending(store) == 3 * BATCH


@steady
async def test_a_ring_brings_an_earlier_due_time(store: Store) -> None:
    await delayed(store, 60_000)
    scheduler = scheduler_of(store, TOPIC)
    assert await scheduler.step() == pytest.approx(60, abs=0.1)
    await delayed(store, 2000)
    scheduler.on_ring(TOPIC)
    assert await scheduler.step() == pytest.approx(2, abs=0.05)


@steady
async def test_a_step_that_comes_early_asks_nothing_of_the_server(
    store: Store, server: Server, clock: Clock, tmp_path: Path
) -> None:
    await delayed(store, 60_000)
    async with (
        Proxy(server.socket, tmp_path / "p.sock") as proxy,
        await Store.open(proxy.url, clock=clock) as through,
    ):
        scheduler = scheduler_of(through, TOPIC, "other")
        await scheduler.step()
        before = len(proxy.requests)
        assert await scheduler.step() == pytest.approx(60, abs=0.1)
        assert len(proxy.requests) == before


@steady
async def test_who_only_saw_a_due_time_stands_in_a_moment_later(store: Store) -> None:
    scheduler = scheduler_of(store, TOPIC)
    assert await scheduler.step() is None
    await delayed(store, 3000)
    scheduler.surveyed(TOPIC, 3000)
    assert await scheduler.step() == pytest.approx(3 + STAND_IN, abs=0.05)


@steady
async def test_who_knows_a_due_time_exactly_does_not_put_it_off_when_it_is_seen(
    store: Store,
) -> None:
    await delayed(store, 3000)
    scheduler = scheduler_of(store, TOPIC)
    await scheduler.step()
    scheduler.surveyed(TOPIC, 2990)
    scheduler.surveyed(TOPIC, None)
    assert await scheduler.step() == pytest.approx(3, abs=0.05)


async def test_what_was_due_before_the_worker_came_is_moved_at_once(
    store: Store, clock: Clock
) -> None:
    await delayed(store, 10)
    clock.advance(100_000)
    await scheduler_of(store, TOPIC).step()
    assert await pending(store) == 1


@steady
async def test_a_ring_during_a_move_is_not_lost(
    store: Store, server: Server, clock: Clock, tmp_path: Path
) -> None:
    await delayed(store, 60_000)
    async with (
        Proxy(server.socket, tmp_path / "p.sock") as proxy,
        await Store.open(proxy.url, clock=clock) as through,
    ):
        scheduler = scheduler_of(through, TOPIC)
        await through.get_next_delay_task(TOPIC)
        await through.process_delay_message(TOPIC, count=1)

        async def meanwhile() -> None:
            """After the look at the next due time, before its answer arrives."""
            await delayed(store, 1000)
            scheduler.on_ring(TOPIC)

        proxy._orders.clear()
        proxy.delay_reply(1)  # process_delay_message
        proxy.delay_reply(1, then=meanwhile)  # get_next_delay_task
        assert await scheduler.step() == 0.0
        assert await scheduler.step() == pytest.approx(1, abs=0.1)


async def test_a_move_that_fails_is_done_again(
    store: Store, server: Server, clock: Clock, tmp_path: Path
) -> None:
    await delayed(store, 10)
    clock.advance(10)
    proxy = Proxy(server.socket, tmp_path / "p.sock")
    async with proxy, await Store.open(proxy.url, clock=clock, patience=0) as through:
        scheduler = scheduler_of(through, TOPIC)
        proxy.cut_request(1)
        with pytest.raises(Exception, match="process_delay_message"):
            await scheduler.step()
        assert await scheduler.step() is None
        assert await pending(store) == 1


@pytest.mark.corrupts
async def test_a_broken_topic_does_not_keep_the_others_from_their_due_times(
    store: Store, clock: Clock, raw: Redis
) -> None:
    for topic in ("broken", TOPIC):
        await store.produce_delay_message(topic, [draft(1, delay=10)])
    clock.advance(10)
    await raw.delete(store.keys.of("broken").payload)
    await raw.set(store.keys.of("broken").payload, "no hash")
    scheduler = scheduler_of(store, "broken", TOPIC)
    for _ in range(3):
        with suppress(ScriptFailed):  # the loop goes on, too
            await scheduler.step()
    assert await pending(store) == 1


async def test_a_worker_moves_a_delayed_message_at_its_time(raw: Redis, server: Server) -> None:
    from mx_rmq import Worker

    handled: list[float] = []
    async with queue(server.url) as mq:

        @mq.handler("t")
        async def handle(payload: int) -> None:
            handled.append(time.monotonic())

        async with Worker(mq):
            await asyncio.sleep(0.1)
            begun = time.monotonic()
            await mq.produce("t", 1, delay=3)
            await mq.produce("t", 2, delay=0.4)

            async def done() -> bool:
                return len(handled) == 1

            await until_so(done)
            assert 0.39 < handled[0] - begun < 2.5  # not with the other one, and by no look around
            await raw.delete("unused")
        await mq.admin.cancel("t", (await mq.admin.list("t", "delayed")).messages[0].id)


async def test_what_became_due_is_counted_and_told_to_whoever_listens(
    raw: Redis, server: Server
) -> None:
    async with queue(server.url) as mq:
        seen: list[events.Due] = []

        @mq.handler("t", partitions=2)
        async def handle(_: None) -> None: ...

        assert events.Due not in mq.events.wanted, "nobody pays for it unheard"
        async with Worker(mq):
            mq.events.subscribe(seen.append, events.Due)
            await mq.produce_many("t", [None] * 5, delay=0.1)
            await until_so(lambda: _completed(mq, 5))
        assert {one.topic for one in seen} == {"t"}
        assert sum(one.count for one in seen) == 5
        assert (await mq.admin.stats("t")).totals.due == 5


async def _completed(mq: MessageQueue, count: int) -> bool:
    return (await mq.admin.stats("t")).totals.completed == count


async def test_what_was_moved_is_told_at_once(store: Store) -> None:
    await store.produce_delay_message(TOPIC, [draft(delay=0, at=1)])
    moved: list[tuple[str, int]] = []
    scheduler = Scheduler(store, on_moved=lambda topic, count: moved.append((topic, count)))
    scheduler.on_ring(TOPIC)
    scheduler.on_ring("other")
    await scheduler.step()
    assert moved == [(TOPIC, 1)]
    scheduler.on_ring(TOPIC)
    await scheduler.step()
    assert moved == [(TOPIC, 1)]


@steady
async def test_a_topic_that_is_taken_up_is_asked_about_by_the_survey_alone(
    store: Store, server: Server, clock: Clock, tmp_path: Path
) -> None:
    await delayed(store, 5000)
    async with (
        Proxy(server.socket, tmp_path / "p.sock") as proxy,
        await Store.open(proxy.url, clock=clock) as through,
    ):
        scheduler = scheduler_of(through)
        before = len(proxy.requests)
        for number in range(100):
            scheduler.add(f"t{number}")
        scheduler.add(TOPIC)
        assert await scheduler.step() is None
        assert len(proxy.requests) == before
        scheduler.surveyed("t1", None)
        scheduler.surveyed(TOPIC, 5000)
        assert await scheduler.step() == pytest.approx(5, abs=0.05)  # nobody stands in for us
        scheduler.surveyed("t1", 1000)
        assert await scheduler.step() == pytest.approx(1 + STAND_IN, abs=0.05)


@pytest.mark.corrupts
async def test_a_topic_that_fails_does_not_fill_the_agenda(store: Store, raw: Redis) -> None:
    await raw.set(store.keys.of("broken").payload, "no hash")
    await raw.zadd(store.keys.of("broken").delay_tasks, {"a": 1})
    scheduler = scheduler_of(store)
    for _ in range(5):
        scheduler.on_ring("broken")
        assert await scheduler.step() == pytest.approx(TRY_AGAIN, abs=0.5)
    assert len(scheduler._agenda) <= 5
    scheduler.on_ring("broken")
    scheduler.on_ring("broken")
    await scheduler.step()
    assert sum(map(scheduler._is_current, scheduler._agenda)) == 1
