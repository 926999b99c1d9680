"""release_message: processing -> pending"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from mx_rmq.store.results import HandedBack, Settled
from tests.lab.messages import TOPIC, Priority, draft, leased, pending, take
from tests.lab.snapshot import snapshot
from tests.store.contracts import ReceiptContract

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.asyncio import Redis

    from mx_rmq.store.results import Leased
    from mx_rmq.store.store import Store


async def release(
    store: Store, taken: Sequence[Leased], level: Priority = Priority.NORMAL
) -> list[Settled]:
    return await store.release_message(TOPIC, "w1", [HandedBack(one, level) for one in taken])


class TestReleaseMessage(ReceiptContract):
    name = "release_message"

    async def settle(
        self, store: Store, taken: Sequence[Leased], *, worker: str = "w1"
    ) -> list[Settled]:
        claims = [HandedBack(one) for one in taken]
        return await store.release_message(TOPIC, worker, claims)


@pytest.mark.parametrize("level", list(Priority))
async def test_messages_go_back_to_the_front_of_their_level_in_the_order_they_were_taken(
    store: Store, raw: Redis, level: Priority
) -> None:
    await pending(store, 5, priority=level)
    before = await snapshot(raw, TOPIC)
    taken = await take(store, 3)
    assert await release(store, taken, level) == [Settled.DONE] * 3
    found = await snapshot(raw, TOPIC)
    assert found == replace(before, meta=found.meta)
    assert [one.id for one in await take(store, 3)] == [one.id for one in taken]


async def test_each_message_goes_back_to_its_own_level_untouched(store: Store, raw: Redis) -> None:
    levels = list(Priority)
    await store.produce_normal_message(TOPIC, [draft(n, priority=p) for n in "ab" for p in levels])
    before = await snapshot(raw, TOPIC)
    taken = await take(store, 6)
    order = [Priority(p) for p in ("high", "high", "normal", "normal", "low", "low")]
    claims = [HandedBack(one, level) for one, level in zip(taken, order, strict=True)]
    assert await store.release_message(TOPIC, "w1", claims) == [Settled.DONE] * 6
    found = await snapshot(raw, TOPIC)
    assert found == replace(before, meta=found.meta)
    assert found.records == before.records


async def test_the_doorbell_is_rung_once_and_only_if_something_came_back(
    store: Store, raw: Redis
) -> None:
    doorbell = store.keys.of(TOPIC).doorbell
    taken = await leased(store, 2)
    await raw.delete(doorbell)
    await release(store, [taken[0]._replace(token=1)])
    assert await raw.llen(doorbell) == 0
    for one in taken:
        await release(store, [one])
        assert await raw.llen(doorbell) == 1


async def test_a_released_message_is_dispatched_with_a_new_token(store: Store) -> None:
    (one,) = await leased(store)
    await release(store, [one])
    (two,) = await take(store, worker="w2")
    assert (two.id, two.record) == (one.id, one.record)
    assert two.token > one.token


async def test_what_has_no_record_any_more_is_dropped_by_the_next_dispatch(
    store: Store, raw: Redis
) -> None:
    gone, there = await leased(store, 2)
    await raw.hdel(store.keys.of(TOPIC).payload, gone.id)
    assert await release(store, [gone, there]) == [Settled.DONE] * 2
    assert [one.id for one in await take(store, 2)] == [there.id]
    assert (await store.views.counts(TOPIC)).dropped == 1
