"""any -> pending | delayed, or processing -> processing."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq.core import codec
from mx_rmq.core.duplicates import DuplicatePolicy
from mx_rmq.core.errors import QueueFull, ServerFull
from mx_rmq.core.message import LIVE, UNSTARTED, State
from mx_rmq.settings import Limits
from mx_rmq.store import operator_calls as operating
from mx_rmq.store.results import Placed, Produced, Settled
from tests.lab.broken import assert_refused, vital
from tests.lab.calls import resend_next
from tests.lab.messages import (
    LEASE,
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
from tests.lab.snapshot import Snapshot, snapshot, told
from tests.store.contracts import STATES, WINDOW

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.store.store import Store
    from tests.lab.clock import Clock

NEW = Produced("own", Placed.STORED)
REPLACED = Produced("own", Placed.REPLACED)


def new(**fields: Any) -> Any:
    return draft("new", id="own", **fields)


def record(clock: Clock, **fields: Any) -> bytes:
    """Return what is stored of the new message, when it was produced now."""
    message = renamed(new(**fields), "own")
    return b'{"created_at":%d,' % clock.now + codec.encode(message)[1:]


async def counts(raw: Redis) -> dict[str, int]:
    _, totals = await told(raw, TOPIC)
    return {what.decode(): int(count) for what, count in totals.items()}


# new


@pytest.mark.parametrize("priority", Priority)
@pytest.mark.parametrize("delay", [0, 1000])
async def test_without_a_message_it_makes_one(
    store: Store, raw: Redis, clock: Clock, priority: Priority, delay: int
) -> None:
    fields: dict[str, Any] = {"priority": priority, "delay": delay, "ttl": 5000}
    assert await store.replace_message(TOPIC, new(**fields)) == NEW
    found = await snapshot(raw, TOPIC)
    assert found.records == {"own": record(clock, **fields)}
    assert found.expiries == {"own": clock.now + 5000}
    assert found.recent == {"own": clock.now + WINDOW}
    lists = {} if delay else {priority: ["own"]}
    sets = {priority: {"own": clock.now + delay}} if delay else {}
    assert [found.high, found.normal, found.low] == [lists.get(one, []) for one in Priority]
    levels = [found.delayed_high, found.delayed, found.delayed_low]
    assert levels == [sets.get(one, {}) for one in Priority]
    assert (found.rung, found.rung_delay) == (not delay, bool(delay))
    assert await counts(raw) == {"delayed" if delay else "produced": 1}


async def test_a_message_that_finished_within_its_window_is_made_again(
    store: Store, raw: Redis, clock: Clock
) -> None:
    await bring(store, None, id="own")
    clock.advance(1000)
    assert await store.replace_message(TOPIC, new()) == NEW
    found = await snapshot(raw, TOPIC)
    assert (found.records, found.normal) == ({"own": record(clock)}, ["own"])
    assert found.recent == {"own": clock.now + WINDOW}


async def test_an_id_that_a_lane_made_can_be_replaced(store: Store, raw: Redis) -> None:
    (id,) = await pending(store)
    again = draft("new", id=id)
    assert (await store.replace_message(TOPIC, again)).placed is Placed.REPLACED
    (one,) = await take(store)
    assert bytes(codec.decode(one.record).payload) == b'"new"'
    await settle(store, one, None)
    assert (await store.replace_message(TOPIC, again)).placed is Placed.STORED


# pending, delayed


@pytest.mark.parametrize("priority", Priority)
async def test_a_pending_message_keeps_its_place(
    store: Store, raw: Redis, clock: Clock, priority: Priority
) -> None:
    await pending(store, 2, priority=priority)
    await pending(store, id="own", priority=priority)
    await pending(store, 2, priority=priority)
    before = await snapshot(raw, TOPIC)
    clock.advance(5)
    assert await store.replace_message(TOPIC, new(priority=priority)) == REPLACED
    records = {**before.records, "own": record(clock, priority=priority)}
    after = replace(before, records=records, recent={"own": clock.now + WINDOW})
    assert await snapshot(raw, TOPIC) == after
    assert (await counts(raw))["replaced"] == 1


async def test_a_message_too_deep_to_be_found_keeps_its_place(
    store: Store, raw: Redis, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operating, "WALK", 1)
    await pending(store, 2)
    await pending(store, id="own")
    await pending(store, 2)
    before = await snapshot(raw, TOPIC)
    for priority in Priority:
        assert await store.replace_message(TOPIC, new(priority=priority)) == REPLACED
        found = await snapshot(raw, TOPIC)
        assert replace(found, records=before.records) == before
    assert found.records["own"] == record(clock, priority=Priority.LOW)


async def test_a_message_too_deep_to_be_found_can_be_delayed(
    store: Store, raw: Redis, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operating, "WALK", 1)
    before, _ = await pending(store), await pending(store, id="own")
    after = await pending(store)
    for delay in (1000, 2000):
        assert await store.replace_message(TOPIC, new(delay=delay)) == REPLACED
    assert [one.id for one in await take(store, 9)] == [*before, *after]
    clock.advance(2000)
    await store.process_delay_message(TOPIC, count=9)
    assert [one.id for one in await take(store, 9)] == ["own"]


@pytest.mark.parametrize("delay", [0, 500, 3000])
@pytest.mark.parametrize("was", [0, 1000])
@pytest.mark.parametrize("priority", Priority)
async def test_a_waiting_message_moves_to_its_new_place(
    store: Store, raw: Redis, clock: Clock, priority: Priority, was: int, delay: int
) -> None:
    other = await pending(store, priority=priority)
    await (delayed(store, was, id="own") if was else pending(store, id="own"))
    clock.advance(100)
    again = new(priority=priority, delay=delay)
    assert await store.replace_message(TOPIC, again) == REPLACED
    found = await snapshot(raw, TOPIC)
    due = {"own": clock.now + delay} if delay else {}
    sets = [found.delayed_high, found.delayed, found.delayed_low]
    assert sets == [due if one is priority else {} for one in Priority]
    assert found.records["own"] == record(clock, priority=priority, delay=delay)
    ids = [*other] if delay else [*other, "own"]
    assert [one.id for one in await take(store, 9)] == ids
    clock.advance(delay)
    await store.process_delay_message(TOPIC, count=9)
    assert [one.id for one in await take(store, 9)] == (["own"] if delay else [])


async def test_an_earlier_due_time_rings_for_the_scheduler(store: Store, raw: Redis) -> None:
    await delayed(store, 1000, id="own")
    keys = store.keys.of(TOPIC)
    for delay, rings in ((2000, 0), (1000, 1), (500, 1)):
        await raw.delete(keys.doorbell_delay)
        await store.replace_message(TOPIC, new(delay=delay))
        assert await raw.llen(keys.doorbell_delay) == rings


@pytest.mark.parametrize("delay", [0, 1000])
@pytest.mark.parametrize(("was", "ttl"), [(3000, 7000), (3000, None), (None, 7000)])
async def test_the_time_to_live_starts_again(
    store: Store, raw: Redis, clock: Clock, was: int | None, ttl: int | None, delay: int
) -> None:
    await pending(store, id="own", ttl=was)
    clock.advance(100)
    await store.replace_message(TOPIC, new(ttl=ttl, delay=delay))
    found = await snapshot(raw, TOPIC)
    assert found.expiries == ({} if ttl is None else {"own": clock.now + ttl})


# dead, quarantined


@pytest.mark.parametrize("delay", [0, 1000])
@pytest.mark.parametrize("state", [State.DEAD, State.QUARANTINED])
async def test_an_archived_message_is_revived(
    store: Store, raw: Redis, clock: Clock, state: State, delay: int
) -> None:
    other = await bring(store, state)
    await bring(store, state, id="own")
    clock.advance(1000)
    assert await store.replace_message(TOPIC, new(delay=delay)) == REPLACED
    found = await snapshot(raw, TOPIC)
    assert found.records == {"own": record(clock, delay=delay)}
    left = [*found.dead, *found.dead_letters, *found.quarantine, *found.quarantined]
    assert left == [other.id] * 2
    clock.advance(delay)
    await store.process_delay_message(TOPIC, count=9)
    assert [one.id for one in await take(store, 9)] == ["own"]
    assert (await counts(raw))["replaced"] == 1
    assert await store.audit.topic(TOPIC) == []  # the bytes of the archives are right


# processing


async def test_a_message_in_processing_stays_with_its_worker(
    store: Store, raw: Redis, clock: Clock
) -> None:
    (one,) = await leased(store, id="own")
    before = await snapshot(raw, TOPIC)
    assert await store.replace_message(TOPIC, new()) == REPLACED
    marked = {"own": f"{one.token}:w1 normal  "}
    after = replace(before, records={"own": record(clock)}, leases=marked)
    assert await snapshot(raw, TOPIC) == after


async def test_the_newest_of_several_replacements_wins(
    store: Store, raw: Redis, clock: Clock
) -> None:
    (one,) = await leased(store, id="own")
    for number in range(3):
        newer = draft(number, id="own", delay=1000 * number, priority=Priority.HIGH, ttl=9000)
        assert await store.replace_message(TOPIC, newer) == REPLACED
    assert (await snapshot(raw, TOPIC)).leases == {
        "own": f"{one.token}:w1 high {clock.now + 2000} {clock.now + 9000}"
    }
    assert await store.release_replaced(TOPIC, "w1", one) is Settled.DONE
    found = await snapshot(raw, TOPIC)
    assert found.delayed_high == {"own": clock.now + 2000}
    assert bytes(codec.decode(found.records["own"]).payload) == b"2"


async def test_a_takeover_keeps_the_replacement(store: Store, raw: Redis, clock: Clock) -> None:
    await leased(store, id="own")
    await store.replace_message(TOPIC, new(delay=2 * LEASE))
    due = clock.now + 2 * LEASE
    clock.advance(LEASE)
    taken = await store.handle_timeout_message(TOPIC, "m1", count=9, recovery=1000)
    (one,) = taken.messages
    assert (one.lost_by, bytes(codec.decode(one.record).payload)) == ("w1", b'"new"')
    assert (await snapshot(raw, TOPIC)).leases == {"own": f"{one.token}:m1 normal {due} "}
    assert await store.release_replaced(TOPIC, "m1", one) is Settled.DONE
    assert (await snapshot(raw, TOPIC)).delayed == {"own": due}


async def test_a_dispatch_whose_reply_was_lost_does_not_get_the_replacement(
    store: Store, raw: Redis
) -> None:
    await pending(store, id="own")

    async def meanwhile() -> None:
        await store.replace_message(TOPIC, new())

    resend_next(store, raw, between=meanwhile)
    assert await take(store) == []  # its lease runs out, and a monitor queues the new record


async def test_a_replaced_message_can_be_repaired(store: Store, raw: Redis, clock: Clock) -> None:
    (one,) = await leased(store, id="own")
    await store.replace_message(TOPIC, new())
    await raw.zrem(store.keys.of(TOPIC).expire_monitor, "own")
    assert await store.repair_message(TOPIC, b"own")
    assert await store.audit.topic(TOPIC) == []
    (late,) = (await store.handle_timeout_message(TOPIC, "m1", count=9, recovery=1000)).messages
    assert (late.id, late.lost_by) == (one.id, "w1")
    assert await store.release_replaced(TOPIC, "m1", late)


# the id, the cap, the server


@pytest.mark.parametrize("state", STATES)
async def test_the_window_starts_again(
    store: Store, raw: Redis, clock: Clock, state: State | None
) -> None:
    await bring(store, state, id="own")
    clock.advance(1000)
    await store.replace_message(TOPIC, new())
    assert (await snapshot(raw, TOPIC)).recent == {"own": clock.now + WINDOW}
    await store.replace_message(TOPIC, new(), DuplicatePolicy("replace", 5000))
    assert (await snapshot(raw, TOPIC)).recent == {"own": clock.now + 5000}
    await store.replace_message(TOPIC, new(), DuplicatePolicy("replace", 0))
    assert (await snapshot(raw, TOPIC)).recent == {}


async def test_without_a_window_only_its_own_mark_is_removed(
    store: Store, raw: Redis, clock: Clock
) -> None:
    await pending(store, id="own")
    await pending(store, id="other")
    clock.advance(WINDOW)
    await pending(store, id="third")
    await store.replace_message(TOPIC, new(), DuplicatePolicy("replace", 0))
    assert (await snapshot(raw, TOPIC)).recent == {"third": clock.now + WINDOW}


@pytest.mark.parametrize("state", STATES)
async def test_the_cap_refuses_only_what_would_wait_in_addition(
    store: Store, raw: Redis, state: State | None
) -> None:
    await bring(store, state, id="own")
    store.limits = Limits(max_pending=2)
    await pending(store, 1 if state in UNSTARTED else 2)
    before = await snapshot(raw, TOPIC)
    if state in LIVE:
        assert await store.replace_message(TOPIC, new()) == REPLACED
        return
    with pytest.raises(QueueFull):
        await store.replace_message(TOPIC, new())
    assert await snapshot(raw, TOPIC) == before


async def test_a_full_server_refuses_it(store: Store, raw: Redis) -> None:
    for state in (None, State.PENDING, State.DELAYED, State.PROCESSING):
        await bring(store, state, id=f"in-{state}")
    before = await snapshot(raw, TOPIC)
    await raw.config_set("maxmemory", 1)
    try:
        for id in (*before.records, "unknown"):
            with pytest.raises(ServerFull):
                await store.replace_message(TOPIC, draft("new", id=id))
    finally:
        await raw.config_set("maxmemory", 0)
    assert await snapshot(raw, TOPIC) == before


@pytest.mark.parametrize("state", STATES)
async def test_the_same_call_again_changes_nothing(
    store: Store, raw: Redis, clock: Clock, state: State | None
) -> None:
    await bring(store, state, id="own")
    found: list[Snapshot] = []

    async def meanwhile() -> None:
        await store.replace_message(TOPIC, draft("newer", id="own", delay=1))
        found.append(await snapshot(raw, TOPIC))

    resend_next(store, raw, between=meanwhile)
    answer = await store.replace_message(TOPIC, new())
    gone = state in (None, State.COMPLETED)
    assert answer == (Produced("own", Placed.REPEATED) if gone else REPLACED)
    assert [await snapshot(raw, TOPIC)] == found


async def test_a_key_of_a_wrong_type_is_named_and_nothing_is_changed(
    store: Store, raw: Redis
) -> None:
    await bring(store, State.DEAD)
    await bring(store, State.QUARANTINED)
    await delayed(store, 1000)
    await pending(store, id="own")
    unused = {"error_parse_queue", "dlq", "cancelled"}
    for name in [one for one in vital("replace_message") if one not in unused]:
        if not name.startswith(("pending", "delay_tasks")):
            call = partial(store.replace_message, TOPIC, new())
            await assert_refused(store, raw, name, call)
