"""complete_message: processing -> (gone)"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mx_rmq.store.results import Settled
from tests.lab.messages import TOPIC, leased, pending
from tests.lab.snapshot import Snapshot, snapshot
from tests.store.contracts import ReceiptContract, claims

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.asyncio import Redis

    from mx_rmq.store.results import Leased
    from mx_rmq.store.store import Store


class TestCompleteMessage(ReceiptContract):
    name = "complete_message"

    async def settle(
        self, store: Store, taken: Sequence[Leased], *, worker: str = "w1"
    ) -> list[Settled]:
        return await store.complete_message(TOPIC, worker, claims(taken))


async def test_completed_messages_are_gone_without_a_trace(store: Store, raw: Redis) -> None:
    taken = await leased(store, 3)
    before = await snapshot(raw, TOPIC)
    answers = await store.complete_message(TOPIC, "w1", claims(taken))
    assert answers == [Settled.DONE] * 3
    assert await snapshot(raw, TOPIC) == Snapshot(rung=before.rung, meta=before.meta)


async def test_the_others_stay_as_they_are(store: Store, raw: Redis) -> None:
    first, done, last = await leased(store, 3)
    (waiting,) = await pending(store)
    before = await snapshot(raw, TOPIC)
    assert await store.complete_message(TOPIC, "w1", [done]) == [Settled.DONE]
    assert await snapshot(raw, TOPIC) == replace(
        before,
        records={id: before.records[id] for id in (first.id, last.id, waiting)},
        leases={one.id: f"{one.token}:w1" for one in (first, last)},
        deadlines={id: before.deadlines[id] for id in (first.id, last.id)},
    )


async def test_a_missing_record_or_deadline_does_not_matter(store: Store, raw: Redis) -> None:
    taken = await leased(store, 3)
    await raw.hdel(store.keys.of(TOPIC).payload, taken[0].id)
    await raw.zrem(store.keys.of(TOPIC).expire_monitor, taken[1].id)
    answers = await store.complete_message(TOPIC, "w1", claims(taken))
    assert answers == [Settled.DONE] * 3
    found = await snapshot(raw, TOPIC)
    assert found == Snapshot(rung=found.rung, meta=found.meta)
