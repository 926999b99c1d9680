"""pending | delayed -> (gone)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq.core.errors import QueueFull
from mx_rmq.core.message import State
from mx_rmq.settings import Limits
from mx_rmq.store import operator_calls as operating
from mx_rmq.store.results import Settled
from tests.lab.broken import assert_refused, vital
from tests.lab.calls import resend_next
from tests.lab.messages import (
    TOPIC,
    Priority,
    bring,
    delayed,
    draft,
    leased,
    pending,
    renamed,
    settle,
    take,
)
from tests.lab.snapshot import Snapshot, snapshot

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.store.store import Store
    from tests.lab.clock import Clock

LISTS = {Priority.HIGH: "high", Priority.NORMAL: "normal", Priority.LOW: "low"}
SETS = {Priority.HIGH: "delayed_high", Priority.NORMAL: "delayed", Priority.LOW: "delayed_low"}


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a place be deep in a list that is not the first or the last."""
    monkeypatch.setattr(operating, "WALK", 1)


def freed(clock: Clock, *ids: str) -> dict[str, int]:
    """Return how it is remembered that these generated ids may be produced again."""
    return {f"!{id}": clock.now + 1_800_000 for id in ids}


def without(found: Snapshot, id: str) -> dict[str, bytes]:
    """Return the records of all others."""
    return {other: record for other, record in found.records.items() if other != id}


@pytest.mark.parametrize("place", [0, 2, 4])
@pytest.mark.parametrize("priority", Priority)
async def test_one_of_many_pending_ones_is_gone_and_the_rest_keeps_its_order(
    store: Store, raw: Redis, clock: Clock, priority: Priority, place: int
) -> None:
    waiting = {level: await pending(store, 5, priority=level) for level in Priority}
    await delayed(store, 1000, 2, priority=priority)
    before = await snapshot(raw, TOPIC)
    id = waiting[priority].pop(place)
    assert await store.cancel_message(TOPIC, id) is Settled.DONE
    rest: dict[str, Any] = {LISTS[priority]: waiting[priority], "recent": freed(clock, id)}
    assert await snapshot(raw, TOPIC) == replace(before, records=without(before, id), **rest)
    taken = [one.id for one in await take(store, 100)]
    assert [one for one in taken if one in waiting[priority]] == waiting[priority]


@pytest.mark.parametrize("priority", Priority)
async def test_one_of_many_delayed_ones_is_gone_and_the_rest_keeps_its_time(
    store: Store, raw: Redis, clock: Clock, priority: Priority
) -> None:
    for level in Priority:
        await pending(store, 2, priority=level)
    waiting = {level: await delayed(store, 1000, 3, priority=level) for level in Priority}
    before = await snapshot(raw, TOPIC)
    id = waiting[priority].pop(1)
    assert await store.cancel_message(TOPIC, id) is Settled.DONE
    rest: dict[str, Any] = {SETS[priority]: dict.fromkeys(waiting[priority], clock.now + 1000)}
    rest["recent"] = freed(clock, id)
    assert await snapshot(raw, TOPIC) == replace(before, records=without(before, id), **rest)
    clock.advance(1000)
    assert id not in await store.process_delay_message(TOPIC, count=100)


async def test_the_last_message_leaves_an_empty_topic(
    store: Store, raw: Redis, clock: Clock
) -> None:
    ids = [*await pending(store), *await delayed(store, 1000), *await pending(store, id="own")]
    for id in ids:
        assert await store.cancel_message(TOPIC, id) is Settled.DONE
    left = Snapshot(rung=True, rung_delay=True, recent=freed(clock, *ids[:2]))
    assert await snapshot(raw, TOPIC) == left
    assert await take(store) == []


@pytest.mark.parametrize("how", ["retried", "released", "requeued"])
async def test_a_message_that_waits_again_can_be_cancelled(
    store: Store, raw: Redis, clock: Clock, how: str
) -> None:
    if how == "requeued":
        one = await bring(store, State.DEAD)
        again = renamed(draft(priority=Priority.LOW), one.id)
        await store.requeue_message(TOPIC, State.DEAD, one.id, archived=clock.now, message=again)
    else:
        one = await bring(store, State.DELAYED if how == "retried" else State.PENDING)
    assert await store.cancel_message(TOPIC, one.id) is Settled.DONE
    found = await snapshot(raw, TOPIC)
    assert (found.records, found.normal, found.low, found.delayed) == ({}, [], [], {})


async def test_a_message_in_processing_stays_with_its_worker(store: Store, raw: Redis) -> None:
    (one,) = await leased(store)
    before = await snapshot(raw, TOPIC)
    answer = await store.cancel_message(TOPIC, one.id)
    assert answer is Settled.PROCESSING
    assert not answer
    assert await snapshot(raw, TOPIC) == before


@pytest.mark.parametrize("state", [None, State.DEAD, State.QUARANTINED])
async def test_a_message_that_does_not_wait_is_not_there_to_cancel(
    store: Store, raw: Redis, state: State | None
) -> None:
    one = await bring(store, state)
    await pending(store, 3)
    before = await snapshot(raw, TOPIC)
    for id in (one.id, "unknown", "", "\0", "a b"):
        assert await store.cancel_message(TOPIC, id) is Settled.LOST
    assert await snapshot(raw, TOPIC) == before
    assert await store.cancel_message("unused", one.id) is Settled.LOST
    assert await snapshot(raw, "unused") == Snapshot()


@pytest.mark.parametrize("wait", [0, 1000])
async def test_the_same_call_again_is_told_that_it_was_done(
    store: Store, raw: Redis, wait: int
) -> None:
    (id,) = await (delayed(store, wait) if wait else pending(store))
    resend_next(store, raw)
    assert await store.cancel_message(TOPIC, id) is Settled.REPEATED


@pytest.mark.parametrize("state", [None, *State])
async def test_the_same_call_again_spares_a_new_message_with_the_same_id(
    store: Store, raw: Redis, clock: Clock, state: State | None
) -> None:
    await pending(store, id="own")

    async def come_again() -> None:
        clock.advance(120_000)
        await bring(store, state, id="own")

    resend_next(store, raw, between=come_again)
    assert await store.cancel_message(TOPIC, "own") is Settled.REPEATED


async def test_a_refused_call_that_comes_again_spares_what_waits_meanwhile(
    store: Store, raw: Redis
) -> None:
    (one,) = await leased(store)
    resend_next(store, raw, between=lambda: settle(store, one, State.PENDING))
    assert await store.cancel_message(TOPIC, one.id) is Settled.PROCESSING


async def test_a_message_that_was_in_processing_can_be_cancelled_when_it_waits_again(
    store: Store, raw: Redis
) -> None:
    (one,) = await leased(store)
    assert await store.cancel_message(TOPIC, one.id) is Settled.PROCESSING
    await settle(store, one, State.PENDING)
    assert await store.cancel_message(TOPIC, one.id) is Settled.DONE
    assert (await snapshot(raw, TOPIC)).normal == []


@pytest.mark.corrupts
async def test_an_id_without_a_record_is_left_to_dispatch(store: Store, raw: Redis) -> None:
    (id,) = await pending(store)
    await raw.delete(store.keys.of(TOPIC).payload)
    before = await snapshot(raw, TOPIC)
    assert await store.cancel_message(TOPIC, id) is Settled.LOST
    assert await snapshot(raw, TOPIC) == before


async def test_a_paused_topic_does_not_matter(store: Store, raw: Redis) -> None:
    ids = [*await pending(store), *await delayed(store, 1000)]
    await store.pause_topic(TOPIC)
    for id in ids:
        assert await store.cancel_message(TOPIC, id) is Settled.DONE
    assert (await snapshot(raw, TOPIC)).records == {}


async def test_a_key_of_a_wrong_type_is_named_and_nothing_is_half_written(
    store: Store, raw: Redis
) -> None:
    for priority in Priority:
        await delayed(store, 1000, priority=priority)
    ids = [*await pending(store), *await delayed(store, 1000)]
    for id in ids:
        for name in vital("cancel_message"):
            await assert_refused(store, raw, name, partial(store.cancel_message, TOPIC, id))
        assert await store.cancel_message(TOPIC, id) is Settled.DONE


# where many wait


async def test_where_many_wait_a_cancelled_one_is_left_to_dispatch_and_is_no_accident(
    store: Store, raw: Redis, many: None
) -> None:
    ids = await pending(store, 6)
    for id in ids[::2]:
        resend_next(store, raw)
        assert await store.cancel_message(TOPIC, id) is Settled.REPEATED
        assert await store.cancel_message(TOPIC, id) is Settled.LOST
    assert await raw.scard(store.keys.of(TOPIC).cancelled) == 2  # the first was at an end
    counts = await store.views.counts(TOPIC)
    assert (counts.pending, counts.ever["cancelled"]) == (3, 3)
    assert await store.audit.topic(TOPIC) == []
    assert len(await store.views.pages.next_records(TOPIC)) == 1
    assert [one.id for one in await take(store, 10)] == ids[1::2]
    await assert_all_passed_over(store, raw)


async def assert_all_passed_over(store: Store, raw: Redis) -> None:
    counts = await store.views.counts(TOPIC)
    assert (counts.pending, counts.dropped) == (0, 0)
    assert not await raw.exists(store.keys.of(TOPIC).cancelled)
    assert await store.audit.topic(TOPIC) == []


@pytest.fixture
async def old_place(store: Store, many: None) -> list[str]:
    """The message "own" was cancelled deep in a list; its id may be used again. The others wait."""
    ids = await pending(store, 3)
    await pending(store, id="own")
    ids += await pending(store, 3)
    assert await store.cancel_message(TOPIC, "own") is Settled.DONE
    return ids


async def test_an_id_that_comes_again_is_run_once_and_in_its_turn(
    store: Store, raw: Redis, old_place: list[str]
) -> None:
    await pending(store, id="own")
    assert (await store.views.counts(TOPIC)).pending == 7
    assert await store.audit.topic(TOPIC) == []
    assert [one.id for one in await take(store, 100)] == [*old_place, "own"]
    await assert_all_passed_over(store, raw)


async def test_an_id_that_comes_again_with_another_priority_is_run_once(
    store: Store, raw: Redis, old_place: list[str]
) -> None:
    await pending(store, id="own", priority=Priority.HIGH)
    taken = [one.id for one in await take(store, 100)]
    assert [id for id in taken if id != "own"] == old_place
    assert taken.count("own") == 1
    await assert_all_passed_over(store, raw)


async def test_an_id_that_comes_again_with_a_delay_is_not_taken_for_the_old_one(
    store: Store, raw: Redis, old_place: list[str]
) -> None:
    await delayed(store, 3_600_000, id="own")
    assert [one.id for one in await take(store, 100)] == old_place
    assert (await store.views.counts(TOPIC)).delayed == 1
    await assert_all_passed_over(store, raw)


async def test_an_id_that_is_cancelled_again_has_one_old_place_still(
    store: Store, raw: Redis, old_place: list[str]
) -> None:
    await pending(store, id="own")
    old_place += await pending(store, 3)
    assert await store.cancel_message(TOPIC, "own") is Settled.DONE
    counts = await store.views.counts(TOPIC)
    assert counts.pending == 9
    assert await store.audit.topic(TOPIC) == []
    assert [one.id for one in await take(store, 100)] == old_place
    await assert_all_passed_over(store, raw)


async def test_many_old_places_are_passed_over_in_one_call_and_the_rest_keeps_its_order(
    store: Store, raw: Redis, many: None
) -> None:
    ids = await pending(store, 150)
    for id in ids[1:99]:
        await store.cancel_message(TOPIC, id)
    assert [one.id for one in await take(store, 1)] == [ids[0]]
    assert [one.id for one in await take(store, 1)] == [ids[99]]
    assert [one.id for one in await take(store, 100)] == ids[100:]
    await assert_all_passed_over(store, raw)


async def test_where_all_places_are_old_ones_they_go_too(
    store: Store, raw: Redis, many: None
) -> None:
    ids = await pending(store, 300)
    for id in [*ids[1:-1], ids[0], ids[-1]]:
        await store.cancel_message(TOPIC, id)
    assert (await store.views.counts(TOPIC)).pending == 0
    for _ in range(4):
        assert await take(store, 1) == []
    await assert_all_passed_over(store, raw)


async def test_a_cap_does_not_count_old_places(store: Store, raw: Redis, many: None) -> None:
    ids = await pending(store, 10)
    for id in ids[1:-1]:
        await store.cancel_message(TOPIC, id)
    store.limits = Limits(max_pending=4)
    await pending(store)
    await delayed(store, 1000)
    with pytest.raises(QueueFull):
        await pending(store)


async def test_a_delayed_one_is_taken_out_at_once_however_many_wait(
    store: Store, raw: Redis, many: None
) -> None:
    await pending(store, 6)
    (id,) = await delayed(store, 1000)
    assert await store.cancel_message(TOPIC, id) is Settled.DONE
    assert (await snapshot(raw, TOPIC)).delayed == {}
    assert not await raw.exists(store.keys.of(TOPIC).cancelled)


@pytest.mark.corrupts
async def test_the_audit_names_a_cancelled_place_that_is_not_there(
    store: Store, raw: Redis
) -> None:
    await pending(store)
    await raw.sadd(store.keys.of(TOPIC).cancelled, "nobody")
    (wrong,) = await store.audit.topic(TOPIC)
    assert str(wrong) == "orders: nobody: marked as cancelled in the pending list, but not there"


async def test_an_audit_walks_no_list_because_places_are_passed_over_meanwhile(
    store: Store, raw: Redis, many: None
) -> None:
    ids = await pending(store, 600)
    for id in [*ids[1:-1], ids[0], ids[-1]]:
        await store.cancel_message(TOPIC, id)
    await raw.config_resetstat()

    async def pass_over() -> None:
        while await raw.exists(store.keys.of(TOPIC).cancelled):
            assert await take(store, 1) == []

    violations, _ = await asyncio.gather(store.audit.topic(TOPIC), pass_over())
    assert violations == []
    assert "cmdstat_lpos" not in await raw.info("commandstats")
