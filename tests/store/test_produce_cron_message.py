"""produce_cron_message: (new) -> pending, once a tick"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import pytest

from mx_rmq.core import codec
from mx_rmq.core.errors import InvalidInput, OutcomeUnknown, PayloadTooLarge
from mx_rmq.core.message import State
from mx_rmq.settings import Limits
from mx_rmq.store.results import Placed, Ticked
from mx_rmq.store.store import Store
from tests.lab.broken import assert_refused
from tests.lab.calls import lose_next, resend_next
from tests.lab.messages import TOPIC, Priority, bring, draft, pending, take
from tests.lab.snapshot import Snapshot, snapshot

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from tests.lab.clock import Clock
    from tests.lab.servers import Server


async def test_a_tick_makes_a_message_behind_those_that_are_pending(
    store: Store, raw: Redis, clock: Clock
) -> None:
    (first,) = await pending(store)
    tick = clock.now - 5
    id = f"cron-{tick}"
    assert await store.produce_cron_message(TOPIC, tick, draft("hello")) == Ticked(
        clock.now, tick, id
    )
    found = await snapshot(raw, TOPIC)
    assert found == Snapshot(
        records=found.records, normal=[first, id], rung=True, meta={"tick": str(tick)}
    )
    message = codec.decode(found.records[id], TOPIC, id)
    assert (message.created_at, bytes(message.payload)) == (clock.now, b'"hello"')


async def test_its_record_is_that_of_any_other_message(
    store: Store, raw: Redis, clock: Clock
) -> None:
    new = draft([1], id="x", priority=Priority.HIGH, ttl=9, max_attempts=2, headers={"a": "b"})
    await store.produce_cron_message(TOPIC, clock.now, new)
    await store.produce_normal_message("other", [new])
    mine, other = await snapshot(raw, TOPIC), await snapshot(raw, "other")
    assert mine.records["x"] == other.records["x"].replace(b'"other"', b'"orders"')


@pytest.mark.parametrize("level", list(Priority))
async def test_it_waits_at_its_own_level(
    store: Store, raw: Redis, clock: Clock, level: Priority
) -> None:
    ticked = await store.produce_cron_message(TOPIC, clock.now, draft(priority=level))
    found = await snapshot(raw, TOPIC)
    assert {"high": found.high, "normal": found.normal, "low": found.low}[level] == [ticked.id]
    assert len(found.high + found.normal + found.low) == 1


async def test_the_message_goes_the_way_of_all_messages(store: Store, clock: Clock) -> None:
    ticked = await store.produce_cron_message(TOPIC, clock.now, draft())
    (one,) = await take(store)
    assert one.id == ticked.id
    assert await store.complete_message(TOPIC, "w1", [one]) == ["1"]


async def test_a_tick_fires_once(store: Store, raw: Redis, clock: Clock) -> None:
    tick = clock.now
    await store.produce_cron_message(TOPIC, tick, draft())
    before = await snapshot(raw, TOPIC)
    for later in (0, 1, 10**9):
        clock.advance(later)
        again = await store.produce_cron_message(TOPIC, tick, draft())
        assert again == Ticked(clock.now, tick, None)
    assert await snapshot(raw, TOPIC) == before


async def test_a_tick_fires_once_also_when_its_message_is_long_gone(
    store: Store, raw: Redis, clock: Clock
) -> None:
    tick = clock.now
    await store.produce_cron_message(TOPIC, tick, draft())
    (one,) = await take(store)
    await store.complete_message(TOPIC, "w1", [one])
    clock.advance(10**9)
    assert (await store.produce_cron_message(TOPIC, tick, draft())).id is None
    assert (await snapshot(raw, TOPIC)).records == {}


async def test_of_many_workers_one_makes_the_message(
    store: Store, server: Server, raw: Redis, clock: Clock
) -> None:
    async with await Store.open(server.url, clock=clock) as other:
        calls = [one.produce_cron_message(TOPIC, clock.now, draft()) for one in (store, other) * 9]
        fired = [ticked.id for ticked in await asyncio.gather(*calls)]
    assert sorted(map(str, fired)) == ["None"] * 17 + [f"cron-{clock.now}"]
    assert len((await snapshot(raw, TOPIC)).records) == 1


async def test_an_older_tick_than_the_last_one_does_not_fire(
    store: Store, raw: Redis, clock: Clock
) -> None:
    tick = clock.now
    await store.produce_cron_message(TOPIC, tick, draft())
    before = await snapshot(raw, TOPIC)
    assert await store.produce_cron_message(TOPIC, tick - 1, draft()) == Ticked(tick, tick, None)
    assert await snapshot(raw, TOPIC) == before


async def test_a_tick_that_is_not_due_changes_nothing_until_it_is(
    store: Store, raw: Redis, clock: Clock
) -> None:
    tick = clock.now + 1
    assert await store.produce_cron_message(TOPIC, tick, draft()) == Ticked(clock.now, None, None)
    assert await snapshot(raw, TOPIC) == Snapshot()
    clock.advance(1)
    ticked = await store.produce_cron_message(TOPIC, tick, draft())
    assert ticked == Ticked(tick, tick, f"cron-{tick}")


async def test_the_first_look_notes_the_time_and_the_next_ones_only_look(
    store: Store, raw: Redis, clock: Clock
) -> None:
    first = clock.now
    for _ in range(3):
        assert await store.produce_cron_message(TOPIC, 0) == Ticked(clock.now, first, None)
        assert await snapshot(raw, TOPIC) == Snapshot(meta={"tick": str(first)})
        clock.advance(1000)


async def test_a_look_tells_the_last_tick_that_fired(store: Store, clock: Clock) -> None:
    tick = clock.now
    await store.produce_cron_message(TOPIC, tick, draft())
    clock.advance(1000)
    assert await store.produce_cron_message(TOPIC, 0) == Ticked(tick + 1000, tick, None)


async def test_a_tick_before_the_first_look_was_missed_by_nobody(
    store: Store, raw: Redis, clock: Clock
) -> None:
    await store.produce_cron_message(TOPIC, 0)
    assert (await store.produce_cron_message(TOPIC, clock.now, draft())).id is None
    clock.advance(1)
    assert (await store.produce_cron_message(TOPIC, clock.now, draft())).id is not None


@pytest.mark.parametrize(
    "state", [State.PENDING, State.DELAYED, State.PROCESSING, State.DEAD, State.QUARANTINED]
)
async def test_an_id_that_is_taken_is_left_alone_and_the_tick_counts_as_fired(
    store: Store, raw: Redis, clock: Clock, state: State
) -> None:
    await bring(store, state, id="own")
    before = await snapshot(raw, TOPIC)
    ticked = await store.produce_cron_message(TOPIC, clock.now, draft("new", id="own"))
    assert ticked == Ticked(clock.now, clock.now, None)
    after = await snapshot(raw, TOPIC)
    assert after.meta.pop("tick") == str(clock.now)
    assert after == before


async def test_the_doorbell_is_rung_once_and_only_for_a_new_message(
    store: Store, raw: Redis, clock: Clock
) -> None:
    doorbell = store.keys.of(TOPIC).doorbell
    for _ in range(2):
        clock.advance(1)
        await store.produce_cron_message(TOPIC, clock.now, draft())
        assert await raw.llen(doorbell) == 1
    await raw.delete(doorbell)
    await store.produce_cron_message(TOPIC, clock.now, draft())
    await store.produce_cron_message(TOPIC, 0)
    assert await raw.llen(doorbell) == 0


async def test_the_topic_is_registered(store: Store, clock: Clock) -> None:
    await store.produce_cron_message("one", 0)
    await store.produce_cron_message("two", clock.now, draft())
    assert await store.views.topics() == ["one", "two"]


async def test_a_paused_topic_collects_its_ticks(store: Store, clock: Clock) -> None:
    await store.pause_topic(TOPIC)
    assert (await store.produce_cron_message(TOPIC, clock.now, draft())).id is not None
    assert await take(store) == []
    await store.resume_topic(TOPIC)
    assert len(await take(store)) == 1


async def test_the_cap_on_waiting_messages_does_not_stop_a_tick(store: Store, clock: Clock) -> None:
    await pending(store, 2)
    store.limits = Limits(max_pending=1)
    assert (await store.produce_cron_message(TOPIC, clock.now, draft())).id is not None


async def test_a_call_that_comes_again_changes_nothing(
    store: Store, raw: Redis, clock: Clock
) -> None:
    async def handled() -> None:
        (one,) = await take(store)
        assert await store.complete_message(TOPIC, "w1", [one]) == ["1"]

    resend_next(store, raw, handled)
    ticked = await store.produce_cron_message(TOPIC, clock.now, draft())
    assert ticked == Ticked(clock.now, clock.now, None)


@pytest.mark.parametrize("stored", [True, False])
async def test_after_an_unknown_outcome_the_call_is_simply_repeated(
    store: Store, raw: Redis, clock: Clock, stored: bool
) -> None:
    lost = lose_next(store, stored=stored)
    with pytest.raises(OutcomeUnknown):
        await store.produce_cron_message(TOPIC, clock.now, draft())
    ticked = await store.produce_cron_message(TOPIC, clock.now, draft())
    assert ticked.id == (None if stored else f"cron-{clock.now}")
    await lost.arrive()
    assert len((await snapshot(raw, TOPIC)).records) == 1


@pytest.mark.parametrize(
    "name", ["payload", "pending", "dlq_payload", "error_parse_payload", "doorbell", "meta"]
)
async def test_a_key_of_a_wrong_type_is_named_and_nothing_is_changed(
    store: Store, raw: Redis, clock: Clock, name: str
) -> None:
    await pending(store)
    await assert_refused(
        store, raw, name, lambda: store.produce_cron_message(TOPIC, clock.now, draft())
    )
    assert (await store.produce_cron_message(TOPIC, clock.now, draft())).id is not None


async def test_a_last_tick_that_is_no_number_counts_as_none(
    store: Store, raw: Redis, clock: Clock
) -> None:
    await raw.hset(store.keys.of(TOPIC).meta, "tick", "nonsense")
    assert (await store.produce_cron_message(TOPIC, clock.now, draft())).last == clock.now


@pytest.mark.parametrize("tick", [-1, 2**53, 1.5, True, None])
async def test_a_tick_that_is_no_time_is_refused(store: Store, raw: Redis, tick: int) -> None:
    with pytest.raises(InvalidInput, match=f"tick={tick} is not a whole number"):
        await store.produce_cron_message(TOPIC, tick, draft())
    assert await raw.dbsize() == 0


@pytest.mark.parametrize("tick", [0, 1, 999_999_999_999, 2**50])
async def test_a_tick_keeps_all_its_digits(store: Store, clock: Clock, tick: int) -> None:
    clock.now = max(clock.now, tick)
    assert await store.produce_cron_message(TOPIC, tick, draft()) == Ticked(
        clock.now, tick, f"cron-{tick}"
    )


async def test_a_draft_that_cannot_be_a_ticks_message_is_refused(
    store: Store, raw: Redis, clock: Clock
) -> None:
    for bad in ({"delay": 1}, {"at": 1}, {"id": "a b"}):
        with pytest.raises(InvalidInput):
            await store.produce_cron_message(TOPIC, clock.now, draft(**bad))
    with pytest.raises(InvalidInput, match="as JSON"):
        await store.produce_cron_message(TOPIC, clock.now, store.draft(msgspec.Raw(b"{broken")))
    store.limits = Limits(max_payload=10)
    with pytest.raises(PayloadTooLarge):
        await store.produce_cron_message(TOPIC, clock.now, draft("x" * 10))
    assert await raw.dbsize() == 0


async def test_a_producer_can_repeat_a_ticks_id_without_a_second_copy(
    store: Store, clock: Clock
) -> None:
    ticked = await store.produce_cron_message(TOPIC, clock.now, draft())
    ((_, placed),) = await store.produce_normal_message(TOPIC, [draft(id=ticked.id)])
    assert placed is Placed.LIVE


async def test_without_a_clock_of_the_tests_the_time_is_the_servers(
    store: Store, server: Server
) -> None:
    async with await Store.open(server.url) as real:
        looked = await real.produce_cron_message(TOPIC, 0)
        assert looked.last == looked.now
        early = await real.produce_cron_message(TOPIC, looked.now + 1_000_000, draft())
        assert (early.last, early.id) == (looked.now, None)


async def test_a_last_tick_more_than_a_minute_ahead_does_not_count(
    store: Store, raw: Redis, clock: Clock
) -> None:
    """A clock that was an hour ahead for a moment must not silence the schedule for an hour."""
    await raw.hset(store.keys.of(TOPIC).meta, "tick", clock.now + 60_001)
    tick = clock.now
    ticked = await store.produce_cron_message(TOPIC, tick, draft())
    assert ticked == Ticked(tick, tick, f"cron-{tick}")
    assert (await snapshot(raw, TOPIC)).meta["tick"] == str(tick)


async def test_a_look_past_a_last_tick_more_than_a_minute_ahead_notes_the_time(
    store: Store, raw: Redis, clock: Clock
) -> None:
    await raw.hset(store.keys.of(TOPIC).meta, "tick", clock.now + 60_001)
    assert await store.produce_cron_message(TOPIC, 0) == Ticked(clock.now, clock.now, None)
    assert (await snapshot(raw, TOPIC)).meta["tick"] == str(clock.now)


async def test_a_last_tick_a_minute_ahead_counts(store: Store, raw: Redis, clock: Clock) -> None:
    """A clock that was set back a little must not fire a tick twice."""
    last = clock.now + 60_000
    await raw.hset(store.keys.of(TOPIC).meta, "tick", last)
    before = await snapshot(raw, TOPIC)
    for given in (draft(), None):
        ticked = await store.produce_cron_message(TOPIC, clock.now if given else 0, given)
        assert ticked == Ticked(clock.now, last, None)
    assert await snapshot(raw, TOPIC) == before
