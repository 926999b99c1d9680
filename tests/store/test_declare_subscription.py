"""declare_subscription and remove_subscription: which subscriptions a topic has"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mx_rmq.core.errors import InvalidInput
from mx_rmq.store.results import FannedOut, Settled
from mx_rmq.store.subscription_calls import MOST
from tests.lab.messages import TOPIC, pending
from tests.lab.snapshot import snapshot

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.store.store import Store
    from tests.lab.clock import Clock


async def test_a_subscription_is_declared_once(store: Store, clock: Clock) -> None:
    began = clock.now
    assert await store.declare_subscription(TOPIC, "billing")
    clock.advance(5)
    assert await store.declare_subscription(TOPIC, "search")
    assert await store.declare_subscription(TOPIC, "billing")
    assert await store.subscriptions(TOPIC) == {"billing": began, "search": began + 5}


async def test_one_that_was_removed_stays_removed_until_a_worker_starts(store: Store) -> None:
    await store.declare_subscription(TOPIC, "billing")
    await store.declare_subscription(TOPIC, "search")
    assert await store.remove_subscription(TOPIC, "billing") is Settled.DONE
    assert await store.remove_subscription(TOPIC, "billing") is Settled.LOST
    assert list(await store.subscriptions(TOPIC)) == ["search"]
    assert not await store.declare_subscription(TOPIC, "billing", again=True)
    assert list(await store.subscriptions(TOPIC)) == ["search"]
    assert await store.declare_subscription(TOPIC, "billing")
    assert list(await store.subscriptions(TOPIC)) == ["search", "billing"]


async def test_a_worker_brings_back_what_the_server_lost(store: Store, raw: Redis) -> None:
    await store.declare_subscription(TOPIC, "billing")
    await raw.delete(store.keys.of(TOPIC).meta)
    assert await store.declare_subscription(TOPIC, "billing", again=True)
    assert list(await store.subscriptions(TOPIC)) == ["billing"]


async def test_all_partitions_have_it_also_those_that_come_later(store: Store) -> None:
    await store.register(TOPIC, 2)
    await store.register(f"{TOPIC}@billing", 2)
    await store.declare_subscription(TOPIC, "billing")
    await store.grow(TOPIC, 4)
    for part in (TOPIC, f"{TOPIC}/1", f"{TOPIC}/2", f"{TOPIC}/3"):
        assert list(await store.subscriptions(part)) == ["billing"]
    assert store.partitions[f"{TOPIC}@billing"] == 4


async def test_a_paused_subscription_is_paused_in_new_partitions(store: Store) -> None:
    await store.register(TOPIC)
    await store.register(f"{TOPIC}@billing")
    await store.declare_subscription(TOPIC, "billing")
    await store.pause_topic(f"{TOPIC}@billing")
    await store.grow(TOPIC, 2)
    assert (await store.views.counts(f"{TOPIC}@billing/1")).paused
    assert not (await store.views.counts(f"{TOPIC}/1")).paused


async def test_it_works_on_a_full_server(store: Store, raw: Redis) -> None:
    await raw.config_set("maxmemory", 1)
    try:
        assert await store.declare_subscription(TOPIC, "billing")
        assert await store.remove_subscription(TOPIC, "billing")
        assert await store.declare_subscription(TOPIC, "billing")
    finally:
        await raw.config_set("maxmemory", 0)
    assert list(await store.subscriptions(TOPIC)) == ["billing"]


async def test_only_the_last_removals_are_remembered(store: Store, raw: Redis) -> None:
    for number in range(60):
        await store.declare_subscription(TOPIC, f"s{number}")
        await store.remove_subscription(TOPIC, f"s{number}")
    listed = (await snapshot(raw, TOPIC)).meta["subscriptions"].split()
    assert listed[::2] == [f"-s{number}" for number in range(59, 9, -1)]


async def test_a_topic_has_a_limited_number(store: Store) -> None:
    for number in range(MOST):
        await store.declare_subscription(TOPIC, f"s{number}")
    with pytest.raises(InvalidInput, match="64 subscriptions, the maximum"):
        await store.declare_subscription(TOPIC, "more")
    await pending(store)
    names = tuple(await store.subscriptions(TOPIC))
    assert await store.fan_out(TOPIC, names, count=9) == FannedOut(names, 1, 0)


@pytest.mark.parametrize("name", ["", "-a", "a b", "a@b", "a/1", "é", "x" * 65])
async def test_a_name_has_letters_digits_and_a_few_signs(store: Store, name: str) -> None:
    with pytest.raises(InvalidInput, match="subscription"):
        await store.declare_subscription(TOPIC, name)
