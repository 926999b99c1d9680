"""produce_delay_message: (new) -> delayed"""

from __future__ import annotations

from math import nan
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from mx_rmq.core.errors import InvalidInput
from mx_rmq.store.results import Placed
from tests.lab.messages import TOPIC, Priority, delayed, draft
from tests.lab.snapshot import Snapshot, snapshot
from tests.store.contracts import ONE_SERVER, ProduceContract, placed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.asyncio import Redis

    from mx_rmq.core.message import Message
    from mx_rmq.store.results import Produced
    from mx_rmq.store.store import Store
    from tests.lab.clock import Clock


class TestProduceDelayMessage(ProduceContract):
    name = "produce_delay_message"

    def given(self, new: Sequence[Message]) -> Sequence[Message]:
        return [msgspec.structs.replace(one, delay=1000 + number) for number, one in enumerate(new)]

    async def produce(self, store: Store, new: Sequence[Message]) -> list[Produced]:
        return await store.produce_delay_message(TOPIC, self.given(new))

    def waiting(self, found: Snapshot) -> list[str]:
        return list(found.delayed)


async def test_a_message_is_due_after_its_delay_or_at_its_time_in_its_level(
    store: Store, raw: Redis, clock: Clock
) -> None:
    now = clock.now
    produced = await store.produce_delay_message(
        TOPIC,
        [
            draft(delay=500),
            draft(),
            draft(delay=2**52 - 1),
            draft(at=now + 7),
            draft(at=now - 10_000, priority=Priority.HIGH),
            draft(at=1, priority=Priority.LOW),
            draft(delay=1, priority=Priority.LOW),
        ],
    )
    assert placed(produced) == [Placed.STORED] * 7
    ids = [id for id, _ in produced]
    found = await snapshot(raw, TOPIC)
    assert found == Snapshot(
        records={id: found.records[id] for id in ids},
        delayed={ids[0]: now + 500, ids[1]: now, ids[2]: now + 2**52 - 1, ids[3]: now + 7},
        delayed_high={ids[4]: now - 10_000},
        delayed_low={ids[5]: 1, ids[6]: now + 1},
        rung_delay=True,
    )


@ONE_SERVER
@pytest.mark.parametrize(
    "when",
    [
        {"delay": -1},
        {"delay": 1.5},
        {"delay": nan},
        {"delay": True},
        {"delay": 2**53},
        {"at": nan},
        {"at": 1.5},
        {"at": "soon"},
        {"at": 2**53},
    ],
    ids=str,
)
async def test_a_due_time_that_is_no_whole_number_of_ms_is_refused(
    store: Store, raw: Redis, when: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput):
        await store.produce_delay_message(TOPIC, [draft(), draft(**when)])
    assert await snapshot(raw, TOPIC) == Snapshot()


@pytest.mark.parametrize("level", list(Priority))
@pytest.mark.parametrize(
    ("delays", "rings"), [([999], True), ([1000], False), ([5000], False), ([5000, 999], True)]
)
async def test_the_scheduler_is_woken_only_by_a_new_earliest_due_time(
    store: Store, raw: Redis, level: Priority, delays: list[int], rings: bool
) -> None:
    doorbell = store.keys.of(TOPIC).doorbell_delay
    await delayed(store, 2000, priority=Priority.NORMAL)
    await delayed(store, 1000, priority=Priority.LOW)
    assert await raw.llen(doorbell) == 1
    await raw.delete(doorbell)
    await store.produce_delay_message(
        TOPIC, [draft(delay=delay, priority=level) for delay in delays]
    )
    assert await raw.llen(doorbell) == rings


async def test_a_duplicate_wakes_nobody_and_keeps_its_due_time(
    store: Store, raw: Redis, clock: Clock
) -> None:
    await delayed(store, 1000, id="own")
    await raw.delete(store.keys.of(TOPIC).doorbell_delay)
    before = await snapshot(raw, TOPIC)
    produced = await store.produce_delay_message(TOPIC, [draft(id="own", delay=1)])
    assert placed(produced) == [Placed.LIVE]
    assert await snapshot(raw, TOPIC) == before


async def test_workers_are_not_woken(store: Store, raw: Redis) -> None:
    await delayed(store, 0)
    assert not (await snapshot(raw, TOPIC)).rung
