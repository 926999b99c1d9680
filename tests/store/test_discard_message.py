"""dead | quarantined -> (gone)."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import pytest

from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.message import State
from mx_rmq.store.results import Settled
from mx_rmq.store.store import Store
from tests.lab.archives import ARCHIVES, archived, contents, index, key_name
from tests.lab.broken import assert_refused, vital
from tests.lab.calls import resend_next
from tests.lab.messages import TOPIC, bring, draft, message, settle, take
from tests.lab.snapshot import Snapshot, snapshot

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from tests.lab.clock import Clock
    from tests.lab.servers import Server

every_archive = pytest.mark.parametrize("state", ARCHIVES)


@every_archive
async def test_only_that_one_is_gone_with_index_and_contents(
    store: Store, raw: Redis, clock: Clock, state: State
) -> None:
    first, one, last = await archived(store, state, 3, clock=clock)
    (other,) = {*ARCHIVES} - {state}
    spared = await archived(store, other, 2)
    at = index(await snapshot(raw, TOPIC), state)[one]
    assert await store.discard_message(TOPIC, state, one, archived=at) is Settled.DONE
    found = await snapshot(raw, TOPIC)
    assert list(contents(found, state)) == [first, last]
    assert sorted(contents(found, other)) == sorted(spared)
    assert (found.records, found.normal) == ({}, [])


@every_archive
@pytest.mark.parametrize("late", [-1, 1])
async def test_an_entry_archived_at_another_time_is_not_the_one_that_was_seen(
    store: Store, raw: Redis, clock: Clock, state: State, late: int
) -> None:
    (id,) = await archived(store, state)
    before = await snapshot(raw, TOPIC)
    done = await store.discard_message(TOPIC, state, id, archived=clock.now + late)
    assert done is Settled.LOST
    assert await snapshot(raw, TOPIC) == before


@every_archive
@pytest.mark.parametrize("where", [None, *State])
async def test_what_is_not_in_the_archive_is_not_discarded(
    store: Store, raw: Redis, clock: Clock, state: State, where: State | None
) -> None:
    (other,) = {*ARCHIVES} - {state}
    one = await bring(store, other if where is state else where)
    before = await snapshot(raw, TOPIC)
    for topic, id in ((TOPIC, one.id), (TOPIC, "unknown"), ("unused", one.id)):
        assert await store.discard_message(topic, state, id, archived=clock.now) is Settled.LOST
    assert await snapshot(raw, TOPIC) == before
    assert await snapshot(raw, "unused") == Snapshot()


@pytest.mark.parametrize("state", [State.PENDING, State.DELAYED, State.PROCESSING])
async def test_only_archives_can_be_discarded_from(store: Store, state: State) -> None:
    with pytest.raises(InvalidInput, match="has no archive; only dead"):
        await store.discard_message(TOPIC, state, "id", archived=1)


@every_archive
async def test_of_two_operators_one_discards_and_the_other_does_not_requeue(
    store: Store, raw: Redis, server: Server, clock: Clock, state: State
) -> None:
    one = await bring(store, state)
    async with await Store.open(server.url, clock=clock) as other:
        answers = await asyncio.gather(
            store.discard_message(TOPIC, state, one.id, archived=clock.now),
            other.requeue_message(TOPIC, state, one.id, archived=clock.now, message=message(one)),
            other.discard_message(TOPIC, state, one.id, archived=clock.now),
        )
    assert sorted(answers) == [Settled.LOST, Settled.LOST, Settled.DONE]
    assert contents(await snapshot(raw, TOPIC), state) == {}


@every_archive
async def test_the_same_call_again_is_told_that_it_was_done(
    store: Store, raw: Redis, clock: Clock, state: State
) -> None:
    (id,) = await archived(store, state)
    resend_next(store, raw)
    assert await store.discard_message(TOPIC, state, id, archived=clock.now) is Settled.REPEATED


@every_archive
async def test_the_same_call_again_spares_a_new_message_with_the_same_id(
    store: Store, raw: Redis, clock: Clock, state: State
) -> None:
    (id,) = await archived(store, state, id="own")
    at = clock.now

    async def come_and_die_again() -> None:
        clock.advance(1_000_000)
        await store.produce_normal_message(TOPIC, [draft(2, id="own")])
        clock.now = at  # the worst case: even the time is the same
        (one,) = await take(store)
        await settle(store, one, state)

    resend_next(store, raw, between=come_and_die_again)
    assert await store.discard_message(TOPIC, state, id, archived=at) is Settled.REPEATED
    assert list(contents(await snapshot(raw, TOPIC), state)) == ["own"]


@every_archive
async def test_an_entry_whose_bytes_the_server_dropped_can_be_discarded(
    store: Store, raw: Redis, clock: Clock, state: State
) -> None:
    (id,) = await archived(store, state)
    _, payload = store.keys.of(TOPIC).archive_of(state)
    await raw.delete(payload)
    assert await store.discard_message(TOPIC, state, id, archived=clock.now) is Settled.DONE
    assert contents(await snapshot(raw, TOPIC), state) == {}


@every_archive
async def test_a_paused_topic_does_not_matter(store: Store, clock: Clock, state: State) -> None:
    (id,) = await archived(store, state)
    await store.pause_topic(TOPIC)
    assert await store.discard_message(TOPIC, state, id, archived=clock.now) is Settled.DONE


@every_archive
async def test_a_key_of_a_wrong_type_is_named_and_nothing_is_half_written(
    store: Store, raw: Redis, clock: Clock, state: State
) -> None:
    (id,) = await archived(store, state)
    call = partial(store.discard_message, TOPIC, state, id, archived=clock.now)
    for name in vital("discard_message"):
        await assert_refused(store, raw, key_name(state, name), call)
    assert await call() is Settled.DONE
