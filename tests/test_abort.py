"""Abort, as users see it: a running handler stops, and nothing it does counts."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import Delivery, InvalidInput, MessageDied, MessageQueue, Worker
from mx_rmq.admin import Filter
from mx_rmq.core import codec, events
from mx_rmq.core.message import State
from mx_rmq.runtime import abort_listener
from mx_rmq.runtime.abort_listener import AbortListener
from mx_rmq.store.results import HandedBack, RetryRequest
from tests.lab.messages import FAILURE
from tests.runtime.stage import Seen, on_a_server, on_servers, queue, slots_of, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from tests.lab.servers import Server

WITHIN = 2.0
"""Seconds within which a handler must be stopped."""


@pytest.fixture
async def mq(raw: Redis, server: Server) -> AsyncIterator[MessageQueue]:
    async with queue(server.url, lease=30) as mq:
        yield mq


def sleeper(mq: MessageQueue, **options: Any) -> dict[str, str]:
    """Declare a handler that sleeps for a minute; return what became of each message."""
    became: dict[str, str] = {}

    @mq.handler("t", **options)
    async def sleep(_: Any, delivery: Delivery) -> None:
        became[delivery.id] = "running"
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            became[delivery.id] = "cancelled"
            raise

    return became


async def start(mq: MessageQueue, became: dict[str, str], count: int = 1) -> list[str]:
    """Produce messages, and wait until their handlers run."""
    ids = await mq.produce_many("t", range(count))
    await until(lambda: all(became.get(id) == "running" for id in ids))
    return ids


async def dead_reason(mq: MessageQueue, id: str) -> str:
    found = await mq.admin.get("t", id)
    assert found is not None
    assert found.state is State.DEAD
    return found.reason


@on_a_server
@pytest.mark.parametrize("garbage", [b"", b"x", b"1", b"9" * 5000 + b" x", b"-1 x", b"\xff \xff"])
async def test_what_others_publish_does_not_break_the_connection(
    mq: MessageQueue, raw: Redis, garbage: bytes
) -> None:
    became = sleeper(mq)
    async with Worker(mq):
        (id,) = await start(mq, became)
        channel = mq.store.aborts_channel_of("t")
        async with asyncio.timeout(30):
            while not (await raw.pubsub_numsub(channel))[0][1]:  # noqa: ASYNC110 - nobody announces it
                await asyncio.sleep(0.002)
        (before,) = await raw.client_list(_type="pubsub")
        await raw.publish(channel, garbage)
        await mq.admin.abort("t", id, "wrong")
        await until(lambda: became[id] == "cancelled")
        (after,) = await raw.client_list(_type="pubsub")
        assert after["id"] == before["id"]


@on_servers
async def test_an_aborted_message_stops_its_handler_and_is_a_dead_letter_with_the_reason(
    mq: MessageQueue,
) -> None:
    became, seen = sleeper(mq), Seen(mq.events)
    async with Worker(mq):
        aborted, other = await start(mq, became, 2)
        begun = time.monotonic()
        assert await mq.admin.as_operator("ada").abort("t", aborted, "wrong customer") is True
        await until(lambda: became[aborted] == "cancelled")
        assert time.monotonic() - begun < WITHIN
        await until(lambda: seen.of(events.Aborted))
        assert became[other] == "running"
        assert await dead_reason(mq, aborted) == "aborted: wrong customer"
        (event,) = seen.of(events.Aborted)
        assert (event.topic, event.id) == ("t", aborted)
        assert event.seconds is not None
        assert seen.of(events.LeaseLost) == []
        assert await mq.admin.abort("t", aborted, "again") is False
        totals = (await mq.admin.stats("t")).totals
        assert (totals.aborted, totals.died) == (1, 1)
        *_, last = await mq.admin.history("t", aborted)
        assert (last.what, last.by, last.about) == ("aborted", "ada", "wrong customer")
        assert await mq.admin.abort("t", other)
    assert seen.of(events.Completed) == []


@on_a_server
@pytest.mark.parametrize("state", ["processing", "delayed"])
async def test_a_caller_that_waits_for_the_result_learns_of_it_at_once(
    mq: MessageQueue, state: str
) -> None:
    became = sleeper(mq, result_ttl=60)
    async with Worker(mq):
        if state == "processing":
            (id,) = await start(mq, became)
        else:
            id = await mq.produce("t", 1, delay=60)
        waiting = asyncio.create_task(mq.result("t", id, timeout=30))
        await asyncio.sleep(0)
        begun = time.monotonic()
        assert await mq.admin.abort("t", id, "not needed")
        with pytest.raises(MessageDied, match="aborted: not needed"):
            await waiting
        assert time.monotonic() - begun < WITHIN
        status = await mq.status("t", id)
        assert status is not None
        assert (status.state, status.reason) == (State.DEAD, "aborted: not needed")


@on_a_server
async def test_a_requeue_undoes_an_abort(mq: MessageQueue) -> None:
    became = sleeper(mq)
    async with Worker(mq):
        (id,) = await start(mq, became)
        assert await mq.admin.abort("t", id, "a mistake")
        await until(lambda: became[id] == "cancelled")
        assert await mq.admin.requeue("t", id)
        await until(lambda: became[id] == "running")
        assert await mq.admin.abort("t", id)
        assert await dead_reason(mq, id) == "aborted: no reason given"


@on_a_server
async def test_a_plain_handler_in_a_thread_is_interrupted(mq: MessageQueue) -> None:
    begun, ended = threading.Event(), threading.Event()

    @mq.handler("t")
    def spin(_: int) -> None:
        begun.set()
        try:
            while True:
                time.sleep(0.01)
        finally:
            ended.set()

    async with Worker(mq):
        id = await mq.produce("t", 1)
        await until(begun.is_set)
        at = time.monotonic()
        assert await mq.admin.abort("t", id, "enough")
        await until(ended.is_set)
        assert time.monotonic() - at < WITHIN
    assert await dead_reason(mq, id) == "aborted: enough"


@on_a_server
@pytest.mark.parametrize("then", ["return", "raise"])
async def test_nothing_counts_that_a_handler_does_which_swallows_the_cancellation(
    mq: MessageQueue, then: str
) -> None:
    seen, stubborn = Seen(mq.events), asyncio.Event()

    @mq.handler("t")
    async def handle(_: int) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            stubborn.set()
            if then == "raise":
                raise ValueError("and now?") from None

    async with Worker(mq) as worker:
        id = await mq.produce("t", 1)
        await until(lambda: slots_of(worker).running)
        assert await mq.admin.abort("t", id, "enough")
        await stubborn.wait()
        await until(lambda: not slots_of(worker).held)
    assert await dead_reason(mq, id) == "aborted: enough"
    assert [type(one) for one in seen.all if getattr(one, "id", "") == id] == [events.Aborted]


@on_a_server
async def test_a_message_that_waits_for_a_slot_is_forgotten(mq: MessageQueue) -> None:
    became, seen = sleeper(mq), Seen(mq.events)
    async with Worker(mq, concurrency=1) as worker:
        (first,) = await start(mq, became)
        slots = slots_of(worker)
        (topic,) = slots.topics.values()
        id = await mq.produce("t", 2)
        taken = await mq.store.dispatch_message("t", worker.name, count=1, lease=30_000)
        slots.reserve(topic, 1)
        slots.receive(topic, 1, taken.messages, time.monotonic())
        assert await mq.admin.abort("t", id, "enough")
        await until(lambda: [one.id for one in seen.of(events.Aborted)] == [id])
        assert [held.leased.id for held in slots.held] == [first]
        assert seen.of(events.Aborted)[0].seconds is None
        await mq.admin.abort("t", first)
    assert id not in became


@on_a_server
@pytest.mark.parametrize("state", ["pending", "delayed", "paused"])
async def test_a_waiting_message_dies_without_running(mq: MessageQueue, state: str) -> None:
    became = sleeper(mq)
    id = await mq.produce("t", 1, delay=60 if state == "delayed" else None, ttl=600)
    if state == "paused":
        await mq.admin.pause("t")
    assert await mq.admin.abort("t", id, "enough")
    async with Worker(mq):
        other = await mq.produce("t", 2)
        if state != "paused":
            await until(lambda: became.get(other) == "running")
        assert await mq.admin.abort("t", other)
    assert await dead_reason(mq, id) == "aborted: enough"
    assert id not in became


@on_a_server
async def test_there_is_nothing_to_abort_of_what_is_finished_archived_or_unknown(
    mq: MessageQueue,
) -> None:
    @mq.handler("t", max_attempts=1)
    async def handle(payload: int) -> None:
        if payload == 2:
            raise ValueError

    ids = await mq.produce_many("t", [1, 2, "not a number"])
    await Worker(mq).drain()
    assert await mq.admin.abort_many("t", [*ids, "unknown"], "late") == [False] * 4
    assert (await mq.admin.stats("t")).totals.aborted == 0


@on_a_server
async def test_an_unreadable_message_is_refused(mq: MessageQueue, raw: Redis) -> None:
    id = await mq.produce("t", 1)
    await raw.hset(mq.store.keys.of("t").payload, id, b"junk")
    with pytest.raises(InvalidInput, match="cannot be aborted, because no worker could read it"):
        await mq.admin.abort("t", id)
    assert await mq.admin.abort_all("t", State.PENDING) == 0
    await mq.admin.cancel("t", id)


@on_a_server
async def test_many_are_aborted_by_id_and_by_filter(mq: MessageQueue) -> None:
    became = sleeper(mq, concurrency=20)
    async with Worker(mq, concurrency=20):
        ids = await start(mq, became, 12)
        assert await mq.admin.abort_many("t", [*ids[:2], "unknown"], "by id") == [True, True, False]
        found = Filter(text=ids[2])
        assert await mq.admin.abort_all("t", State.PROCESSING, "by text", filter=found) == 1
        assert await mq.admin.abort_all("t", "processing", "the rest", dry_run=True) == 9
        assert await mq.admin.abort_all("t", "processing", "the rest") == 9
        await until(lambda: set(became.values()) == {"cancelled"})
    waiting = await mq.produce_many("t", range(3), delay=60)
    assert await mq.admin.abort_all("t", State.DELAYED, "later", limit=2) == 2
    assert sum(await mq.admin.abort_many("t", waiting)) == 1
    with pytest.raises(InvalidInput, match="only abort pending, delayed, waiting or processing"):
        await mq.admin.abort_all("t", State.DEAD)
    with pytest.raises(InvalidInput, match="a list of ids"):
        await mq.admin.abort_many("t", "id")


async def test_a_reason_that_is_not_text_is_refused_by_name(mq: MessageQueue) -> None:
    wrong: Any = 5
    for call in (
        mq.admin.abort("t", "a", wrong),
        mq.admin.abort_many("t", ["a"], wrong),
        mq.admin.abort_all("t", "pending", wrong),
    ):
        with pytest.raises(InvalidInput, match=r"^reason=5 is not a string$"):
            await call


@on_a_server
async def test_a_message_is_found_in_its_partition(mq: MessageQueue) -> None:
    became = sleeper(mq, partitions=4)
    async with Worker(mq):
        ids = await mq.produce_many("t", range(8), keys=[f"k{n}" for n in range(8)])
        await until(lambda: all(became.get(id) == "running" for id in ids))
        assert all(await mq.admin.abort_many("t", ids, "all"))
        await until(lambda: set(became.values()) == {"cancelled"})


@on_a_server
async def test_without_news_the_next_extension_of_the_lease_stops_the_handler(
    raw: Redis, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AbortListener, "_heard", lambda *_: None)
    async with queue(server.url, lease=1.5) as mq:
        became, seen = sleeper(mq), Seen(mq.events)
        async with Worker(mq):
            (id,) = await start(mq, became)
            assert await mq.admin.abort("t", id)
            await until(lambda: became[id] == "cancelled")
        assert [one.id for one in seen.of(events.LeaseLost)] == [id]


@on_a_server
async def test_news_that_overtakes_the_dispatch_is_not_lost(
    mq: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server tells of the abort before the worker holds the message."""
    monkeypatch.setattr(abort_listener, "LOOK_AGAIN", 0.05)
    heard = asyncio.Event()
    abort, became, looked = AbortListener._abort, sleeper(mq), list[Any]()

    def first_nothing(self: AbortListener, *claim: Any) -> Any:
        looked.append(claim)
        if len(looked) == 1:
            heard.set()
            return None
        return abort(self, *claim)

    monkeypatch.setattr(AbortListener, "_abort", first_nothing)
    async with Worker(mq):
        (id,) = await start(mq, became)
        assert await mq.admin.abort("t", id)
        await heard.wait()
        await until(lambda: became[id] == "cancelled")


@on_a_server
async def test_foreign_words_on_the_channel_are_ignored(mq: MessageQueue, raw: Redis) -> None:
    became = sleeper(mq)
    async with Worker(mq):
        (id,) = await start(mq, became)
        channel = mq.store.keys.of("t").aborts_channel
        for words in (b"", b"x y", b"1 " + id.encode(), b"\xff \xff"):
            assert await raw.publish(channel, words) == 1
        assert await mq.admin.abort("t", id)
        await until(lambda: became[id] == "cancelled")


@on_a_server
@pytest.mark.parametrize("first", ["abort", "worker"])
@pytest.mark.parametrize("what", ["complete", "retry", "release", "takeover"])
async def test_a_race_ends_in_exactly_one_way(
    mq: MessageQueue, raw: Redis, what: str, first: str
) -> None:
    """Both know the message as it is in processing; whichever script runs first wins."""
    id = await mq.produce("t", 1)
    store = mq.store
    (one,) = (await store.dispatch_message("t", "w", count=1, lease=30_000)).messages

    async def worker() -> bool:
        if what == "complete":
            return bool((await store.complete_message("t", "w", [one]))[0])
        if what == "retry":
            failed = codec.decode(one.record).failed(FAILURE)
            return bool((await store.retry_message("t", "w", [RetryRequest(one, failed, 5)]))[0])
        if what == "release":
            return bool((await store.release_message("t", "w", [HandedBack(one)]))[0])
        await raw.zadd(store.keys.of("t").expire_monitor, {id: 1}, xx=True)
        late = await store.handle_timeout_message("t", "m", count=1, recovery=9)
        return bool(late.messages)

    if first == "abort":
        assert await mq.admin.abort("t", id)
        assert not await worker()
    else:
        assert await worker()
        assert await mq.admin.abort("t", id) is (what != "complete")
    found = await mq.admin.get("t", id)
    completed = first == "worker" and what == "complete"
    assert (found is None) if completed else (found is not None and found.state is State.DEAD)
    assert await store.complete_message("t", "w", [one]) == ["0"]


@on_a_server
async def test_a_message_is_aborted_while_its_worker_stops(mq: MessageQueue) -> None:
    became, seen = sleeper(mq), Seen(mq.events)
    worker = Worker(mq, grace=60)
    async with worker:
        (id,) = await start(mq, became)
        stopping = asyncio.create_task(worker.stop())
        await seen.one(events.WorkerStopping)
        assert await mq.admin.abort("t", id, "no time")
        await stopping
    assert became[id] == "cancelled"
    assert seen.of(events.Released) == []
    assert seen.of(events.WorkerStopped)[0].clean
    assert await dead_reason(mq, id) == "aborted: no time"


@on_a_server
async def test_aborts_are_heard_again_after_the_listener_was_cancelled(mq: MessageQueue) -> None:
    became, seen = sleeper(mq), Seen(mq.events)
    async with Worker(mq):
        (id,) = await start(mq, became)
        names = ("mx-rmq abort listener", "mx-rmq subscription")
        for task in asyncio.all_tasks():
            if task.get_name() in names:
                task.cancel()
        await seen.one(events.PartRestarted, part="abort listener")
        assert await mq.admin.abort("t", id)
        await until(lambda: became[id] == "cancelled")


@on_a_server
async def test_aborts_and_completions_at_the_same_time_share_the_messages(
    mq: MessageQueue,
) -> None:
    done: list[str] = []

    @mq.handler("t")
    async def handle(_: int, delivery: Delivery) -> None:
        await asyncio.sleep(0)
        done.append(delivery.id)

    seen = Seen(mq.events)
    async with Worker(mq):
        ids = await mq.produce_many("t", range(300))
        aborted = await mq.admin.abort_many("t", ids, "race")
        await until(lambda: len(seen.of(events.Completed)) == 300 - sum(aborted))
    dead = {id for id, was in zip(ids, aborted, strict=True) if was}
    assert {one.id for one in seen.of(events.Completed)} == set(ids) - dead
    stats = await mq.admin.stats("t")
    assert (stats.dead, stats.total) == (len(dead), len(dead))
