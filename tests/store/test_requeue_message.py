"""dead | quarantined -> pending."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import pytest

from mx_rmq.core import codec
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.message import State
from mx_rmq.store.quarantine import read
from mx_rmq.store.results import Settled
from mx_rmq.store.store import Store
from tests.lab.archives import ARCHIVES, archived, contents, find_archived, index, key_name
from tests.lab.broken import assert_refused, vital
from tests.lab.calls import resend_next
from tests.lab.messages import (
    FAILURE,
    TOPIC,
    Priority,
    bring,
    draft,
    leased,
    message,
    pending,
    renamed,
    settle,
    take,
)
from tests.lab.snapshot import Snapshot, snapshot

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.core.message import Message
    from tests.lab.archives import Archived
    from tests.lab.clock import Clock
    from tests.lab.servers import Server

every_archive = pytest.mark.parametrize("state", ARCHIVES)


async def entry_of(store: Store, state: State, id: str) -> Archived:
    entry = await find_archived(store, TOPIC, state, id)
    assert entry is not None
    return entry


def message_in(entry: Archived, state: State) -> Message:
    """Read an archived message as an operator does."""
    return codec.decode(entry.data if state is State.DEAD else read(entry.data)[1])


def record_of(message: Message) -> bytes:
    """Return the record of a requeued message, into which the server has stamped the time."""
    rest = codec.encode(msgspec.structs.replace(message, due=None, requeued=None))
    return b'{"due":%d,"requeued":%d,' % (message.due or 0, message.requeued or 0) + rest[1:]


async def requeue(store: Store, state: State, entry: Archived, *, late: int = 0) -> Settled:
    return await store.requeue_message(
        TOPIC,
        state,
        entry.id,
        archived=entry.at + late,
        message=message_in(entry, state).revived(),
    )


async def test_a_dead_letter_starts_afresh_with_its_errors_to_be_read(
    store: Store, raw: Redis, clock: Clock
) -> None:
    (one,) = await leased(store, ttl=10, max_attempts=3, headers={"k": "v"})
    final = message(one)
    for _ in range(3):
        final = final.failed(FAILURE)
    final = msgspec.structs.replace(final, reason="attempts exhausted")
    assert await store.move_to_dlq(TOPIC, "w1", one, final)
    await raw.delete(store.keys.of(TOPIC).doorbell)
    before = await snapshot(raw, TOPIC)
    clock.advance(1000)
    entry = await entry_of(store, State.DEAD, one.id)
    assert await requeue(store, State.DEAD, entry) is Settled.DONE
    again = msgspec.structs.replace(final.revived(), due=clock.now, requeued=clock.now)
    assert await snapshot(raw, TOPIC) == replace(
        before,
        records={one.id: record_of(again)},
        normal=[one.id],
        dead={},
        dead_letters={},
        rung=True,
    )
    assert again.errors == [FAILURE] * 3
    assert (again.attempts, again.ttl, again.reason) == (0, None, "")
    assert again.ready_at == clock.now
    assert (again.max_attempts, again.headers) == (3, {"k": "v"})
    (second,) = await take(store)
    assert message(second) == again
    assert second.token > one.token


async def test_quarantined_bytes_that_are_a_message_go_round_again(
    store: Store, raw: Redis, clock: Clock
) -> None:
    one = await bring(store, State.QUARANTINED)
    entry = await entry_of(store, State.QUARANTINED, one.id)
    assert read(entry.data)[1] == one.record
    assert await requeue(store, State.QUARANTINED, entry) is Settled.DONE
    (second,) = await take(store)
    assert message(second) == msgspec.structs.replace(
        message(one).revived(), due=clock.now, requeued=clock.now
    )
    await settle(store, second, None)
    assert contents(await snapshot(raw, TOPIC), State.QUARANTINED) == {}


async def test_quarantined_bytes_that_are_none_are_replaced_by_the_operators_message(
    store: Store, raw: Redis, clock: Clock
) -> None:
    keys = store.keys.of(TOPIC)
    (id,) = await pending(store)
    await raw.hset(keys.payload, id, "\xff nonsense \0 \n")
    (one,) = await take(store)
    await settle(store, one, State.QUARANTINED)
    entry = await entry_of(store, State.QUARANTINED, id)
    mended = renamed(draft("mended", priority=Priority.HIGH, at=1), id)
    assert await store.requeue_message(
        TOPIC, State.QUARANTINED, id, archived=entry.at, message=mended
    )
    again = msgspec.structs.replace(mended, due=clock.now, requeued=clock.now)
    found = await snapshot(raw, TOPIC)
    assert (found.high, found.records) == ([id], {id: record_of(again)})
    (second,) = await take(store)
    assert message(second) == again


@every_archive
@pytest.mark.parametrize("priority", Priority)
async def test_it_waits_behind_the_others_of_its_priority(
    store: Store, raw: Redis, state: State, priority: Priority
) -> None:
    (id,) = await archived(store, state, priority=priority)
    waiting = {level: await pending(store, 2, priority=level) for level in Priority}
    entry = await entry_of(store, state, id)
    assert await requeue(store, state, entry) is Settled.DONE
    waiting[priority].append(id)
    found = await snapshot(raw, TOPIC)
    assert [found.high, found.normal, found.low] == [waiting[level] for level in Priority]


@every_archive
async def test_a_doorbell_that_is_rung_is_not_rung_again(
    store: Store, raw: Redis, state: State
) -> None:
    ids = await archived(store, state, 2)
    for id in ids:
        assert await requeue(store, state, await entry_of(store, state, id))
        assert await raw.llen(store.keys.of(TOPIC).doorbell) == 1


@every_archive
@pytest.mark.parametrize("late", [-1, 1])
async def test_an_entry_archived_at_another_time_is_not_the_one_that_was_seen(
    store: Store, raw: Redis, state: State, late: int
) -> None:
    (id,) = await archived(store, state)
    entry = await entry_of(store, state, id)
    before = await snapshot(raw, TOPIC)
    assert await requeue(store, state, entry, late=late) is Settled.LOST
    assert await snapshot(raw, TOPIC) == before


@every_archive
async def test_an_entry_that_died_again_since_it_was_seen_stays(
    store: Store, raw: Redis, clock: Clock, state: State
) -> None:
    (id,) = await archived(store, state)
    seen = await entry_of(store, state, id)
    assert await requeue(store, state, seen) is Settled.DONE
    clock.advance(1)
    (one,) = await take(store)
    await settle(store, one, state)
    before = await snapshot(raw, TOPIC)
    assert await requeue(store, state, seen) is Settled.LOST
    assert await snapshot(raw, TOPIC) == before


@every_archive
@pytest.mark.parametrize("where", [None, *State])
async def test_what_is_not_in_the_archive_is_not_requeued(
    store: Store, raw: Redis, clock: Clock, state: State, where: State | None
) -> None:
    (other,) = {*ARCHIVES} - {state}
    one = await bring(store, other if where is state else where)
    before = await snapshot(raw, TOPIC)
    for topic, id in ((TOPIC, one.id), (TOPIC, "unknown"), ("unused", one.id)):
        named = msgspec.structs.replace(message(one), topic=topic, id=id)
        done = await store.requeue_message(topic, state, id, archived=clock.now, message=named)
        assert done is Settled.LOST
        with pytest.raises(InvalidInput, match="the record belongs to message 'another' of topic"):
            await store.requeue_message(
                topic,
                state,
                id,
                archived=clock.now,
                message=msgspec.structs.replace(named, id="another"),
            )
    assert await snapshot(raw, TOPIC) == before
    assert await snapshot(raw, "unused") == Snapshot()


@every_archive
async def test_of_two_operators_one_requeues(
    store: Store, raw: Redis, server: Server, clock: Clock, state: State
) -> None:
    ids = await archived(store, state, 20)
    entries = [await entry_of(store, state, id) for id in ids]
    async with await Store.open(server.url, clock=clock) as other:
        answers = await asyncio.gather(
            *(requeue(who, state, entry) for entry in entries for who in (store, other))
        )
    pairs = zip(answers[::2], answers[1::2], strict=True)
    assert {frozenset(pair) for pair in pairs} == {frozenset({Settled.DONE, Settled.LOST})}
    assert sorted((await snapshot(raw, TOPIC)).normal) == sorted(ids)


@every_archive
async def test_the_same_call_again_is_told_that_it_was_done(
    store: Store, raw: Redis, state: State
) -> None:
    (id,) = await archived(store, state)
    entry = await entry_of(store, state, id)
    resend_next(store, raw)
    assert await requeue(store, state, entry) is Settled.REPEATED
    assert (await snapshot(raw, TOPIC)).normal == [id]


@every_archive
@pytest.mark.parametrize("then", [None, *State])
async def test_the_same_call_again_leaves_a_message_alone_that_went_on_meanwhile(
    store: Store, raw: Redis, clock: Clock, state: State, then: State | None
) -> None:
    (id,) = await archived(store, state)
    entry = await entry_of(store, state, id)

    async def go_on() -> None:
        clock.advance(1)
        (one,) = await take(store)
        await settle(store, one, then)

    resend_next(store, raw, between=go_on)
    assert await requeue(store, state, entry) is Settled.REPEATED


@every_archive
async def test_the_same_call_again_does_not_revive_what_died_in_the_same_millisecond(
    store: Store, raw: Redis, state: State
) -> None:
    (id,) = await archived(store, state)
    entry = await entry_of(store, state, id)

    async def die_at_once() -> None:
        (one,) = await take(store)
        await settle(store, one, state)
        assert index(await snapshot(raw, TOPIC), state) == {id: entry.at}

    resend_next(store, raw, between=die_at_once)
    assert await requeue(store, state, entry) is Settled.REPEATED


@every_archive
async def test_a_paused_topic_takes_it_and_keeps_it(store: Store, raw: Redis, state: State) -> None:
    (id,) = await archived(store, state)
    await store.pause_topic(TOPIC)
    assert await requeue(store, state, await entry_of(store, state, id)) is Settled.DONE
    assert (await snapshot(raw, TOPIC)).normal == [id]
    assert await take(store) == []


@pytest.mark.corrupts
@every_archive
@pytest.mark.parametrize("missing", ["bytes", "index"])
async def test_half_an_entry_is_not_requeued(
    store: Store, raw: Redis, state: State, missing: str
) -> None:
    (id,) = await archived(store, state)
    entry = await entry_of(store, state, id)
    times, payload = store.keys.of(TOPIC).archive_of(state)
    await raw.delete(payload if missing == "bytes" else times)
    before = await snapshot(raw, TOPIC)
    assert await requeue(store, state, entry) is Settled.LOST
    assert await snapshot(raw, TOPIC) == before


@pytest.mark.corrupts
@every_archive
async def test_a_live_message_with_the_same_id_is_not_overwritten(
    store: Store, raw: Redis, state: State
) -> None:
    (id,) = await archived(store, state)
    entry = await entry_of(store, state, id)
    await raw.hset(store.keys.of(TOPIC).payload, id, "live")
    before = await snapshot(raw, TOPIC)
    assert await requeue(store, state, entry) is Settled.LOST
    assert await snapshot(raw, TOPIC) == before


@every_archive
async def test_a_key_of_a_wrong_type_is_named_and_nothing_is_half_written(
    store: Store, raw: Redis, state: State
) -> None:
    (id,) = await archived(store, state)
    entry = await entry_of(store, state, id)
    for name in set(vital("requeue_message")) - {"pending_high", "pending_low"}:
        call = partial(requeue, store, state, entry)
        await assert_refused(store, raw, key_name(state, name), call)
    assert await requeue(store, state, entry) is Settled.DONE
