"""A message that was cancelled or discarded no longer occupies its id (G5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq.core.errors import ProduceUnknown
from mx_rmq.core.message import State
from mx_rmq.store import lanes as lane
from mx_rmq.store import operator_calls as operating
from mx_rmq.store.results import Placed, Settled
from tests.lab.archives import find_archived
from tests.lab.calls import lose_next, resend_next
from tests.lab.messages import TOPIC, Priority, bring, delayed, draft, pending, settle, take
from tests.lab.snapshot import snapshot

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.store.store import Store
    from tests.lab.clock import Clock

MINUTE = 60_000


async def produce(store: Store, id: str, *, delay: int = 0, **fields: Any) -> Placed:
    """Produce a message with a custom id; return what became of it."""
    new = draft("again", id=id, delay=delay, **fields)
    call = store.produce_delay_message if delay else store.produce_normal_message
    ((_, placed),) = await call(TOPIC, [new])
    return placed


async def remove(store: Store, state: State, id: str) -> None:
    """Cancel or discard a message."""
    if state in (State.PENDING, State.DELAYED):
        assert await store.cancel_message(TOPIC, id) is Settled.DONE
        return
    found = await find_archived(store, TOPIC, state, id)
    assert found is not None
    assert await store.discard_message(TOPIC, state, id, archived=found.at) is Settled.DONE


async def handled(store: Store, clock: Clock) -> list[str]:
    """Handle everything that waits; return the ids."""
    clock.advance(MINUTE)
    await store.process_delay_message(TOPIC, count=100)
    taken = await take(store, 100)
    for one in taken:
        await settle(store, one, None)
    return [one.id for one in taken]


REMOVED = [State.PENDING, State.DELAYED, State.DEAD, State.QUARANTINED]


async def removed(store: Store, state: State, *, id: str | None) -> str:
    """Bring a message into a state and remove it; return its id."""
    if state is State.DELAYED:
        (made,) = await delayed(store, 1000, id=id)
    elif state is State.PENDING:
        (made,) = await pending(store, id=id)
    else:
        made = (await bring(store, state, id=id)).id
    await remove(store, state, made)
    return made


@pytest.mark.parametrize("delay", [0, 1000])
@pytest.mark.parametrize("id", ["reminder", None], ids=["custom", "generated"])
@pytest.mark.parametrize("state", REMOVED)
async def test_its_id_makes_a_new_message_at_once_and_that_runs_once(
    store: Store, clock: Clock, state: State, id: str | None, delay: int
) -> None:
    freed = await removed(store, state, id=id)
    assert await produce(store, freed, delay=delay) is Placed.STORED
    assert await produce(store, freed, delay=delay) is Placed.LIVE, "one message per id"
    assert await handled(store, clock) == [freed]
    assert await produce(store, freed) is Placed.FINISHED, "its window began with the new produce"
    assert await handled(store, clock) == []


@pytest.mark.parametrize("id", ["reminder", None], ids=["custom", "generated"])
@pytest.mark.parametrize("state", REMOVED)
async def test_it_can_be_moved_again_and_again(
    store: Store, clock: Clock, state: State, id: str | None
) -> None:
    freed = await removed(store, state, id=id)
    for _ in range(3):
        assert await produce(store, freed, delay=1000) is Placed.STORED
        await remove(store, State.DELAYED, freed)
    assert await produce(store, freed) is Placed.STORED
    assert await handled(store, clock) == [freed]


@pytest.mark.parametrize("id", ["reminder", None], ids=["custom", "generated"])
async def test_a_late_copy_of_its_produce_does_not_bring_it_back(
    store: Store, clock: Clock, id: str | None
) -> None:
    lost = lose_next(store, stored=True)
    with pytest.raises(ProduceUnknown) as unknown:
        await pending(store, id=id)
    (made,) = unknown.value.ids
    await remove(store, State.PENDING, made)
    await lost.arrive()
    assert await handled(store, clock) == []
    assert await produce(store, made) is Placed.STORED
    await lost.arrive()
    assert await handled(store, clock) == [made]
    await lost.arrive()
    assert await handled(store, clock) == []


async def test_a_produce_that_arrives_after_its_repetition_was_cancelled_stores_nothing(
    store: Store, clock: Clock
) -> None:
    lost = lose_next(store, stored=False)
    with pytest.raises(ProduceUnknown) as unknown:
        await pending(store)
    (made,) = unknown.value.ids
    assert await produce(store, made) is Placed.STORED
    await remove(store, State.PENDING, made)
    await lost.arrive()
    assert await handled(store, clock) == []
    assert await produce(store, made) is Placed.STORED
    assert await handled(store, clock) == [made]


async def test_a_call_that_comes_again_does_not_free_the_id_of_the_next_message(
    store: Store, raw: Redis, clock: Clock
) -> None:
    await pending(store, id="reminder")

    async def again() -> None:
        assert await produce(store, "reminder") is Placed.STORED
        assert await handled(store, clock) == ["reminder"]

    resend_next(store, raw, between=again)
    assert await store.cancel_message(TOPIC, "reminder") is Settled.REPEATED
    assert await produce(store, "reminder") is Placed.FINISHED


async def test_a_refused_cancel_frees_nothing(store: Store, clock: Clock) -> None:
    one = await bring(store, None, id="done")
    assert await store.cancel_message(TOPIC, one.id) is Settled.LOST
    assert await produce(store, "done") is Placed.FINISHED
    await bring(store, State.PROCESSING, id="running")
    assert await store.cancel_message(TOPIC, "running") is Settled.PROCESSING
    assert await produce(store, "running") is Placed.LIVE


async def test_discarding_what_the_server_has_dropped_spares_the_next_message_of_the_id(
    store: Store, raw: Redis, clock: Clock
) -> None:
    await bring(store, State.DEAD, id="mine")
    await raw.hdel(store.keys.of(TOPIC).dlq_payload, "mine")  # as HEXPIRE does
    (at,) = (await snapshot(raw, TOPIC)).dead.values()
    clock.advance(3 * MINUTE)
    assert await produce(store, "mine") is Placed.STORED
    assert await store.discard_message(TOPIC, State.DEAD, "mine", archived=at) is Settled.DONE
    assert await handled(store, clock) == ["mine"]
    assert await produce(store, "mine") is Placed.FINISHED


@pytest.mark.parametrize("priority", Priority)
async def test_an_id_cancelled_deep_in_a_list_is_free_and_its_next_message_runs_once(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch, priority: Priority
) -> None:
    monkeypatch.setattr(operating, "WALK", 1)
    others = await pending(store, 3)
    await pending(store, id="reminder")
    others += await pending(store, 3)
    await remove(store, State.PENDING, "reminder")
    assert await produce(store, "reminder", priority=priority) is Placed.STORED
    assert sorted(await handled(store, clock)) == sorted([*others, "reminder"])


async def test_a_lane_is_replaced_so_that_its_ids_are_not_taken_for_ever(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (*await pending(store), *await pending(store))
    assert lane.maker_of(first) == lane.maker_of(second)
    monkeypatch.setattr(lane, "LIFETIME", 0.0)
    store.lanes = lane.Lanes(store.keys)
    third, *_ = await pending(store, 8)
    (fourth,) = await pending(store)
    assert lane.maker_of(third) != lane.maker_of(fourth)
