"""fan_out: pending -> pending of every subscription"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from mx_rmq.core.errors import InvalidInput, ServerFull
from mx_rmq.core.message import Priority, State
from mx_rmq.store.arguments import MAX_BATCH
from mx_rmq.store.results import FannedOut
from tests.lab.calls import resend_next
from tests.lab.messages import FAILURE, LEASE, TOPIC, delayed, draft, message, pending
from tests.lab.snapshot import Snapshot, snapshot, told

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.store.store import Store
    from tests.lab.clock import Clock

NAMES = ("billing", "search")
COPIES = [f"{TOPIC}@{name}" for name in NAMES]


async def declare(store: Store, *names: str) -> None:
    for name in names or NAMES:
        assert await store.declare_subscription(TOPIC, name)


async def fan_out(store: Store, *names: str, count: int = MAX_BATCH) -> FannedOut:
    return await store.fan_out(TOPIC, names or NAMES, count=count)


async def test_every_subscription_gets_a_copy_of_every_message(store: Store, raw: Redis) -> None:
    await declare(store)
    high = await pending(store, 2, priority=Priority.HIGH)
    normal = await pending(store, 3)
    low = await pending(store, priority=Priority.LOW)
    before = await snapshot(raw, TOPIC)
    assert await fan_out(store) == FannedOut(NAMES, 6, 0)
    assert await snapshot(raw, TOPIC) == Snapshot(meta=before.meta, rung=True)
    for copies in COPIES:
        assert await snapshot(raw, copies) == Snapshot(
            records=before.records, high=high, normal=normal, low=low, rung=True
        )
        assert await told(raw, copies) == (1, {b"produced": b"6"})
        assert await store.audit.topic(copies) == []
    assert (await told(raw, TOPIC))[1] == {
        b"produced": b"6",
        b"fanned_out": b"6",
        b"subscribed": b"2",
    }


async def test_a_copy_is_handled_like_any_message(store: Store) -> None:
    await declare(store)
    (id,) = await pending(store)
    await fan_out(store)
    for copies in COPIES:
        (taken,) = (await store.dispatch_message(copies, "w1", count=9, lease=LEASE)).messages
        assert taken.id == id
        assert message(taken).topic == TOPIC
        assert all(await store.complete_message(copies, "w1", [taken]))
        assert (await store.views.counts(copies)).total == 0


async def test_messages_come_in_their_order_and_a_batch_takes_the_oldest(
    store: Store, raw: Redis
) -> None:
    await declare(store)
    ids = await pending(store, 5)
    assert await fan_out(store, count=2) == FannedOut(NAMES, 2, 3)
    assert (await snapshot(raw, COPIES[0])).normal == ids[:2]
    assert await fan_out(store, count=2) == FannedOut(NAMES, 2, 1)
    assert await fan_out(store, count=2) == FannedOut(NAMES, 1, 0)
    assert (await snapshot(raw, COPIES[1])).normal == ids


async def test_keys_costs_and_expiry_times_go_with_the_copy(
    store: Store, raw: Redis, clock: Clock
) -> None:
    await declare(store)
    await store.produce_normal_message(
        TOPIC,
        [
            draft(id="k1", key="k", cost=3),
            draft(id="l1", key="l", ttl=500),
            draft(id="k2", key="k"),
            draft(id="plain", cost=2, ttl=700),
        ],
    )
    assert (await fan_out(store)).moved == 4
    rest = await snapshot(raw, TOPIC)
    assert (rest.lines, rest.ring, rest.expiries) == ([], {}, {})
    assert list(rest.keyed) == ["!"]
    for copies in COPIES:
        found = await snapshot(raw, copies)
        assert [one.partition("\t")[0] + " " + one.rpartition(" ")[2] for one in found.lines] == [
            "k k1",
            "k k2",
            "l l1",
        ]
        assert found.expiries == {"l1": clock.now + 500, "plain": clock.now + 700}
        assert found.keyed["plain"] == "\t2 2 "
        assert found.ring.keys() == {"k", "l"}
        assert await store.audit.topic(copies) == []
        taken = (await store.dispatch_in_turn(copies, "w1", count=9, lease=LEASE)).messages
        assert len(taken) == 4
        assert [one.id for one in taken if one.id.startswith("k")] == ["k1", "k2"]


async def test_keys_take_turns(store: Store, raw: Redis) -> None:
    await declare(store)
    crowd = [draft(id=f"a{n}", key="a") for n in range(20)]
    await store.produce_normal_message(TOPIC, [*crowd, draft(id="z", key="z")])
    assert await fan_out(store, count=4) == FannedOut(NAMES, 3, 18)
    found = await snapshot(raw, COPIES[0])
    assert {one.rpartition(" ")[2] for one in found.lines} == {"a0", "a1", "z"}
    assert (await snapshot(raw, TOPIC)).ring.keys() == {"a"}
    while (await fan_out(store, count=4)).left:
        pass
    assert len((await snapshot(raw, COPIES[0])).lines) == 21
    assert (await snapshot(raw, TOPIC)).ring == {}


@pytest.mark.parametrize("names", [(), NAMES[:1], NAMES[::-1], (*NAMES, "other")])
async def test_a_caller_with_the_wrong_subscriptions_learns_the_right_ones(
    store: Store, raw: Redis, names: tuple[str, ...]
) -> None:
    await declare(store)
    await pending(store, 2)
    before = await snapshot(raw, TOPIC)
    assert await store.fan_out(TOPIC, names, count=9) == FannedOut(NAMES, 0, 0)
    assert await snapshot(raw, TOPIC) == before
    for name in ("other", *NAMES):
        assert await snapshot(raw, f"{TOPIC}@{name}") == Snapshot()


async def test_without_subscriptions_nothing_moves(store: Store, raw: Redis) -> None:
    await pending(store)
    before = await snapshot(raw, TOPIC)
    assert await store.fan_out(TOPIC, [], count=9) == FannedOut((), 0, 0)
    assert await snapshot(raw, TOPIC) == before


async def test_a_paused_topic_keeps_its_messages(store: Store, raw: Redis) -> None:
    await declare(store)
    await pending(store, 2)
    await store.pause_topic(TOPIC)
    assert await fan_out(store) == FannedOut(NAMES, 0, 0)
    assert await snapshot(raw, COPIES[0]) == Snapshot()
    await store.resume_topic(TOPIC)
    assert await fan_out(store) == FannedOut(NAMES, 2, 0)


async def test_delayed_messages_wait_in_the_topic(store: Store, clock: Clock) -> None:
    await declare(store)
    await delayed(store, 500)
    assert await fan_out(store) == FannedOut(NAMES, 0, 0)
    clock.advance(500)
    await store.process_delay_message(TOPIC, count=9)
    assert await fan_out(store) == FannedOut(NAMES, 1, 0)


@pytest.mark.parametrize("state", ["pending", "processing", "dead"])
async def test_an_id_that_a_subscription_has_is_not_copied_there(
    store: Store, raw: Redis, clock: Clock, state: str
) -> None:
    await declare(store)
    await pending(store, id="a")
    await fan_out(store)
    first, second = COPIES
    (taken,) = (await store.dispatch_message(second, "w1", count=1, lease=LEASE)).messages
    assert all(await store.complete_message(second, "w1", [taken]))
    if state != "pending":
        (taken,) = (await store.dispatch_message(first, "w1", count=1, lease=LEASE)).messages
    if state == "dead":
        await store.move_to_dlq(first, "w1", taken, message(taken).failed(FAILURE))
    clock.advance(1_000_000)  # beyond the dedup window
    await pending(store, id="a")
    before = await snapshot(raw, first)
    assert (await fan_out(store)).moved == 1
    assert await snapshot(raw, first) == replace(before, rung=before.rung)
    assert (await told(raw, first))[1][b"duplicate"] == b"1"
    assert (await snapshot(raw, second)).normal == ["a"]
    assert await store.audit.topic(first) == []


async def test_ids_without_a_record_are_dropped_and_counted(store: Store, raw: Redis) -> None:
    await declare(store)
    ids = await pending(store, 3)
    await store.produce_normal_message(TOPIC, [draft(id="k", key="k")])
    keys = store.keys.of(TOPIC)
    await raw.hdel(keys.payload, ids[1], "k")
    await raw.rpush(keys.pending, ids[0])  # a second place
    assert await fan_out(store) == FannedOut(NAMES, 2, 0)
    assert (await snapshot(raw, COPIES[0])).normal == [ids[0], ids[2]]
    assert (await store.views.counts(TOPIC)).dropped == 3
    assert await store.audit.topic(TOPIC) == []


async def test_cancelled_places_are_skipped(
    store: Store, raw: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mx_rmq.store.operator_calls.WALK", 1)
    await declare(store)
    ids = await pending(store, 5)
    await store.cancel_message(TOPIC, ids[2])
    assert (await snapshot(raw, TOPIC)).cancelled == {ids[2]}
    assert await fan_out(store) == FannedOut(NAMES, 4, 0)
    assert (await snapshot(raw, COPIES[0])).normal == [*ids[:2], *ids[3:]]
    assert (await snapshot(raw, TOPIC)).cancelled == set()


async def test_a_message_that_came_back_is_copied_although_its_old_place_is_cancelled(
    store: Store, raw: Redis, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mx_rmq.store.operator_calls.WALK", 1)
    await declare(store)
    for id in "abc":
        await pending(store, id=id)
    await store.cancel_message(TOPIC, "b")
    clock.advance(1_000_000)  # beyond the dedup window
    await pending(store, id="b")
    now = await snapshot(raw, TOPIC)
    assert (now.normal, now.cancelled) == ([*"abcb"], {"b"})
    assert await fan_out(store) == FannedOut(NAMES, 3, 0)
    assert (await snapshot(raw, COPIES[0])).normal == [*"acb"]
    assert await store.audit.topic(TOPIC) == []


async def test_an_expired_message_is_not_copied(store: Store, raw: Redis, clock: Clock) -> None:
    await declare(store)
    (id,) = await pending(store, ttl=500)
    clock.advance(600)
    (taken,) = (await store.expire_message(TOPIC, "m1", count=9, recovery=5000)).messages
    assert await fan_out(store) == FannedOut(NAMES, 0, 0)
    assert await store.move_to_dlq(TOPIC, "m1", taken, message(taken).failed(FAILURE))
    assert list((await snapshot(raw, TOPIC)).dead) == [id]


async def test_a_blocked_key_from_before_is_fanned_out(store: Store, raw: Redis) -> None:
    await store.produce_normal_message(TOPIC, [draft(id=id, key="k") for id in "ab"])
    limits = "- - - 1 - - 0"
    taken = await store.dispatch_in_turn(TOPIC, "w1", count=9, lease=LEASE, limits=limits)
    assert [one.id for one in taken.messages] == ["a"]
    assert "k" in (await snapshot(raw, TOPIC)).blocked
    await declare(store)
    assert await fan_out(store) == FannedOut(NAMES, 1, 0)
    assert "k" not in (await snapshot(raw, TOPIC)).blocked
    assert len((await snapshot(raw, COPIES[0])).lines) == 1


async def test_a_topic_with_subscriptions_gives_no_worker_a_message(
    store: Store, raw: Redis
) -> None:
    await declare(store)
    await pending(store)
    assert not (await store.dispatch_message(TOPIC, "w1", count=9, lease=LEASE)).messages
    assert not (await store.dispatch_in_turn(TOPIC, "w1", count=9, lease=LEASE)).messages
    for name in NAMES:
        await store.remove_subscription(TOPIC, name)
    assert len((await store.dispatch_message(TOPIC, "w1", count=9, lease=LEASE)).messages) == 1


async def test_a_late_reply_moves_nothing_twice(store: Store, raw: Redis) -> None:
    await declare(store)
    ids = await pending(store, 3)
    resend_next(store, raw)
    assert await fan_out(store) == FannedOut(NAMES, 0, 0)
    assert (await snapshot(raw, COPIES[0])).normal == ids


async def test_a_full_server_refuses_it_and_loses_nothing(store: Store, raw: Redis) -> None:
    await declare(store)
    ids = await pending(store, 3)
    before = await snapshot(raw, TOPIC)
    await raw.config_set("maxmemory", 1)
    try:
        with pytest.raises(ServerFull):
            await fan_out(store)
    finally:
        await raw.config_set("maxmemory", 0)
    assert await snapshot(raw, TOPIC) == before
    assert await snapshot(raw, COPIES[0]) == Snapshot()
    assert (await fan_out(store)).moved == 3
    assert (await snapshot(raw, COPIES[1])).normal == ids


async def test_large_messages_move_a_few_at_a_time(store: Store, raw: Redis) -> None:
    await declare(store)
    big = "x" * 1_000_000
    ids = [f"m{number}" for number in range(10)]
    for id in ids:
        await store.produce_normal_message(TOPIC, [draft(big, id=id)])
    for id in ("k1", "k2"):
        await store.produce_normal_message(TOPIC, [draft(big, id=id, key="k")])
    assert await fan_out(store) == FannedOut(NAMES, 8, 4)
    assert (await snapshot(raw, TOPIC)).ring.keys() == {"k"}
    assert await fan_out(store) == FannedOut(NAMES, 4, 0)
    assert (await snapshot(raw, COPIES[0])).normal == ids
    assert await store.audit.topic(TOPIC) == []


async def test_copies_are_in_the_slot_of_their_topic(store: Store) -> None:
    for name in (f"{TOPIC}@s", f"{TOPIC}@s/3"):
        base = name.replace("@s", "")
        assert store.keys.of(name).payload == f"mx-rmq:{{{base}}}@s:payload"


async def test_produce_refuses_a_subscription(store: Store) -> None:
    with pytest.raises(InvalidInput, match="'orders@billing' is a subscription, not a topic"):
        await store.produce_normal_message("orders@billing", [draft()])
    await declare(store)
    await fan_out(store)
    with pytest.raises(InvalidInput, match="produce to 'orders'"):
        await store.produce_delay_message("orders@billing/1", [draft(delay=5)])


async def test_replace_is_refused_where_copies_may_be(store: Store, raw: Redis) -> None:
    await declare(store)
    before = await snapshot(raw, TOPIC)
    with pytest.raises(InvalidInput, match="has subscriptions"):
        await store.replace_message(TOPIC, draft(id="a"))
    assert await snapshot(raw, TOPIC) == before
    for name in NAMES:
        await store.remove_subscription(TOPIC, name)
    await store.replace_message(TOPIC, draft(id="a"))


async def test_an_archived_copy_can_be_requeued(store: Store, raw: Redis) -> None:
    await declare(store)
    (id,) = await pending(store)
    await fan_out(store)
    first = COPIES[0]
    (taken,) = (await store.dispatch_message(first, "w1", count=1, lease=LEASE)).messages
    await store.move_to_dlq(first, "w1", taken, message(taken).failed(FAILURE))
    found = await store.views.pages.find_archived(first, State.DEAD, id)
    assert found is not None
    assert await store.requeue_message(
        first, State.DEAD, id, archived=found.archived or 0, message=message(taken)
    )
    assert (await snapshot(raw, first)).normal == [id]
