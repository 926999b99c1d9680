"""set_expiry, undated_messages: waiting messages get the default time to live of their topic"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.message import State
from mx_rmq.store import upkeep_calls as upkeep
from mx_rmq.store.results import Undated
from tests.lab.broken import assert_refused, vital
from tests.lab.calls import resend_next
from tests.lab.messages import TOPIC, Priority, bring, delayed, draft, leased, pending, take
from tests.lab.snapshot import snapshot

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.store.store import Store
    from tests.lab.clock import Clock


async def undated(store: Store) -> list[str]:
    """Return the ids of all waiting messages without an expiry time."""
    found, place, start = [], 1, 0
    while True:
        some = await store.undated_messages(TOPIC, place, start)
        found += [id for id, _ in some.messages]
        if some.go_on is None:
            return found
        place, start = some.go_on


async def test_messages_that_wait_get_their_time_and_expire_then(
    store: Store, raw: Redis, clock: Clock
) -> None:
    (one,) = await pending(store)
    (other,) = await delayed(store, 60_000)
    before = await snapshot(raw, TOPIC)
    times = [(one, clock.now + 500), (other, clock.now + 400)]
    assert await store.set_expiry(TOPIC, times) == 2
    assert await snapshot(raw, TOPIC) == replace(before, expiries=dict(times))
    clock.advance(500)
    taken = await store.expire_message(TOPIC, "m1", count=10, recovery=1000)
    assert {one.id for one in taken.messages} == {one, other}


@pytest.mark.parametrize("state", [State.PROCESSING, State.DEAD, State.QUARANTINED, None])
async def test_a_message_that_does_not_wait_is_left_alone(
    store: Store, raw: Redis, clock: Clock, state: State | None
) -> None:
    one = await bring(store, state) if state else None
    before = await snapshot(raw, TOPIC)
    id = one.id if one is not None else "never"
    assert await store.set_expiry(TOPIC, [(id, clock.now)]) == 0
    assert await snapshot(raw, TOPIC) == before


async def test_a_message_keeps_the_time_that_it_has(store: Store, raw: Redis, clock: Clock) -> None:
    (id,) = await pending(store, ttl=1000)
    before = await snapshot(raw, TOPIC)
    for later in (1, 5000):
        assert await store.set_expiry(TOPIC, [(id, clock.now + later)]) == 0
    assert await snapshot(raw, TOPIC) == before


async def test_repeating_is_harmless(store: Store, raw: Redis, clock: Clock) -> None:
    ids = await pending(store, 3)
    resend_next(store, raw)
    assert await store.set_expiry(TOPIC, [(id, clock.now + 9) for id in ids]) == 0  # the second
    assert (await snapshot(raw, TOPIC)).expiries == dict.fromkeys(ids, clock.now + 9)
    assert await store.set_expiry(TOPIC, []) == 0


async def test_at_maxmemory_it_still_works(store: Store, raw: Redis, clock: Clock) -> None:
    (id,) = await pending(store)
    await raw.config_set("maxmemory", 1)
    try:
        assert await store.set_expiry(TOPIC, [(id, clock.now + 9)]) == 1
    finally:
        await raw.config_set("maxmemory", 0)


@pytest.mark.parametrize("key", vital("set_expiry"))
async def test_a_key_of_a_wrong_type_changes_nothing(
    store: Store, raw: Redis, clock: Clock, key: str
) -> None:
    (id,) = await pending(store)
    times = [(id, clock.now)]
    await assert_refused(store, raw, key, lambda: store.set_expiry(TOPIC, times))


async def test_a_time_that_is_none_is_refused(store: Store) -> None:
    for bad in (-1, 1.5, None):
        with pytest.raises(InvalidInput):
            await store.set_expiry(TOPIC, [("a", bad)])  # type: ignore[list-item]


# which messages have none


async def test_every_waiting_message_without_a_time_is_found_and_no_other(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "UNDATED", 2)
    await store.produce_normal_message(TOPIC, [draft(), draft()])
    held = await take(store, 2)
    wanted = []
    for level in Priority:
        for count in range(3):
            wanted += await pending(store, priority=level)
            wanted += await delayed(store, 9000 + count, priority=level)
            await pending(store, priority=level, ttl=1000)
            await delayed(store, 9000, priority=level, ttl=9500)
    assert sorted(await undated(store)) == sorted(wanted)
    await store.set_expiry(TOPIC, [(id, clock.now) for id in wanted])
    assert await store.undated_messages(TOPIC, 1, 0) == Undated([], None)
    assert len(held) == 2


async def test_a_cancelled_place_counts_for_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await pending(store, 5, ttl=1000)
    monkeypatch.setattr("mx_rmq.store.operator_calls.WALK", 1)
    await store.cancel_message(TOPIC, ids[2])
    assert await undated(store) == []
    (other,) = await pending(store)
    assert await undated(store) == [other]


async def test_large_records_come_in_several_calls(store: Store, clock: Clock) -> None:
    large = [draft("x" * 900_000) for _ in range(12)]
    ids = [one.id for one in await store.produce_normal_message(TOPIC, large)]
    first = await store.undated_messages(TOPIC, 1, 0)
    place, start = first.go_on or (0, 0)
    assert (place, first.messages) == (2, [])
    some = await store.undated_messages(TOPIC, place, start)
    assert 0 < len(some.messages) < len(ids)
    assert some.go_on == (place, start)  # there again: these have a time by then
    await store.set_expiry(TOPIC, [(id, clock.now) for id, _ in some.messages])
    rest = await undated(store)
    assert sorted(rest + [id for id, _ in some.messages]) == sorted(ids)


async def test_an_empty_topic_has_none_and_stays_without_a_key(store: Store, raw: Redis) -> None:
    assert await undated(store) == []
    await leased(store)
    assert await undated(store) == []
    assert await raw.exists(store.keys.of("other").payload) == 0
