"""pending | delayed | processing -> dead. Caps: test_archive_caps.py."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from mx_rmq.core import codec
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.message import State
from mx_rmq.settings import Limits
from mx_rmq.store import operator_calls as operating
from mx_rmq.store.results import Claim, RetryRequest, Settled
from tests.lab.archives import key_name
from tests.lab.broken import assert_refused, vital
from tests.lab.calls import resend_next
from tests.lab.cases import abort
from tests.lab.messages import (
    FAILURE,
    LEASE,
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

    from mx_rmq.store.results import Leased
    from mx_rmq.store.store import Store
    from tests.lab.clock import Clock

LIVE = [State.PENDING, State.DELAYED, State.PROCESSING]


async def in_state(store: Store, state: State, **fields: Any) -> str:
    """Produce a message in a state; return its id."""
    if state is State.PENDING:
        return (await pending(store, **fields))[0]
    if state is State.DELAYED:
        return (await delayed(store, 1000, **fields))[0]
    return (await leased(store, **fields))[0].id


def final(record: bytes) -> bytes:
    return codec.encode(msgspec.structs.replace(codec.decode(record), reason="aborted: enough"))


@pytest.mark.parametrize("state", LIVE)
async def test_a_message_dies_wherever_it_is_and_the_others_stay(
    store: Store, raw: Redis, clock: Clock, state: State
) -> None:
    for other in LIVE[::-1]:
        await in_state(store, other)
    id = await in_state(store, state, ttl=9000, id="own", priority=Priority.HIGH)
    before = await snapshot(raw, TOPIC)
    died = clock.advance(5)
    assert await abort(store, TOPIC, id) is Settled.DONE
    after = await snapshot(raw, TOPIC)
    assert after == replace(
        before,
        records={one: record for one, record in before.records.items() if one != id},
        high=[],
        delayed_high={},
        leases={one: lease for one, lease in before.leases.items() if one != id},
        deadlines={one: at for one, at in before.deadlines.items() if one != id},
        expiries={},
        dead={id: died},
        dead_letters={id: final(before.records[id])},
    )


@pytest.mark.parametrize("place", [0, 2, 4])
@pytest.mark.parametrize("priority", Priority)
@pytest.mark.parametrize("walk", [1, 10_000])
async def test_one_of_many_pending_ones_never_runs_however_deep_it_is(
    store: Store, monkeypatch: pytest.MonkeyPatch, priority: Priority, place: int, walk: int
) -> None:
    monkeypatch.setattr(operating, "WALK", walk)
    ids = await pending(store, 5, priority=priority)
    assert await abort(store, TOPIC, ids[place]) is Settled.DONE
    left = [id for id in ids if id != ids[place]]
    assert [one.id for one in await take(store, 9)] == left


async def test_its_holder_has_lost_it(store: Store, raw: Redis) -> None:
    (one,) = await leased(store)
    assert await abort(store, TOPIC, one.id) is Settled.DONE
    before = await snapshot(raw, TOPIC)
    again = RetryRequest(one, message(one).failed(FAILURE), 5)
    assert await store.complete_message(TOPIC, "w1", [one]) == [Settled.LOST]
    assert await store.retry_message(TOPIC, "w1", [again]) == [Settled.LOST]
    assert await store.extend_lease(TOPIC, "w1", [one], lease=LEASE) == [Claim(one.id, one.token)]
    assert await store.move_to_dlq(TOPIC, "w1", one, message(one)) is Settled.LOST
    assert await snapshot(raw, TOPIC) == before


async def test_a_monitor_that_took_it_over_has_lost_it(
    store: Store, raw: Redis, clock: Clock
) -> None:
    (one,) = await leased(store)
    clock.advance(LEASE)
    taken = await store.handle_timeout_message(TOPIC, "monitor", count=10, recovery=1000)
    assert await abort(store, TOPIC, one.id) is Settled.DONE
    mine = taken.messages[0]
    assert await store.move_to_dlq(TOPIC, "monitor", mine, message(one)) is Settled.LOST
    assert (await snapshot(raw, TOPIC)).dead_letters == {one.id: final(one.record)}


@pytest.mark.parametrize("state", LIVE)
async def test_a_paused_topic_does_not_protect_it(store: Store, raw: Redis, state: State) -> None:
    id = await in_state(store, state)
    await store.pause_topic(TOPIC)
    assert await abort(store, TOPIC, id) is Settled.DONE
    assert list((await snapshot(raw, TOPIC)).dead) == [id]


@pytest.mark.parametrize("state", [State.PENDING, State.DELAYED])
async def test_a_record_that_has_changed_since_is_left_alone(
    store: Store, raw: Redis, state: State
) -> None:
    (one,) = await leased(store)
    again = RetryRequest(one, message(one).failed(FAILURE), 0)
    await store.retry_message(TOPIC, "w1", [again])
    if state is State.PENDING:
        await store.process_delay_message(TOPIC, count=9)
    before = await snapshot(raw, TOPIC)
    answer = await store.abort_message(TOPIC, message=message(one), seen=one.record)
    assert answer is Settled.CHANGED
    assert not answer
    assert await snapshot(raw, TOPIC) == before


@pytest.mark.parametrize("state", [State.PENDING, None, State.DEAD, State.QUARANTINED])
async def test_the_record_decides_not_the_place(
    store: Store, raw: Redis, state: State | None
) -> None:
    """A message that was handed back is the same; one that ended is gone."""
    one = await bring(store, state)
    before = await snapshot(raw, TOPIC)
    answer = await store.abort_message(TOPIC, message=message(one), seen=one.record)
    if state is State.PENDING:
        assert answer is Settled.DONE
        return
    assert answer is Settled.LOST
    assert await snapshot(raw, TOPIC) == before


async def test_a_topic_that_nobody_has_used_has_nothing_to_abort(store: Store, raw: Redis) -> None:
    (one,) = await leased(store)
    other = msgspec.structs.replace(message(one), topic="unused")
    assert await store.abort_message("unused", message=other, seen=one.record) is Settled.LOST
    assert await snapshot(raw, "unused") == Snapshot()
    with pytest.raises(InvalidInput, match="belongs to message"):
        await store.abort_message("unused", message=message(one), seen=one.record)


@pytest.mark.parametrize("state", LIVE)
async def test_the_same_call_again_is_told_that_it_was_done(
    store: Store, raw: Redis, state: State
) -> None:
    id = await in_state(store, state)
    record = await store.views.record(TOPIC, id) or b""
    resend_next(store, raw)
    final_one = codec.decode(record)
    assert await store.abort_message(TOPIC, message=final_one, seen=record) is Settled.REPEATED


async def test_the_channels_tell_of_it(store: Store, raw: Redis) -> None:
    keys = store.keys.of(TOPIC)
    (held,) = await leased(store)
    (waiting,) = await pending(store)
    async with raw.pubsub() as heard:
        await heard.subscribe(keys.aborts_channel, keys.channel)
        for _ in range(2):
            await heard.get_message(timeout=5)
        await abort(store, TOPIC, held.id)
        await abort(store, TOPIC, waiting)
        told = [await heard.get_message(timeout=5) for _ in range(3)]
    assert [(one["channel"].decode(), one["data"].decode()) for one in told if one] == [
        (keys.aborts_channel, f"{held.token} {held.id}"),
        (keys.channel, f"dead {len(held.id)} -1\n{held.id}"),
        (keys.channel, f"dead {len(waiting)} -1\n{waiting}"),
    ]


async def test_it_is_counted_and_the_history_says_by_whom_and_why(store: Store, raw: Redis) -> None:
    (id,) = await pending(store)
    await abort(store, TOPIC, id, by="ada")
    totals = await raw.hgetall(store.keys.of(TOPIC).totals)
    assert (totals[b"aborted"], totals[b"died"]) == (b"1", b"1")
    *_, last = await store.views.history.of(TOPIC, id)
    assert (last.what, last.by, last.about) == ("aborted", "ada", "aborted: enough")


async def test_the_oldest_dead_letters_make_room(store: Store, raw: Redis, clock: Clock) -> None:
    store.limits = Limits(dlq_max=2)
    ids = await pending(store, 4)
    for id in ids:
        clock.advance(1)
        assert await abort(store, TOPIC, id) is Settled.DONE
    found = await snapshot(raw, TOPIC)
    assert [*found.dead] == sorted(found.dead_letters) == ids[2:]
    held = await raw.hget(store.keys.of(TOPIC).archive_bytes, "dead")
    assert int(held or 0) == sum(map(len, found.dead_letters.values()))


async def test_a_key_of_a_wrong_type_stops_it_before_it_changes_anything(
    store: Store, raw: Redis
) -> None:
    (one,) = await leased(store)
    call = partial(store.abort_message, TOPIC, message=message(one), seen=one.record)
    for name in vital("abort_message"):
        await assert_refused(store, raw, key_name(State.DEAD, name), call)
    assert await call() is Settled.DONE


@pytest.mark.parametrize("state", [None, *State])
async def test_a_late_copy_spares_a_new_message_with_the_same_id(
    store: Store, raw: Redis, clock: Clock, state: State | None
) -> None:
    one: Leased = (await leased(store, id="own"))[0]

    async def come_again() -> None:
        await store.discard_message(TOPIC, State.DEAD, "own", archived=clock.now)
        clock.advance(1)
        again = (await leased(store, id="own"))[0]
        if state is not State.PROCESSING:
            await settle(store, again, state)

    resend_next(store, raw, between=come_again)
    answer = await store.abort_message(TOPIC, message=message(one), seen=one.record)
    assert answer is Settled.REPEATED
