"""The scripts that only read, and the views: they look and touch nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq.core.errors import InvalidInput, WrongType
from mx_rmq.core.message import State
from mx_rmq.store.audit_reading import Places
from mx_rmq.store.reads import Counts
from mx_rmq.store.script import load
from tests.lab.archives import ARCHIVES, Archived, archived, find_archived, list_archived
from tests.lab.broken import assert_refused, broken, vital
from tests.lab.messages import TOPIC, Priority, bring, delayed, leased, pending
from tests.lab.snapshot import snapshot

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.store.store import Store
    from tests.lab.clock import Clock

NOWHERE = Places(*[0] * 13)


async def inspect(store: Store, *ids: str | bytes, walk: bool = True) -> list[Places]:
    """Ask where messages stand."""
    reply = await store.run("inspect_message", TOPIC, {"walk": int(walk)}, ids)
    return [Places(*(code - ord("0") for code in counts)) for counts in reply]


async def scan(store: Store, key: str, step: int) -> list[list[bytes]]:
    """Walk the fields of a hash; return what each step found."""
    script = load("scan_fields")
    cursor, steps = b"0", []
    while True:
        args = script.arguments({"cursor": cursor, "step": step})
        cursor, *fields = await store.caller.run(script, [key], args)
        steps.append(fields)
        if cursor == b"0":
            return steps


# inspect_message


@pytest.mark.parametrize("priority", Priority)
async def test_inspect_tells_where_each_message_stands(
    store: Store, raw: Redis, priority: Priority
) -> None:
    (processing,) = await leased(store, priority=priority)
    dead = await bring(store, State.DEAD)
    quarantined = await bring(store, State.QUARANTINED)
    gone = await bring(store, None)
    (waits,) = await pending(store, priority=priority)
    (later,) = await delayed(store, 1000, priority=priority)
    ids = [waits, later, processing.id, dead.id, quarantined.id, gone.id, "unknown"]
    before = await snapshot(raw, TOPIC)
    assert await inspect(store, *ids) == [
        NOWHERE._replace(record=1, pending=1),
        NOWHERE._replace(record=1, delayed=1),
        NOWHERE._replace(record=1, lease=1, deadline=1),
        NOWHERE._replace(dead_index=1, dead_letter=1),
        NOWHERE._replace(quarantine_index=1, quarantined_bytes=1),
        NOWHERE,
        NOWHERE,
    ]
    assert (await inspect(store, waits, walk=False)) == [NOWHERE._replace(record=1)]
    assert await snapshot(raw, TOPIC) == before


@pytest.mark.corrupts
async def test_inspect_counts_every_place_and_pending_up_to_two(store: Store, raw: Redis) -> None:
    keys = store.keys.of(TOPIC)
    (id,) = await pending(store)
    for key in (keys.pending_high, keys.pending, keys.pending_low):
        await raw.rpush(key, id, "other", id)
    for key in (keys.delay_tasks_high, keys.delay_tasks, keys.delay_tasks_low):
        await raw.zadd(key, {id: 1})
    assert await inspect(store, id, "other") == [
        NOWHERE._replace(record=1, pending=2, delayed=3),
        NOWHERE._replace(pending=2),
    ]


@pytest.mark.corrupts
async def test_inspect_finds_any_bytes_and_many_of_them(store: Store, raw: Redis) -> None:
    ids = [b"\xff\xfe", b"a b", b"a\nb", b"\0", *(b"id-%d" % number for number in range(500))]
    await raw.rpush(store.keys.of(TOPIC).pending, *ids)
    assert await inspect(store, *ids) == [NOWHERE._replace(pending=1)] * len(ids)


async def test_inspect_of_nothing_says_nothing(store: Store) -> None:
    assert await inspect(store) == []
    assert await inspect(store, "unknown", "") == [NOWHERE] * 2


async def test_inspect_names_a_key_of_a_wrong_type(store: Store, raw: Redis) -> None:
    (id,) = await pending(store, key="k")
    for name in load("inspect_message").keys:
        await assert_refused(store, raw, name, lambda: inspect(store, id))


# scan_fields


@pytest.mark.parametrize("count", [0, 1, 10, 3000])
async def test_scan_finds_every_field_in_steps_and_leaves_the_values_behind(
    store: Store, raw: Redis, count: int
) -> None:
    key = store.keys.of(TOPIC).payload
    fields: dict[Any, bytes] = {b"\xff id-%d" % number: b"x" * 100 for number in range(count)}
    if fields:
        await raw.hset(key, mapping=fields)
    steps = await scan(store, key, 100)
    assert {field for step in steps for field in step} == fields.keys()
    assert max(len(step) for step in steps) <= 300
    assert len(steps) >= count / 300
    assert await raw.hlen(key) == count


async def test_scan_names_a_key_of_a_wrong_type(store: Store, raw: Redis) -> None:
    key = store.keys.of(TOPIC).payload
    async with broken(raw, key):
        with pytest.raises(WrongType, match=rf"scan_fields: key {key} holds a set, not a hash"):
            await scan(store, key, 100)


# weigh_fields


async def test_fields_are_weighed_whatever_they_are_called(store: Store, raw: Redis) -> None:
    key, script = store.keys.of(TOPIC).payload, load("weigh_fields")
    await raw.hset(key, mapping={b"\xff": b"x" * 5, "a b": b"", "c": b"\xc3\xa4" * 1000})
    for asked, weights in (
        ([b"\xff", b"a b", b"c", b"none", b"c"], [5, 0, 2000, 0, 2000]),
        ([b"none"] * 1000, [0] * 1000),
        ([], []),
    ):
        args = script.arguments({}, asked)
        assert await store.caller.run(script, [key], args) == weights


async def test_weigh_names_a_key_of_a_wrong_type(store: Store, raw: Redis) -> None:
    key, script = store.keys.of(TOPIC).payload, load("weigh_fields")
    async with broken(raw, key):
        with pytest.raises(WrongType, match=rf"weigh_fields: key {key} holds a set, not a hash"):
            await store.caller.run(script, [key], script.arguments({}, [b"a"]))


# count_messages


async def test_a_topic_is_counted_state_by_state(store: Store, raw: Redis) -> None:
    assert await store.views.counts(TOPIC) == Counts(0, 0, 0, 0, 0, 0, 0, 0, None, None, {})
    await leased(store, 4)
    await archived(store, State.DEAD, 5)
    await archived(store, State.QUARANTINED, 6)
    await bring(store, State.COMPLETED)
    for count, priority in enumerate(Priority, 1):
        await pending(store, count, priority=priority)
        await delayed(store, 1000, 10 * count, priority=priority)
    before = await snapshot(raw, TOPIC)
    assert await store.views.counts(TOPIC) == Counts(
        pending=6,
        delayed=60,
        processing=4,
        dead=5,
        quarantined=6,
        completed=1,
        paused=0,
        dropped=0,
        delayed_overdue=None,
        lease_overdue=None,
        ever={
            "produced": 22,
            "delayed": 60,
            "dispatched": 16,
            "died": 5,
            "quarantined": 6,
            "completed": 1,
            "kept": 1,
        },
        dead_bytes=sum(len(data) + 200 for data in before.dead_letters.values()),
        quarantined_bytes=sum(len(data) + 200 for data in before.quarantined.values()),
        completed_bytes=sum(len(data) + 200 for data in before.results.values()),
    )
    assert await snapshot(raw, TOPIC) == before
    assert await store.views.counts("unused") == Counts(0, 0, 0, 0, 0, 0, 0, 0, None, None, {})


async def test_the_counts_tell_of_a_pause_and_of_dropped_ids(store: Store, raw: Redis) -> None:
    await pending(store)
    await raw.rpush(store.keys.of(TOPIC).pending, "ghost", "ghost")
    await store.dispatch_message(TOPIC, "w1", count=10, lease=1000)
    await store.pause_topic(TOPIC)
    counts = await store.views.counts(TOPIC)
    assert (counts.pending, counts.processing) == (0, 1)
    assert (counts.paused, counts.dropped) == (1, 2)
    await store.resume_topic(TOPIC)
    assert (await store.views.counts(TOPIC)).paused == 0


async def test_the_counts_tell_for_how_long_something_is_overdue(
    store: Store, clock: Clock
) -> None:
    await leased(store, lease=5000)
    await leased(store, lease=9000)
    await delayed(store, 7000, priority=Priority.LOW)
    await delayed(store, 8000)
    seen = []
    for ms in (4999, 1, 2000, 500):
        clock.advance(ms)
        counts = await store.views.counts(TOPIC)
        seen.append((counts.lease_overdue, counts.delayed_overdue))
    assert seen == [(None, None), (0, None), (2000, 0), (2500, 500)]


async def test_the_counts_name_a_key_of_a_wrong_type(store: Store, raw: Redis) -> None:
    await leased(store)
    for name in vital("count_messages"):
        await assert_refused(store, raw, name, lambda: store.views.counts(TOPIC))


# views


async def test_every_topic_that_was_produced_to_is_listed(store: Store) -> None:
    assert await store.views.topics() == []
    await bring(store, None)
    await store.pause_topic("only-paused")
    assert await store.views.topics() == [TOPIC]


async def test_the_record_of_a_live_message_can_be_read(store: Store) -> None:
    (one,) = await leased(store)
    assert await store.views.record(TOPIC, one.id) == one.record
    assert await store.views.record(TOPIC, "unknown") is None
    assert await store.views.record("unused", one.id) is None


@pytest.mark.parametrize("state", ARCHIVES)
async def test_an_archive_is_read_in_pages_newest_first(
    store: Store, raw: Redis, clock: Clock, state: State
) -> None:
    assert await list_archived(store, TOPIC, state) == []
    began = clock.now
    ids = await archived(store, state, 7, clock=clock)
    found = await snapshot(raw, TOPIC)
    kept = found.dead_letters if state is State.DEAD else found.quarantined
    whole = [Archived(id, began + at, kept[id]) for at, id in enumerate(ids, 1)][::-1]
    assert await list_archived(store, TOPIC, state) == whole
    pages = [await list_archived(store, TOPIC, state, start=at, count=3) for at in (0, 3, 6, 9)]
    assert pages == [whole[:3], whole[3:6], whole[6:], []]
    assert await find_archived(store, TOPIC, state, ids[0]) == whole[-1]
    assert await find_archived(store, TOPIC, state, "unknown") is None


@pytest.mark.corrupts
@pytest.mark.parametrize("state", ARCHIVES)
async def test_an_entry_whose_bytes_are_gone_is_not_shown(
    store: Store, raw: Redis, state: State
) -> None:
    gone, stays = await archived(store, state, 2)
    _, payload = store.keys.of(TOPIC).archive_of(state)
    await raw.hdel(payload, gone)
    assert [entry.id for entry in await list_archived(store, TOPIC, state)] == [stays]
    assert await find_archived(store, TOPIC, state, gone) is None


@pytest.mark.parametrize("state", [State.PENDING, State.DELAYED, State.PROCESSING])
async def test_only_archives_can_be_searched_for_an_id(store: Store, state: State) -> None:
    with pytest.raises(InvalidInput, match="has no archive; only dead"):
        await find_archived(store, TOPIC, state, "id")
