"""process_delay_message: delayed -> pending"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.message import State
from mx_rmq.store.arguments import MAX_BATCH
from tests.lab.broken import assert_refused, broken, key_named, vital
from tests.lab.calls import resend_next
from tests.lab.messages import (
    TOPIC,
    Priority,
    delayed,
    draft,
    drafts,
    leased_in_turn,
    pending,
    settle,
    take,
)
from tests.lab.snapshot import snapshot
from tests.store.contracts import ONE_SERVER

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.store.store import Store
    from tests.lab.clock import Clock

LEVELS = ["delay_tasks_high", "delay_tasks", "delay_tasks_low"]
TARGETS = ["pending_high", "pending", "pending_low"]


async def process(store: Store, count: int = MAX_BATCH) -> list[str]:
    return await store.process_delay_message(TOPIC, count=count)


async def test_what_is_due_moves_behind_those_that_are_pending_the_earliest_first(
    store: Store, raw: Redis, clock: Clock
) -> None:
    (waiting,) = await pending(store)
    (third,) = await delayed(store, 30)
    (first,) = await delayed(store, 10)
    (second,) = await delayed(store, 20)
    (later,) = await delayed(store, 31)
    before = await snapshot(raw, TOPIC)
    now = clock.advance(30)
    assert await process(store) == [first, second, third]
    assert await snapshot(raw, TOPIC) == replace(
        before, normal=[waiting, first, second, third], delayed={later: now + 1}
    )
    clock.advance(1)
    assert await process(store) == [later]


async def test_each_message_moves_to_its_own_level(store: Store, raw: Redis, clock: Clock) -> None:
    ids = {level: (await delayed(store, 1, priority=level))[0] for level in reversed(Priority)}
    clock.advance(1)
    assert await process(store) == [ids[level] for level in Priority]
    found = await snapshot(raw, TOPIC)
    assert (found.high, found.normal, found.low) == tuple([ids[level]] for level in Priority)


@pytest.mark.parametrize("later", [0, 1])
async def test_nothing_due_changes_nothing(store: Store, raw: Redis, later: int) -> None:
    if later:
        await delayed(store, later)
    before = await snapshot(raw, TOPIC)
    assert await process(store) == []
    assert await snapshot(raw, TOPIC) == before


async def test_a_full_batch_of_every_level_moves_in_one_call(
    store: Store, raw: Redis, clock: Clock
) -> None:
    for level in Priority:
        await delayed(store, 1, MAX_BATCH, priority=level)
        await delayed(store, 1, 1, priority=level)
    clock.advance(1)
    assert len(set(await process(store))) == 3 * MAX_BATCH
    assert len(set(await process(store))) == 3
    assert (await store.views.counts(TOPIC)).pending == 3 * (MAX_BATCH + 1)


async def test_no_more_than_asked_for_move_of_each_level(
    store: Store, raw: Redis, clock: Clock
) -> None:
    for delay in (3, 2, 1):
        for level in Priority:
            await delayed(store, delay, id=f"{level}-{delay}", priority=level)
    clock.advance(3)
    assert await process(store, 2) == [f"{p}-{delay}" for p in Priority for delay in (1, 2)]
    assert await process(store, 2) == [f"{p}-3" for p in Priority]


@ONE_SERVER
@pytest.mark.parametrize("count", [0, -1, MAX_BATCH + 1, True, 1.0])
async def test_a_bad_count_is_refused(store: Store, raw: Redis, count: Any) -> None:
    await delayed(store, 0)
    before = await snapshot(raw, TOPIC)
    with pytest.raises(InvalidInput, match=r"count=.* is not a whole number"):
        await process(store, count)
    assert await snapshot(raw, TOPIC) == before


async def test_an_absolute_time_in_the_past_is_due_at_once_and_first(
    store: Store, clock: Clock
) -> None:
    drafts = [draft(id="now"), draft(id="past", at=clock.now - 1), draft(id="ages", at=1)]
    await store.produce_delay_message(TOPIC, drafts)
    assert await process(store) == ["ages", "past", "now"]
    assert [one.id for one in await take(store, 3)] == ["ages", "past", "now"]


async def test_the_doorbell_is_rung_once_and_only_if_something_moved(
    store: Store, raw: Redis, clock: Clock
) -> None:
    doorbell = store.keys.of(TOPIC).doorbell
    for delay in (1, 2):
        await delayed(store, delay)
        clock.advance(delay)
        await process(store)
        assert await raw.llen(doorbell) == 1
    await raw.delete(doorbell)
    (gone,) = await delayed(store, 0)
    await raw.hdel(store.keys.of(TOPIC).payload, gone)
    await process(store)
    assert await raw.llen(doorbell) == 0


async def test_a_repeated_call_moves_nothing_twice(store: Store, raw: Redis, clock: Clock) -> None:
    due = await delayed(store, 1, 3)
    clock.advance(1)
    resend_next(store, raw)
    assert await process(store) == []
    assert sorted((await snapshot(raw, TOPIC)).normal) == sorted(due)


async def test_a_repeated_call_leaves_alone_what_was_dispatched_in_between(
    store: Store, raw: Redis, clock: Clock
) -> None:
    await delayed(store, 1, 2)
    clock.advance(1)
    resend_next(store, raw, between=partial(take, store))
    assert await process(store) == []


async def test_a_paused_topic_does_not_matter(store: Store, clock: Clock) -> None:
    due = await delayed(store, 1)
    await store.pause_topic(TOPIC)
    clock.advance(1)
    assert await process(store) == due
    assert await take(store) == []


async def test_an_id_without_a_record_is_dropped_and_counted_the_rest_moves(
    store: Store, raw: Redis, clock: Clock
) -> None:
    ids = [(await delayed(store, delay))[0] for delay in (1, 2, 3)]
    await raw.hdel(store.keys.of(TOPIC).payload, ids[1])
    await raw.zadd(store.keys.of(TOPIC).delay_tasks_low, {b"\xff\x00": 1})
    clock.advance(3)
    assert await process(store) == [ids[0], ids[2]]
    found = await snapshot(raw, TOPIC)
    assert (found.normal, found.delayed, found.delayed_low) == ([ids[0], ids[2]], {}, {})
    assert found.meta == {"dropped": "2"}


async def test_an_id_of_any_bytes_moves(store: Store, raw: Redis) -> None:
    await delayed(store, 1000)
    await raw.hset(store.keys.of(TOPIC).payload, b"\xff\x00", b"record")
    await raw.zadd(store.keys.of(TOPIC).delay_tasks, {b"\xff\x00": 1})
    assert await process(store) == ["\udcff\x00"]
    assert await raw.lrange(store.keys.of(TOPIC).pending, 0, -1) == [b"\xff\x00"]


async def test_a_counter_that_is_no_number_does_not_tear_the_move(store: Store, raw: Redis) -> None:
    (gone,), (due,) = await delayed(store, 0), await delayed(store, 0)
    await raw.hdel(store.keys.of(TOPIC).payload, gone)
    await raw.hset(store.keys.of(TOPIC).meta, "dropped", "nonsense")
    assert await process(store) == [due]
    found = await snapshot(raw, TOPIC)
    assert (found.normal, found.rung, found.meta) == ([due], True, {"dropped": "1"})


@pytest.mark.parametrize("side", [LEVELS, TARGETS])
@pytest.mark.parametrize("level", range(3))
async def test_a_level_with_a_key_of_a_wrong_type_is_passed_over(
    store: Store, raw: Redis, clock: Clock, side: list[str], level: int
) -> None:
    due = [(await delayed(store, 1, priority=priority))[0] for priority in Priority]
    clock.advance(1)
    async with broken(raw, key_named(store, side[level])):
        assert await process(store) == due[:level] + due[level + 1 :]
    assert await process(store) == [due[level]]


async def test_another_key_of_a_wrong_type_is_named_and_nothing_is_changed(
    store: Store, raw: Redis, clock: Clock
) -> None:
    await store.produce_normal_message(TOPIC, drafts(1))
    await take(store)
    due = await delayed(store, 1, 2)
    clock.advance(1)
    for name in vital("process_delay_message"):
        if name not in LEVELS + TARGETS:
            await assert_refused(store, raw, name, partial(process, store))
    assert sorted(await process(store)) == sorted(due)


@pytest.mark.parametrize("strict", [False, True])
async def test_nothing_of_a_keyed_message_without_a_record_is_left(
    store: Store, raw: Redis, clock: Clock, strict: bool
) -> None:
    if strict:
        (one,) = await leased_in_turn(store, "k", limits="- - - 1 - - 0")
        await settle(store, one, State.DELAYED)
        id = one.id
    else:
        (id,) = await delayed(store, 1000, key="k")
    await raw.hdel(store.keys.of(TOPIC).payload, id)
    clock.advance(1000)
    assert await store.process_delay_message(TOPIC, count=9) == []
    found = await snapshot(raw, TOPIC)
    assert (found.running, found.keyed.keys() - {"!"}, found.delayed) == (set(), set(), {})
