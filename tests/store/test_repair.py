"""A repair brings every message that the audit names back into one state, and loses none."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from mx_rmq import MessageQueue, Worker
from mx_rmq.admin import Admin
from mx_rmq.core import codec
from mx_rmq.core.message import State
from mx_rmq.store.results import HandedBack
from tests.lab.broken import broken
from tests.lab.crew import until
from tests.lab.messages import (
    TOPIC,
    Priority,
    delayed,
    draft,
    leased,
    leased_in_turn,
    pending,
    renamed,
    take,
    take_in_turn,
)
from tests.lab.servers import Kind, chosen
from tests.lab.snapshot import snapshot
from tests.store.test_audit import BREAKS, LINE_BREAKS, Ids, break_a_line, one_of_each

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.store.store import Store
    from tests.lab.clock import Clock
    from tests.lab.servers import Server

pytestmark = pytest.mark.parametrize("kind", chosen(Kind.VALKEY_9_1, Kind.REDIS_6_2))

GONE = {
    "pending without a record": "pending",
    "delayed without a record": "delayed",
    "in processing without a record": "processing",
    "a dead letter without its contents": "dead",
    "a quarantined message without its bytes": "quarantined",
}
"""Violations after which nothing of a message is left, and whose message that is."""

MOVED = {
    "pending and dead": ("pending", State.PENDING),
    "in processing and quarantined": ("processing", State.PROCESSING),
    "pending and delayed": ("delayed", State.DELAYED),
    "delayed and in processing": ("processing", State.PROCESSING),
    "pending and in processing": ("processing", State.PROCESSING),
    "dead and quarantined": ("dead", State.DEAD),
    "a record of a dead message": ("dead", State.DEAD),
    "dead and pending without a record": ("dead", State.DEAD),
    "a record that is not delayed": ("delayed", State.PENDING),
    "a record that is not pending": ("pending", State.PENDING),
    "neither lease nor state": ("processing", State.PENDING),
    "a dead letter that is not listed": ("dead", State.DEAD),
    "a quarantined message that is not listed": ("quarantined", State.QUARANTINED),
}
"""Where a message stands after its repair."""


async def break_it(store: Store, raw: Redis, how: str) -> Ids:
    ids = await one_of_each(store)
    for step in BREAKS[how][0](raw, store.keys.of(TOPIC), ids):
        await step
    return ids


@pytest.mark.parametrize("how", BREAKS)
async def test_every_violation_is_repaired_and_no_message_is_lost(
    store: Store, raw: Redis, clock: Clock, how: str
) -> None:
    ids = await break_it(store, raw, how)
    admin = Admin(store).as_operator("ann")
    before = await snapshot(raw, TOPIC)
    plan = await admin.repair(TOPIC, dry_run=True)
    assert plan
    assert await snapshot(raw, TOPIC) == before, "a dry run has changed something"

    assert await admin.repair(TOPIC) == plan
    assert await admin.audit(TOPIC) == []
    assert await admin.repair(TOPIC) == []

    gone = GONE.get(how)
    for name, id in ids._asdict().items():
        found = await admin.get(TOPIC, id)
        if name == gone:
            assert found is None
            continue
        assert found is not None
        who, state = MOVED.get(how, ("", None))
        assert found.state == (state if name == who else name)
    assert (await admin.stats(TOPIC)).dropped == bool(gone)

    repaired = {one.id for one in plan if one.id}
    for id in repaired:
        (*_, last) = await admin.history(TOPIC, id)
        assert (last.what, last.by) == ("repaired", "ann")
    await handle_everything(store, clock)
    for name in ("pending", "delayed", "processing"):
        if name != gone:
            assert await admin.get(TOPIC, getattr(ids, name)) is None


@pytest.mark.parametrize("how", LINE_BREAKS)
async def test_every_violation_of_a_line_is_repaired_and_no_message_is_lost(
    store: Store, raw: Redis, clock: Clock, how: str
) -> None:
    ids = await break_a_line(store, raw, how)
    admin = Admin(store).as_operator("ann")
    before = await snapshot(raw, TOPIC)
    plan = await admin.repair(TOPIC, dry_run=True)
    assert await snapshot(raw, TOPIC) == before, "a dry run has changed something"
    done = await admin.repair(TOPIC)
    assert done
    assert {*done} <= {*plan}
    assert await admin.audit(TOPIC) == []
    assert await admin.repair(TOPIC) == []

    gone = {"in line without a record": "pending", "running without a record": "processing"}
    live = {"pending", "delayed", "processing"} - {gone.get(how, "")}
    clock.advance(3_600_000)
    late = await store.handle_timeout_message(TOPIC, "w1", count=9, recovery=1000)
    back = [HandedBack(one) for one in late.messages]
    await store.release_message(TOPIC, "w1", back)
    await store.process_delay_message(TOPIC, count=9)
    handled = []
    for _ in live:  # in strict order: one at a time
        (one,) = await take_in_turn(store, 9, "- - - 1 - - 0")
        assert await store.complete_message(TOPIC, "w1", [one]) == ["1"]
        handled.append(one.id)
    assert sorted(handled) == sorted(getattr(ids, name) for name in live)
    found = await snapshot(raw, TOPIC)
    assert (found.lines, found.ring, found.blocked, found.running) == ([], {}, {}, set())
    assert found.keyed.keys() == {"!"}


async def test_a_message_that_fell_out_of_its_line_gets_its_place_back(
    store: Store, raw: Redis
) -> None:
    keys = store.keys.of(TOPIC)
    ids = await pending(store, 3, key="k")
    before = await snapshot(raw, TOPIC)
    await raw.zrem(keys.lines, before.lines[0])
    await Admin(store).repair(TOPIC)
    assert await snapshot(raw, TOPIC) == before
    assert [one.id for one in await take_in_turn(store, 9)] == ids


async def test_a_line_that_waited_for_a_place_goes_on_after_its_repair(
    store: Store, raw: Redis
) -> None:
    strict = "- - - 1 - - 0"
    (one,) = await leased_in_turn(store, "k", limits=strict, waiting="k")
    keys = store.keys.of(TOPIC)
    assert await store.complete_message(TOPIC, "w1", [one]) == ["1"]
    await raw.zadd(keys.running, {"k\t20000000000000001 1 gone": 0})
    assert await take_in_turn(store, 9, strict) == []
    await raw.delete(keys.doorbell)
    await Admin(store).repair(TOPIC)
    assert await raw.llen(keys.doorbell) == 1
    assert len(await take_in_turn(store, 9, strict)) == 1


async def handle_everything(store: Store, clock: Clock) -> None:
    """Take over, bring up, dispatch and complete whatever lives; each message once."""
    clock.advance(3_600_000)
    late = await store.handle_timeout_message(TOPIC, "m1", count=10, recovery=1000)
    assert await store.complete_message(TOPIC, "m1", late.messages) == ["1"] * len(late.messages)
    await store.process_delay_message(TOPIC, count=10)
    taken = await take(store, 10)
    assert len({one.id for one in taken}) == len(taken)
    assert await store.complete_message(TOPIC, "w1", taken) == ["1"] * len(taken)


async def test_a_lease_without_a_deadline_is_taken_over_at_once(store: Store, raw: Redis) -> None:
    ids = await break_it(store, raw, "a lease without a deadline")
    await Admin(store).repair(TOPIC)
    late = await store.handle_timeout_message(TOPIC, "m1", count=10, recovery=1000)
    assert [(one.id, one.lost_by) for one in late.messages] == [(ids.processing, "w1")]


@pytest.mark.parametrize("how", ["a lease that is no lease", "a lease without a worker"])
async def test_a_lease_that_is_none_is_replaced_and_taken_over(
    store: Store, raw: Redis, how: str
) -> None:
    ids = await break_it(store, raw, how)
    await Admin(store).repair(TOPIC)
    late = await store.handle_timeout_message(TOPIC, "m1", count=10, recovery=1000)
    assert [(one.id, one.lost_by) for one in late.messages] == [(ids.processing, "repair")]


async def test_a_repaired_token_counter_is_ahead_of_every_lease(store: Store, raw: Redis) -> None:
    (held,) = await leased(store)
    for nonsense in ("7", "nonsense", "nan", "-1"):
        await raw.hset(store.keys.of(TOPIC).meta, "token", nonsense)
        assert [one.what for one in await Admin(store).repair(TOPIC)] == ["token counter set"]
        assert await store.audit.topic(TOPIC) == []
    await pending(store)
    (next,) = await take(store)
    assert next.token > held.token


@pytest.mark.parametrize("priority", Priority)
async def test_a_record_without_a_place_goes_to_the_front_of_its_own_priority(
    store: Store, raw: Redis, priority: Priority
) -> None:
    keys = store.keys.of(TOPIC)
    (lost,) = await pending(store, priority=priority)
    for key in (keys.pending_high, keys.pending, keys.pending_low):
        await raw.lrem(key, 0, lost)
    await pending(store, 3, priority=priority)
    await raw.delete(keys.doorbell)
    await Admin(store).repair(TOPIC)
    assert await raw.llen(keys.doorbell) == 1
    assert [one.id for one in await take(store)] == [lost]


async def test_a_message_delayed_twice_keeps_its_earliest_due_time(
    store: Store, raw: Redis, clock: Clock
) -> None:
    (id,) = await delayed(store, 5000)
    await raw.zadd(store.keys.of(TOPIC).delay_tasks_low, {id: clock.now + 1000})
    await Admin(store).repair(TOPIC)
    assert await store.get_next_delay_task(TOPIC) == 1000
    assert await store.audit.topic(TOPIC) == []


async def test_a_mark_without_a_cancelled_place_is_removed(store: Store, raw: Redis) -> None:
    keys = store.keys.of(TOPIC)
    await raw.sadd(keys.cancelled, "nobody")
    await pending(store)
    (found,) = await Admin(store).repair(TOPIC)
    assert (found.id, found.what) == ("nobody", "mark of a cancelled place removed")
    assert not await raw.exists(keys.cancelled)


async def test_the_place_of_a_cancelled_message_stays_marked_when_its_id_is_used_again(
    store: Store, raw: Redis
) -> None:
    """One place is cancelled, the other counts: nothing is wrong, so nothing is done."""
    keys = store.keys.of(TOPIC)
    (id,) = await pending(store)
    await raw.rpush(keys.pending, id)
    await raw.sadd(keys.cancelled, id)
    assert await store.repair_message(TOPIC, id.encode()) == []
    assert await store.audit.topic(TOPIC) == []
    assert [one.id for one in await take(store, 10)] == [id]


async def test_a_message_that_is_right_by_now_is_left_alone(store: Store, raw: Redis) -> None:
    ids = await one_of_each(store)
    before = await snapshot(raw, TOPIC)
    for id in (*ids, "nobody"):
        assert await store.repair_message(TOPIC, id.encode()) == []
    assert await store.repair_topic(TOPIC, least=0) == []
    assert await snapshot(raw, TOPIC) == before


async def test_any_id_can_be_repaired(store: Store, raw: Redis) -> None:
    await pending(store)
    await raw.hset(store.keys.of(TOPIC).payload, b"\xff\n", "x")
    await Admin(store).repair(TOPIC)
    assert await store.audit.topic(TOPIC) == []
    assert {one.record for one in await take(store, 10)} >= {b"x"}


async def test_a_key_of_a_wrong_type_is_left_to_a_person(store: Store, raw: Redis) -> None:
    await one_of_each(store)
    key = store.keys.of(TOPIC).dlq
    async with broken(raw, key):
        (found,) = await Admin(store).repair(TOPIC)
    assert found.what.startswith(f"not repaired: key {key} holds a ")


async def test_a_repair_beside_live_traffic_repairs_only_what_is_wrong(
    raw: Redis, server: Server
) -> None:
    handled: list[str] = []
    async with MessageQueue(server.url, lease=2) as mq, MessageQueue(server.url) as other:

        @mq.handler(TOPIC, retry=0.01)
        async def handle(number: str) -> None:
            handled.append(number)
            if number.endswith("7") and handled.count(number) == 1:
                raise ValueError("again")

        async with Worker(mq, concurrency=50):
            keys, repairs = mq.store.keys.of(TOPIC), []
            for number in range(30):
                await other.produce_many(TOPIC, [f"{number}-{n}" for n in range(20)])
                record = codec.encode(renamed(draft(f"stray-{number}"), f"s{number}"))
                await raw.hset(keys.payload, f"s{number}", record)
                if number % 5 == 4:
                    repairs += await other.admin.repair(TOPIC)
            expected = {f"s{number}" for number in range(30)}
            assert {one.id for one in repairs} == expected
            assert len(repairs) == len(expected)
            await until(lambda: {f"stray-{number}" for number in range(30)} <= {*handled})
            await until(lambda: len(handled) == 30 * 20 + 30 + 30 * 2 + 3)
            await asyncio.sleep(0)
        assert await other.admin.audit(TOPIC) == []
        assert (await other.admin.stats(TOPIC)).total == 0


@pytest.mark.corrupts
@pytest.mark.parametrize("state", [State.DEAD, State.QUARANTINED])
async def test_wrong_bytes_of_an_archive_are_counted_again(
    store: Store, raw: Redis, state: State
) -> None:
    await one_of_each(store)
    admin, keys = Admin(store), store.keys.of(TOPIC)
    right = await raw.hget(keys.archive_bytes, state)
    await raw.hincrby(keys.archive_bytes, state, 1_000)
    assert [one.what for one in await admin.repair(TOPIC)] == [
        "bytes of the archives counted again"
    ]
    assert await admin.audit(TOPIC) == []
    await store.trim_archive(TOPIC, state)
    assert await raw.hget(keys.archive_bytes, state) == right


async def test_a_message_that_is_put_back_expires_at_its_time(store: Store, raw: Redis) -> None:
    keys = store.keys.of(TOPIC)
    (id,) = await pending(store, ttl=60_000)
    expires = await raw.zscore(keys.expiry, id)
    await raw.delete(keys.pending, keys.expiry)
    assert [one.what for one in await Admin(store).repair(TOPIC)] == [
        "put in front of the pending ones",
        "time of expiry set again",
    ]
    assert await raw.zscore(keys.expiry, id) == expires
