"""What one message, handler or topic does must not hurt the others."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import Delivery, InvalidInput, Retry, Worker, events
from mx_rmq.core.message import Priority, State
from mx_rmq.store.connect import without_password
from tests.lab.servers import Kind
from tests.runtime.stage import Seen, queue, slots_of, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from mx_rmq import MessageQueue
    from tests.lab.servers import Server

pytestmark = pytest.mark.parametrize("kind", [Kind.VALKEY_9_1])

LEFT: ContextVar[Any] = ContextVar("left")


@pytest.fixture
async def mq(raw: Redis, server: Server) -> AsyncIterator[MessageQueue]:
    async with queue(server.url, lease=0.8) as mq:
        yield mq


async def test_a_dispatch_reads_no_more_than_it_hands_out(mq: MessageQueue, raw: Redis) -> None:
    await mq.produce_many("big", ["x" * 1_000_000] * 40)
    await raw.config_resetstat()
    taken = await mq.store.dispatch_message("big", "w", count=40, lease=60_000)
    assert len(taken.messages) == 8
    read = (await raw.info("commandstats"))["cmdstat_hmget"]["calls"]
    assert read <= 4  # two steps of records, the leases, the counters
    counts = await mq.store.views.counts("big")
    assert (counts.pending, counts.processing) == (32, 8)
    await mq.store.release_message(
        "big", "w", [(one.claim, Priority.NORMAL) for one in taken.messages]
    )


async def test_a_long_batch_of_small_messages_comes_whole_and_in_order(mq: MessageQueue) -> None:
    ids = await mq.produce_many("small", range(300))
    taken = await mq.store.dispatch_message("small", "w", count=300, lease=60_000)
    assert [one.id for one in taken.messages] == ids
    await mq.store.complete_message("small", "w", taken.messages)


@pytest.mark.parametrize("left", [1, type("Odd", (), {"__eq__": lambda *_: 1 / 0})()])
async def test_a_consumer_that_retires_leaves_nothing_behind(mq: MessageQueue, left: Any) -> None:
    started: list[float] = []
    gate = asyncio.Event()

    @mq.handler("t")
    async def handle(seconds: float) -> None:
        LEFT.set(left)
        started.append(seconds)
        await (gate.wait() if seconds else asyncio.sleep(0.01))

    @mq.handler("other")
    async def other(payload: int) -> None: ...

    async with Worker(mq, concurrency=4):
        await mq.produce_many("t", [0, 1, 0, 0, 0, 0])
        await until(lambda: len(started) == 6)  # although one of them does not end
        gate.set()


async def test_what_waits_behind_a_blocked_loop_is_handed_back(mq: MessageQueue) -> None:
    ran: list[int] = []

    @mq.handler("t", concurrency=1)
    async def block(payload: int) -> None:
        if payload == 100:
            time.sleep(2.5)  # three leases
        ran.append(payload)

    seen = Seen(mq.events)
    async with Worker(mq, concurrency=2) as worker:
        await mq.produce_many("t", range(100))  # fast ones, so that some are taken ahead
        await until(lambda: len(ran) == 100)
        await mq.produce_many("t", range(100, 106))
        await until(lambda: len(ran) == 106)
        assert sorted(ran[100:]) == list(range(100, 106))
        assert seen.of(events.TakenOver) == []
        assert slots_of(worker).running == 0


async def test_what_waits_for_a_slot_for_a_second_is_handed_back(mq: MessageQueue) -> None:
    ran: list[tuple[int, int]] = []
    gate = asyncio.Event()

    @mq.handler("t", concurrency=1)
    async def handle(payload: int, delivery: Delivery) -> None:
        ran.append((payload, delivery.attempt))
        if payload == -1:
            await gate.wait()

    async with Worker(mq, concurrency=2):
        await mq.produce_many("t", range(2000))
        await until(lambda: len(ran) > 500)
        await mq.produce("t", -1, priority="high")
        await until(lambda: (-1, 1) in ran)
        async with Worker(mq, concurrency=2):
            await until(lambda: len(ran) == 2001)
        assert {attempt for _, attempt in ran} == {1}
        gate.set()


@pytest.mark.parametrize("delay", [-5.0, float("nan"), "soon"])
async def test_a_delay_that_a_subclass_computed_wrongly_follows_the_policy(
    mq: MessageQueue, delay: Any
) -> None:
    class Later(Retry):
        def __init__(self) -> None:
            self.delay = delay

    @mq.handler("t", retry=0, max_attempts=2)
    async def handle(payload: int) -> None:
        raise Later if payload == 0 else ValueError("as told")

    await mq.produce_many("t", range(5))
    drained = await Worker(mq).drain(delayed=True)
    assert (drained.retried, drained.dead, drained.quarantined) == (5, 5, 0)


async def test_a_handler_that_raises_generator_exit_has_failed(mq: MessageQueue) -> None:
    @mq.handler("t", max_attempts=1)
    async def handle(payload: int) -> None:
        raise GeneratorExit

    await mq.produce("t", 1)
    assert (await Worker(mq).drain()).dead == 1


async def test_more_time_that_is_asked_for_at_the_end_leaves_nothing_behind(
    mq: MessageQueue,
) -> None:
    @mq.handler("t", timeout=60)
    async def handle(payload: int, delivery: Delivery) -> None:
        delivery.extend(3600)

    async with Worker(mq) as worker:
        await mq.produce_many("t", range(50))
        seen = Seen(mq.events)
        await until(lambda: not slots_of(worker).held or seen.of(events.Completed))
        assert worker._cast is not None
        timeouts = worker._cast._consumer._timeouts
        await until(lambda: not slots_of(worker).held)
        await until(lambda: not timeouts._deadlines)


@pytest.mark.parametrize("stop", ["shutdown", "timeout"])
async def test_a_handler_that_cleans_up_for_longer_than_its_lease_keeps_it(
    mq: MessageQueue, stop: str
) -> None:
    cleaned: list[int] = []
    started: list[int] = []

    @mq.handler("t", retry=0, timeout=0.3 if stop == "timeout" else None)
    async def handle(payload: int, delivery: Delivery) -> None:
        started.append(delivery.attempt)
        if len(started) > 1:
            return
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(2.0)
            cleaned.append(delivery.attempt)

    seen = Seen(mq.events)
    await mq.produce("t", 1)
    async with Worker(mq, grace=0) as first:
        await until(lambda: started)
        async with Worker(mq):
            if stop == "shutdown":
                assert await first.stop()
            await until(lambda: len(started) == 2)
            assert cleaned == [1]
    assert seen.of(events.TakenOver) == []


async def test_an_undecidable_message_does_not_hide_the_others_from_the_monitor(
    raw: Redis, server: Server
) -> None:
    async with queue(server.url, lease=0.5, audit=False) as mq:
        ran: list[int] = []

        @mq.handler("t", max_crashes=1)
        async def handle(payload: int) -> None:
            ran.append(payload)

        # The first one must die, which a key of a wrong type forbids; the others, too, but later.
        await mq.produce("t", 0, id="a")
        await mq.produce_many("t", [1, 2], ids=["b", "c"])
        await mq.store.dispatch_message("t", "silent", count=3, lease=1)
        await raw.hset(mq.store.keys.of("t").payload, "b", b"broken")
        await raw.set(mq.store.keys.of("t").dlq, "no set")
        seen = Seen(mq.events)
        async with Worker(mq):
            await seen.wait(events.Quarantined, id="b")  # behind "a", which cannot be settled
        await raw.delete(mq.store.keys.of("t").dlq)


async def test_a_broken_topic_does_not_slow_the_dispatch_of_another(
    raw: Redis, server: Server
) -> None:
    async with queue(server.url, audit=False) as mq:
        ran: list[int] = []

        @mq.handler("broken")
        async def broken(payload: int) -> None: ...

        @mq.handler("whole")
        async def whole(payload: int) -> None:
            ran.append(payload)

        await mq.produce("broken", 1)
        await raw.set(mq.store.keys.of("broken").meta, "no hash")
        async with Worker(mq) as worker:
            assert worker._cast is not None
            dispatcher = worker._cast._dispatcher
            await until(lambda: dispatcher._pausing)
            await mq.produce("whole", 1)
            await until(lambda: ran, within=1.0)
            assert "whole" not in {topic.topic for topic in dispatcher._pausing}


async def test_closing_the_queue_stops_its_workers_but_not_from_a_handler(
    mq: MessageQueue, server: Server
) -> None:
    refused: list[str] = []

    async with queue(server.url, audit=False) as own:

        @own.handler("t")
        async def handle(payload: int) -> None:
            for wait in (own.close, worker.stop):
                try:
                    await wait()
                except InvalidInput as error:
                    refused.append(str(error))

        worker = Worker(own)
        await worker.start()
        await own.produce("t", 1)
        await until(lambda: len(refused) == 2)
        assert set(refused) == {"a handler cannot wait for its own worker to stop"}
        await own.close()
        assert worker._cast is None
    assert (await mq.admin.stats("t")).processing == 0


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.filterwarnings("ignore:This process")  # a fork with threads, on purpose
async def test_a_child_that_a_handler_forks_does_not_become_a_worker(
    mq: MessageQueue, plain: bool
) -> None:
    children: list[int] = []

    def fork() -> None:
        child = os.fork()
        if child == 0:
            sys.exit(0)
        children.append(child)

    async def async_fork(payload: int) -> None:
        fork()

    def plain_fork(payload: int) -> None:
        fork()

    mq.handler("t")(plain_fork if plain else async_fork)
    await mq.produce("t", 1)
    assert (await Worker(mq).drain()).completed == 1
    (child,) = children

    def is_gone() -> bool:
        with suppress(ChildProcessError):
            return os.waitpid(child, os.WNOHANG)[0] == child
        return True

    await until(is_gone)


async def test_a_skipped_tick_is_reported_once_and_only_if_nobody_fired_it(
    mq: MessageQueue, raw: Redis
) -> None:
    @mq.cron("0 0 1 1 *", topic="yearly")
    async def yearly() -> None: ...

    await mq.store.produce_cron_message("yearly", 0)
    await raw.hset(mq.store.keys.of("yearly").meta, "tick", 1_000)  # long ago
    seen = Seen(mq.events)
    async with Worker(mq):
        await seen.one(events.CronMissed, topic="yearly")
    assert len(seen.of(events.CronMissed)) == 1
    assert (await mq.admin.list("yearly", State.PENDING)).messages == []


async def test_a_tick_of_a_clock_that_was_set_back_does_not_count(
    mq: MessageQueue, raw: Redis
) -> None:
    now = (await mq.store.produce_cron_message("c", 0)).now
    meta = mq.store.keys.of("c").meta
    await raw.hset(meta, "tick", now + 30_000)
    assert (await mq.store.produce_cron_message("c", now, mq.store.draft(None))).id is None
    await raw.hset(meta, "tick", now + 3_600_000)
    assert (await mq.store.produce_cron_message("c", now, mq.store.draft(None))).id is not None


def test_a_password_with_an_encoded_name_is_hidden(kind: Kind) -> None:
    shown = without_password("redis://h/0?p%61ssword=s3cret&db=1")
    assert "s3cret" not in shown
    assert shown.endswith("&db=1")
