"""retry_message: processing -> delayed or waiting"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq.core import codec
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.outcome import Park
from mx_rmq.store.quarantine import QuarantineReason
from mx_rmq.store.results import RetryRequest, Settled, Signal
from tests.lab.broken import assert_refused
from tests.lab.calls import resend_next
from tests.lab.messages import (
    FAILURE,
    TOPIC,
    Priority,
    delayed,
    draft,
    leased,
    leased_in_turn,
    message,
    renamed,
    take,
    take_in_turn,
)
from tests.lab.snapshot import snapshot
from tests.lab.waits import NEVER
from tests.store.contracts import ONE_SERVER, ReceiptContract, foreign

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.asyncio import Redis

    from mx_rmq.store.results import Leased
    from mx_rmq.store.store import Store
    from tests.lab.clock import Clock


def again(one: Leased, delay: int = 1000) -> RetryRequest:
    message = renamed(codec.decode(one.record), one.id)
    return RetryRequest(one, message.failed(FAILURE), delay)


class TestRetryMessage(ReceiptContract):
    name = "retry_message"

    async def settle(
        self, store: Store, taken: Sequence[Leased], *, worker: str = "w1"
    ) -> list[Settled]:
        return await store.retry_message(TOPIC, worker, [again(one) for one in taken])

    async def test_a_message_with_an_id_that_is_not_utf8_can_be_settled(
        self, store: Store, raw: Redis
    ) -> None:
        """It cannot be retried, for it is no message: quarantine is its place."""
        one = await foreign(store, raw, b"\xff\x00\xfe")
        with pytest.raises(InvalidInput, match="cannot be encoded as JSON"):
            await self.settle(store, [one])
        with pytest.raises(InvalidInput, match="the record belongs to message"):
            await store.retry_message(TOPIC, "w1", [RetryRequest(one, codec.decode(one.record), 1)])
        error = QuarantineReason.of(id=one.id, topic=TOPIC, error=ValueError(), data=one.record)
        assert await store.handle_parse_error(TOPIC, "w1", one, error)


async def test_failed_messages_wait_in_their_level_with_their_new_records(
    store: Store, raw: Redis, clock: Clock
) -> None:
    await store.produce_normal_message(TOPIC, [draft(priority=level) for level in Priority])
    high, normal, low = await take(store, 3)
    before = await snapshot(raw, TOPIC)
    now = clock.advance(500)
    retries = [again(low, 0), again(high, 10), again(normal, 2**52)]
    assert await store.retry_message(TOPIC, "w1", retries) == [Settled.DONE] * 3
    found = await snapshot(raw, TOPIC)
    assert found == replace(
        before,
        records={claim.id: codec.encode(message) for claim, message, _ in retries},
        delayed_high={high.id: now + 10},
        delayed={normal.id: now + 2**52},
        delayed_low={low.id: now},
        leases={},
        deadlines={},
        rung_delay=True,
    )
    for one in (high, normal, low):
        stored = codec.decode(found.records[one.id], TOPIC, one.id)
        assert (stored.attempts, stored.errors) == (1, [FAILURE])
        assert stored.created_at == now - 500


async def test_each_attempt_adds_to_the_record(store: Store, raw: Redis, clock: Clock) -> None:
    (one,) = await leased(store)
    for attempt in range(1, 4):
        assert await store.retry_message(TOPIC, "w1", [again(one, 5)]) == [Settled.DONE]
        clock.advance(5)
        assert await store.process_delay_message(TOPIC, count=1) == [one.id]
        (one,) = await take(store)
        assert message(one).attempts == attempt


@ONE_SERVER
@pytest.mark.parametrize("delay", [-1, 1.5, True, "1", 2**53])
async def test_a_bad_delay_is_refused(store: Store, raw: Redis, delay: Any) -> None:
    taken = await leased(store, 2)
    before = await snapshot(raw, TOPIC)
    with pytest.raises(InvalidInput, match=r"delay=.* is not a whole number"):
        await store.retry_message(TOPIC, "w1", [again(taken[0]), again(taken[1], delay)])
    assert await snapshot(raw, TOPIC) == before


@pytest.mark.parametrize(
    ("delays", "rings"), [([999], True), ([1000], False), ([5000], False), ([5000, 999], True)]
)
async def test_the_scheduler_is_woken_only_by_a_new_earliest_due_time(
    store: Store, raw: Redis, delays: list[int], rings: bool
) -> None:
    doorbell = store.keys.of(TOPIC).doorbell_delay
    await delayed(store, 2000)
    await delayed(store, 1000, priority=Priority.LOW)
    taken = await leased(store, len(delays))
    await raw.delete(doorbell)
    retries = [again(one, delay) for one, delay in zip(taken, delays, strict=True)]
    await store.retry_message(TOPIC, "w1", retries)
    assert await raw.llen(doorbell) == rings


async def test_a_ring_that_nobody_has_heard_yet_is_enough(store: Store, raw: Redis) -> None:
    for delay in (3, 2, 1):
        await store.retry_message(TOPIC, "w1", [again(one, delay) for one in await leased(store)])
        assert await raw.llen(store.keys.of(TOPIC).doorbell_delay) == 1


async def test_a_missing_record_is_written_again(store: Store, raw: Redis) -> None:
    (one,) = await leased(store)
    await raw.hdel(store.keys.of(TOPIC).payload, one.id)
    assert await store.retry_message(TOPIC, "w1", [again(one)]) == [Settled.DONE]
    assert (await snapshot(raw, TOPIC)).records == {one.id: codec.encode(again(one).message)}


# parks: processing -> waiting


def parked(one: Leased, *awaits: str, delay: int | None = None) -> tuple[Leased, Park]:
    return one, Park(message(one), awaits, delay, ", ".join(awaits))


class TestParkMessage(ReceiptContract):
    name = "retry_message"

    async def settle(
        self, store: Store, taken: Sequence[Leased], *, worker: str = "w1"
    ) -> list[Settled]:
        parks = []
        for one in taken:
            record = renamed(codec.decode(one.record), one.id)
            parks.append((one, Park(record, ("approval",), 1000, "approval")))
        return await store.park_message(TOPIC, worker, parks)

    async def test_a_message_with_an_id_that_is_not_utf8_can_be_settled(
        self, store: Store, raw: Redis
    ) -> None:
        """It cannot wait, for it is no message: see TestRetryMessage."""

    async def test_a_level_of_a_wrong_type_does_not_stop_the_others(
        self, store: Store, raw: Redis
    ) -> None:
        """Here these keys matter: see below."""


@pytest.mark.parametrize("name", ["waiting", "awaited", "signals"])
async def test_a_key_for_waits_of_a_wrong_type_is_named_and_nothing_is_parked(
    store: Store, raw: Redis, name: str
) -> None:
    taken = await leased(store, 2)
    parks = [parked(one, "approval") for one in taken]
    await assert_refused(store, raw, name, lambda: store.park_message(TOPIC, "w1", parks))
    assert await store.park_message(TOPIC, "w1", parks) == [Settled.DONE] * 2


async def test_a_parked_message_waits_for_its_signals(
    store: Store, raw: Redis, clock: Clock
) -> None:
    await store.produce_normal_message(TOPIC, [draft(priority=level, ttl=9) for level in Priority])
    high, normal, low = await take(store, 3)
    before = await snapshot(raw, TOPIC)
    now = clock.advance(5)
    parks = [parked(high, "a", "b"), parked(normal, "a", delay=1000), parked(low, "a", delay=0)]
    assert await store.park_message(TOPIC, "w1", parks) == [Settled.DONE] * 3
    found = await snapshot(raw, TOPIC)
    assert found == replace(
        before,
        records={one.id: codec.encode(park.message) for one, park in parks},
        delayed_high={high.id: NEVER},
        delayed={normal.id: now + 1000},
        delayed_low={low.id: now},
        waiting={one.id: now for one in (high, normal, low)},
        awaited={
            f"{high.id}\ta",
            f"{high.id}\tb",
            f"{normal.id}\ta",
            f"{low.id}\ta",
        },
        expiries={one.id: now + 4 for one in (high, normal, low)},
        leases={},
        deadlines={},
        rung_delay=True,
    )


async def test_a_message_that_waits_for_others_keeps_no_place_in_its_line(
    store: Store, clock: Clock
) -> None:
    """They may be behind it; one whose handler waits for a signal has begun, and keeps it."""
    strict = "- - - 1 - - 0"
    one, other = await leased_in_turn(store, "ab", limits=strict, waiting="ab")
    await store.park_message(TOPIC, "w1", [parked(one, "\x01t child"), parked(other, "x")])
    assert [codec.decode(next.record).key for next in await take_in_turn(store, 9, strict)] == ["a"]


async def test_only_what_has_not_come_is_awaited(store: Store, raw: Redis) -> None:
    (one,) = await leased(store)
    await store.signal_message(TOPIC, [Signal(one.id, "ab", b"1"), Signal(one.id, "b", b"1")])
    await store.park_message(TOPIC, "w1", [parked(one, "a", "b", "a")])
    assert (await snapshot(raw, TOPIC)).awaited == {f"{one.id}\ta"}


async def test_a_message_whose_signals_came_first_is_due_at_once(
    store: Store, raw: Redis, clock: Clock
) -> None:
    one, other = await leased(store, 2)
    await store.signal_message(TOPIC, [Signal(one.id, name, b"") for name in "ab"])
    parks = [parked(one, "a", "b"), parked(other, "a")]
    assert await store.park_message(TOPIC, "w1", parks) == [Settled.DONE] * 2
    found = await snapshot(raw, TOPIC)
    assert found.delayed == {one.id: clock.now, other.id: NEVER}
    assert found.waiting == {other.id: clock.now}
    assert found.awaited == {f"{other.id}\ta"}
    assert found.rung_delay
    assert await store.process_delay_message(TOPIC, count=9) == [one.id]


async def test_a_wait_that_is_over_makes_the_message_pending(
    store: Store, raw: Redis, clock: Clock
) -> None:
    one, other = await leased(store, 2)
    await store.park_message(TOPIC, "w1", [parked(one, "a", delay=5), parked(other, "a", delay=6)])
    await store.signal_message(TOPIC, [Signal(one.id, "other", b"1")])
    clock.advance(5)
    assert await store.process_delay_message(TOPIC, count=9) == [one.id]
    found = await snapshot(raw, TOPIC)
    assert (found.normal, set(found.waiting)) == ([one.id], {other.id})
    assert found.awaited == {f"{other.id}\ta"}
    assert found.signals == {f"{one.id}\tother\t1"}


async def test_a_message_may_wait_for_thousands_of_signals(store: Store, raw: Redis) -> None:
    taken = await leased(store, 4)
    names = [f"n{number}" for number in range(2000)]
    answers = await store.park_message(TOPIC, "w1", [parked(one, *names) for one in taken])
    assert answers == [Settled.DONE] * 4
    found = await snapshot(raw, TOPIC)
    assert found.awaited == {f"{one.id}\t{name}" for one in taken for name in names}
    for start in (0, 1000):
        signals = [Signal(taken[0].id, name, b"") for name in names[start : start + 1000]]
        await store.signal_message(TOPIC, signals)
    assert (await snapshot(raw, TOPIC)).waiting.keys() == {one.id for one in taken[1:]}


async def test_a_repeated_park_does_not_wait_again(store: Store, raw: Redis, clock: Clock) -> None:
    (one,) = await leased(store)

    async def wake() -> None:
        await store.signal_message(TOPIC, [Signal(one.id, "a", b"1")])

    resend_next(store, raw, between=wake)
    assert await store.park_message(TOPIC, "w1", [parked(one, "a")]) == [Settled.REPEATED]
    found = await snapshot(raw, TOPIC)
    assert (found.waiting, found.awaited, found.delayed) == ({}, set(), {one.id: clock.now})


async def test_a_replaced_message_does_not_wait(store: Store, raw: Redis) -> None:
    (one,) = await leased(store, id="own")
    await store.replace_message(TOPIC, draft("new", id="own"))
    before = await snapshot(raw, TOPIC)
    assert await store.park_message(TOPIC, "w1", [parked(one, "a")]) == [Settled.REPLACED]
    assert await snapshot(raw, TOPIC) == before


async def test_a_full_server_lets_messages_wait(store: Store, raw: Redis) -> None:
    (one,) = await leased(store)
    await raw.config_set("maxmemory", 1)
    try:
        done = await store.park_message(TOPIC, "w1", [parked(one, "a")])
    finally:
        await raw.config_set("maxmemory", 0)
    assert done == [Settled.DONE]
    assert (await snapshot(raw, TOPIC)).waiting.keys() == {one.id}
