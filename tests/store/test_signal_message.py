"""signal_message: waiting -> delayed, due now, once nothing is missing"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

from mx_rmq.core import codec
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.message import State
from mx_rmq.core.outcome import Park
from mx_rmq.settings import Limits
from mx_rmq.store.arguments import MAX_BATCH
from mx_rmq.store.results import RetryRequest, Settled, Signal, Signalled
from tests.lab.archives import find_archived
from tests.lab.broken import assert_refused
from tests.lab.calls import resend_next
from tests.lab.cases import abort
from tests.lab.messages import (
    FAILURE,
    LEASE,
    TOPIC,
    Priority,
    bring,
    draft,
    leased,
    message,
    pending,
    settle,
    take,
)
from tests.lab.snapshot import Snapshot, snapshot
from tests.lab.waits import NEVER

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.store.store import Store
    from tests.lab.clock import Clock

KEPT, THERE, UNKNOWN = Signalled.KEPT, Signalled.THERE, Signalled.UNKNOWN

KEYS = ("payload", "waiting", "awaited", "signals", "doorbell_delay", "receipt")


async def waiting(store: Store, *awaits: str, delay: int | None = None, id: str = "own") -> str:
    """Let a message wait for signals; return its id."""
    (one,) = await leased(store, id=id)
    park = Park(message(one), awaits or ("a",), delay, "signals")
    assert await store.park_message(TOPIC, "w1", [(one, park)]) == [Settled.DONE]
    return id


async def signal(
    store: Store, id: str, *names: str, value: bytes = b"1", wake: bool = False
) -> list[Signalled]:
    signals = [Signal(id, name, value, wake) for name in names]
    return await store.signal_message(TOPIC, signals)


async def test_nothing_to_signal_touches_nothing(store: Store, raw: Redis) -> None:
    assert await store.signal_message(TOPIC, []) == []
    assert await raw.dbsize() == 0


async def test_a_full_batch_goes_in_one_call_and_one_more_is_refused(
    store: Store, raw: Redis
) -> None:
    (id,) = await pending(store)
    signals = [Signal(id, f"n{number}", b"x") for number in range(MAX_BATCH + 1)]
    with pytest.raises(InvalidInput, match="1001 messages in one call"):
        await store.signal_message(TOPIC, signals)
    assert (await snapshot(raw, TOPIC)).signals == set()
    assert await store.signal_message(TOPIC, signals[:-1]) == [KEPT] * MAX_BATCH
    found = await store.signals_of(TOPIC, id)
    assert found == {f"n{number}": b"x" for number in range(MAX_BATCH)}


async def test_the_last_signal_wakes_the_message(store: Store, raw: Redis, clock: Clock) -> None:
    id = await waiting(store, "a", "b")
    before = replace(await snapshot(raw, TOPIC), rung_delay=False)
    await raw.delete(store.keys.of(TOPIC).doorbell_delay)
    now = clock.advance(5)
    assert await signal(store, id, "a") == [KEPT]
    found = await snapshot(raw, TOPIC)
    assert found == replace(before, awaited={"own\tb"}, signals={"own\ta\t1"})
    assert await signal(store, id, "b", value=b"2") == [KEPT]
    found = await snapshot(raw, TOPIC)
    assert found == replace(
        before,
        waiting={},
        awaited=set(),
        signals={"own\ta\t1", "own\tb\t2"},
        delayed={"own": now},
        rung_delay=True,
    )
    assert await store.process_delay_message(TOPIC, count=9) == ["own"]
    (one,) = await take(store)
    assert await store.signals_of(TOPIC, one.id) == {"a": b"1", "b": b"2"}


async def test_several_signals_of_one_call_wake_the_message(store: Store, raw: Redis) -> None:
    id = await waiting(store, "a", "b", "c")
    assert await signal(store, id, "a", "c", "x", "b") == [KEPT] * 4
    assert (await snapshot(raw, TOPIC)).waiting == {}


async def test_a_message_waits_in_its_level(store: Store, raw: Redis, clock: Clock) -> None:
    for level in Priority:
        (one,) = await leased(store, id=level, priority=level)
        park = Park(message(one), ("a",), 500, "a")
        await store.park_message(TOPIC, "w1", [(one, park)])
    signals = [Signal(level, "a", b"") for level in Priority]
    assert await store.signal_message(TOPIC, signals) == [KEPT] * 3
    found = await snapshot(raw, TOPIC)
    now = clock.now
    assert (found.delayed_high, found.delayed) == ({"high": now}, {"normal": now})
    assert found.delayed_low == {"low": now}


@pytest.mark.parametrize("state", [State.PENDING, State.DELAYED, State.PROCESSING])
async def test_a_signal_that_comes_first_is_kept(store: Store, raw: Redis, state: State) -> None:
    await bring(store, state, id="own")
    before = await snapshot(raw, TOPIC)
    assert await signal(store, "own", "a") == [KEPT]
    assert await snapshot(raw, TOPIC) == replace(before, signals={"own\ta\t1"})


async def test_the_first_of_two_signals_counts(store: Store, raw: Redis) -> None:
    (id,) = await pending(store)
    signals = [Signal(id, "a", b"1"), Signal(id, "a", b"2"), Signal(id, "ab", b"3")]
    assert await store.signal_message(TOPIC, signals) == [KEPT, THERE, KEPT]
    assert await signal(store, id, "a", value=b"4") == [THERE]
    assert await store.signals_of(TOPIC, id) == {"a": b"1", "ab": b"3"}


async def test_a_value_may_be_any_bytes(store: Store) -> None:
    (id,) = await pending(store)
    for name, value in (("a", b""), ("b", b"\t\n\x00\xff"), ("\x01é ü", b"{}")):
        assert await signal(store, id, name, value=value) == [KEPT]
        assert await signal(store, id, name, value=b"other") == [THERE]
    found = await store.signals_of(TOPIC, id)
    assert found == {"a": b"", "b": b"\t\n\x00\xff", "\x01é ü": b"{}"}


async def test_messages_whose_ids_begin_alike_do_not_meet(store: Store, raw: Redis) -> None:
    for id in ("own", "own-", "own1", "ow"):
        await waiting(store, id=id)
    assert await signal(store, "own", "a") == [KEPT]
    assert (await snapshot(raw, TOPIC)).waiting.keys() == {"own-", "own1", "ow"}
    assert await store.signals_of(TOPIC, "own1") == {}
    await store.cancel_message(TOPIC, "ow")
    assert (await snapshot(raw, TOPIC)).signals == {"own\ta\t1"}


async def test_no_more_than_so_many_are_kept(store: Store) -> None:
    await waiting(store, "c")
    with patch("mx_rmq.store.worker_calls.MAX_SIGNALS", 2):
        assert await signal(store, "own", "a", "b", "c", "a") == [
            KEPT,
            KEPT,
            Signalled.FULL,
            THERE,
        ]
        assert not Signalled.FULL
        assert await signal(store, "own", "c") == [Signalled.FULL]
    assert await signal(store, "own", "c") == [KEPT]


@pytest.mark.parametrize("name", ["x", "a", "full"])
async def test_a_message_can_be_woken_whatever_it_waits_for(
    store: Store, raw: Redis, clock: Clock, name: str
) -> None:
    await waiting(store, "a", "b")
    await signal(store, "own", "a")
    most = 1 if name == "full" else 9
    with patch("mx_rmq.store.worker_calls.MAX_SIGNALS", most):
        await signal(store, "own", name, wake=True)
    found = await snapshot(raw, TOPIC)
    assert (found.waiting, found.awaited, found.delayed) == ({}, set(), {"own": clock.now})


@pytest.mark.parametrize("state", [None, State.COMPLETED])
async def test_a_message_that_is_gone_gets_none(
    store: Store, raw: Redis, state: State | None
) -> None:
    await bring(store, state, id="own")
    before = await snapshot(raw, TOPIC)
    assert await signal(store, "own", "a", wake=True) == [UNKNOWN]
    assert await signal(store, "never", "a") == [UNKNOWN]
    assert not UNKNOWN
    assert await snapshot(raw, TOPIC) == before


async def test_a_repeated_call_says_so_and_keeps_nothing_twice(store: Store, raw: Redis) -> None:
    await waiting(store)

    async def end() -> None:
        assert await store.cancel_message(TOPIC, "own")
        await pending(store, id="own")

    resend_next(store, raw, between=end)
    assert await signal(store, "own", "a") == [Signalled.REPEATED]
    assert (await snapshot(raw, TOPIC)).signals == set()


async def test_a_paused_topic_takes_signals(store: Store, raw: Redis) -> None:
    await waiting(store)
    await store.pause_topic(TOPIC)
    assert await signal(store, "own", "a") == [KEPT]
    assert (await snapshot(raw, TOPIC)).waiting == {}


async def test_a_full_server_takes_signals(store: Store, raw: Redis) -> None:
    await waiting(store)
    await raw.config_set("maxmemory", 1)
    try:
        assert await signal(store, "own", "a") == [KEPT]
    finally:
        await raw.config_set("maxmemory", 0)
    assert (await snapshot(raw, TOPIC)).waiting == {}


async def test_a_key_of_a_wrong_type_is_named_and_nothing_is_kept(store: Store, raw: Redis) -> None:
    await waiting(store)
    for name in KEYS:
        await assert_refused(store, raw, name, lambda: signal(store, "own", "a"))
    assert await signal(store, "own", "a") == [KEPT]


# how signals end


@pytest.mark.parametrize("state", [None, State.COMPLETED])
async def test_signals_are_forgotten_when_the_message_is_completed(
    store: Store, raw: Redis, state: State | None
) -> None:
    one, other = await leased(store, 2)
    for id in (one.id, other.id):
        await signal(store, id, "a", "b")
    await settle(store, one, state)
    assert (await snapshot(raw, TOPIC)).signals == {f"{other.id}\ta\t1", f"{other.id}\tb\t1"}


@pytest.mark.parametrize("state", [State.PENDING, State.DELAYED, State.WAITING])
async def test_signals_are_forgotten_when_the_message_is_cancelled(
    store: Store, raw: Redis, state: State
) -> None:
    await bring(store, state, id="own")
    await signal(store, "own", "x")
    assert await store.cancel_message(TOPIC, "own") is Settled.DONE
    await pending(store, id="own")
    found = await snapshot(raw, TOPIC)
    assert (found.waiting, found.awaited, found.signals) == ({}, set(), set())


@pytest.mark.parametrize("state", [State.DEAD, State.QUARANTINED])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_signals_stay_with_an_archived_message_until_it_is_discarded(
    store: Store, raw: Redis, state: State, when: str
) -> None:
    (one,) = await leased(store, id="own")
    if when == "before":
        await signal(store, "own", "a")
    await settle(store, one, state)
    if when == "after":
        assert await signal(store, "own", "a") == [KEPT]
    found = await find_archived(store, TOPIC, state, "own")
    assert found is not None
    assert (await snapshot(raw, TOPIC)).signals == {"own\ta\t1"}
    stale = await store.discard_message(TOPIC, state, "own", archived=found.at - 1)
    assert stale is Settled.LOST
    assert (await snapshot(raw, TOPIC)).signals == {"own\ta\t1"}
    assert await store.discard_message(TOPIC, state, "own", archived=found.at)
    assert (await snapshot(raw, TOPIC)).signals == set()


@pytest.mark.parametrize("state", [State.DEAD, State.QUARANTINED])
async def test_signals_are_there_after_a_requeue(store: Store, raw: Redis, state: State) -> None:
    one = await bring(store, state, id="own")
    await signal(store, "own", "a")
    found = await find_archived(store, TOPIC, state, "own")
    assert found is not None
    await store.requeue_message(
        TOPIC, state, "own", archived=found.at, message=codec.decode(one.record)
    )
    assert (await snapshot(raw, TOPIC)).signals == {"own\ta\t1"}


@pytest.mark.parametrize("state", [State.DEAD, State.QUARANTINED])
@pytest.mark.parametrize("how", ["trim", "arrival"])
async def test_signals_are_forgotten_when_an_archive_drops_the_message(
    store: Store, raw: Redis, clock: Clock, state: State, how: str
) -> None:
    store.limits = Limits(dlq_ttl=1, quarantine_ttl=1)
    await bring(store, state, id="own")
    await signal(store, "own", "a")
    clock.advance(1000)
    if how == "trim":
        assert await store.trim_archive(TOPIC, state) == 1
    else:
        await bring(store, state, id="next")
        await signal(store, "next", "a")
    found = await snapshot(raw, TOPIC)
    assert found.signals == (set() if how == "trim" else {"next\ta\t1"})


async def test_a_result_that_is_dropped_takes_no_signals_of_a_new_message(
    store: Store, raw: Redis, clock: Clock
) -> None:
    store.limits = Limits(dedup=0)
    await bring(store, State.COMPLETED, id="own")
    await pending(store, id="own")
    await signal(store, "own", "a")
    clock.advance(9_000_000)
    assert await store.trim_archive(TOPIC, State.COMPLETED) == 1
    assert (await snapshot(raw, TOPIC)).signals == {"own\ta\t1"}


@pytest.mark.parametrize(
    "state",
    [State.PENDING, State.DELAYED, State.WAITING, State.DEAD, State.QUARANTINED],
)
async def test_a_replacement_begins_without_signals(store: Store, raw: Redis, state: State) -> None:
    await bring(store, state, id="own")
    await signal(store, "own", "x")
    await store.replace_message(TOPIC, draft("new", id="own"))
    found = await snapshot(raw, TOPIC)
    assert (found.waiting, found.awaited, found.signals) == ({}, set(), set())


async def test_a_replacement_of_what_runs_has_the_signals_that_come_from_then_on(
    store: Store, raw: Redis
) -> None:
    (one,) = await leased(store, id="own")
    await signal(store, "own", "old")
    await store.replace_message(TOPIC, draft("new", id="own"))
    assert (await snapshot(raw, TOPIC)).signals == set()
    assert await signal(store, "own", "new") == [KEPT]
    assert await store.release_replaced(TOPIC, "w1", one)
    assert (await snapshot(raw, TOPIC)).signals == {"own\tnew\t1"}


async def test_a_failed_attempt_keeps_the_signals(store: Store, raw: Redis, clock: Clock) -> None:
    (one,) = await leased(store, id="own")
    await signal(store, "own", "a")
    await store.retry_message(TOPIC, "w1", [RetryRequest(one, message(one).failed(FAILURE), 0)])
    await store.process_delay_message(TOPIC, count=1)
    await take(store)
    clock.advance(LEASE)
    await store.handle_timeout_message(TOPIC, "monitor", count=1, recovery=1)
    assert (await snapshot(raw, TOPIC)).signals == {"own\ta\t1"}


async def test_an_aborted_message_waits_no_longer_and_keeps_its_signals(
    store: Store, raw: Redis
) -> None:
    await waiting(store, "a", "b")
    await signal(store, "own", "a")
    assert await abort(store, TOPIC, "own") is Settled.DONE
    found = await snapshot(raw, TOPIC)
    assert (found.waiting, found.awaited, found.delayed) == ({}, set(), {})
    assert found.signals == {"own\ta\t1"}


async def test_a_rescheduled_message_waits_no_longer(
    store: Store, raw: Redis, clock: Clock
) -> None:
    await waiting(store)
    record = await store.views.record(TOPIC, "own") or b""
    done = await store.reschedule_message(
        TOPIC, message=codec.decode(record), seen=record, delay=500
    )
    assert done is Settled.DONE
    found = await snapshot(raw, TOPIC)
    assert (found.waiting, found.awaited) == ({}, set())
    assert found.delayed == {"own": clock.now + 500}


async def test_a_message_that_expires_waits_no_longer(
    store: Store, raw: Redis, clock: Clock
) -> None:
    (one,) = await leased(store, id="own", ttl=500)
    await store.park_message(TOPIC, "w1", [(one, Park(message(one), ("a",), None, "a"))])
    await waiting(store, id="other")
    clock.advance(500)
    expired = await store.expire_message(TOPIC, "monitor", count=9, recovery=1000)
    assert [one.id for one in expired.messages] == ["own"]
    found = await snapshot(raw, TOPIC)
    assert (set(found.waiting), found.awaited) == ({"other"}, {"other\ta"})
    assert found.delayed == {"other": NEVER}


async def test_a_message_that_has_ended_leaves_an_empty_topic(store: Store, raw: Redis) -> None:
    (one,) = await leased(store)
    park = Park(message(one), ("a",), None, "a")
    await store.park_message(TOPIC, "w1", [(one, park)])
    await signal(store, one.id, "a", "b")
    await store.process_delay_message(TOPIC, count=1)
    (one,) = await take(store)
    await settle(store, one, None)
    found = await snapshot(raw, TOPIC)
    assert found == Snapshot(meta=found.meta, rung=True, rung_delay=True)


async def test_a_topic_with_subscriptions_keeps_no_signals(store: Store, raw: Redis) -> None:
    (id,) = await pending(store)
    await store.declare_subscription(TOPIC, "billing")
    before = await snapshot(raw, TOPIC)
    assert await signal(store, id, "a", wake=True) == [Signalled.COPIED]
    assert (await snapshot(raw, TOPIC)) == before
