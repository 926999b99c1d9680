"""A paused schedule fires no ticks; what it missed is skipped when it is resumed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mx_rmq.core.schedule import Schedule
from tests.lab.broken import assert_refused
from tests.lab.calls import resend_next
from tests.lab.messages import TOPIC, draft, take
from tests.lab.snapshot import snapshot

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.store.results import Ticked
    from mx_rmq.store.store import Store
    from tests.lab.clock import Clock

NAMES = pytest.mark.parametrize("name", ["s", ""], ids=["schedule", "cron in code"])


async def begin(store: Store, name: str) -> None:
    if name:
        stored = Schedule(name=name, topic=TOPIC, expression="* * * * *")
        await store.store_schedule(stored, "g")


async def fire(store: Store, clock: Clock, name: str) -> Ticked:
    new, generation = draft(), "g" if name else ""
    return await store.produce_cron_message(TOPIC, clock.now, new, name=name, generation=generation)


@NAMES
async def test_it_fires_nothing_until_it_is_resumed(
    store: Store, raw: Redis, clock: Clock, name: str
) -> None:
    await begin(store, name)
    assert await store.pause_schedule(TOPIC, name, reason="for now") is True
    paused = await snapshot(raw, TOPIC)
    assert paused.schedules[f"!{name}"] == f"{clock.now} for now"
    clock.advance(60_000)
    assert (await fire(store, clock, name)).state == "paused"
    looked = await store.produce_cron_message(TOPIC, 0, name=name, generation="g" if name else "")
    assert looked.state == "paused"
    assert await snapshot(raw, TOPIC) == paused
    assert await store.resume_schedule(TOPIC, name) is True
    assert (await fire(store, clock, name)).id is None  # skipped
    clock.advance(1)
    assert (await fire(store, clock, name)).id is not None
    assert len(await take(store)) == 1


@NAMES
async def test_pausing_and_resuming_again_changes_nothing(
    store: Store, raw: Redis, clock: Clock, name: str
) -> None:
    await begin(store, name)
    before = await snapshot(raw, TOPIC)
    assert await store.resume_schedule(TOPIC, name) is False
    assert await snapshot(raw, TOPIC) == before
    assert await store.pause_schedule(TOPIC, name) is True
    paused = await snapshot(raw, TOPIC)
    clock.advance(1)
    assert await store.pause_schedule(TOPIC, name, reason="again") is False
    assert await snapshot(raw, TOPIC) == paused
    assert await store.resume_schedule(TOPIC, name) is True
    assert await store.resume_schedule(TOPIC, name) is False


@NAMES
async def test_the_same_call_again_does_not_undo_what_was_done_meanwhile(
    store: Store, raw: Redis, name: str
) -> None:
    await begin(store, name)
    resend_next(store, raw, between=lambda: store.resume_schedule(TOPIC, name))
    assert await store.pause_schedule(TOPIC, name) is True
    assert f"!{name}" not in (await snapshot(raw, TOPIC)).schedules
    await store.pause_schedule(TOPIC, name)
    resend_next(store, raw, between=lambda: store.pause_schedule(TOPIC, name))
    assert await store.resume_schedule(TOPIC, name) is True
    assert f"!{name}" in (await snapshot(raw, TOPIC)).schedules


async def test_a_schedule_that_does_not_exist_is_not_paused(store: Store, raw: Redis) -> None:
    before = await snapshot(raw, TOPIC)
    assert await store.pause_schedule(TOPIC, "s") is False
    assert await store.resume_schedule(TOPIC, "s") is False
    assert await snapshot(raw, TOPIC) == before


async def test_a_replaced_schedule_stays_paused(store: Store, clock: Clock) -> None:
    await begin(store, "s")
    await store.pause_schedule(TOPIC, "s")
    await begin(store, "s")
    clock.advance(1)
    assert (await fire(store, clock, "s")).state == "paused"


async def test_each_schedule_is_paused_by_itself(store: Store, clock: Clock) -> None:
    await begin(store, "s")
    await store.pause_schedule(TOPIC, "")
    clock.advance(1)
    assert (await fire(store, clock, "s")).id is not None
    assert (await fire(store, clock, "")).state == "paused"


@NAMES
async def test_a_key_of_a_wrong_type_is_named_and_nothing_is_changed(
    store: Store, raw: Redis, name: str
) -> None:
    await begin(store, name)
    await assert_refused(store, raw, "schedules", lambda: store.pause_schedule(TOPIC, name))
    await store.pause_schedule(TOPIC, name)
    for key in ("schedules", "meta"):
        await assert_refused(store, raw, key, lambda: store.resume_schedule(TOPIC, name))
