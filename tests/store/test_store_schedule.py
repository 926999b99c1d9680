"""store_schedule and remove_schedule: which definition of a schedule is in force."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mx_rmq.core.errors import OutcomeUnknown
from mx_rmq.core.schedule import Schedule
from mx_rmq.store.results import Settled, Ticked
from tests.lab.broken import assert_refused
from tests.lab.calls import lose_next, resend_next
from tests.lab.messages import TOPIC, draft, take
from tests.lab.snapshot import Snapshot, snapshot

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.store.store import Store
    from tests.lab.clock import Clock


def schedule(expression: str = "* * * * *", name: str = "s", **fields: object) -> Schedule:
    return Schedule(name=name, topic=TOPIC, expression=expression, **fields)  # type: ignore[arg-type] # any field


async def fire(store: Store, clock: Clock, generation: str, name: str = "s") -> Ticked:
    new = draft(id=f"cron-{clock.now}@{name}")
    return await store.produce_cron_message(TOPIC, clock.now, new, name=name, generation=generation)


async def test_a_definition_is_stored_and_ticks_begin_now(
    store: Store, raw: Redis, clock: Clock
) -> None:
    one = schedule()
    assert await store.store_schedule(one, "g1") is Settled.DONE
    stored = f'g1 {one.timetable} {{"name":"s","topic":"orders","expression":"* * * * *"}}'
    assert await snapshot(raw, TOPIC) == Snapshot(schedules={"s": stored, "@s": str(clock.now)})
    assert (await fire(store, clock, "g1")).id is None  # the tick of the moment it was stored
    clock.advance(1)
    assert await fire(store, clock, "g1") == Ticked(clock.now, clock.now, f"cron-{clock.now}@s")
    await take(store)


async def test_of_two_definitions_only_the_newer_one_fires(store: Store, clock: Clock) -> None:
    await store.store_schedule(schedule(), "g1")
    await store.store_schedule(schedule("1 * * * *"), "g2")
    clock.advance(1)
    assert (await fire(store, clock, "g1")).state == "gone"
    fired = await fire(store, clock, "g2")
    assert (fired.id, fired.state) == (f"cron-{clock.now}@s", "")


async def test_the_same_timetable_keeps_the_last_tick_and_another_one_starts_now(
    store: Store, raw: Redis, clock: Clock
) -> None:
    first = clock.now
    await store.store_schedule(schedule(), "g1")
    clock.advance(1000)
    await store.store_schedule(schedule(headers={"a": "b"}), "g2")
    assert (await snapshot(raw, TOPIC)).schedules["@s"] == str(first)
    await store.store_schedule(schedule(tz="Europe/Berlin"), "g3")
    assert (await snapshot(raw, TOPIC)).schedules["@s"] == str(clock.now)


async def test_a_tick_that_is_due_fires_also_if_it_is_stored_again_first(
    store: Store, clock: Clock
) -> None:
    """A deployment stores its schedules again: at no moment may that cost a tick."""
    await store.store_schedule(schedule(), "g1")
    clock.advance(60_000)
    await store.store_schedule(schedule(), "g2")
    assert (await fire(store, clock, "g2")).id is not None


async def test_schedules_of_one_topic_have_their_own_ticks(store: Store, clock: Clock) -> None:
    for name in ("s", "t"):
        await store.store_schedule(schedule(name=name), "g")
    clock.advance(1)
    fired = [await fire(store, clock, "g", name) for name in ("s", "t", "s", "t")]
    assert [bool(one.id) for one in fired] == [True, True, False, False]
    await store.produce_cron_message(TOPIC, clock.now, draft())  # the cron of the topic, too
    assert len(await take(store, 10)) == 3


async def test_once_it_is_removed_no_worker_fires_it(
    store: Store, raw: Redis, clock: Clock
) -> None:
    await store.store_schedule(schedule(), "g1")
    await store.pause_schedule(TOPIC, "s")
    assert await store.remove_schedule(TOPIC, "s") is True
    assert await snapshot(raw, TOPIC) == Snapshot()
    clock.advance(1)
    for given in (draft(), None):
        ticked = await store.produce_cron_message(
            TOPIC, clock.now, given, name="s", generation="g1"
        )
        assert ticked == Ticked(clock.now, None, None, "gone")
    assert await snapshot(raw, TOPIC) == Snapshot()
    assert await store.remove_schedule(TOPIC, "s") is False


async def test_only_the_named_generation_is_removed(store: Store, raw: Redis) -> None:
    await store.store_schedule(schedule(), "g2")
    before = await snapshot(raw, TOPIC)
    for other in ("g1", "g", "g22"):
        assert await store.remove_schedule(TOPIC, "s", generation=other) is False
    assert await snapshot(raw, TOPIC) == before
    assert await store.remove_schedule(TOPIC, "s", generation="g2") is True


async def test_a_removed_schedule_that_is_stored_again_is_a_new_one(
    store: Store, clock: Clock
) -> None:
    await store.store_schedule(schedule(), "g1")
    await store.remove_schedule(TOPIC, "s")
    await store.store_schedule(schedule(), "g2")
    clock.advance(1)
    assert (await fire(store, clock, "g1")).state == "gone"
    assert (await fire(store, clock, "g2")).id is not None


async def test_the_same_calls_again_change_nothing(store: Store, raw: Redis) -> None:
    resend_next(store, raw, between=lambda: store.remove_schedule(TOPIC, "s"))
    assert await store.store_schedule(schedule(), "g1") is Settled.REPEATED
    assert (await snapshot(raw, TOPIC)).schedules == {}
    await store.store_schedule(schedule(), "g2")
    resend_next(store, raw, between=lambda: store.store_schedule(schedule(), "g3"))
    assert await store.remove_schedule(TOPIC, "s") is True
    assert (await snapshot(raw, TOPIC)).schedules["s"].startswith("g3 ")


async def test_a_late_copy_does_not_store_a_removed_schedule_again(
    store: Store, raw: Redis
) -> None:
    lost = lose_next(store, stored=True)
    with pytest.raises(OutcomeUnknown):
        await store.store_schedule(schedule(), "g1")
    await store.remove_schedule(TOPIC, "s")
    await lost.arrive()
    assert (await snapshot(raw, TOPIC)).schedules == {}


async def test_a_key_of_a_wrong_type_is_named_and_nothing_is_changed(
    store: Store, raw: Redis, clock: Clock
) -> None:
    await assert_refused(store, raw, "schedules", lambda: store.store_schedule(schedule(), "g1"))
    await store.store_schedule(schedule(), "g1")
    await assert_refused(store, raw, "schedules", lambda: store.remove_schedule(TOPIC, "s"))
    await assert_refused(store, raw, "schedules", lambda: fire(store, clock, "g1"))


async def test_the_history_says_who_did_it(store: Store) -> None:
    await store.register(TOPIC)
    await store.store_schedule(schedule(), "g1", by="ann")
    await store.remove_schedule(TOPIC, "s", by="bob")
    await store.remove_schedule(TOPIC, "s", by="eve")  # there is none
    found = await store.caller.command("XRANGE", store.keys.of(TOPIC).history, "-", "+")
    said = [
        (one[1][b"what"], one[1][b"by"], one[1][b"about"])
        if isinstance(one[1], dict)
        else tuple(
            dict(zip(one[1][::2], one[1][1::2], strict=True))[x] for x in (b"what", b"by", b"about")
        )
        for one in found
    ]
    assert said == [(b"scheduled", b"ann", b"s"), (b"unscheduled", b"bob", b"s")]


@pytest.mark.corrupts
async def test_the_audit_reports_what_is_left_without_a_definition(
    store: Store, raw: Redis
) -> None:
    await store.register(TOPIC)
    await store.pause_schedule(TOPIC, "")  # the topic's cron: it has no definition
    await raw.hset(store.keys.of(TOPIC).schedules, mapping={"@a": "1", "!b": "1 why"})
    found = [violation.what for violation in await store.audit.topic(TOPIC)]
    assert found == [
        "schedule b has a pause, but no definition",
        "schedule a has a last tick, but no definition",
    ]
