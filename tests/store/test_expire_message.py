"""expire_message: pending | delayed -> processing, held by the expirer"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.message import State
from mx_rmq.store import operator_calls as operating
from mx_rmq.store import upkeep_calls as upkeep
from mx_rmq.store.arguments import MAX_BATCH
from mx_rmq.store.results import HandedBack, Placed, RetryRequest, Settled
from tests.lab.broken import assert_refused, broken, key_named, vital
from tests.lab.calls import resend_next
from tests.lab.messages import (
    FAILURE,
    LEASE,
    TOPIC,
    Priority,
    bring,
    delayed,
    draft,
    leased,
    message,
    pending,
    settle,
    take,
)
from tests.lab.snapshot import Snapshot, snapshot
from tests.store.contracts import ONE_SERVER

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.store.results import Expired, Leased
    from mx_rmq.store.store import Store
    from tests.lab.clock import Clock

TTL = 1000
RECOVERY = 2000
LISTS = ("pending_high", "pending", "pending_low")
SETS = ("delay_tasks_high", "delay_tasks", "delay_tasks_low")


async def expire(
    store: Store, monitor: str = "m1", *, count: int = MAX_BATCH, recovery: int = RECOVERY
) -> Expired:
    return await store.expire_message(TOPIC, monitor, count=count, recovery=recovery)


def ids(messages: list[Leased]) -> list[str]:
    return [one.id for one in messages]


async def expired_ids(store: Store, **named: Any) -> list[str]:
    return ids((await expire(store, **named)).messages)


@pytest.fixture
def shallow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all but the last two places of a list be beyond the window, and too far to walk."""
    monkeypatch.setattr(upkeep, "WINDOW", 2)
    monkeypatch.setattr(upkeep, "WALK", 0)
    monkeypatch.setattr(operating, "WALK", 1)


# what it does


async def test_a_waiting_message_is_leased_to_the_caller_when_its_time_comes(
    store: Store, raw: Redis, clock: Clock
) -> None:
    (first,) = await pending(store, ttl=TTL)
    (second,) = await delayed(store, 9 * TTL, ttl=TTL, priority=Priority.HIGH)
    (plain,) = await pending(store)
    before = await snapshot(raw, TOPIC)
    now = clock.advance(TTL)
    found = await expire(store)
    assert (found.now, found.wait) == (now, None)
    assert {one.id: one.record for one in found.messages} == {
        id: before.records[id] for id in (first, second)
    }
    tokens = [one.token for one in found.messages]
    assert tokens == sorted(set(tokens))
    assert await snapshot(raw, TOPIC) == replace(
        before,
        normal=[plain],
        delayed_high={},
        expiries={},
        leases={one.id: f"{one.token}:m1" for one in found.messages},
        deadlines=dict.fromkeys((first, second), now + RECOVERY),
        meta={"token": str(max(tokens))},
    )


async def test_nothing_happens_before_its_time(store: Store, raw: Redis, clock: Clock) -> None:
    await pending(store, 2, ttl=TTL)
    await pending(store)
    clock.advance(TTL - 1)
    before = await snapshot(raw, TOPIC)
    found = await expire(store)
    assert (found.messages, found.wait) == ([], 1)
    assert await snapshot(raw, TOPIC) == before
    clock.advance(1)
    assert len((await expire(store)).messages) == 2


async def test_an_empty_topic_is_not_touched(store: Store, raw: Redis) -> None:
    found = await expire(store)
    assert (found.messages, found.wait) == ([], None)
    assert await raw.dbsize() == 0


async def test_no_more_than_asked_for_are_taken_the_earliest_first(
    store: Store, clock: Clock
) -> None:
    late, first, second = [(await pending(store, ttl=ttl))[0] for ttl in (30, 10, 20)]
    clock.advance(25)
    found = await expire(store, count=1)
    assert (ids(found.messages), found.wait) == ([first], 0)
    found = await expire(store, count=1)
    assert (ids(found.messages), found.wait) == ([second], 5)
    assert [one.id for one in await take(store, 9)] == [late]


async def test_a_full_batch_goes_in_one_call(store: Store, clock: Clock) -> None:
    waiting = await pending(store, MAX_BATCH, ttl=TTL)
    clock.advance(TTL)
    assert set(await expired_ids(store)) == set(waiting)


async def test_a_paused_topic_does_not_matter(store: Store, clock: Clock) -> None:
    waiting = await pending(store, 2, ttl=TTL)
    await store.pause_topic(TOPIC)
    clock.advance(TTL)
    assert sorted(await expired_ids(store)) == sorted(waiting)


@pytest.mark.parametrize("priority", Priority)
async def test_those_that_stay_keep_their_order(
    store: Store, raw: Redis, clock: Clock, priority: Priority
) -> None:
    waiting = [
        (await pending(store, ttl=TTL if number % 3 == 1 else None, priority=priority))[0]
        for number in range(10)
    ]
    clock.advance(TTL)
    assert sorted(await expired_ids(store)) == sorted(waiting[1::3])
    stay = [id for number, id in enumerate(waiting) if number % 3 != 1]
    assert [one.id for one in await take(store, 99)] == stay


async def test_the_new_token_settles_it_and_an_old_one_does_not(
    store: Store, raw: Redis, clock: Clock
) -> None:
    (old,) = await leased(store, ttl=TTL)
    await settle(store, old, State.DELAYED)
    clock.advance(TTL)
    (one,) = (await expire(store)).messages
    assert one.token > old.token
    assert await store.move_to_dlq(TOPIC, "w1", old, message(old)) is Settled.LOST
    assert await store.move_to_dlq(TOPIC, "m1", one, message(one)) is Settled.DONE
    found = await snapshot(raw, TOPIC)
    assert (found.records, found.leases, found.deadlines) == ({}, {}, {})
    assert found.dead == {one.id: clock.now}


async def test_a_caller_that_dies_leaves_it_to_the_next_monitor(store: Store, clock: Clock) -> None:
    (id,) = await pending(store, ttl=TTL)
    clock.advance(TTL)
    await expire(store)
    assert await expired_ids(store) == []
    clock.advance(RECOVERY)
    timed_out = await store.handle_timeout_message(TOPIC, "m2", count=9, recovery=RECOVERY)
    assert [(one.id, one.lost_by) for one in timed_out.messages] == [(id, "m1")]


async def test_a_repeated_call_takes_nothing_twice(store: Store, raw: Redis, clock: Clock) -> None:
    await pending(store, ttl=TTL)
    clock.advance(TTL)
    resend_next(store, raw)
    assert (await expire(store)).messages == []


@ONE_SERVER
@pytest.mark.parametrize(
    "bad",
    [{"count": 0}, {"count": MAX_BATCH + 1}, {"recovery": 0}, {"monitor": "a:b"}],
    ids=str,
)
async def test_a_bad_argument_is_refused(
    store: Store, raw: Redis, clock: Clock, bad: dict[str, Any]
) -> None:
    await pending(store, ttl=TTL)
    clock.advance(TTL)
    before = await snapshot(raw, TOPIC)
    with pytest.raises(InvalidInput):
        await expire(store, **bad)
    assert await snapshot(raw, TOPIC) == before


# which times are kept


async def test_only_messages_that_wait_and_have_a_ttl_have_a_time(
    store: Store, raw: Redis, clock: Clock
) -> None:
    start = clock.now
    await pending(store, 2)
    await delayed(store, 5 * TTL)
    kept = dict.fromkeys(await pending(store, ttl=TTL), start + TTL)
    kept |= dict.fromkeys(
        await delayed(store, 9 * TTL, ttl=2 * TTL, priority=Priority.LOW), start + 2 * TTL
    )
    kept |= dict.fromkeys(await pending(store, id="own", ttl=3 * TTL), start + 3 * TTL)
    tick = await store.produce_cron_message(TOPIC, start, draft(ttl=4 * TTL))
    kept[str(tick.id)] = start + 4 * TTL
    assert (await snapshot(raw, TOPIC)).expiries == kept


async def test_it_has_none_while_a_worker_holds_it_and_its_own_again_when_it_waits(
    store: Store, raw: Redis, clock: Clock
) -> None:
    ends = dict.fromkeys(await pending(store, 2, ttl=TTL), clock.now + TTL)
    clock.advance(100)
    first, second = await take(store, 2)
    assert (await snapshot(raw, TOPIC)).expiries == {}
    back = [HandedBack(first, Priority.LOW, message(first).expires_at)]
    assert await store.release_message(TOPIC, "w1", back) == [Settled.DONE]
    again = RetryRequest(second, message(second).failed(FAILURE), 10)
    assert await store.retry_message(TOPIC, "w1", [again]) == [Settled.DONE]
    assert (await snapshot(raw, TOPIC)).expiries == ends
    clock.advance(10)
    assert len(await store.process_delay_message(TOPIC, count=9)) == 1
    assert (await snapshot(raw, TOPIC)).expiries == ends


@pytest.mark.parametrize("end", [None, State.DEAD, State.QUARANTINED])
async def test_it_has_none_after_its_end(store: Store, raw: Redis, end: State | None) -> None:
    await bring(store, end, ttl=TTL)
    assert (await snapshot(raw, TOPIC)).expiries == {}


async def test_a_cancelled_message_does_not_expire(store: Store, raw: Redis, clock: Clock) -> None:
    for id in [*await pending(store, ttl=TTL), *await delayed(store, 99, ttl=TTL)]:
        assert await store.cancel_message(TOPIC, id) is Settled.DONE
    assert (await snapshot(raw, TOPIC)).expiries == {}
    clock.advance(TTL)
    assert await expired_ids(store) == []


async def test_a_requeued_message_expires_only_if_it_has_a_ttl(
    store: Store, raw: Redis, clock: Clock
) -> None:
    one = await bring(store, State.DEAD, ttl=TTL)
    for again, kept in ((message(one), {one.id: clock.now + TTL}), (message(one).revived(), {})):
        requeue = partial(store.requeue_message, TOPIC, State.DEAD, one.id, archived=clock.now)
        assert await requeue(message=again)
        assert (await snapshot(raw, TOPIC)).expiries == kept
        await settle(store, (await take(store))[0], State.DEAD)


# leftovers: workers of the release before do not know the key


@pytest.mark.corrupts
@pytest.mark.parametrize("where", ["gone", "held", "dead"])
async def test_a_time_that_was_left_behind_is_dropped(
    store: Store, raw: Redis, clock: Clock, where: str
) -> None:
    id = "gone"
    if where == "held":
        id = (await leased(store))[0].id
    elif where == "dead":
        id = (await bring(store, State.DEAD)).id
    before = await snapshot(raw, TOPIC)
    await raw.zadd(store.keys.of(TOPIC).expiry, {id: clock.now})
    assert f"{TOPIC}: {id}: an expiry time, but it is not waiting" in [
        str(wrong) for wrong in await store.audit.topic(TOPIC)
    ]
    found = await expire(store)
    assert (found.messages, found.wait) == ([], None)
    assert await snapshot(raw, TOPIC) == before


# deep in a list


async def test_beyond_the_window_a_short_list_is_walked_ten_ids_per_call(
    store: Store, raw: Redis, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "WINDOW", 2)
    monkeypatch.setattr(upkeep, "SPARE", 0)
    stay = await pending(store, 2)
    waiting = await pending(store, 12, ttl=TTL)
    clock.advance(TTL)
    found = await expire(store)
    assert (len(found.messages), found.wait) == (10, 0)
    rest = await expire(store)
    assert (len(rest.messages), rest.wait) == (2, None)
    assert sorted(ids(found.messages + rest.messages)) == sorted(waiting)
    after = await snapshot(raw, TOPIC)
    assert (after.normal, after.cancelled) == (stay, set())


@pytest.mark.usefixtures("shallow")
async def test_deep_in_a_long_list_it_keeps_a_place_that_does_not_count(
    store: Store, raw: Redis, clock: Clock
) -> None:
    stay = await pending(store, 3)
    (deep,) = await pending(store, ttl=TTL)
    clock.advance(TTL)
    assert await expired_ids(store) == [deep]
    found = await snapshot(raw, TOPIC)
    assert (found.normal, found.cancelled) == ([*stay, deep], {deep})
    assert (await store.views.counts(TOPIC)).pending == 3
    assert [one.id for one in await take(store, 9)] == stay
    assert (await snapshot(raw, TOPIC)).cancelled == set()


@pytest.mark.usefixtures("shallow")
@pytest.mark.parametrize("how", ["requeued", "retried", "produced"])
async def test_a_message_that_waits_again_runs_once_while_its_old_place_is_there(
    store: Store, raw: Redis, clock: Clock, how: str
) -> None:
    await pending(store, 3)
    (id,) = await pending(store, id="own", ttl=TTL)
    clock.advance(TTL)
    (one,) = (await expire(store)).messages
    if how == "retried":
        again = RetryRequest(one, message(one).revived(), 0)
        assert await store.retry_message(TOPIC, "m1", [again]) == [Settled.DONE]
        await store.process_delay_message(TOPIC, count=9)
    else:
        assert await store.move_to_dlq(TOPIC, "m1", one, message(one))
        archived = partial(store.requeue_message, TOPIC, State.DEAD, id, archived=clock.now)
        if how == "requeued":
            assert await archived(message=message(one).revived())
        else:
            assert await store.discard_message(TOPIC, State.DEAD, id, archived=clock.now)
            clock.advance(round(store.limits.dedup * 1000))
            (again_produced,) = await store.produce_normal_message(TOPIC, [draft(id=id)])
            assert again_produced.placed is Placed.STORED
    assert (await snapshot(raw, TOPIC)).normal.count(id) == 2
    taken = [one.id for one in [*await take(store, 9), *await take(store, 9)]]
    assert taken.count(id) == 1
    assert len(taken) == 4
    found = await snapshot(raw, TOPIC)
    assert (found.normal, found.cancelled) == ([], set())


@pytest.mark.usefixtures("shallow")
async def test_an_id_has_one_such_place_at_the_most(store: Store, raw: Redis, clock: Clock) -> None:
    stay = await pending(store, 3)
    store.limits = replace(store.limits, dedup=0)
    for _ in range(3):
        await pending(store, id="own", ttl=TTL)
        clock.advance(TTL)
        (one,) = (await expire(store)).messages
        assert await store.move_to_dlq(TOPIC, "m1", one, message(one))
        assert await store.discard_message(TOPIC, State.DEAD, "own", archived=clock.now)
        found = await snapshot(raw, TOPIC)
        assert (found.normal, found.cancelled) == ([*stay, "own"], {"own"})


@pytest.mark.usefixtures("shallow")
async def test_a_cancelled_place_in_the_window_goes_too(
    store: Store, raw: Redis, clock: Clock
) -> None:
    first, cancelled, *others = await pending(store, 5)
    assert await store.cancel_message(TOPIC, cancelled)
    assert (await snapshot(raw, TOPIC)).cancelled == {cancelled}
    (deep,) = await pending(store, ttl=TTL)
    clock.advance(TTL)
    assert await expired_ids(store) == [deep]
    found = await snapshot(raw, TOPIC)
    assert (found.normal, found.cancelled) == ([first, *others, deep], {deep})


# what is broken


@pytest.mark.corrupts
async def test_a_message_that_is_nowhere_still_ends(store: Store, raw: Redis, clock: Clock) -> None:
    (id,) = await pending(store, ttl=TTL)
    await raw.delete(store.keys.of(TOPIC).pending)
    clock.advance(TTL)
    assert await expired_ids(store) == [id]


@ONE_SERVER
@pytest.mark.parametrize("name", [*LISTS, *SETS])
async def test_a_level_of_a_wrong_type_does_not_stop_the_others(
    store: Store, raw: Redis, clock: Clock, name: str
) -> None:
    waiting = set()
    for level in Priority:
        if name in SETS:
            waiting.update(await pending(store, ttl=TTL, priority=level))
        else:
            waiting.update(await delayed(store, 9 * TTL, ttl=TTL, priority=level))
    clock.advance(TTL)
    async with broken(raw, key_named(store, name)):
        assert set(await expired_ids(store)) == waiting


@ONE_SERVER
async def test_another_key_of_a_wrong_type_is_named_and_nothing_is_changed(
    store: Store, raw: Redis, clock: Clock
) -> None:
    await leased(store, lease=9 * LEASE)
    waiting = await pending(store, 2, ttl=TTL)
    clock.advance(TTL)
    for name in vital("expire_message"):
        if name not in (*LISTS, *SETS):
            await assert_refused(store, raw, name, partial(expire, store))
    assert sorted(await expired_ids(store)) == sorted(waiting)


async def test_the_last_one_leaves_an_empty_topic(store: Store, raw: Redis, clock: Clock) -> None:
    await pending(store, ttl=TTL)
    clock.advance(TTL)
    (one,) = (await expire(store)).messages
    assert await store.move_to_dlq(TOPIC, "m1", one, message(one))
    found = await snapshot(raw, TOPIC)
    assert found == Snapshot(
        dead=found.dead, dead_letters=found.dead_letters, meta=found.meta, rung=True
    )
