"""processing -> dead. Caps and TTL: test_archive_caps.py."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import pytest

from mx_rmq.core import codec
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.message import State
from mx_rmq.store.results import Claim, Settled
from tests.lab.archives import archive, archived, key_name
from tests.lab.broken import assert_refused, vital
from tests.lab.calls import resend_next
from tests.lab.messages import (
    FAILURE,
    LEASE,
    TOPIC,
    bring,
    leased,
    message,
    renamed,
    settle,
    take,
)
from tests.lab.snapshot import Snapshot, snapshot

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.store.store import Store
    from tests.lab.clock import Clock


async def test_a_message_becomes_a_dead_letter_with_its_final_record(
    store: Store, raw: Redis, clock: Clock
) -> None:
    first, one, last = await leased(store, 3)
    before = await snapshot(raw, TOPIC)
    final = msgspec.structs.replace(message(one).failed(FAILURE), reason="attempts exhausted")
    died = clock.advance(5)
    assert await store.move_to_dlq(TOPIC, "w1", one, final) is Settled.DONE
    after = await snapshot(raw, TOPIC)
    assert after == replace(
        before,
        records={other.id: other.record for other in (first, last)},
        leases={other.id: before.leases[other.id] for other in (first, last)},
        deadlines={other.id: before.deadlines[other.id] for other in (first, last)},
        dead={one.id: died},
        dead_letters={one.id: codec.encode(final)},
    )
    kept = codec.decode(after.dead_letters[one.id], TOPIC, one.id)
    assert (kept.reason, kept.attempts, kept.errors) == ("attempts exhausted", 1, [FAILURE])


async def test_a_message_taken_over_by_the_monitor_is_the_monitors_to_bury(
    store: Store, raw: Redis, clock: Clock
) -> None:
    (one,) = await leased(store)
    clock.advance(LEASE)
    taken = await store.handle_timeout_message(TOPIC, "monitor", count=10, recovery=1000)
    (mine,) = taken.messages
    final = message(one).failed(FAILURE)
    assert await store.move_to_dlq(TOPIC, "w1", one, final) is Settled.LOST
    assert await store.move_to_dlq(TOPIC, "monitor", mine, final) is Settled.DONE
    assert list((await snapshot(raw, TOPIC)).dead) == [one.id]


@pytest.mark.parametrize("lost", ["token", "worker", "id"])
async def test_who_does_not_hold_the_lease_changes_nothing(
    store: Store, raw: Redis, lost: str
) -> None:
    (one,) = await leased(store)
    before = await snapshot(raw, TOPIC)
    claim = {
        "token": Claim(one.id, one.token - 1),
        "worker": Claim(one.id, one.token),
        "id": Claim("unknown", one.token),
    }[lost]
    worker = "w2" if lost == "worker" else "w1"
    final = renamed(message(one), claim.id)
    assert await store.move_to_dlq(TOPIC, worker, claim, final) is Settled.LOST
    assert await snapshot(raw, TOPIC) == before


@pytest.mark.parametrize("state", [None, *State])
async def test_a_message_in_another_state_stays_there(
    store: Store, raw: Redis, state: State | None
) -> None:
    one = await bring(store, None if state is State.PROCESSING else state)
    if state is State.PROCESSING:
        (one,) = await leased(store, worker="w2")
    before = await snapshot(raw, TOPIC)
    assert await archive(store, State.DEAD, one) is Settled.LOST
    assert await snapshot(raw, TOPIC) == before


async def test_a_topic_that_nobody_has_used_has_nothing_to_bury(store: Store, raw: Redis) -> None:
    (one,) = await leased(store)
    final = renamed(message(one), one.id, "unused")
    assert await store.move_to_dlq("unused", "w1", one, final) is Settled.LOST
    assert await snapshot(raw, "unused") == Snapshot()


async def test_the_same_call_again_is_told_that_it_was_done(store: Store, raw: Redis) -> None:
    (one,) = await leased(store)
    resend_next(store, raw)
    assert await archive(store, State.DEAD, one) is Settled.REPEATED
    assert list((await snapshot(raw, TOPIC)).dead) == [one.id]


@pytest.mark.parametrize("then", ["discarded", None, *State])
async def test_the_same_call_again_leaves_a_message_alone_that_went_on_meanwhile(
    store: Store, raw: Redis, clock: Clock, then: State | str | None
) -> None:
    (one,) = await leased(store)
    died = clock.now

    async def go_on() -> None:
        if then == "discarded":
            assert await store.discard_message(TOPIC, State.DEAD, one.id, archived=died)
            return
        again = message(one).revived()
        assert await store.requeue_message(TOPIC, State.DEAD, one.id, archived=died, message=again)
        clock.advance(10)
        (second,) = await take(store)
        await settle(store, second, State(then) if then else None)

    resend_next(store, raw, between=go_on)
    assert await archive(store, State.DEAD, one) is Settled.REPEATED


async def test_the_same_claim_in_a_new_call_is_lost(store: Store, raw: Redis) -> None:
    (one,) = await leased(store)
    assert await archive(store, State.DEAD, one) is Settled.DONE
    before = await snapshot(raw, TOPIC)
    assert await archive(store, State.DEAD, one) is Settled.LOST
    assert await snapshot(raw, TOPIC) == before


async def test_a_message_whose_record_is_gone_is_buried_with_the_callers_record(
    store: Store, raw: Redis
) -> None:
    (one,) = await leased(store)
    await raw.delete(store.keys.of(TOPIC).payload)
    assert await archive(store, State.DEAD, one) is Settled.DONE
    after = await snapshot(raw, TOPIC)
    assert after.dead_letters == {one.id: codec.encode(message(one).failed(FAILURE))}
    assert (after.records, after.leases, after.deadlines) == ({}, {}, {})


async def test_a_lease_without_a_deadline_is_no_obstacle(store: Store, raw: Redis) -> None:
    (one,) = await leased(store)
    await raw.delete(store.keys.of(TOPIC).expire_monitor)
    assert await archive(store, State.DEAD, one) is Settled.DONE


async def test_a_paused_topic_buries_its_dead(store: Store, raw: Redis) -> None:
    (one,) = await leased(store)
    assert await store.pause_topic(TOPIC)
    assert await archive(store, State.DEAD, one) is Settled.DONE
    assert list((await snapshot(raw, TOPIC)).dead) == [one.id]


async def test_what_is_buried_under_an_id_is_that_message(store: Store, raw: Redis) -> None:
    (one,) = await leased(store)
    await store.complete_message(TOPIC, "w1", [one])
    keys = store.keys.of(TOPIC)
    await raw.hset(keys.payload, b"\xff\xfe", one.record)
    await raw.lpush(keys.pending, b"\xff\xfe")
    (odd,) = await take(store)
    before = await snapshot(raw, TOPIC)
    with pytest.raises(InvalidInput, match="the record belongs to message"):
        await store.move_to_dlq(TOPIC, "w1", odd, message(one))
    with pytest.raises(InvalidInput, match="cannot be encoded as JSON"):
        await store.move_to_dlq(TOPIC, "w1", odd, renamed(message(one), odd.id))
    assert await snapshot(raw, TOPIC) == before


async def test_a_worker_whose_name_breaks_the_rule_is_refused(store: Store, raw: Redis) -> None:
    (one,) = await leased(store)
    before = await snapshot(raw, TOPIC)
    with pytest.raises(InvalidInput, match="worker 'w:1' must consist of"):
        await store.move_to_dlq(TOPIC, "w:1", one, message(one))
    assert await snapshot(raw, TOPIC) == before


async def test_a_key_of_a_wrong_type_is_named_and_nothing_is_half_written(
    store: Store, raw: Redis
) -> None:
    await archived(store, State.DEAD)
    (one,) = await leased(store)
    for name in vital("move_to_dlq"):
        call = partial(archive, store, State.DEAD, one)
        await assert_refused(store, raw, key_name(State.DEAD, name), call)
    assert await archive(store, State.DEAD, one) is Settled.DONE
