"""read_status: where messages are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mx_rmq.core.message import State
from mx_rmq.core.status import Status
from mx_rmq.settings import Limits
from tests.lab.messages import RESULT_TTL, TOPIC, bring, delayed, leased, pending, settle, take

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.store.store import Store
    from tests.lab.clock import Clock


async def status(store: Store, id: str) -> Status | None:
    (found,) = await store.read_status(TOPIC, [id], live=True, with_progress=True)
    return None if found is None else found.status()


STATUSES = {
    State.PENDING: Status(State.PENDING),
    State.PROCESSING: Status(State.PROCESSING, 1),
    State.DELAYED: Status(State.DELAYED, 1, reason="ValueError: no"),
    State.DEAD: Status(State.DEAD, 1, reason="ValueError: no"),
    State.QUARANTINED: Status(State.QUARANTINED, reason="ValueError: no"),
    State.COMPLETED: Status(State.COMPLETED, 1),
    None: None,
}


@pytest.mark.parametrize("state", STATUSES)
async def test_every_state_is_told(store: Store, state: State | None) -> None:
    one = await bring(store, state)
    assert await status(store, one.id) == STATUSES[state]


@pytest.mark.corrupts
async def test_a_progress_of_the_wrong_type_hides_no_status(store: Store, raw: Redis) -> None:
    one, other = await leased(store, 2)
    await raw.rpush(store.keys.of(TOPIC).progress(one.id), "not a string")
    found = await store.read_status(TOPIC, [one.id, other.id], live=True, with_progress=True)
    assert [each and each.status() for each in found] == [Status(State.PROCESSING, 1)] * 2


async def test_an_id_that_was_never_produced_is_unknown(store: Store) -> None:
    await pending(store)
    assert await status(store, "never") is None


async def test_the_answers_come_in_the_order_of_the_ids(store: Store) -> None:
    (later,) = await delayed(store, 1000)
    (waiting,) = await pending(store)
    found = await store.read_status(TOPIC, [waiting, "never", later])
    assert [one and one.state for one in found] == [State.PENDING, None, State.DELAYED]
    assert [one.data for one in found if one] == [b"", b""]


async def test_of_several_archives_the_latest_counts(store: Store, clock: Clock) -> None:
    store.limits = Limits(dedup=0)
    await bring(store, State.COMPLETED, id="own")
    clock.advance(1)
    await pending(store, id="own")
    assert await status(store, "own") == Status(State.PENDING)
    (again,) = await take(store)
    await settle(store, again, State.QUARANTINED)
    assert (await status(store, "own") or Status(State.PENDING)).state is State.QUARANTINED


async def test_a_result_that_is_too_old_is_unknown_even_before_it_is_dropped(
    store: Store, clock: Clock
) -> None:
    one = await bring(store, State.COMPLETED)
    clock.advance(RESULT_TTL - 1)
    assert await status(store, one.id) == Status(State.COMPLETED, 1)
    clock.advance(1)
    assert await status(store, one.id) is None


async def test_long_answers_come_in_several_calls(store: Store) -> None:
    taken = await leased(store, 12, headers={"k": "x" * 60_000})
    ids = [one.id for one in taken]
    found = await store.read_status(TOPIC, ids * 20, live=True)
    assert [one and one.data for one in found] == [one.record for one in taken] * 20


async def test_thousands_of_ids_are_read(store: Store) -> None:
    ids = await pending(store, 1000)
    found = await store.read_status(TOPIC, [*ids, "never", *ids], with_progress=True)
    assert [one is None for one in found].index(True) == 1000
    assert len(found) == 2001


async def test_the_counts_change_when_a_message_ends(store: Store) -> None:
    ended = [await store.ended_so_far(TOPIC)]
    for state in (None, State.DEAD, State.QUARANTINED, State.COMPLETED):
        await bring(store, state)
        ended.append(await store.ended_so_far(TOPIC))
    (id,) = await pending(store)
    await store.cancel_message(TOPIC, id)
    ended.append(await store.ended_so_far(TOPIC))
    assert len({tuple(one) for one in ended}) == 6
