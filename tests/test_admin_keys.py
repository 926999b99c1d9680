"""What operators see of keys and limits, and what they change, on real servers."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from math import inf
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import Delivery, InvalidInput, Limit, MessageQueue, Rate, Router, Snooze, Worker
from mx_rmq.admin import Filter, HeldBack, LimitView
from mx_rmq.admin.held_back import held_back_words
from mx_rmq.admin.keys import limited_by
from mx_rmq.core.message import State
from mx_rmq.core.partition import number_for, partition
from mx_rmq.store.keys import Keys
from mx_rmq.store.line_reads import FOREVER, MOST_SET
from tests.lab.cluster import Cluster
from tests.runtime.stage import on_a_server, on_servers, queue, until, until_so

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from redis.asyncio import Redis

    from tests.lab.servers import Server

T = "t"


@pytest.fixture
async def mq(raw: Redis, server: Server) -> AsyncIterator[MessageQueue]:
    async with queue(server.url) as mq:
        yield mq


async def fill(mq: MessageQueue, topic: str = T, **counts: int) -> None:
    for key, count in counts.items():
        await mq.produce_many(topic, list(range(count)), keys=[key] * count)


async def dispatch(mq: MessageQueue, count: int, limits: str = "", topic: str = T) -> list[str]:
    found = await mq.store.dispatch_in_turn(topic, "w", count=count, lease=60_000, limits=limits)
    return [one.id for one in found.messages]


async def complete(mq: MessageQueue, ids: list[str], topic: str = T) -> None:
    """Settle messages that were dispatched to "w"."""
    for id in ids:
        assert await mq.admin.abort(topic, id)


def declared(limit: Limit | None = None, per_key: Limit | None = None) -> str:
    from mx_rmq.core.limits import declared

    return declared(limit, per_key)


async def ids_of(mq: MessageQueue, limit: int, **options: Any) -> list[str]:
    ids: list[str] = []
    cursor = None
    while True:
        page = await mq.admin.list(T, State.PENDING, limit=limit, cursor=cursor, **options)
        ids += [one.id for one in page.messages]
        cursor = page.cursor
        if cursor is None:
            return ids


# reading messages with a key


@on_servers
async def test_pages_list_messages_without_a_key_first_and_then_line_by_line(
    mq: MessageQueue,
) -> None:
    b = await mq.produce_many(T, [1, 2], keys=["b", "b"])
    a = await mq.produce_many(T, [3, 4], keys=["a", "a"])
    first = await mq.produce(T, 5, key="a", priority="high")
    plain = await mq.produce(T, 6)
    every = [plain, first, *a, *b]
    for limit in (1, 2, 3, 100):
        assert await ids_of(mq, limit) == every
    page = await mq.admin.list(T, State.PENDING)
    assert [one.key for one in page.messages] == [None, "a", "a", "a", "b", "b"]
    assert {one.state for one in page.messages} == {State.PENDING}
    stats = await mq.admin.stats(T)
    assert (stats.pending, stats.keys_waiting, stats.keys_blocked) == (6, 2, 0)
    assert await mq.admin.count(T, State.PENDING) == 6


@on_servers
async def test_a_message_shows_its_key_and_cost(mq: MessageQueue) -> None:
    id = await mq.produce(T, 1, key="tenant 7/ä", cost=5)
    found = await mq.admin.get(T, id)
    assert found is not None
    assert (found.state, found.key, found.cost) == (State.PENDING, "tenant 7/ä", 5)
    assert [one.topic for one in await mq.admin.find(id)] == [T]
    other = await mq.admin.get(T, await mq.produce(T, 1))
    assert other is not None
    assert (other.key, other.cost) == (None, 1)


@on_servers
async def test_a_filter_finds_the_messages_of_one_key(mq: MessageQueue) -> None:
    await fill(mq, a=3, ab=2)
    await mq.produce(T, 1)
    delayed = await mq.produce(T, 1, key="ab", delay=60)
    wanted = Filter(key="ab")
    assert len(await ids_of(mq, 1, filter=wanted)) == 2
    page = await mq.admin.list(T, State.DELAYED, filter=wanted)
    assert [one.id for one in page.messages] == [delayed]
    assert await mq.admin.cancel_all(T, State.PENDING, filter=wanted) == 2
    assert await mq.admin.cancel_all(T, State.PENDING, filter=Filter(key="abc")) == 0
    stats = await mq.admin.stats(T)
    assert (stats.pending, stats.keys_waiting) == (4, 1)


@on_a_server
@pytest.mark.parametrize("parts", [1, 4])
async def test_only_the_line_of_the_key_is_read(mq: MessageQueue, parts: int) -> None:
    await mq.produce(T, 0)
    if parts > 1:
        await mq.admin.grow(T, parts)
    keys = [f"key-{n:03}" for n in range(200)]
    await mq.produce_many(T, list(range(1000)), keys=[keys[n % 200] for n in range(1000)])
    for key in (keys[0], keys[100], keys[199]):
        wanted = Filter(key=key)
        page = await mq.admin.list(T, State.PENDING, filter=wanted, look=5)
        assert [one.key for one in page.messages] == [key] * 5
        assert (page.looked, page.cursor) == (5, None)
        assert len(await ids_of(mq, 2, filter=wanted)) == 5
        seen: list[Any] = []
        options: Any = {"filter": wanted, "dry_run": True, "progress": seen.append}
        assert await mq.admin.cancel_all(T, State.PENDING, **options) == 5
        assert (seen[-1].looked, seen[-1].total) == (5, 5)
    nothing = await mq.admin.list(T, State.PENDING, filter=Filter(key="key"))
    assert (nothing.messages, nothing.cursor, nothing.looked) == ([], None, 0)


@on_a_server
async def test_an_empty_key_is_refused_as_a_filter(mq: MessageQueue) -> None:
    with pytest.raises(InvalidInput, match="key='' is empty"):
        Filter(key="")


@on_servers
async def test_one_message_in_line_is_cancelled_aborted_rescheduled_and_requeued(
    mq: MessageQueue,
) -> None:
    one, two, three, four = await mq.produce_many(T, range(4), keys=["a"] * 4)
    assert await mq.admin.cancel(T, one)
    assert await mq.admin.abort(T, two, "no")
    assert await mq.reschedule(T, three, delay=60)
    assert (await mq.admin.keys(T)).keys[0].waiting == 1
    assert await mq.admin.requeue(T, two)
    assert await mq.reschedule(T, three, delay=0)
    (key,) = (await mq.admin.keys(T)).keys
    assert (key.key, key.waiting) == ("a", 3)
    assert set(await ids_of(mq, 10)) == {two, three, four}


@on_servers
async def test_bulk_actions_reach_every_line_however_many_steps_that_takes(
    mq: MessageQueue,
) -> None:
    for n in range(30):
        await mq.produce_many(T, list(range(10)), keys=[f"key-{n}"] * 10)
    await mq.produce_many(T, list(range(5)))
    seen: list[int] = []
    done = await mq.admin.abort_all(T, State.PENDING, progress=lambda one: seen.append(one.done))
    assert (done, seen[-1]) == (305, 305)
    stats = await mq.admin.stats(T)
    assert (stats.pending, stats.dead, stats.keys_waiting) == (0, 305, 0)
    assert await mq.admin.requeue_all(T, State.DEAD) == 305
    assert (await mq.admin.stats(T)).keys_waiting == 30
    assert await mq.admin.cancel_all(T, State.PENDING, limit=100) == 100
    assert (await mq.admin.stats(T)).pending == 205


@on_servers
async def test_a_bulk_action_leaves_messages_alone_that_join_a_line_meanwhile(
    mq: MessageQueue,
) -> None:
    await fill(mq, b=150)
    later: list[str] = []

    async def produce() -> None:
        later.extend(await mq.produce_many(T, [1, 2], keys=["a", "z"]))

    tasks: list[asyncio.Task[None]] = []

    def progress(one: Any) -> None:
        if one.done == 1 and not tasks:
            tasks.append(asyncio.create_task(produce()))

    assert await mq.admin.cancel_all(T, State.PENDING, rate=1000, progress=progress) == 150
    await tasks[0]
    assert await ids_of(mq, 10) == later


@on_servers
async def test_the_oldest_pending_is_found_in_lines_but_not_in_a_paused_one(
    mq: MessageQueue,
) -> None:
    await mq.produce(T, 1, key="a")
    await mq.produce(T, 1, key="b", at=time.time() - 100)
    await mq.store.process_delay_message(T, count=10)
    assert 95 < ((await mq.admin.stats(T)).oldest_pending or 0) < 200
    await mq.admin.pause(T, "b")
    assert await dispatch(mq, 10)
    stats = await mq.admin.stats(T)
    assert (stats.pending, stats.keys_blocked, stats.oldest_pending) == (1, 1, None)
    (key,) = [one for one in (await mq.admin.keys(T)).keys if one.key == "b"]
    assert 95 < (key.oldest or 0) < 200


# the keys of a topic


@on_servers
async def test_keys_come_with_depth_age_share_and_what_runs(mq: MessageQueue) -> None:
    await fill(mq, noisy=6, quiet=1)
    await mq.produce(T, 1)
    taken = await dispatch(mq, 3)
    found = await mq.admin.keys(T)
    assert (found.topic, found.waiting, found.blocked, found.partial) == (T, 1, 0, False)
    rows = {one.key: one for one in found.keys}
    assert {key: (row.waiting, row.running) for key, row in rows.items()} == {
        "noisy": (5, 1),
        "quiet": (0, 1),
    }
    assert (rows["noisy"].share, rows["quiet"].share) == (1, 0)
    assert 0 <= (rows["noisy"].oldest or -1) < 60
    assert rows["quiet"].oldest is None
    assert all(row.limited_by is None for row in found.keys)
    await complete(mq, taken)
    await mq.produce_many(T, [1] * 5)
    both = await mq.admin.keys(T)
    assert [(one.key, one.waiting, one.share) for one in both.keys] == [
        (None, 5, 0.5),
        ("noisy", 5, 0.5),
    ]
    assert (await mq.admin.key(T, "noisy")).waiting == 5
    idle = await mq.admin.key(T, "nobody")
    assert (idle.key, idle.waiting, idle.running, idle.oldest) == ("nobody", 0, 0, None)


@on_a_server
async def test_a_few_keys_are_all_found_beside_a_noisy_one(mq: MessageQueue) -> None:
    await fill(mq, noisy=20_000, a=2, b=2, c=2)
    limits = declared(Limit(running=4), Limit(running=1))
    await complete(mq, await dispatch(mq, 4, limits))  # so they are all in `blocked`
    await fill(mq, d=1)  # and this one in the ring
    found = await mq.admin.keys(T)
    waiting = [(one.key, one.waiting) for one in found.keys]
    assert waiting == [("noisy", 19_999), ("a", 1), ("b", 1), ("c", 1), ("d", 1)]
    assert not found.partial


@on_servers
async def test_the_answer_is_bounded_and_says_that_it_is_partial(mq: MessageQueue) -> None:
    await mq.produce_many(T, list(range(3000)), keys=[f"key-{n}" for n in range(3000)])
    await fill(mq, noisy=500)
    found = await mq.admin.keys(T, limit=10)
    assert (len(found.keys), found.waiting, found.partial) == (10, 3001, True)
    assert (found.keys[0].key, found.keys[0].waiting) == ("noisy", 500)
    for limit in (0, 201, True, "5"):
        with pytest.raises(InvalidInput, match="is not between 1 and 200"):
            await mq.admin.keys(T, limit=limit)  # type: ignore[arg-type] # wrong on purpose


@on_servers
async def test_what_limits_a_key_is_said(mq: MessageQueue) -> None:
    await fill(mq, busy=2, fast=2, held=1, free=1)
    await mq.admin.limit(T, "fast", rate=Rate(1, 100))
    await mq.admin.limit(T, "busy", running=1)
    await mq.admin.pause(T, "held", seconds=600, reason="their API is down")
    assert len(await dispatch(mq, 10)) == 3
    found = await mq.admin.keys(T)
    rows = {one.key: one for one in found.keys}
    busy, fast, held, free = (rows[key] for key in ("busy", "fast", "held", "free"))
    assert busy.limited_by == HeldBack(by="running")
    assert limited_by(busy, now=found.at) == "running 1 of 1"
    assert fast.limited_by is not None
    assert (fast.limited_by.by, fast.rate) == ("rate", Rate(36, 3600, 1))
    assert 90 < (fast.limited_by.until or 0) - found.at <= 100
    assert held.limited_by is not None
    assert (held.limited_by.by, held.limited_by.reason) == ("paused", "their API is down")
    assert 590 < (held.limited_by.until or 0) - found.at <= 600
    assert limited_by(held, now=found.at).endswith(" s: their API is down")
    assert (free.limited_by, limited_by(free, now=found.at)) == (None, "")
    assert found.blocked == 3


def test_what_holds_back_a_key_is_said_in_words() -> None:
    soon, rate = HeldBack(by="rate", until=100.02), Rate(5)
    assert held_back_words(soon, 1, None, rate, now=100.0) == "rate 5/s for 20 ms"
    assert held_back_words(HeldBack(by="running"), 2, 2, None, now=0.0) == "running 2 of 2"
    assert held_back_words(HeldBack(by="running"), 0, 0, None, now=0.0) == "limited to 0 running"


@on_servers
async def test_a_snoozed_key_is_seen_as_such(mq: MessageQueue) -> None:
    @mq.handler(T)
    async def handle(_: int) -> None:
        raise Snooze(100, key=True)

    await fill(mq, a=2)
    async with Worker(mq, concurrency=1):

        async def is_snoozed() -> bool:
            held = (await mq.admin.key(T, "a")).limited_by
            return held is not None and held.by == "snoozed"

        await until_so(is_snoozed)


@on_servers
async def test_keys_are_foreign_text(mq: MessageQueue) -> None:
    for key in ("<b>", "a b", "ключ", "[x", "(y", "'\"", "–"):
        await mq.produce(T, 1, key=key)
        await mq.admin.limit(T, key, running=1, weight=2)
        await mq.admin.pause(T, key, reason="ünder\ttab")
        view = await mq.admin.key(T, key)
        assert (view.waiting, view.running_limit, view.weight) == (1, 1, 2)
        assert view.limited_by == HeldBack(by="paused", reason="ünder\ttab")
    assert len((await mq.admin.limits(T)).keys) == 7


# setting limits


@on_servers
async def test_only_what_is_given_changes_and_none_restores_the_declaration(
    mq: MessageQueue,
) -> None:
    await fill(mq, a=1)
    limits = declared(Limit(running=9, rate="50/s"), Limit(running=2, rate="5/s"))
    await dispatch(mq, 1, limits)
    await mq.admin.limit(T, running=3)
    await mq.admin.limit(T, "a", weight=4)
    await mq.admin.limit(T, "a", rate="100/m")
    found = await mq.admin.limits(T)
    assert (found.declared.running, str(found.declared.rate)) == (9, "50/s")
    assert (found.per_key.running, str(found.per_key.rate)) == (2, "5/s")
    assert found.set == LimitView(running=3)
    assert (found.in_force.running, str(found.in_force.rate)) == (3, "50/s")
    assert found.keys == {"a": LimitView(rate=Rate(100, 60, 1), weight=4)}
    assert found.running == 1
    view = await mq.admin.key(T, "a")
    assert (view.running_limit, str(view.rate), view.weight) == (2, "100/m", 4)
    await mq.admin.limit(T, "a", rate=None)
    assert (await mq.admin.limits(T, "a")).keys == {"a": LimitView(weight=4)}
    await mq.admin.limit(T, "a", weight=None)
    await mq.admin.limit(T, running=None)
    found = await mq.admin.limits(T)
    assert (found.keys, bool(found.set), found.more) == ({}, False, False)
    assert str((await mq.admin.key(T, "a")).rate) == "5/s"


@on_servers
async def test_a_limit_is_in_force_at_once(mq: MessageQueue) -> None:
    started: list[str | None] = []
    gate = asyncio.Event()

    @mq.handler(T)
    async def handle(_: int, delivery: Delivery) -> None:
        started.append(delivery.key)
        await gate.wait()

    await fill(mq, a=5)
    await mq.admin.limit(T, "a", running=0)
    async with Worker(mq, concurrency=10):
        await fill(mq, b=1)
        await until(lambda: started == ["b"])
        held = (await mq.admin.key(T, "a")).limited_by
        assert held == HeldBack(by="running")
        before = time.monotonic()
        await mq.admin.limit(T, "a", running=2)
        await until(lambda: started.count("a") == 2)
        assert time.monotonic() - before < 2
        await mq.admin.limit(T, "a", running=None)
        await until(lambda: started.count("a") == 5)
        gate.set()


@on_a_server
@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "changes nothing: pass running=, rate= or weight="),
        ({"running": -1}, "running=-1 is not a whole number from 0"),
        ({"running": True}, "running=True is not a whole number"),
        ({"running": 1.5}, "running=1.5 is not a whole number"),
        ({"rate": "fast"}, "rate='fast' is not a rate such as 50/s"),
        ({"weight": 2}, "weight= needs key="),
        ({"key": "a", "weight": 0}, "weight=0 is not a number from 0.001"),
        ({"key": "a", "weight": float("nan")}, "weight=nan is not a number"),
        ({"key": "", "running": 1}, "key='' is not a string"),
        ({"key": "a\tb", "running": 1}, "is not a string of 1 to 128 characters"),
    ],
)
async def test_a_limit_that_makes_no_sense_is_refused(
    mq: MessageQueue, given: dict[str, Any], text: str
) -> None:
    await mq.produce(T, 1)
    with pytest.raises(InvalidInput, match=text):
        await mq.admin.limit(T, **given)
    assert not (await mq.admin.limits(T)).set


@on_a_server
@pytest.mark.parametrize("call", ["limit", "limits", "keys", "key", "pause", "resume"])
async def test_an_unknown_topic_is_refused(mq: MessageQueue, call: str) -> None:
    needed: dict[str, dict[str, Any]] = {"limit": {"running": 1}, "key": {"key": "a"}}
    arguments = needed.get(call, {})
    with pytest.raises(InvalidInput, match="no topic 'orderz'"):
        await getattr(mq.admin, call)("orderz", **arguments)


# pausing


@on_servers
async def test_a_key_is_paused_and_resumed_and_the_others_go_on(mq: MessageQueue) -> None:
    await fill(mq, a=1, b=1)
    assert await mq.admin.pause(T, "a", reason="asked to")
    assert not await mq.admin.pause(T, "a", reason="asked to")
    assert len(await dispatch(mq, 10)) == 1
    found = await mq.admin.limits(T)
    assert found.keys == {"a": LimitView(paused=True, reason="asked to")}
    assert not (await mq.admin.stats(T)).paused
    assert await mq.admin.resume(T, "a")
    assert not await mq.admin.resume(T, "a")
    assert len(await dispatch(mq, 10)) == 1
    assert (await mq.admin.limits(T)).keys == {}


@on_servers
async def test_a_pause_ends_by_itself(mq: MessageQueue) -> None:
    seen: list[str | None] = []

    @mq.handler(T)
    async def handle(_: int, delivery: Delivery) -> None:
        seen.append(delivery.key)

    await fill(mq, a=1)
    assert await mq.admin.pause(T, "a", seconds=timedelta(seconds=0.3))
    async with Worker(mq, concurrency=1):
        await fill(mq, b=1)
        await until(lambda: seen == ["b"])
        await until(lambda: seen == ["b", "a"])
    view = await mq.admin.key(T, "a")
    assert (view.limited_by, (await mq.admin.limits(T)).keys) == (None, {})
    assert not await mq.admin.resume(T, "a")


@on_servers
async def test_a_topic_is_paused_for_a_while_with_a_reason(mq: MessageQueue) -> None:
    await fill(mq, a=1)
    await mq.produce(T, 1)
    assert await mq.admin.pause(T, seconds=600, reason="maintenance")
    assert await dispatch(mq, 10) == []
    stats, limits = await mq.admin.stats(T), await mq.admin.limits(T)
    assert (stats.paused, stats.pause_reason, stats.held_back) == (True, "maintenance", True)
    assert (limits.set.paused, limits.set.reason) == (True, "maintenance")
    assert 590 < (limits.set.paused_until or 0) - time.time() < 610
    assert limits.held_back is not None
    assert limits.held_back.by == "paused"
    assert await mq.admin.resume(T)
    assert not await mq.admin.resume(T)
    assert len(await dispatch(mq, 10)) == 2
    assert not (await mq.admin.stats(T)).paused


@on_servers
async def test_a_topic_is_paused_until_resumed_with_a_reason(mq: MessageQueue) -> None:
    await mq.produce(T, 1)
    assert await mq.admin.pause(T, reason="maintenance")
    assert not await mq.admin.pause(T, reason="maintenance")
    stats, limits = await mq.admin.stats(T), await mq.admin.limits(T)
    assert (stats.paused, stats.pause_reason) == (True, "maintenance")
    assert limits.set == LimitView(paused=True, reason="maintenance")
    assert limits.held_back == HeldBack(by="paused", reason="maintenance")
    assert (await mq.store.dispatch_message(T, "w", count=1, lease=1000)).messages == []
    assert await mq.admin.resume(T)
    assert len(await dispatch(mq, 1)) == 1


@on_servers
async def test_the_history_says_who_set_what(mq: MessageQueue) -> None:
    await fill(mq, a=1)
    begin = time.time() - 60
    ann = mq.admin.as_operator("ann")
    await ann.limit(T, "a", running=2, rate="50/s", weight=3)
    await ann.limit(T, running=None, rate=None)
    await ann.limit(T, "a", weight=None)
    await ann.pause(T, "a", seconds=600, reason="their API is down")
    await ann.resume(T, "a")
    expected = [
        "key a: running 2, rate 50/s, burst 5, weight 3",
        "running as declared, rate as declared",
        "key a: weight 1",
        "key a: paused for 10 min 0 s: their API is down",
        "key a: resumed",
    ]
    seen: list[str] = []
    async for one in mq.admin.tail(T, since=begin):
        if one.what == "limited":
            assert one.by == "ann"
            seen.append(one.about)
        if len(seen) == len(expected):
            break
    assert seen == expected


# partitions


@on_a_server
async def test_a_topic_limit_is_shared_out_and_a_key_goes_to_its_partition(
    mq: MessageQueue,
) -> None:
    await mq.produce(T, 1)
    await mq.admin.grow(T, 4)
    await mq.admin.limit(T, running=10, rate=Rate(100, 1, 40))
    sets = [await mq.store.views.lines.limits_of(partition(T, n)) for n in range(4)]
    assert [one.bound.running for one in sets] == [3, 3, 2, 2]
    assert [one.bound.interval for one in sets] == [40.0] * 4
    assert [one.bound.burst for one in sets] == [10.0] * 4
    found = await mq.admin.limits(T)
    assert found.set == LimitView(running=10, rate=Rate(100, 1, 40))
    await mq.admin.limit(T, running=2)
    assert (await mq.admin.limits(T)).set.running == 4  # at least 1 each
    await mq.admin.limit(T, running=0)
    assert (await mq.admin.limits(T)).set.running == 0
    await mq.admin.limit(T, "a", running=5)
    home = number_for("a", 4)
    own = [await mq.store.views.lines.limits_of(partition(T, n), b"a") for n in range(4)]
    assert [one.bound.running for one in own] == [5 if n == home else None for n in range(4)]


@on_a_server
async def test_limits_and_pauses_hold_after_a_topic_has_grown(mq: MessageQueue) -> None:
    keys = [f"key-{n}" for n in range(8)]
    await mq.produce_many(T, list(range(8)), keys=keys)
    await mq.admin.limit(T, running=8, rate="40/s")
    for key in keys:
        await mq.admin.limit(T, key, running=3, weight=2)
    await mq.admin.pause(T, keys[0], reason="asked to")
    await mq.admin.pause(T, seconds=600, reason="growing")
    await mq.admin.grow(T, 4)
    sets = [await mq.store.views.lines.limits_of(partition(T, n)) for n in range(4)]
    assert [one.bound.running for one in sets] == [2, 2, 2, 2]
    assert {one.reason for one in sets} == {"growing"}
    found = await mq.admin.limits(T)
    assert (found.set.running, str(found.set.rate)) == (8, "40/s")
    for key in keys:
        home = partition(T, number_for(key, 4))
        own = await mq.store.views.lines.limits_of(home, key.encode())
        assert (own.bound.running, own.weight) == (3, 2)
        assert (own.reason == "asked to") == (key == keys[0])
    # messages that wait where they were before are resumed, too
    assert await mq.admin.resume(T, keys[0])
    assert not any(view.paused for view in (await mq.admin.limits(T)).keys.values())
    assert len((await mq.admin.keys(T)).keys) == 8


@on_a_server
async def test_the_limits_of_many_keys_hold_after_a_topic_has_grown(mq: MessageQueue) -> None:
    await mq.produce(T, 1)
    keys = [f"key-{n}" for n in range(3 * MOST_SET)]
    for key in keys:
        await mq.store.limit_key(T, key, running=3)
    await mq.admin.grow(T, 2)
    read = mq.store.views.lines.limits_of
    own = [await read(partition(T, number_for(key, 2)), key.encode()) for key in keys]
    assert {one.bound.running for one in own} == {3}


@on_a_server
async def test_limits_and_pauses_hold_after_workers_have_grown_a_topic(mq: MessageQueue) -> None:
    keys = [f"key-{n}" for n in range(8)]
    await mq.produce_many(T, list(range(8)), keys=keys)
    await mq.admin.limit(T, running=8, rate="40/s")
    await mq.admin.pause(T, seconds=600, reason="growing")
    for key in keys:
        await mq.admin.pause(T, key, reason="asked to")
    others = [queue(mq.settings.url) for _ in range(4)]
    async with others[0] as a, others[1] as b, others[2] as c, others[3] as d:
        await asyncio.gather(*(one.store.grow(T, 4) for one in (a, b, c, d)))
    read = mq.store.views.lines.limits_of
    sets = [await read(partition(T, n)) for n in range(4)]
    assert [one.bound.running for one in sets] == [2, 2, 2, 2]
    assert [one.bound.interval for one in sets] == [100.0] * 4
    assert {one.reason for one in sets} == {"growing"}
    own = [await read(partition(T, number_for(key, 4)), key.encode()) for key in keys]
    assert {(one.until, one.reason) for one in own} == {(FOREVER, "asked to")}
    found = await mq.admin.limits(T)
    assert (found.set.running, str(found.set.rate)) == (8, "40/s")


@on_a_server
async def test_what_a_grow_left_behind_that_died_is_not_applied(mq: MessageQueue) -> None:
    await mq.produce(T, 1)
    await mq.store.limit_key(partition(T, 1), None, running=3, pause=inf, reason="old")
    await mq.admin.limit(T, rate="40/s")
    await mq.admin.grow(T, 2)
    assert (await mq.admin.limits(T)).set == LimitView(rate=Rate(40, 1, 4))


async def test_limits_hold_over_the_nodes_of_a_cluster(short_path: Path) -> None:
    async with Cluster(short_path) as cluster, queue(cluster.url) as mq:
        await mq.produce(T, 0)
        await mq.admin.grow(T, 6)
        keys = [f"key-{n}" for n in range(12)]
        await mq.produce_many(T, list(range(24)), keys=keys * 2)
        await mq.admin.limit(T, running=12, rate="600/s")
        await mq.admin.limit(T, keys[0], running=0, weight=2)
        await mq.admin.pause(T, keys[1], seconds=60, reason="asked to")
        found = await mq.admin.limits(T)
        assert (found.set.running, str(found.set.rate)) == (12, "600/s")
        assert found.keys[keys[0]] == LimitView(running=0, weight=2)
        every = await mq.admin.keys(T)
        assert (every.waiting, every.partial) == (12, False)
        rows = {one.key: one for one in every.keys}
        assert all(rows[key].waiting == 2 for key in keys)
        assert rows[keys[0]].limited_by == HeldBack(by="running")
        assert rows[keys[1]].limited_by is not None
        assert (await mq.admin.stats(T)).keys_waiting == 12
        wanted = Filter(key=keys[3])
        assert await mq.admin.cancel_all(T, State.PENDING, filter=wanted) == 2


# what another program wrote


@on_a_server
async def test_what_nobody_can_read_hides_nothing(server: Server, raw: Redis) -> None:
    async with queue(server.url, audit=False) as mq:
        await fill(mq, a=1)
        keys = Keys().of(T)
        await raw.hset(keys.limits, mapping={"a": "x y", "b": "", "": "- - - - nan"})
        await raw.hset(keys.meta, mapping={"limits": "1", "clock_ahead": "x", "bucket": "-"})
        await raw.zadd(keys.lines, {b"\xff\t2x y z": 0, b"a\t": 0})
        found = await mq.admin.keys(T)
        assert {one.key: one.waiting for one in found.keys}["a"] == 2
        assert len((await mq.admin.list(T, State.PENDING)).messages) == 1
        limits = await mq.admin.limits(T)
        assert (limits.declared.running, limits.keys, bool(limits.set)) == (1, {}, False)
        await raw.hset(keys.payload, "odd", b"no record")
        assert (await mq.admin.stats(T)).keys_waiting == 1


@on_a_server
async def test_a_record_whose_key_produce_refuses_is_not_requeued_into_a_line(
    server: Server, raw: Redis
) -> None:
    async with queue(server.url, audit=False) as mq:
        id = await mq.produce(T, 1, key="a")
        assert await mq.admin.abort(T, id)
        keys = Keys().of(T)
        record: Any = await raw.hget(keys.dlq_payload, id)
        await raw.hset(keys.dlq_payload, id, record.replace(b'"key":"a"', b'"key":"a\\tb"'))
        with pytest.raises(InvalidInput, match="is not one that produce accepts"):
            await mq.admin.requeue(T, id)
        assert (await mq.admin.stats(T)).dead == 1


@on_a_server
async def test_a_router_declares_limits_that_operators_see(mq: MessageQueue) -> None:
    router = Router()

    @router.handler(T, limit=Limit(running=20), per_key=Limit(running=1, overtake=True))
    async def handle(_: int) -> None: ...

    mq.include(router)
    await fill(mq, a=3)
    await Worker(mq, concurrency=5).drain()
    found = await mq.admin.limits(T)
    assert (found.declared.running, found.per_key.running, found.overtake) == (20, 1, True)
    assert (await mq.admin.stats(T)).running_limit is None  # it is idle
    await fill(mq, a=1)
    assert (await mq.admin.stats(T)).running_limit == 20


@on_a_server
async def test_counting_a_topic_without_keys_or_limits_costs_little(
    mq: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    command = mq.store.caller.command

    async def noted(name: str, *words: Any, **options: Any) -> Any:
        sent.append(name)
        return await command(name, *words, **options)

    await mq.produce(T, 1, delay=60)
    await mq.admin.stats(T)  # the first time, it also asks how much memory there is
    monkeypatch.setattr(mq.store.caller, "command", noted)
    await mq.admin.stats(T)
    assert sent == ["HGET"]  # how many partitions it has
    sent.clear()
    await mq.produce(T, 1)
    await mq.admin.stats(T)
    assert not {"ZRANGE", "ZSCORE", "ZRANGEBYLEX"} & set(sent)
    assert (sent.count("HMGET"), sent.count("ZCARD")) == (1, 1)
