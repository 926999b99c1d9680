"""handle_timeout_message: processing -> processing, held by the monitor"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq.core import codec
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.message import State
from mx_rmq.store.arguments import MAX_BATCH
from mx_rmq.store.quarantine import QuarantineReason
from mx_rmq.store.results import Claim, HandedBack, RetryRequest, Settled
from tests.lab.broken import assert_refused, vital
from tests.lab.calls import resend_next
from tests.lab.messages import FAILURE, LEASE, TOPIC, Priority, draft, leased, pending, take
from tests.lab.snapshot import Snapshot, snapshot
from tests.store.contracts import ONE_SERVER, foreign

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.store.results import Leased
    from mx_rmq.store.store import Store
    from tests.lab.clock import Clock

RECOVERY = 2000


async def take_over(
    store: Store, monitor: str = "m1", *, count: int = MAX_BATCH, recovery: int = RECOVERY
) -> list[Leased]:
    timed_out = await store.handle_timeout_message(TOPIC, monitor, count=count, recovery=recovery)
    return timed_out.messages


def ids(messages: list[Leased]) -> list[str]:
    return [one.id for one in messages]


async def test_a_stuck_message_is_taken_over_and_stays_in_processing(
    store: Store, raw: Redis, clock: Clock
) -> None:
    stuck = await leased(store, 2)
    (fine,) = await leased(store, lease=LEASE + 1)
    await pending(store)
    before = await snapshot(raw, TOPIC)
    now = clock.advance(LEASE)
    timed_out = await store.handle_timeout_message(TOPIC, "m1", count=9, recovery=RECOVERY)
    assert timed_out.now == now
    taken = timed_out.messages
    assert [(one.id, one.lost_by, one.record) for one in taken] == [
        (one.id, "w1", one.record) for one in stuck
    ]
    assert taken[1].token > taken[0].token > fine.token
    assert await snapshot(raw, TOPIC) == replace(
        before,
        leases={fine.id: f"{fine.token}:w1", **{one.id: f"{one.token}:m1" for one in taken}},
        deadlines={fine.id: now + 1, **dict.fromkeys(ids(stuck), now + RECOVERY)},
        meta={**before.meta, "token": str(taken[1].token)},
    )


async def test_nothing_happens_before_the_deadline(store: Store, raw: Redis, clock: Clock) -> None:
    await leased(store, 2)
    before = await snapshot(raw, TOPIC)
    clock.advance(LEASE - 1)
    assert await take_over(store) == []
    assert await snapshot(raw, TOPIC) == before
    clock.advance(1)
    assert len(await take_over(store)) == 2


async def test_an_empty_topic_is_not_touched(store: Store, raw: Redis) -> None:
    assert await take_over(store) == []
    assert await raw.dbsize() == 0


async def test_a_full_batch_is_taken_over_in_one_call(store: Store, clock: Clock) -> None:
    stuck = await leased(store, MAX_BATCH)
    (last,) = await leased(store, lease=LEASE + 1)
    clock.advance(LEASE + 1)
    assert set(ids(await take_over(store))) == set(ids(stuck))
    assert ids(await take_over(store)) == [last.id]


async def test_no_more_than_asked_for_are_taken_over_the_earliest_deadline_first(
    store: Store, clock: Clock
) -> None:
    stuck = [(await leased(store, lease=lease))[0].id for lease in (30, 10, 20)]
    clock.advance(LEASE)
    assert ids(await take_over(store, count=2)) == [stuck[1], stuck[2]]
    assert ids(await take_over(store, count=2)) == [stuck[0]]


@ONE_SERVER
@pytest.mark.parametrize(
    "bad",
    [
        {"count": 0},
        {"count": MAX_BATCH + 1},
        {"recovery": 0},
        {"recovery": 0.5},
        {"monitor": "a:b"},
        {"monitor": ""},
    ],
    ids=str,
)
async def test_a_bad_argument_is_refused(
    store: Store, raw: Redis, clock: Clock, bad: dict[str, Any]
) -> None:
    await leased(store)
    clock.advance(LEASE)
    before = await snapshot(raw, TOPIC)
    with pytest.raises(InvalidInput):
        await take_over(store, **bad)
    assert await snapshot(raw, TOPIC) == before


# who holds it now


async def test_the_old_holder_is_shut_out(store: Store, raw: Redis, clock: Clock) -> None:
    (old,) = await leased(store)
    clock.advance(LEASE)
    await take_over(store, "w1")  # the same process may be worker and monitor
    before = await snapshot(raw, TOPIC)
    record = codec.decode(old.record).failed(FAILURE)
    why = QuarantineReason.of(id=old.id, topic=TOPIC, error=ValueError(), data=b"")
    claim = Claim(old.id, old.token)
    assert await store.complete_message(TOPIC, "w1", [claim]) == [Settled.LOST]
    assert await store.retry_message(TOPIC, "w1", [RetryRequest(claim, record, 1)]) == [
        Settled.LOST
    ]
    assert await store.release_message(TOPIC, "w1", [HandedBack(claim, Priority.LOW)]) == [
        Settled.LOST
    ]
    assert await store.extend_lease(TOPIC, "w1", [claim], lease=LEASE) == [claim]
    assert await store.move_to_dlq(TOPIC, "w1", claim, record) is Settled.LOST
    assert await store.handle_parse_error(TOPIC, "w1", claim, why) is Settled.LOST
    assert await snapshot(raw, TOPIC) == before


@pytest.mark.parametrize("state", [State.DELAYED, State.DEAD])
async def test_the_monitor_decides_with_its_own_token(
    store: Store, raw: Redis, clock: Clock, state: State
) -> None:
    await leased(store)
    clock.advance(LEASE)
    (one,) = await take_over(store)
    record = codec.decode(one.record, TOPIC, one.id).failed(FAILURE)
    if state is State.DELAYED:
        answers = await store.retry_message(TOPIC, "m1", [RetryRequest(one, record, 5)])
        assert answers == [Settled.DONE]
    else:
        assert await store.move_to_dlq(TOPIC, "m1", one, record)
    found = await snapshot(raw, TOPIC)
    assert (found.leases, found.deadlines) == ({}, {})
    clock.advance(LEASE)
    assert await take_over(store) == []


async def test_when_the_monitor_dies_the_recovery_deadline_brings_the_message_back(
    store: Store, clock: Clock
) -> None:
    (worker,) = await leased(store)
    clock.advance(LEASE)
    (first,) = await take_over(store, "m1")
    clock.advance(RECOVERY - 1)
    assert await take_over(store, "m2") == []
    clock.advance(1)
    (second,) = await take_over(store, "m2")
    assert (second.id, second.lost_by, second.record) == (worker.id, "m1", worker.record)
    assert second.token > first.token > worker.token
    assert not (await store.complete_message(TOPIC, "m1", [first]))[0]
    assert (await store.complete_message(TOPIC, "m2", [second]))[0]


async def test_of_two_monitors_one_gets_the_message(store: Store, clock: Clock) -> None:
    await leased(store, 3)
    clock.advance(LEASE)
    one, two = await take_over(store, "m1", count=2), await take_over(store, "m2", count=2)
    assert len({*ids(one), *ids(two)}) == len(one) + len(two) == 3


async def test_a_repeated_call_changes_nothing_and_the_message_comes_back_in_time(
    store: Store, raw: Redis, clock: Clock
) -> None:
    (stuck,) = await leased(store)
    clock.advance(LEASE)
    resend_next(store, raw)
    assert await take_over(store) == []
    clock.advance(RECOVERY)
    assert ids(await take_over(store)) == [stuck.id]


async def test_a_paused_topic_does_not_matter(store: Store, clock: Clock) -> None:
    stuck = await leased(store)
    await store.pause_topic(TOPIC)
    clock.advance(LEASE)
    assert ids(await take_over(store)) == ids(stuck)


# leftovers


async def test_a_deadline_without_a_lease_is_dropped_quietly(
    store: Store, raw: Redis, clock: Clock
) -> None:
    (waiting,) = await pending(store)
    await raw.zadd(store.keys.of(TOPIC).expire_monitor, {"nobodys": 1, waiting: 2})
    before = await snapshot(raw, TOPIC)
    assert await take_over(store) == []
    assert await snapshot(raw, TOPIC) == replace(before, deadlines={})


async def test_a_lease_without_a_record_is_dropped_and_counted(
    store: Store, raw: Redis, clock: Clock
) -> None:
    one, two = await leased(store, 2)
    await raw.hdel(store.keys.of(TOPIC).payload, one.id, two.id)
    clock.advance(LEASE)
    assert await take_over(store) == []
    found = await snapshot(raw, TOPIC)
    assert found == Snapshot(rung=found.rung, meta={**found.meta, "dropped": "2"})
    assert (await store.views.counts(TOPIC)).dropped == 2


async def test_leftovers_do_not_stop_the_rest_of_the_call(
    store: Store, raw: Redis, clock: Clock
) -> None:
    keys = store.keys.of(TOPIC)
    stuck = await leased(store, 4)
    await raw.hdel(keys.payload, stuck[0].id)
    await raw.hdel(keys.processing, stuck[2].id)
    await raw.hdel(keys.payload, stuck[2].id)
    await raw.zadd(keys.expire_monitor, {b"\xff\x00": 1})
    clock.advance(LEASE)
    assert set(ids(await take_over(store))) == {stuck[1].id, stuck[3].id}
    found = await snapshot(raw, TOPIC)
    assert found.leases.keys() == found.deadlines.keys() == {stuck[1].id, stuck[3].id}
    assert found.meta["dropped"] == "1"


async def test_a_counter_that_is_no_number_does_not_tear_the_takeover(
    store: Store, raw: Redis, clock: Clock
) -> None:
    gone, stuck = await leased(store, 2)
    await raw.hdel(store.keys.of(TOPIC).payload, gone.id)
    await raw.hset(store.keys.of(TOPIC).meta, mapping={"dropped": "nonsense", "token": "nonsense"})
    now = clock.advance(LEASE)
    (taken,) = await take_over(store)
    assert (taken.id, taken.token) == (stuck.id, now * 1000)
    assert (await store.views.counts(TOPIC)).dropped == 1


async def test_a_lease_that_names_nobody_is_taken_over_all_the_same(
    store: Store, raw: Redis, clock: Clock
) -> None:
    (stuck,) = await leased(store)
    await raw.hset(store.keys.of(TOPIC).processing, stuck.id, "nonsense")
    clock.advance(LEASE)
    (one,) = await take_over(store)
    assert (one.id, one.lost_by) == (stuck.id, "")


async def test_a_message_with_an_id_that_is_not_utf8_can_be_taken_over_and_settled(
    store: Store, raw: Redis, clock: Clock
) -> None:
    stuck = await foreign(store, raw, b"\xff\x00\xfe")
    clock.advance(LEASE)
    (one,) = await take_over(store)
    assert one.id == stuck.id
    why = QuarantineReason.of(id=one.id, topic=TOPIC, error=ValueError("bad id"), data=one.record)
    assert await store.handle_parse_error(TOPIC, "m1", one, why)
    assert list((await snapshot(raw, TOPIC)).quarantine) == [one.id]


async def test_the_deadline_of_an_empty_id_stays(store: Store, raw: Redis, clock: Clock) -> None:
    stuck = await leased(store)
    clock.advance(1)
    await foreign(store, raw, b"")
    clock.advance(LEASE - 1)
    assert ids(await take_over(store)) == ids(stuck)
    clock.advance(1)
    assert ids(await take_over(store)) == [""]


async def test_a_key_of_a_wrong_type_is_named_and_nothing_is_changed(
    store: Store, raw: Redis, clock: Clock
) -> None:
    stuck = await leased(store, 2)
    clock.advance(LEASE)
    for name in vital("handle_timeout_message"):
        await assert_refused(store, raw, name, partial(take_over, store))
    assert set(ids(await take_over(store))) == set(ids(stuck))


async def test_pending_messages_never_time_out(store: Store, raw: Redis, clock: Clock) -> None:
    waiting = await pending(store, 2)
    clock.advance(10**9)
    assert await take_over(store) == []
    assert ids(await take(store, 2)) == waiting


async def test_one_reply_holds_eight_mebibytes(store: Store, clock: Clock) -> None:
    await store.produce_normal_message(TOPIC, [draft("x" * 1_000_000) for _ in range(10)])
    assert [len(await take(store, 10)) for _ in range(2)] == [8, 2]
    clock.advance(LEASE)
    for count in (8, 2, 0):
        late = await store.handle_timeout_message(TOPIC, "m1", count=10, recovery=60_000)
        assert len(late.messages) == count


@ONE_SERVER
async def test_records_beyond_eight_mebibytes_are_not_read_and_stay_due(
    store: Store, raw: Redis, clock: Clock
) -> None:
    """All at once would be one HMGET of 30 MB, however few of them fit."""

    async def hmgets() -> int:
        calls: int = (await raw.info("commandstats"))["cmdstat_hmget"]["calls"]
        return calls

    for _ in range(5):
        await store.produce_normal_message(TOPIC, [draft("x" * 1_000_000) for _ in range(6)])
    taken: list[Leased] = []
    while more := await take(store, 30):
        taken += more
    clock.advance(LEASE)
    before = await hmgets()
    late = await take_over(store, count=100)
    assert len(late) == 8
    assert await hmgets() - before == 4  # 8 records, 16 more, the leases, the counters
    while more_late := await take_over(store, count=100):
        late += more_late
    assert sorted(ids(late)) == sorted(ids(taken))


@pytest.mark.parametrize("missing", [0, 7, 8, 50, 99])
@ONE_SERVER
async def test_a_missing_record_shifts_no_other_one_to_a_wrong_id(
    store: Store, raw: Redis, clock: Clock, missing: int
) -> None:
    await leased(store, 100)
    clock.advance(LEASE)
    found = await raw.zrange(store.keys.of(TOPIC).expire_monitor, 0, -1)
    due = [id.decode() for id in found if isinstance(id, bytes)]
    await raw.hdel(store.keys.of(TOPIC).payload, due.pop(missing))
    late = await take_over(store, count=100)
    assert ids(late) == due
    assert [codec.decode(one.record).id for one in late] == due


@pytest.mark.parametrize("off", [-5_001, 5_001])
async def test_nothing_is_taken_over_while_the_clock_is_not_what_the_monitor_expects(
    store: Store, raw: Redis, clock: Clock, off: int
) -> None:
    await leased(store)
    clock.advance(LEASE)
    before = await snapshot(raw, TOPIC)
    timed_out = await store.handle_timeout_message(
        TOPIC, "m1", count=9, recovery=RECOVERY, expected=clock.now - off, jump=5_000
    )
    assert (timed_out.now, timed_out.messages, timed_out.surprised) == (clock.now, [], True)
    assert await snapshot(raw, TOPIC) == before


@pytest.mark.parametrize("off", [-5_000, 0, 5_000])
async def test_a_clock_that_is_about_what_the_monitor_expects_is_believed(
    store: Store, clock: Clock, off: int
) -> None:
    (stuck,) = await leased(store)
    clock.advance(LEASE)
    timed_out = await store.handle_timeout_message(
        TOPIC, "m1", count=9, recovery=RECOVERY, expected=clock.now - off, jump=5_000
    )
    assert ids(timed_out.messages) == [stuck.id]
    assert not timed_out.surprised


async def test_a_deadline_further_ahead_than_any_can_be_is_of_before_the_clock_was_set_back(
    store: Store, clock: Clock
) -> None:
    (gone,) = await leased(store)
    clock.advance(-10_000)
    (held,) = await leased(store, worker="w2")
    call = partial(store.handle_timeout_message, TOPIC, "m1", count=9, recovery=RECOVERY)
    assert (await call(jump=5_000)).behind == 10_000
    assert (await call(jump=5_000)).messages == []
    assert (await call(jump=5_000, far=LEASE + 10_000)).messages == []
    (taken,) = (await call(jump=5_000, far=LEASE)).messages
    assert (taken.id, taken.lost_by) == (gone.id, "w1")
    assert taken.token > held.token > gone.token


async def test_deadlines_far_ahead_are_left_alone_where_no_clock_was_set_back(
    store: Store, clock: Clock
) -> None:
    await leased(store, lease=LEASE + 3_600_000)
    clock.advance(-5_000)
    timed_out = await store.handle_timeout_message(
        TOPIC, "m1", count=9, recovery=RECOVERY, jump=5_000, far=LEASE
    )
    assert (timed_out.behind, timed_out.messages) == (5_000, [])


@pytest.mark.corrupts
@pytest.mark.parametrize("token", ["nan", "inf", "1e300", "-5", "words", ""])
async def test_a_token_counter_that_is_no_number_is_begun_anew(
    store: Store, raw: Redis, clock: Clock, token: str
) -> None:
    (stuck,) = await leased(store)
    clock.advance(LEASE)
    await raw.hset(store.keys.of(TOPIC).meta, "token", token)
    (taken,) = await take_over(store)
    assert taken.token > stuck.token
