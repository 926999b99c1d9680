"""extend_lease: processing -> processing"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq.core.errors import InvalidInput
from mx_rmq.store.results import Claim, Settled
from tests.lab.calls import resend_next
from tests.lab.messages import LEASE, TOPIC, leased
from tests.lab.snapshot import snapshot
from tests.store.contracts import ONE_SERVER, HolderContract, claims, foreign

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.asyncio import Redis

    from mx_rmq.store.results import Leased
    from mx_rmq.store.store import Store
    from tests.lab.clock import Clock


class TestExtendLease(HolderContract):
    name = "extend_lease"

    async def settle(
        self, store: Store, taken: Sequence[Leased], *, worker: str = "w1"
    ) -> list[Settled]:
        asked = claims(taken)
        lost = await store.extend_lease(TOPIC, worker, asked, lease=LEASE)
        answers = []
        for claim in reversed(asked):  # of a claim that stands twice, the second one is the lost
            answers.append(Settled.LOST if claim in lost else Settled.DONE)
            if claim in lost:
                lost.remove(claim)
        return answers[::-1]


@pytest.mark.parametrize("lease", [1, LEASE, 2**52])
async def test_the_deadlines_are_counted_from_now_and_nothing_else_changes(
    store: Store, raw: Redis, clock: Clock, lease: int
) -> None:
    taken = await leased(store, 3)
    before = await snapshot(raw, TOPIC)
    now = clock.advance(20_000)
    assert await store.extend_lease(TOPIC, "w1", claims(taken[:2]), lease=lease) == []
    assert await snapshot(raw, TOPIC) == replace(
        before,
        deadlines={
            taken[0].id: now + lease,
            taken[1].id: now + lease,
            taken[2].id: now - 20_000 + LEASE,
        },
    )


async def test_the_claims_that_are_lost_come_back(store: Store, raw: Redis, clock: Clock) -> None:
    mine = await leased(store, 2)
    (others,) = await leased(store, worker="w2")
    first, second, third = claims([*mine, others])
    asked = [Claim("gone", 1), first, third, Claim(second.id, 1), second]
    now = clock.advance(1)
    lost = await store.extend_lease(TOPIC, "w1", asked, lease=LEASE)
    assert lost == [asked[0], asked[2], asked[3]]
    assert (await snapshot(raw, TOPIC)).deadlines == {
        mine[0].id: now + LEASE,
        mine[1].id: now + LEASE,
        others.id: now - 1 + LEASE,
    }


async def test_an_extended_message_is_not_taken_over(store: Store, clock: Clock) -> None:
    one, two = await leased(store, 2)
    clock.advance(LEASE - 1)
    await store.extend_lease(TOPIC, "w1", [one], lease=LEASE)
    clock.advance(1)
    timed_out = await store.handle_timeout_message(TOPIC, "m", count=9, recovery=1000)
    assert [taken.id for taken in timed_out.messages] == [two.id]


async def test_repeating_is_harmless(store: Store, raw: Redis) -> None:
    taken = await leased(store, 2)
    asked = [Claim("gone", 1), *claims(taken)]
    resend_next(store, raw)
    assert await store.extend_lease(TOPIC, "w1", asked, lease=LEASE) == asked[:1]


async def test_a_missing_deadline_is_set_again_and_a_missing_record_does_not_matter(
    store: Store, raw: Redis
) -> None:
    taken = await leased(store, 2)
    await raw.zrem(store.keys.of(TOPIC).expire_monitor, taken[0].id)
    await raw.hdel(store.keys.of(TOPIC).payload, taken[1].id)
    assert await store.extend_lease(TOPIC, "w1", claims(taken), lease=LEASE) == []
    assert len((await snapshot(raw, TOPIC)).deadlines) == 2
    await store.complete_message(TOPIC, "w1", claims(taken))


async def test_the_deadline_of_an_empty_id_stays(store: Store, raw: Redis) -> None:
    empty = await foreign(store, raw, b"")
    taken = await leased(store)
    before = await snapshot(raw, TOPIC)
    assert empty.id in before.deadlines
    await store.extend_lease(TOPIC, "w1", claims(taken), lease=LEASE)
    assert await snapshot(raw, TOPIC) == before


@ONE_SERVER
@pytest.mark.parametrize("lease", [0, -1, 1.5, True, 2**53])
async def test_a_bad_lease_is_refused(store: Store, raw: Redis, lease: Any) -> None:
    taken = await leased(store)
    before = await snapshot(raw, TOPIC)
    with pytest.raises(InvalidInput, match=r"lease=.* is not a whole number"):
        await store.extend_lease(TOPIC, "w1", claims(taken), lease=lease)
    assert await snapshot(raw, TOPIC) == before
