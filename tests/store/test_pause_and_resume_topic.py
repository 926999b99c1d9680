"""A paused topic gives nothing, and everything else goes on."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.message import State
from tests.lab.broken import assert_refused, vital
from tests.lab.calls import resend_next
from tests.lab.messages import (
    LEASE,
    TOPIC,
    Priority,
    bring,
    delayed,
    leased,
    pending,
    settle,
    take,
)
from tests.lab.snapshot import Snapshot, snapshot

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.store.store import Store
    from tests.lab.clock import Clock


@pytest.mark.parametrize("priority", Priority)
async def test_a_paused_topic_gives_nothing_until_it_is_resumed(
    store: Store, raw: Redis, priority: Priority
) -> None:
    ids = await pending(store, 3, priority=priority)
    before = await snapshot(raw, TOPIC)
    assert await store.pause_topic(TOPIC) is True
    assert await snapshot(raw, TOPIC) == replace(before, meta={"paused": "1"})
    assert await take(store, 10) == []
    assert await snapshot(raw, TOPIC) == replace(before, meta={"paused": "1"})
    assert await store.resume_topic(TOPIC) is True
    assert await snapshot(raw, TOPIC) == before
    assert [one.id for one in await take(store, 10)] == ids


async def test_pausing_and_resuming_again_changes_nothing(store: Store, raw: Redis) -> None:
    await leased(store)
    running = await snapshot(raw, TOPIC)
    assert await store.resume_topic(TOPIC) is False
    assert await snapshot(raw, TOPIC) == running
    assert await store.pause_topic(TOPIC) is True
    paused = await snapshot(raw, TOPIC)
    for again in (False, False):
        assert await store.pause_topic(TOPIC) is again
        assert await snapshot(raw, TOPIC) == paused
    assert await store.resume_topic(TOPIC) is True
    assert await store.resume_topic(TOPIC) is False
    assert await snapshot(raw, TOPIC) == running
    resend_next(store, raw)
    await store.pause_topic(TOPIC)
    resend_next(store, raw)
    await store.resume_topic(TOPIC)
    assert await snapshot(raw, TOPIC) == running


async def test_the_same_call_again_does_not_undo_what_an_operator_did_meanwhile(
    store: Store, raw: Redis
) -> None:
    await pending(store)
    resend_next(store, raw, between=lambda: store.resume_topic(TOPIC))
    assert await store.pause_topic(TOPIC) is True
    assert (await store.views.counts(TOPIC)).paused == 0
    await store.pause_topic(TOPIC)
    resend_next(store, raw, between=lambda: store.pause_topic(TOPIC))
    assert await store.resume_topic(TOPIC) is True
    assert (await store.views.counts(TOPIC)).paused == 1


async def test_a_topic_can_be_paused_before_its_first_message(store: Store, raw: Redis) -> None:
    assert await store.pause_topic(TOPIC)
    await pending(store)
    assert await take(store) == []
    assert await store.resume_topic(TOPIC)
    assert len(await take(store)) == 1
    assert await store.resume_topic("unused") is False
    assert await snapshot(raw, "unused") == Snapshot()


async def test_one_paused_topic_does_not_stop_another(store: Store) -> None:
    await pending(store)
    assert await store.pause_topic("others")
    assert len(await take(store)) == 1


@pytest.mark.parametrize(
    "state", [None, *(state for state in State if state is not State.PROCESSING)]
)
async def test_what_is_in_processing_goes_on(store: Store, raw: Redis, state: State | None) -> None:
    (one,) = await leased(store)
    await store.pause_topic(TOPIC)
    assert await store.extend_lease(TOPIC, "w1", [one], lease=LEASE) == []
    await settle(store, one, state)
    assert (await snapshot(raw, TOPIC)).leases == {}


async def test_producing_delays_and_time_outs_go_on(store: Store, raw: Redis, clock: Clock) -> None:
    (held,) = await leased(store)
    dead = await bring(store, State.DEAD)
    await store.pause_topic(TOPIC)
    (first,) = await pending(store)
    (due,) = await delayed(store, LEASE)
    assert await store.get_next_delay_task(TOPIC) == LEASE
    clock.advance(LEASE)
    assert await store.process_delay_message(TOPIC, count=10) == [due]
    taken = await store.handle_timeout_message(TOPIC, "monitor", count=10, recovery=1000)
    assert [one.id for one in taken.messages] == [held.id]
    archived = clock.now - LEASE
    assert await store.discard_message(TOPIC, State.DEAD, dead.id, archived=archived)
    assert await store.cancel_message(TOPIC, first)
    assert (await snapshot(raw, TOPIC)).normal == [due]
    assert await take(store, 10) == []


async def test_a_call_that_dispatched_before_the_pause_gets_its_messages_again(
    store: Store, raw: Redis
) -> None:
    await pending(store)

    async def pause() -> None:
        await store.pause_topic(TOPIC)

    resend_next(store, raw, between=pause)
    assert len(await take(store)) == 1
    assert await take(store) == []


@pytest.mark.parametrize(
    ("waiting", "rung", "after"),
    [(0, False, False), (0, True, True), (2, False, True), (2, True, True)],
)
@pytest.mark.parametrize("priority", Priority)
async def test_resuming_rings_once_if_something_waits(
    store: Store, raw: Redis, priority: Priority, waiting: int, rung: bool, after: bool
) -> None:
    doorbell = store.keys.of(TOPIC).doorbell
    await store.pause_topic(TOPIC)
    if waiting:
        await pending(store, waiting, priority=priority)
    await raw.delete(doorbell)
    if rung:
        await raw.rpush(doorbell, "1")
    assert await store.resume_topic(TOPIC)
    assert await raw.llen(doorbell) == int(after)


async def test_a_bad_topic_is_refused_before_it_becomes_a_key(store: Store, raw: Redis) -> None:
    for call in (store.pause_topic, store.resume_topic):
        with pytest.raises(InvalidInput, match="topic 'a,b' must consist of"):
            await call("a,b")
    assert await raw.dbsize() == 0


@pytest.mark.parametrize("name", ["pause_topic", "resume_topic"])
async def test_a_key_of_a_wrong_type_is_named_and_nothing_is_half_written(
    store: Store, raw: Redis, name: str
) -> None:
    await leased(store)
    await pending(store)
    if name == "resume_topic":
        await store.pause_topic(TOPIC)
    call = partial(getattr(store, name), TOPIC)
    for key in vital(name):
        await assert_refused(store, raw, key, call)
    assert await call() is True
