"""produce_normal_message: (new) -> pending"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from mx_rmq.core import codec
from mx_rmq.core.errors import InvalidInput
from mx_rmq.settings import Limits
from mx_rmq.store.results import Placed
from tests.lab.messages import TOPIC, Priority, draft, drafts, pending, renamed
from tests.lab.snapshot import Snapshot, snapshot
from tests.store.contracts import ProduceContract, placed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.asyncio import Redis

    from mx_rmq.core.message import Message
    from mx_rmq.store.results import Produced
    from mx_rmq.store.store import Store


class TestProduceNormalMessage(ProduceContract):
    name = "produce_normal_message"

    async def produce(self, store: Store, new: Sequence[Message]) -> list[Produced]:
        return await store.produce_normal_message(TOPIC, new)

    def waiting(self, found: Snapshot) -> list[str]:
        return found.normal


async def test_new_messages_wait_in_their_level_behind_those_that_are_there(
    store: Store, raw: Redis
) -> None:
    levels = [Priority.LOW, Priority.HIGH, Priority.NORMAL, Priority.HIGH, Priority.LOW]
    ids = []
    for _ in range(2):
        produced = await store.produce_normal_message(TOPIC, [draft(priority=p) for p in levels])
        assert placed(produced) == [Placed.STORED] * 5
        ids += [id for id, _ in produced]
    found = await snapshot(raw, TOPIC)
    assert found == Snapshot(
        records={id: found.records[id] for id in ids},
        high=[ids[1], ids[3], ids[6], ids[8]],
        normal=[ids[2], ids[7]],
        low=[ids[0], ids[4], ids[5], ids[9]],
        rung=True,
    )


async def test_generated_ids_are_the_lane_and_a_number_that_grows(store: Store) -> None:
    ids = await pending(store, 2) + await pending(store, 1)
    (lane,) = {id.partition("-")[0] for id in ids}
    assert ids == [f"{lane}-{number}" for number in (1, 2, 3)]


async def test_the_doorbell_is_rung_once_and_only_for_new_messages(
    store: Store, raw: Redis
) -> None:
    doorbell = store.keys.of(TOPIC).doorbell
    for _ in range(2):
        await pending(store)
        assert await raw.llen(doorbell) == 1
    await store.produce_normal_message(TOPIC, [draft(id="own")])
    await raw.delete(doorbell)
    await store.produce_normal_message(TOPIC, [draft(id="own")])
    assert await raw.llen(doorbell) == 0
    await store.produce_normal_message(TOPIC, [draft(id="own"), draft()])
    assert await raw.llen(doorbell) == 1


async def test_without_a_cap_a_thousand_and_more_may_wait(store: Store) -> None:
    for _ in range(2):
        await store.produce_normal_message(TOPIC, drafts(1000))
    assert (await store.views.counts(TOPIC)).pending == 2000


async def test_a_short_window_does_not_end_a_long_one(store: Store, raw: Redis) -> None:
    store.limits = Limits(dedup=86_400)
    await store.produce_normal_message(TOPIC, [draft(id="long")])
    store.limits = Limits(dedup=1)
    await store.produce_normal_message(TOPIC, [draft(id="short")])
    assert await raw.pttl(store.keys.of(TOPIC).recent) > 86_000_000


async def test_of_the_ids_that_are_remembered_a_call_forgets_some_that_are_stale_and_no_other(
    store: Store, raw: Redis
) -> None:
    await store.produce_normal_message(TOPIC, [draft(id="taken")])
    recent = store.keys.of(TOPIC).recent
    await raw.zadd(recent, {f"stale-{number:02}": number + 1 for number in range(15)})
    await store.produce_normal_message(TOPIC, [draft()])
    assert await raw.zrange(recent, 0, -1) == [b"stale-12", b"stale-13", b"stale-14", b"taken"]
    await store.produce_normal_message(TOPIC, [draft()])
    assert await raw.zrange(recent, 0, -1) == [b"taken"]
    await store.produce_normal_message(TOPIC, [draft()])
    assert await raw.zrange(recent, 0, -1) == [b"taken"]


async def test_raw_bytes_that_are_not_json_are_refused(store: Store, raw: Redis) -> None:
    for bad in (b"{broken", b'1,"attempts":9', b'"\xff"', b""):
        with pytest.raises(InvalidInput, match="as JSON"):
            await store.produce_normal_message(TOPIC, [store.draft(msgspec.Raw(bad))])
    assert await raw.dbsize() == 0


@pytest.mark.parametrize(
    ("own", "priority", "ttl", "how"),
    [
        (None, Priority.NORMAL, None, ""),
        (None, "normal", None, ""),
        (None, Priority.HIGH, None, "0 0 high"),
        (None, Priority.NORMAL, 5000, "0 0 normal 5000"),
        ("own", Priority.NORMAL, None, "1 0 normal"),
        ("own", "low", 7, "1 0 low 7"),
        ("a123456789abc-7", Priority.LOW, None, "1 21 low"),
    ],
)
async def test_what_is_sent_of_a_message(
    store: Store, own: str | None, priority: Priority, ttl: int | None, how: str
) -> None:
    one = draft({"a": 1}, id=own, priority=priority, ttl=ttl)
    call = store.prepare("produce_normal_message", TOPIC, [one])
    (id,) = call.ids
    assert call.items == [id, how, codec.encode(renamed(one, id)).removeprefix(b"{")]
    await store.produce(call)
