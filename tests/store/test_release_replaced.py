"""processing -> pending | delayed, of a message that was replaced meanwhile."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from mx_rmq.core import codec
from mx_rmq.core.message import State
from mx_rmq.store.quarantine import QuarantineReason
from mx_rmq.store.results import Claim, HandedBack, RetryRequest, Settled
from tests.lab.broken import assert_refused, vital
from tests.lab.calls import resend_next
from tests.lab.messages import (
    LEASE,
    TOPIC,
    Priority,
    delayed,
    draft,
    leased,
    message,
    pending,
    settle,
    take,
)
from tests.lab.snapshot import snapshot, told

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.store.results import Leased
    from mx_rmq.store.store import Store
    from tests.lab.clock import Clock


async def replaced(store: Store, **fields: object) -> Leased:
    """Lease a message to w1 and replace it meanwhile."""
    (one,) = await leased(store, id="own")
    await store.replace_message(TOPIC, draft("new", id="own", **fields))
    return one


async def settled_as(store: Store, one: Leased, how: str) -> Settled:
    if how == "complete":
        return (await store.complete_message(TOPIC, "w1", [one]))[0]
    if how == "retry":
        return (await store.retry_message(TOPIC, "w1", [RetryRequest(one, message(one), 1)]))[0]
    if how == "release":
        return (await store.release_message(TOPIC, "w1", [HandedBack(one)]))[0]
    if how == "dead":
        return await store.move_to_dlq(TOPIC, "w1", one, message(one))
    why = QuarantineReason.of(id=one.id, topic=TOPIC, error=ValueError("no"), data=one.record)
    return await store.handle_parse_error(TOPIC, "w1", one, why)


@pytest.mark.parametrize("how", ["complete", "retry", "release", "dead", "quarantine"])
async def test_a_settle_of_a_replaced_message_says_so_and_changes_nothing(
    store: Store, raw: Redis, how: str
) -> None:
    one = await replaced(store)
    before = await snapshot(raw, TOPIC)
    answer = await settled_as(store, one, how)
    assert answer is Settled.REPLACED
    assert not answer
    for wrong in (one._replace(token=one.token + 1), one._replace(token=one.token // 10)):
        assert await settled_as(store, wrong, how) is Settled.LOST
    assert await snapshot(raw, TOPIC) == before


async def test_a_batch_settles_the_others(store: Store, raw: Redis) -> None:
    one = await replaced(store)
    first, last = await leased(store, 2)
    answers = await store.complete_message(TOPIC, "w1", [first, one, one, last])
    done = Settled.DONE
    assert answers == [done, Settled.REPLACED, Settled.LOST, done]
    assert list((await snapshot(raw, TOPIC)).records) == ["own"]


async def test_the_lease_of_a_replaced_message_is_extended(
    store: Store, raw: Redis, clock: Clock
) -> None:
    one = await replaced(store)
    (other,) = await leased(store)
    clock.advance(10)
    for held in ([one], [one, other]):
        assert await store.extend_lease(TOPIC, "w1", held, lease=LEASE) == []
        assert (await snapshot(raw, TOPIC)).deadlines["own"] == clock.now + LEASE
    stale = Claim(one.id, one.token - 1)
    assert await store.extend_lease(TOPIC, "w1", [stale], lease=LEASE) == [stale]


@pytest.mark.parametrize("priority", Priority)
async def test_the_new_record_waits_behind_the_pending_ones(
    store: Store, raw: Redis, clock: Clock, priority: Priority
) -> None:
    one = await replaced(store, priority=priority, ttl=5000)
    (first,) = await pending(store, priority=priority)
    await raw.delete(store.keys.of(TOPIC).doorbell)
    assert await store.release_replaced(TOPIC, "w1", one) is Settled.DONE
    found = await snapshot(raw, TOPIC)
    lists = {Priority.HIGH: found.high, Priority.NORMAL: found.normal, Priority.LOW: found.low}
    assert lists[priority] == [first, "own"]
    assert (found.leases, found.deadlines, found.rung) == ({}, {}, True)
    assert found.expiries == {"own": clock.now + 5000}
    (_, again) = await take(store, 2)
    assert bytes(codec.decode(again.record).payload) == b'"new"'
    _, totals = await told(raw, TOPIC)
    assert (totals[b"replaced"], totals[b"released"]) == (b"1", b"1")


async def test_the_new_record_waits_for_its_due_time(
    store: Store, raw: Redis, clock: Clock
) -> None:
    one = await replaced(store, delay=1000, priority=Priority.LOW)
    await raw.delete(store.keys.of(TOPIC).doorbell)
    clock.advance(400)
    assert await store.release_replaced(TOPIC, "w1", one) is Settled.DONE
    found = await snapshot(raw, TOPIC)
    assert (found.delayed_low, found.low) == ({"own": clock.now + 600}, [])
    assert (found.rung, found.rung_delay) == (False, True)


async def test_a_due_time_that_has_passed_makes_it_pending(
    store: Store, raw: Redis, clock: Clock
) -> None:
    one = await replaced(store, delay=1000)
    clock.advance(1000)
    assert await store.release_replaced(TOPIC, "w1", one) is Settled.DONE
    assert (await snapshot(raw, TOPIC)).normal == ["own"]


@pytest.mark.parametrize("how", ["not replaced", "another worker", "another token", *State, None])
async def test_only_the_holder_of_a_replaced_message_lets_go_of_it(
    store: Store, raw: Redis, how: State | str | None
) -> None:
    worker, (one,) = "w1", await leased(store, id="own")
    if how in ("another worker", "another token"):
        await store.replace_message(TOPIC, draft("new", id="own"))
        worker = "w" if how == "another worker" else worker
        one = one if how == "another worker" else one._replace(token=one.token + 1)
    elif how != "not replaced":
        await settle(store, one, how if isinstance(how, State) else None)
    before = await snapshot(raw, TOPIC)
    assert await store.release_replaced(TOPIC, worker, one) is Settled.LOST
    assert await snapshot(raw, TOPIC) == before


async def test_the_same_call_again_leaves_alone_what_has_moved_on(store: Store, raw: Redis) -> None:
    one = await replaced(store)

    async def meanwhile() -> None:
        await take(store)
        await store.replace_message(TOPIC, draft("newest", id="own"))

    resend_next(store, raw, between=meanwhile)
    assert await store.release_replaced(TOPIC, "w1", one) is Settled.REPEATED
    assert list((await snapshot(raw, TOPIC)).leases) == ["own"]


async def test_it_works_at_maxmemory(store: Store, raw: Redis) -> None:
    one = await replaced(store)
    await raw.config_set("maxmemory", 1)
    try:
        assert await store.release_replaced(TOPIC, "w1", one) is Settled.DONE
    finally:
        await raw.config_set("maxmemory", 0)


async def test_a_key_of_a_wrong_type_is_named_and_nothing_is_changed(
    store: Store, raw: Redis
) -> None:
    await delayed(store, 1000)
    one = await replaced(store)
    for name in vital("release_replaced"):
        if not name.startswith(("pending_", "delay_tasks")):
            call = partial(store.release_replaced, TOPIC, "w1", one)
            await assert_refused(store, raw, name, call)
