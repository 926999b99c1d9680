"""dispatch_message: pending -> processing"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.message import State
from mx_rmq.settings import Limits
from mx_rmq.store.arguments import MAX_BATCH
from mx_rmq.store.results import HandedBack, Leased
from tests.lab.broken import assert_refused, broken, key_named, vital
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
from tests.lab.snapshot import Snapshot, snapshot
from tests.store.contracts import ONE_SERVER, STATES

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.store.store import Store
    from tests.lab.clock import Clock

LEVELS = ["pending_high", "pending", "pending_low"]


def ids(taken: list[Leased]) -> list[str]:
    return [one.id for one in taken]


async def unheard(raw: Redis, id: str) -> Leased:
    """Return a leased message as the reply gave it that nobody heard."""
    found = await snapshot(raw, TOPIC)
    return Leased(id, int(found.leases[id].partition(":")[0]), found.records[id])


async def test_messages_are_leased_with_a_token_a_deadline_and_their_record(
    store: Store, raw: Redis, clock: Clock
) -> None:
    waiting = await pending(store, 3)
    before = await snapshot(raw, TOPIC)
    dispatched = await store.dispatch_message(TOPIC, "w1", count=3, lease=5000)
    taken = dispatched.messages
    assert dispatched.now == clock.now
    assert ids(taken) == waiting
    assert {one.id: one.record for one in taken} == before.records
    assert await snapshot(raw, TOPIC) == replace(
        before,
        normal=[],
        leases={one.id: f"{one.token}:w1" for one in taken},
        deadlines=dict.fromkeys(waiting, clock.now + 5000),
        meta={"token": str(taken[-1].token), "turn": "3"},
    )


async def test_an_empty_topic_gives_nothing_and_gets_only_a_receipt(
    store: Store, raw: Redis
) -> None:
    dispatched = await store.dispatch_message(TOPIC, "w1", count=9, lease=LEASE)
    assert dispatched.messages == []
    (receipt,) = await raw.keys()
    assert receipt.startswith(f"mx-rmq:{{{TOPIC}}}:receipt:".encode())  # type: ignore[arg-type] # bytes


async def test_a_full_batch_is_dispatched_in_one_call(store: Store) -> None:
    waiting = await pending(store, MAX_BATCH)
    (last,) = await pending(store)
    assert ids(await take(store, MAX_BATCH)) == waiting
    assert ids(await take(store, MAX_BATCH)) == [last]


@ONE_SERVER
@pytest.mark.parametrize(
    "bad",
    [
        {"count": 0},
        {"count": MAX_BATCH + 1},
        {"count": True},
        {"count": 1.0},
        {"lease": 0},
        {"lease": 1.5},
        {"lease": 2**53},
        {"worker": "a:b"},
        {"worker": "w1\n"},
        {"worker": ""},
    ],
    ids=str,
)
async def test_a_bad_argument_is_refused(store: Store, raw: Redis, bad: dict[str, Any]) -> None:
    await pending(store)
    before = await snapshot(raw, TOPIC)
    with pytest.raises(InvalidInput):
        await take(store, **bad)
    assert await snapshot(raw, TOPIC) == before


async def test_no_more_than_asked_for_are_taken_the_oldest_first(store: Store, raw: Redis) -> None:
    waiting = await pending(store, 2) + await pending(store, 3)
    assert ids(await take(store, 3)) == waiting[:3]
    assert (await snapshot(raw, TOPIC)).normal == waiting[3:]
    assert ids(await take(store, 9)) == waiting[3:]


async def test_the_doorbell_is_rung_exactly_when_messages_are_left_behind(
    store: Store, raw: Redis
) -> None:
    doorbell = store.keys.of(TOPIC).doorbell
    for level in Priority:
        await pending(store, priority=level)
    for rings in (1, 1, 0):
        await raw.delete(doorbell)
        await take(store)
        assert await raw.llen(doorbell) == rings
    await pending(store, 3)
    await take(store)
    assert await raw.llen(doorbell) == 1  # the producer's: one is enough


# a call that comes again


async def test_a_repeated_call_gives_the_same_messages_and_takes_no_others(
    store: Store, raw: Redis, clock: Clock
) -> None:
    waiting = await pending(store, 5)
    resend_next(store, raw)
    taken = await take(store, 3)
    assert ids(taken) == waiting[:3]
    found = await snapshot(raw, TOPIC)
    assert found.leases == {one.id: f"{one.token}:w1" for one in taken}
    assert found.records == {**found.records, **{one.id: one.record for one in taken}}


@pytest.mark.parametrize("state", [state for state in STATES if state is not State.PROCESSING])
async def test_a_repeated_call_gives_only_what_is_still_the_workers(
    store: Store, raw: Redis, state: State | None
) -> None:
    waiting = await pending(store, 3)

    async def move_on() -> None:
        await settle(store, await unheard(raw, waiting[1]), state)

    resend_next(store, raw, between=move_on)
    assert ids(await take(store, 3)) == [waiting[0], waiting[2]]


async def test_a_repeated_call_does_not_give_what_was_taken_over_or_redelivered(
    store: Store, raw: Redis, clock: Clock
) -> None:
    await pending(store, 2)

    async def move_on() -> None:
        clock.advance(LEASE)
        monitor = await store.handle_timeout_message(TOPIC, "m", count=1, recovery=LEASE)
        assert len(monitor.messages) == 1
        (other,) = (await snapshot(raw, TOPIC)).leases.keys() - {monitor.messages[0].id}
        await settle(store, await unheard(raw, other), State.PENDING)
        assert ids(await take(store)) == [other]

    resend_next(store, raw, between=move_on)
    assert await take(store, 2) == []


async def test_a_repeated_call_is_answered_while_the_topic_is_paused(
    store: Store, raw: Redis
) -> None:
    waiting = await pending(store, 2)
    resend_next(store, raw, between=partial(store.pause_topic, TOPIC))
    assert ids(await take(store)) == waiting[:1]


async def test_a_repeated_call_gives_foreign_ids_too(store: Store, raw: Redis) -> None:
    keys = store.keys.of(TOPIC)
    await pending(store, id="0first")
    for id in (b"a 5", b"\xff\x00 1", b"", b" ", b"7 7 7"):
        await raw.hset(keys.payload, id, b"record")
        await raw.lpush(keys.pending, id)
    await pending(store, id="0last")
    waiting = (await snapshot(raw, TOPIC)).normal
    resend_next(store, raw)
    assert ids(await take(store, 9)) == waiting


# what stands in the way


async def test_a_topic_where_something_expires_gives_nothing_as_any_other(store: Store) -> None:
    await delayed(store, 5_000, ttl=60_000)
    assert await take(store, 10) == []
    await store.pause_topic(TOPIC)
    await pending(store, ttl=60_000)
    assert await take(store, 10) == []


async def test_a_paused_topic_gives_nothing_until_it_is_resumed(store: Store, raw: Redis) -> None:
    waiting = await pending(store, 2)
    await store.pause_topic(TOPIC)
    before = await snapshot(raw, TOPIC)
    assert await take(store, 2) == []
    assert await snapshot(raw, TOPIC) == before
    await store.resume_topic(TOPIC)
    assert ids(await take(store, 2)) == waiting


async def test_an_id_without_a_record_is_dropped_and_counted_the_rest_goes_through(
    store: Store, raw: Redis
) -> None:
    waiting = await pending(store, 5)
    await raw.hdel(store.keys.of(TOPIC).payload, waiting[0], waiting[3])
    assert ids(await take(store, 4)) == [waiting[1], waiting[2]]
    found = await snapshot(raw, TOPIC)
    assert (found.normal, found.meta["dropped"]) == (waiting[4:], "2")
    await raw.hdel(store.keys.of(TOPIC).payload, waiting[4])
    assert await take(store, 4) == []
    assert (await store.views.counts(TOPIC)).dropped == 3


async def test_an_id_that_stands_twice_or_has_a_lease_is_given_once(
    store: Store, raw: Redis
) -> None:
    keys = store.keys.of(TOPIC)
    (held,) = await leased(store)
    one, two = await pending(store, 2)
    await raw.lpush(keys.pending, one, held.id)
    await raw.lpush(keys.pending_high, two)
    before = await snapshot(raw, TOPIC)
    assert sorted(ids(await take(store, 9))) == sorted([one, two])
    found = await snapshot(raw, TOPIC)
    assert found.leases[held.id] == before.leases[held.id]
    assert (found.high, found.normal, found.meta["dropped"]) == ([], [], "3")


@pytest.mark.parametrize("id", [b"\xff\x00\xfe", b"\xc3(", b"a b:c{d}\n"])
async def test_an_id_of_any_bytes_is_given_with_its_record_and_dropped_without(
    store: Store, raw: Redis, id: bytes
) -> None:
    keys = store.keys.of(TOPIC)
    (first,) = await pending(store)
    await raw.lpush(keys.pending, id)
    (last,) = await pending(store)
    assert ids(await take(store, 3)) == [first, last]
    assert (await store.views.counts(TOPIC)).dropped == 1
    await raw.lpush(keys.pending, id)
    await raw.hset(keys.payload, id, b"\xff record")
    (one,) = await take(store)
    assert (one.id.encode("utf-8", "surrogateescape"), one.record) == (id, b"\xff record")
    assert await raw.hget(keys.processing, id) == b"%d:w1" % one.token


@pytest.mark.parametrize("level", LEVELS)
async def test_a_level_with_a_key_of_a_wrong_type_is_passed_over(
    store: Store, raw: Redis, level: str
) -> None:
    for priority in Priority:
        await pending(store, 2, priority=priority)
    before = await snapshot(raw, TOPIC)
    waiting = dict(zip(LEVELS, (before.high, before.normal, before.low), strict=True))
    left = waiting.pop(level)
    await raw.delete(store.keys.of(TOPIC).doorbell)
    async with broken(raw, key_named(store, level)):
        assert ids(await take(store, 9)) == [id for level in waiting.values() for id in level]
        assert await take(store, 9) == []
        assert await raw.llen(store.keys.of(TOPIC).doorbell) == 0
    assert ids(await take(store, 9)) == left


async def test_another_key_of_a_wrong_type_is_named_and_nothing_is_changed(
    store: Store, raw: Redis
) -> None:
    await leased(store)
    waiting = await pending(store, 2)
    for name in vital("dispatch_message"):
        if name not in (*LEVELS, "cancelled", "expiry"):
            await assert_refused(store, raw, name, partial(take, store, 2))
    assert ids(await take(store, 2)) == waiting


@pytest.mark.parametrize("field", ["dropped", "turn", "token"])
async def test_a_counter_that_is_no_number_does_not_tear_the_dispatch(
    store: Store, raw: Redis, clock: Clock, field: str
) -> None:
    waiting = await pending(store, 3)
    await raw.hdel(store.keys.of(TOPIC).payload, waiting[0])
    await raw.hset(store.keys.of(TOPIC).meta, field, "nonsense")
    assert ids(await take(store, 2)) == [waiting[1]]
    found = await snapshot(raw, TOPIC)
    assert found.normal == waiting[2:]
    assert found.meta == {"dropped": "1", "turn": "2", "token": str(clock.now * 1000)}


# alone


async def test_alone_a_batch_is_given_when_nobody_holds_anything(store: Store, raw: Redis) -> None:
    waiting = await pending(store, 3)
    assert ids(await take(store, 2, alone=True)) == waiting[:2]
    assert (await snapshot(raw, TOPIC)).normal == waiting[2:]


@pytest.mark.parametrize("worker", ["w1", "w2"])
async def test_alone_nothing_is_given_while_anybody_holds_something(
    store: Store, raw: Redis, worker: str
) -> None:
    held = await leased(store, 2)
    (waiting,) = await pending(store)
    before = await snapshot(raw, TOPIC)
    assert await take(store, 9, worker=worker, alone=True) == []
    assert await snapshot(raw, TOPIC) == before
    await settle(store, held[0], None)
    assert await take(store, 9, worker=worker, alone=True) == []
    await settle(store, held[1], None)
    assert ids(await take(store, 9, worker=worker, alone=True)) == [waiting]


async def test_alone_nothing_is_given_after_a_lease_ran_out_until_the_message_is_settled(
    store: Store, clock: Clock
) -> None:
    (lost,) = await leased(store)
    await pending(store)
    clock.advance(LEASE)
    assert await take(store, alone=True) == []
    late = await store.handle_timeout_message(TOPIC, "m", count=1, recovery=LEASE)
    assert await take(store, alone=True) == []
    (taken_over,) = late.messages
    held = [HandedBack(taken_over)]
    assert await store.release_message(TOPIC, "m", held) == ["1"]
    assert ids(await take(store, alone=True)) == [lost.id]


async def test_who_does_not_ask_alone_is_given_beside_those_who_do(store: Store) -> None:
    waiting = await pending(store, 2)
    assert ids(await take(store, alone=True)) == waiting[:1]
    assert ids(await take(store, worker="w2")) == waiting[1:]


async def test_alone_a_repeated_call_gives_the_same_messages_and_not_nothing(
    store: Store, raw: Redis
) -> None:
    waiting = await pending(store, 3)
    resend_next(store, raw)
    assert ids(await take(store, 2, alone=True)) == waiting[:2]


async def test_alone_a_paused_topic_gives_nothing_either(store: Store) -> None:
    await pending(store)
    await store.pause_topic(TOPIC)
    assert await take(store, alone=True) == []


# priorities


async def test_high_goes_before_normal_before_low_first_in_first_out(store: Store) -> None:
    for number in (1, 2):
        for level in reversed(Priority):
            await pending(store, id=f"{level}-{number}", priority=level)
    order = ["high-1", "high-2", "normal-1", "normal-2", "low-1", "low-2"]
    assert ids(await take(store, 4)) + ids(await take(store, 2)) == order


@pytest.mark.parametrize("batch", [1, 7])
@pytest.mark.parametrize("level", [Priority.NORMAL, Priority.LOW])
@pytest.mark.parametrize("turn", range(10))
@ONE_SERVER
async def test_endless_high_traffic_starves_nobody_for_more_than_ten_turns(
    store: Store, turn: int, level: Priority, batch: int
) -> None:
    for _ in range(turn):
        await leased(store, priority=Priority.HIGH)
    (patient,) = await pending(store, priority=level)
    taken: list[str] = []
    while patient not in taken:
        assert len(taken) < 10, f"ten turns have passed over {level}"
        await pending(store, batch, priority=Priority.HIGH)
        taken += ids(await take(store, batch))


@pytest.mark.parametrize("batch", [1, 7, 50])
async def test_of_ten_turns_eight_are_high_one_is_normal_and_one_is_low(
    store: Store, batch: int
) -> None:
    for level in Priority:
        await pending(store, 50, priority=level)
    taken: list[Leased] = []
    while len(taken) < 50:
        taken += await take(store, min(batch, 50 - len(taken)))
    shares = Counter(message(one).priority for one in taken)
    assert shares == {Priority.HIGH: 40, Priority.NORMAL: 5, Priority.LOW: 5}


async def test_within_a_level_the_order_holds_across_batches(store: Store) -> None:
    produced: dict[str, list[str]] = {level: [] for level in Priority}
    taken: dict[str, list[str]] = {level: [] for level in Priority}
    for _ in range(6):
        for level in Priority:
            produced[level] += await pending(store, 3, priority=level)
        for one in await take(store, 7):
            taken[message(one).priority].append(one.id)
    for one in await take(store, 99):
        taken[message(one).priority].append(one.id)
    assert taken == produced


async def test_a_level_without_messages_costs_the_others_no_turn(store: Store) -> None:
    waiting = await pending(store, 25, priority=Priority.LOW)
    assert ids(await take(store, 12)) + ids(await take(store, 13)) == waiting


# tokens


async def test_tokens_only_grow_whatever_the_clock_does(
    store: Store, raw: Redis, clock: Clock
) -> None:
    tokens: list[int] = []
    for step in (0, 0, 5, -10_000, 0, 1):
        clock.advance(step)
        tokens += [one.token for one in await leased(store, 3, lease=1)]
    clock.advance(20_000)
    taken_over = await store.handle_timeout_message(TOPIC, "m", count=5, recovery=1)
    tokens += [one.token for one in taken_over.messages]
    tokens += [one.token for one in await leased(store, 3, lease=1)]
    assert all(earlier < later for earlier, later in pairwise(tokens))
    assert (await snapshot(raw, TOPIC)).meta["token"] == str(tokens[-1])


async def test_tokens_grow_also_when_the_counter_is_lost(
    store: Store, raw: Redis, clock: Clock
) -> None:
    taken = await leased(store, 900, lease=1)
    await raw.delete(store.keys.of(TOPIC).meta)
    clock.advance(1)
    (taken_over,) = (await store.handle_timeout_message(TOPIC, "m", count=1, recovery=1)).messages
    assert taken_over.token > taken[-1].token
    await raw.delete(store.keys.of(TOPIC).meta)
    clock.advance(1)
    (later,) = await leased(store)
    assert later.token > taken_over.token


async def test_topics_do_not_meet(store: Store, raw: Redis) -> None:
    await pending(store)
    before = await snapshot(raw, TOPIC)
    await store.produce_normal_message("others", [draft()])
    others = await store.dispatch_message("others", "w1", count=9, lease=LEASE)
    assert len(others.messages) == 1
    assert await snapshot(raw, TOPIC) == before
    assert await snapshot(raw, "nobodys") == Snapshot()


async def test_one_reply_holds_eight_mebibytes_or_one_message(store: Store, raw: Redis) -> None:
    megabyte = "x" * 1_000_000
    await store.produce_normal_message(TOPIC, [draft(megabyte) for _ in range(10)])
    first = await take(store, 10)
    assert len(first) == 8
    assert (await snapshot(raw, TOPIC)).rung
    assert len(await take(store, 10)) == 2
    store.limits = Limits(max_payload=20_000_000)
    await store.produce_normal_message(TOPIC, [draft("x" * 10_000_000), draft()])
    assert [len(await take(store, 10)) for _ in range(2)] == [1, 1]


async def test_the_token_grows_also_when_the_clock_was_far_ahead(
    store: Store, clock: Clock
) -> None:
    now = clock.now
    clock.now = 10**13
    (ahead,) = await leased(store)
    clock.now = now
    (one,) = await leased(store)
    (two,) = await leased(store)
    assert ahead.token < one.token < two.token < 2**53


async def hmgets(raw: Redis) -> int:
    calls: int = (await raw.info("commandstats")).get("cmdstat_hmget", {"calls": 0})["calls"]
    return calls


@ONE_SERVER
async def test_records_beyond_eight_mebibytes_are_not_read_and_wait_with_a_ring(
    store: Store, raw: Redis
) -> None:
    """All at once would be one HMGET of 30 MB, however few of them fit."""
    produced = []
    for _ in range(5):
        many = [draft("x" * 1_000_000) for _ in range(6)]
        produced += [id for id, _ in await store.produce_normal_message(TOPIC, many)]
    await raw.delete(store.keys.of(TOPIC).doorbell)
    before = await hmgets(raw)
    taken = await take(store, 200)
    assert ids(taken) == produced[:8]
    assert await hmgets(raw) - before == 4  # the counters, 8 records, 16 more, the leases
    found = await snapshot(raw, TOPIC)
    assert found.rung
    assert len(found.leases) == 8
    assert ids(await take(store, 200)) == produced[8:16]


async def test_a_batch_of_small_records_comes_whole_and_in_order(store: Store) -> None:
    produced = await pending(store, 100)
    taken = await take(store, 100)
    assert ids(taken) == produced
    assert [message(one).id for one in taken] == produced
    assert [one.token for one in taken] == sorted(one.token for one in taken)


@pytest.mark.parametrize("missing", [0, 7, 8, 23, 50, 99])
@ONE_SERVER
async def test_a_missing_record_shifts_no_other_one_to_a_wrong_id(
    store: Store, raw: Redis, missing: int
) -> None:
    produced = await pending(store, 100)
    await raw.hdel(store.keys.of(TOPIC).payload, produced.pop(missing))
    taken = await take(store, 100)
    assert ids(taken) == produced
    assert [message(one).id for one in taken] == produced


@ONE_SERVER
async def test_a_big_record_at_the_front_comes_alone_and_the_rest_together(store: Store) -> None:
    store.limits = Limits(max_payload=20_000_000)
    ((big, _),) = await store.produce_normal_message(TOPIC, [draft("x" * 9_000_000)])
    small = await pending(store, 100)
    assert ids(await take(store, 101)) == [big]
    assert ids(await take(store, 101)) == small


@pytest.mark.corrupts
@pytest.mark.parametrize("field", ["token", "turn"])
@pytest.mark.parametrize(
    "nonsense", ["nan", "-nan", "inf", "-inf", "1e300", "-5", "2.5", "words", ""]
)
async def test_counters_that_are_no_numbers_are_begun_anew(
    store: Store, raw: Redis, field: str, nonsense: str
) -> None:
    (first,) = await leased(store)
    await raw.hset(store.keys.of(TOPIC).meta, field, nonsense)
    (second,) = await leased(store)
    (third,) = await leased(store)
    assert second.token > first.token - 1_000_000
    assert third.token > second.token
