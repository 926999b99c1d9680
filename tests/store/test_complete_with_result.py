"""complete_with_result: processing -> completed"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mx_rmq.core.message import State
from mx_rmq.settings import SECOND_NET, Limits
from mx_rmq.store.archive_budgets import OVERHEAD
from mx_rmq.store.results import Settled
from mx_rmq.store.worker_calls import INLINE
from tests.lab.messages import RESULT_TTL, TOPIC, bring, kept, leased, pending, settle, take
from tests.lab.servers import USUAL, chosen
from tests.lab.snapshot import snapshot
from tests.store.contracts import ReceiptContract

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.asyncio import Redis

    from mx_rmq.store.results import Leased
    from mx_rmq.store.store import Store
    from tests.lab.clock import Clock

MINUTE = 60_000


async def complete(
    store: Store,
    taken: Sequence[Leased],
    *,
    result: bytes = b"1",
    ttl: int = RESULT_TTL,
    worker: str = "w1",
) -> list[Settled]:
    results = [(one, kept(result, ttl)) for one in taken]
    return await store.complete_with_result(TOPIC, worker, results, ttl=ttl)


class TestCompleteWithResult(ReceiptContract):
    name = "complete_with_result"

    async def settle(
        self, store: Store, taken: Sequence[Leased], *, worker: str = "w1"
    ) -> list[Settled]:
        return await complete(store, taken, worker=worker)


async def test_the_message_is_gone_and_its_result_is_there(
    store: Store, raw: Redis, clock: Clock
) -> None:
    first, second = await leased(store, 2)
    results = [(first, kept(b"1")), (second, kept(b'"two"'))]
    done = await store.complete_with_result(TOPIC, "w1", results, ttl=RESULT_TTL)
    assert done == [Settled.DONE] * 2
    found = await snapshot(raw, TOPIC)
    assert (found.records, found.leases, found.deadlines) == ({}, {}, {})
    assert found.results == {first.id: kept(b"1"), second.id: kept(b'"two"')}
    assert found.completed == {first.id: clock.now, second.id: clock.now}
    assert found.meta["result_ttl"] == str(RESULT_TTL)
    assert (await store.views.counts(TOPIC)).ever["completed"] == 2


async def test_without_the_lease_no_result_is_kept(store: Store, raw: Redis) -> None:
    (one,) = await leased(store)
    assert await complete(store, [one._replace(token=1)]) == [Settled.LOST]
    assert (await snapshot(raw, TOPIC)).results == {}


async def test_a_result_replaces_that_of_an_earlier_message_with_the_same_id(
    store: Store, raw: Redis, clock: Clock
) -> None:
    store.limits = Limits(dedup=0, results_max=3)
    others = await leased(store, 1)
    await complete(store, others, result=b"0")
    for result in (b"1", b'"a longer one"', b"3"):
        clock.advance(1)
        taken = await leased(store, id="own")
        assert await complete(store, taken, result=result) == [Settled.DONE]
        found = await snapshot(raw, TOPIC)
        assert found.results == {others[0].id: kept(b"0"), "own": kept(result)}
        assert found.completed["own"] == clock.now
    assert await store.audit.topic(TOPIC) == []


async def test_at_the_cap_a_result_that_replaces_another_one_drops_no_third(
    store: Store, raw: Redis, clock: Clock
) -> None:
    store.limits = Limits(dedup=0, results_max=3)
    for id in ("a", "b", "c", "b"):
        clock.advance(1)
        await complete(store, await leased(store, id=id))
    assert list((await snapshot(raw, TOPIC)).completed) == ["a", "c", "b"]


async def test_at_the_budget_a_result_that_replaces_another_one_drops_no_third(
    store: Store, raw: Redis, clock: Clock
) -> None:
    result = b'"' + b"x" * 1000 + b'"'
    each = len(kept(result)) + OVERHEAD
    store.limits = Limits(dedup=0, results_bytes=3 * each)
    for id in ("a", "b", "c", "b"):
        clock.advance(1)
        await complete(store, await leased(store, id=id), result=result)
    assert list((await snapshot(raw, TOPIC)).completed) == ["a", "c", "b"]
    counts = await store.views.counts(TOPIC)
    assert (counts.completed_bytes, counts.overflowed) == (3 * each, None)


@pytest.mark.parametrize("limit", [Limits(dedup=0, results_max=3), None])
async def test_the_limits_hold_when_the_oldest_result_is_replaced_and_others_arrive(
    store: Store, raw: Redis, clock: Clock, limit: Limits | None
) -> None:
    each = len(kept(b"1")) + OVERHEAD
    store.limits = limit or Limits(dedup=0, results_bytes=3 * each)
    for id in ("a", "b", "c"):
        clock.advance(1)
        await complete(store, await leased(store, id=id))
    clock.advance(1)
    await complete(store, [*await leased(store, id="a"), *await leased(store, id="d")])
    assert list((await snapshot(raw, TOPIC)).completed) == ["c", "a", "d"]
    assert await store.audit.topic(TOPIC) == []


async def test_a_result_that_is_replaced_after_its_time_counts_once(
    store: Store, raw: Redis, clock: Clock
) -> None:
    store.limits = Limits(dedup=0, results_max=3)
    for id in ("a", "b", "c"):
        clock.advance(MINUTE if id == "b" else 1)
        await complete(store, await leased(store, id=id), ttl=MINUTE + 1)
    clock.advance(1)
    await complete(store, await leased(store, id="a"), ttl=MINUTE + 1)
    assert list((await snapshot(raw, TOPIC)).completed) == ["b", "c", "a"]
    assert await store.audit.topic(TOPIC) == []


async def test_the_newest_results_are_kept_also_of_a_large_batch(
    store: Store, raw: Redis, clock: Clock
) -> None:
    store.limits = Limits(results_max=400)
    ids: list[str] = []
    for _ in range(4):
        clock.advance(1)
        taken = await leased(store, 300)
        assert set(await complete(store, taken)) == {Settled.DONE}
        ids += [one.id for one in taken]
        found = await snapshot(raw, TOPIC)
        assert len(found.results) == min(len(ids), 400)
        assert {*ids[-300:]} <= found.results.keys()


async def test_a_result_is_dropped_when_it_is_too_old(
    store: Store, raw: Redis, clock: Clock
) -> None:
    await complete(store, await leased(store), ttl=MINUTE)
    clock.advance(MINUTE)
    (young,) = await leased(store)
    await complete(store, [young], ttl=MINUTE)
    assert list((await snapshot(raw, TOPIC)).results) == [young.id]


async def test_results_stay_within_their_bytes_and_the_overflow_is_noted(
    store: Store, raw: Redis, clock: Clock
) -> None:
    result = b'"' + b"x" * 1000 + b'"'
    each = len(kept(result)) + OVERHEAD
    store.limits = Limits(results_bytes=3 * each)
    ids = []
    for _ in range(5):
        clock.advance(1)
        (one,) = await leased(store)
        await complete(store, [one], result=result)
        ids.append(one.id)
    assert list((await snapshot(raw, TOPIC)).completed) == ids[-3:]
    counts = await store.views.counts(TOPIC)
    assert (counts.completed, counts.completed_bytes) == (3, 3 * each)
    assert counts.overflowed == clock.now


async def test_workers_that_keep_no_results_do_not_disturb_the_count_of_the_bytes(
    store: Store, raw: Redis
) -> None:
    await complete(store, await leased(store, 2))
    await store.trim_archive(TOPIC, State.COMPLETED)
    before = await raw.hgetall(store.keys.of(TOPIC).archive_bytes)
    for one in await leased(store, 3):
        await settle(store, one, None)
    assert await store.trim_archive(TOPIC, State.COMPLETED) == 0
    assert await raw.hgetall(store.keys.of(TOPIC).archive_bytes) == before


async def test_what_was_dropped_is_no_news_of_the_history(store: Store, clock: Clock) -> None:
    store.limits = Limits(results_max=1)
    for _ in range(3):
        clock.advance(1)
        await complete(store, await leased(store))
    assert "trimmed" not in (await store.views.counts(TOPIC)).ever


async def test_the_janitor_drops_old_results_without_a_worker_that_keeps_any(
    store: Store, raw: Redis, clock: Clock
) -> None:
    await complete(store, await leased(store, 3), ttl=MINUTE)
    assert await store.trim_archive(TOPIC, State.COMPLETED) == 0
    clock.advance(MINUTE)
    assert await store.trim_archive(TOPIC, State.COMPLETED) == 3
    assert (await snapshot(raw, TOPIC)).results == {}


@pytest.mark.parametrize("kind", [kind for kind in chosen(*USUAL) if kind.has_hexpire])
async def test_the_server_itself_drops_a_result_that_nobody_trims(store: Store, raw: Redis) -> None:
    (one,) = await leased(store)
    await complete(store, [one])
    (ttl,) = await raw.httl(store.keys.of(TOPIC).results_payload, one.id)
    assert RESULT_TTL / 1000 < int(ttl) <= RESULT_TTL / 1000 + SECOND_NET


async def test_ends_are_published_and_short_results_come_along(store: Store, raw: Redis) -> None:
    async with raw.pubsub(ignore_subscribe_messages=True) as ear:
        await ear.subscribe(store.channel_of(TOPIC))
        await ear.get_message(timeout=10)
        short, long = await leased(store, 2)
        value = b'"' + b"x" * INLINE + b'"'
        results = [(short, kept(b"1")), (long, kept(value))]
        await store.complete_with_result(TOPIC, "w1", results, ttl=RESULT_TTL)
        dead = await bring(store, State.DEAD)
        bad = await bring(store, State.QUARANTINED)
        published = b""
        while bad.id.encode() not in published:
            message = await ear.get_message(timeout=10)
            published += message["data"] if message else b""
    first = f"completed {len(short.id)} {len(kept(b'1'))}\n{short.id}".encode() + kept(b"1")
    second = f"completed {len(long.id)} -1\n{long.id}"
    ends = f"dead {len(dead.id)} -1\n{dead.id}quarantined {len(bad.id)} -1\n{bad.id}"
    assert published == first + second.encode() + ends.encode()


async def test_a_large_batch_is_published_in_parts(store: Store, raw: Redis) -> None:
    async with raw.pubsub(ignore_subscribe_messages=True) as ear:
        await ear.subscribe(store.channel_of(TOPIC))
        await ear.get_message(timeout=10)
        taken = await leased(store, 100)
        await complete(store, taken, result=b'"' + b"x" * 3000 + b'"')
        parts: list[bytes] = []
        while sum(part.count(b"completed ") for part in parts) < 100:
            message = await ear.get_message(timeout=10)
            parts += [message["data"]] if message else []
    assert 4 < len(parts) < 8
    assert max(map(len, parts)) < 80_000


async def test_an_operator_neither_requeues_nor_discards_a_completed_message(
    store: Store, clock: Clock
) -> None:
    one = await bring(store, State.COMPLETED)
    with pytest.raises(ValueError, match="cannot be requeued or discarded"):
        await store.discard_message(TOPIC, State.COMPLETED, one.id, archived=clock.now)


async def test_the_id_can_be_produced_again_while_the_result_is_kept(
    store: Store, raw: Redis
) -> None:
    store.limits = Limits(dedup=0)
    await bring(store, State.COMPLETED, id="own")
    await pending(store, id="own")
    (again,) = await take(store)
    await settle(store, again, State.DEAD)
    found = await snapshot(raw, TOPIC)
    assert (list(found.dead), list(found.completed)) == (["own"], ["own"])


@pytest.mark.corrupts
@pytest.mark.parametrize("left", ["index", "contents"])
async def test_a_torn_result_is_found_and_repaired(store: Store, raw: Redis, left: str) -> None:
    one = await bring(store, State.COMPLETED)
    keys = store.keys.of(TOPIC)
    if left == "index":
        await raw.hdel(keys.results_payload, one.id)
    else:
        await raw.zrem(keys.results, one.id)
    (violation,) = await store.audit.topic(TOPIC)
    assert violation.what == "results: index and contents disagree"
    done = await store.repair_message(TOPIC, one.id.encode())
    assert done == ["result without contents removed" if left == "index" else "result listed again"]
    assert await store.audit.topic(TOPIC) == []
