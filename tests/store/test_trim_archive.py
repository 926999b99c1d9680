"""dead | quarantined -> (gone), by age and count, when nothing new arrives."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.message import State
from tests.lab.archives import ARCHIVES, archived, contents, key_name, limits
from tests.lab.broken import assert_refused, vital
from tests.lab.messages import TOPIC, leased
from tests.lab.snapshot import Snapshot, snapshot

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.store.store import Store
    from tests.lab.clock import Clock

MINUTE = 60_000


@pytest.mark.parametrize("state", ARCHIVES)
@pytest.mark.parametrize(
    ("keep", "ttl", "left"),
    [(0, 0, 6), (4, 0, 4), (6, 0, 6), (1, 0, 1), (0, 60, 3), (2, 60, 2), (5, 60, 3), (0, 120, 6)],
)
async def test_those_over_the_age_or_the_cap_go_oldest_first(
    store: Store, raw: Redis, clock: Clock, state: State, keep: int, ttl: int, left: int
) -> None:
    ids = await archived(store, state, 3, clock=clock)
    clock.advance(MINUTE // 2)
    ids += await archived(store, state, 3, clock=clock)
    clock.advance(MINUTE // 2)
    store.limits = limits(state, keep=keep, ttl=ttl)
    before = await snapshot(raw, TOPIC)
    assert await store.trim_archive(TOPIC, state) == 6 - left
    after = await snapshot(raw, TOPIC)
    assert list(contents(after, state)) == ids[6 - left :]
    live: dict[str, Any] = dict.fromkeys(("dead", "dead_letters", "quarantine", "quarantined"))
    assert replace(after, **live) == replace(before, **live)
    assert await store.trim_archive(TOPIC, state) == 0
    assert await snapshot(raw, TOPIC) == after


@pytest.mark.parametrize("state", ARCHIVES)
async def test_an_entry_is_dropped_in_the_millisecond_in_which_it_reaches_its_age(
    store: Store, clock: Clock, state: State
) -> None:
    await archived(store, state)
    store.limits = limits(state, ttl=60)
    clock.advance(MINUTE - 1)
    assert await store.trim_archive(TOPIC, state) == 0
    clock.advance(1)
    assert await store.trim_archive(TOPIC, state) == 1


@pytest.mark.parametrize("state", ARCHIVES)
async def test_a_large_surplus_goes_in_bounded_steps(
    store: Store, raw: Redis, clock: Clock, state: State
) -> None:
    store.limits = limits(state)
    index, payload = store.keys.of(TOPIC).archive_of(state)
    ids = [f"id-{number:04}" for number in range(1000)]
    await store.register(TOPIC)
    at = clock.now - MINUTE - 300
    await raw.zadd(index, {id: at + number for number, id in enumerate(ids)})
    await raw.hset(payload, mapping=dict.fromkeys(ids, "bytes"))
    store.limits = limits(state, keep=50, ttl=60)
    steps = []
    while dropped := await store.trim_archive(TOPIC, state):
        steps.append(dropped)
    assert steps == [200, 200, 100, 100, 100, 100, 100, 50]
    assert list(contents(await snapshot(raw, TOPIC), state)) == ids[-50:]


@pytest.mark.parametrize("state", ARCHIVES)
async def test_an_empty_archive_has_nothing_to_trim(store: Store, raw: Redis, state: State) -> None:
    store.limits = limits(state, keep=1, ttl=1)
    assert await store.trim_archive("unused", state) == 0
    assert await snapshot(raw, "unused") == Snapshot()


@pytest.mark.parametrize("state", ARCHIVES)
async def test_an_index_entry_whose_bytes_the_server_dropped_goes_too(
    store: Store, raw: Redis, clock: Clock, state: State
) -> None:
    gone, _ = await archived(store, state, 2)
    _, payload = store.keys.of(TOPIC).archive_of(state)
    await raw.hdel(payload, gone)
    store.limits = limits(state, ttl=60)
    clock.advance(MINUTE)
    assert await store.trim_archive(TOPIC, state) == 2
    assert contents(await snapshot(raw, TOPIC), state) == {}


async def test_a_paused_topic_is_trimmed_and_its_live_messages_stay(
    store: Store, raw: Redis, clock: Clock
) -> None:
    await archived(store, State.DEAD)
    await leased(store)
    await store.pause_topic(TOPIC)
    before = await snapshot(raw, TOPIC)
    clock.advance(MINUTE)
    store.limits = limits(State.DEAD, ttl=60)
    assert await store.trim_archive(TOPIC, State.DEAD) == 1
    assert await snapshot(raw, TOPIC) == replace(before, dead={}, dead_letters={})


@pytest.mark.parametrize("state", [State.PENDING, State.DELAYED, State.PROCESSING])
async def test_only_archives_are_trimmed(store: Store, state: State) -> None:
    with pytest.raises(InvalidInput, match="has no archive; only dead"):
        await store.trim_archive(TOPIC, state)


@pytest.mark.parametrize("state", ARCHIVES)
async def test_a_key_of_a_wrong_type_is_named_and_nothing_is_half_written(
    store: Store, raw: Redis, clock: Clock, state: State
) -> None:
    await archived(store, state, 2)
    clock.advance(MINUTE)
    store.limits = limits(state, keep=1, ttl=60)
    for name in vital("trim_archive"):
        call = partial(store.trim_archive, TOPIC, state)
        await assert_refused(store, raw, key_name(state, name), call)
    assert await store.trim_archive(TOPIC, state) == 2
