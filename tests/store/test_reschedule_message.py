"""pending | delayed -> delayed | pending."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq.core import codec
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.message import State
from mx_rmq.store import operator_calls as operating
from mx_rmq.store.results import Settled
from tests.lab.broken import assert_refused, vital
from tests.lab.calls import resend_next
from tests.lab.messages import (
    TOPIC,
    Priority,
    bring,
    delayed,
    leased,
    message,
    pending,
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


async def reschedule(store: Store, id: str, **due: Any) -> Settled:
    record = await store.views.record(TOPIC, id) or b""
    return await store.reschedule_message(TOPIC, message=codec.decode(record), seen=record, **due)


def ready_at(found: Snapshot, id: str) -> int | None:
    return codec.decode(found.records[id], TOPIC, id).ready_at


@pytest.mark.parametrize("priority", Priority)
@pytest.mark.parametrize("absolute", [False, True])
async def test_a_pending_message_waits_for_its_due_time(
    store: Store, raw: Redis, clock: Clock, priority: Priority, absolute: bool
) -> None:
    first, id, last = await pending(store, 3, priority=priority, ttl=90_000)
    before = await snapshot(raw, TOPIC)
    due = clock.now + 5000
    when = {"at": due} if absolute else {"delay": 5000}
    assert await reschedule(store, id, **when) is Settled.DONE
    after = await snapshot(raw, TOPIC)
    moved: dict[str, Any] = {LISTS[priority]: [first, last], SETS[priority]: {id: due}}
    records = {**before.records, id: after.records[id]}
    assert after == replace(before, records=records, rung_delay=True, **moved)
    assert ready_at(after, id) == due
    clock.advance(4999)
    assert await store.process_delay_message(TOPIC, count=9) == []
    clock.advance(1)
    assert await store.process_delay_message(TOPIC, count=9) == [id]
    assert [one.id for one in await take(store, 9)] == [first, last, id]


@pytest.mark.parametrize("delay", [1, 500, 5000])
async def test_a_delayed_message_gets_another_due_time(
    store: Store, raw: Redis, clock: Clock, delay: int
) -> None:
    (id,) = await delayed(store, 1000)
    clock.advance(100)
    assert await reschedule(store, id, delay=delay) is Settled.DONE
    found = await snapshot(raw, TOPIC)
    assert found.delayed == {id: clock.now + delay}
    assert ready_at(found, id) == clock.now + delay


@pytest.mark.parametrize("past", [None, 0, -1])
@pytest.mark.parametrize("priority", Priority)
async def test_a_delayed_message_that_is_due_now_is_pending_behind_the_others(
    store: Store, raw: Redis, clock: Clock, priority: Priority, past: int | None
) -> None:
    (other,) = await pending(store, priority=priority)
    (id,) = await delayed(store, 1000, priority=priority, ttl=2000)
    clock.advance(100)
    await raw.delete(store.keys.of(TOPIC).doorbell)
    when = {"delay": 0} if past is None else {"at": clock.now + past}
    assert await reschedule(store, id, **when) is Settled.DONE
    found = await snapshot(raw, TOPIC)
    assert getattr(found, LISTS[priority]) == [other, id]
    assert getattr(found, SETS[priority]) == {}
    assert found.rung
    assert found.expiries == {id: clock.now - 100 + 2000}
    assert ready_at(found, id) == clock.now


async def test_a_pending_message_that_is_due_now_keeps_its_place(store: Store, raw: Redis) -> None:
    ids = await pending(store, 3)
    before = await snapshot(raw, TOPIC)
    assert await reschedule(store, ids[0], delay=0) is Settled.DONE
    assert await snapshot(raw, TOPIC) == before


async def test_the_scheduler_is_rung_only_for_an_earlier_due_time(
    store: Store, raw: Redis, clock: Clock
) -> None:
    (first,) = await delayed(store, 1000)
    (second,) = await delayed(store, 5000)
    bell = store.keys.of(TOPIC).doorbell_delay
    for id, delay, rung in ((second, 2000, 0), (second, 500, 1), (first, 900, 0)):
        await raw.delete(bell)
        await reschedule(store, id, delay=delay)
        assert await raw.llen(bell) == rung


async def test_a_failed_message_waits_from_its_new_due_time_on(
    store: Store, raw: Redis, clock: Clock
) -> None:
    one = await bring(store, State.DELAYED)
    assert await reschedule(store, one.id, delay=7000) is Settled.DONE
    found = await snapshot(raw, TOPIC)
    assert ready_at(found, one.id) == clock.now + 7000
    kept = codec.decode(found.records[one.id])
    assert (kept.attempts, len(kept.errors), kept.payload) == (1, 1, message(one).payload)


async def test_a_message_in_processing_stays_with_its_worker(store: Store, raw: Redis) -> None:
    (one,) = await leased(store)
    before = await snapshot(raw, TOPIC)
    assert await reschedule(store, one.id, delay=5) is Settled.PROCESSING
    assert await snapshot(raw, TOPIC) == before


@pytest.mark.parametrize("state", [None, State.DEAD, State.QUARANTINED])
async def test_a_message_that_does_not_wait_is_not_there(
    store: Store, raw: Redis, state: State | None
) -> None:
    one = await bring(store, state)
    before = await snapshot(raw, TOPIC)
    answer = await store.reschedule_message(TOPIC, message=message(one), seen=one.record, delay=5)
    assert answer is Settled.LOST
    assert await snapshot(raw, TOPIC) == before


async def test_a_record_that_has_changed_since_is_left_alone(store: Store, raw: Redis) -> None:
    one = await bring(store, State.DELAYED)
    before = await snapshot(raw, TOPIC)
    answer = await store.reschedule_message(TOPIC, message=message(one), seen=one.record, delay=5)
    assert answer is Settled.CHANGED
    assert await snapshot(raw, TOPIC) == before


async def test_a_paused_topic_lets_it_wait(store: Store, raw: Redis, clock: Clock) -> None:
    (id,) = await pending(store)
    await store.pause_topic(TOPIC)
    assert await reschedule(store, id, delay=5) is Settled.DONE
    assert (await snapshot(raw, TOPIC)).delayed == {id: clock.now + 5}


@pytest.mark.parametrize("wait", [0, 1000])
async def test_the_same_call_again_is_told_that_it_was_done(
    store: Store, raw: Redis, wait: int
) -> None:
    (id,) = await (delayed(store, wait) if wait else pending(store))
    record = await store.views.record(TOPIC, id) or b""
    resend_next(store, raw)
    moved = codec.decode(record)
    answer = await store.reschedule_message(TOPIC, message=moved, seen=record, delay=5)
    assert answer is Settled.REPEATED


async def test_a_refused_call_that_comes_again_spares_what_waits_meanwhile(
    store: Store, raw: Redis
) -> None:
    (one,) = await leased(store)
    resend_next(store, raw, between=lambda: settle(store, one, State.PENDING))
    answer = await store.reschedule_message(TOPIC, message=message(one), seen=one.record, delay=5)
    assert answer is Settled.PROCESSING


@pytest.mark.parametrize("again", [1, 2, 3])
async def test_a_message_that_was_deep_in_its_list_runs_once_however_often_it_moves(
    store: Store, raw: Redis, clock: Clock, monkeypatch: pytest.MonkeyPatch, again: int
) -> None:
    monkeypatch.setattr(operating, "WALK", 1)
    ids = await pending(store, 5)
    for _ in range(again):
        assert await reschedule(store, ids[2], delay=5) is Settled.DONE
        assert await store.audit.topic(TOPIC) == []
        clock.advance(5)
        assert await store.process_delay_message(TOPIC, count=9) == [ids[2]]
        assert await store.audit.topic(TOPIC) == []
    taken = await take(store, 9)
    assert sorted(one.id for one in taken) == sorted(ids)
    assert await take(store, 9) == []


async def test_a_key_of_a_wrong_type_stops_it_before_it_changes_anything(
    store: Store, raw: Redis
) -> None:
    (id,) = await pending(store, id="own")
    record = await store.views.record(TOPIC, id) or b""
    call = partial(
        store.reschedule_message, TOPIC, message=codec.decode(record), seen=record, delay=5
    )
    for name in vital("reschedule_message"):
        await assert_refused(store, raw, name, call)
    assert await call() is Settled.DONE


async def test_what_is_no_time_is_refused(store: Store) -> None:
    (id,) = await pending(store)
    with pytest.raises(InvalidInput, match="delay=-1"):
        await reschedule(store, id, delay=-1)
    with pytest.raises(InvalidInput, match="at=-1"):
        await reschedule(store, id, at=-1)
