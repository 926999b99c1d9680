"""retry_message: processing -> delayed"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq.core import codec
from mx_rmq.core.errors import InvalidInput
from mx_rmq.store.quarantine import QuarantineReason
from mx_rmq.store.results import RetryRequest, Settled
from tests.lab.messages import (
    FAILURE,
    TOPIC,
    Priority,
    delayed,
    draft,
    leased,
    message,
    renamed,
    take,
)
from tests.lab.snapshot import snapshot
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
