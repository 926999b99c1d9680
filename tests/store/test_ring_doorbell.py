"""ring_doorbell: a ring that a worker cannot use goes back"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.lab.broken import assert_refused, broken, key_named
from tests.lab.calls import resend_next
from tests.lab.messages import TOPIC, Priority, delayed, leased, pending
from tests.lab.snapshot import snapshot

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.store.store import Store


@pytest.mark.parametrize("level", list(Priority))
async def test_a_ring_goes_back_while_something_is_pending(
    store: Store, raw: Redis, level: Priority
) -> None:
    doorbell = store.keys.of(TOPIC).doorbell
    await pending(store, priority=level)
    before = await snapshot(raw, TOPIC)
    ring = await raw.lrange(doorbell, 0, -1)
    await raw.lpop(doorbell)
    assert await store.ring_doorbell(TOPIC)
    assert await snapshot(raw, TOPIC) == before
    assert await raw.lrange(doorbell, 0, -1) == ring


async def test_a_doorbell_that_has_a_ring_gets_no_second_one(store: Store, raw: Redis) -> None:
    await pending(store, 3)
    for _ in range(3):
        assert not await store.ring_doorbell(TOPIC)
        assert await raw.llen(store.keys.of(TOPIC).doorbell) == 1


async def test_nobody_is_called_for_what_is_not_pending(store: Store, raw: Redis) -> None:
    await leased(store)
    await delayed(store, 1000)
    await raw.delete(store.keys.of(TOPIC).doorbell)
    before = await snapshot(raw, TOPIC)
    assert not await store.ring_doorbell(TOPIC)
    assert await snapshot(raw, TOPIC) == before


async def test_an_empty_topic_stays_without_any_key(store: Store, raw: Redis) -> None:
    assert not await store.ring_doorbell(TOPIC)
    assert await raw.dbsize() == 0


async def test_repeating_is_harmless(store: Store, raw: Redis) -> None:
    await pending(store)
    await raw.delete(store.keys.of(TOPIC).doorbell)
    resend_next(store, raw)
    assert not await store.ring_doorbell(TOPIC)
    assert (await snapshot(raw, TOPIC)).rung


@pytest.mark.parametrize("name", ["pending_high", "pending", "pending_low"])
async def test_a_level_with_a_key_of_a_wrong_type_does_not_count(
    store: Store, raw: Redis, name: str
) -> None:
    doorbell = store.keys.of(TOPIC).doorbell
    for level in Priority:
        await pending(store, priority=level)
    await raw.delete(doorbell)
    async with broken(raw, key_named(store, name)):
        assert await store.ring_doorbell(TOPIC)
    assert await raw.llen(doorbell) == 1


async def test_a_doorbell_of_a_wrong_type_is_named_and_nothing_is_changed(
    store: Store, raw: Redis
) -> None:
    await pending(store)
    await assert_refused(store, raw, "doorbell", lambda: store.ring_doorbell(TOPIC))
