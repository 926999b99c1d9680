"""Outcomes, applied."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import Worker
from mx_rmq.core import codec, events
from mx_rmq.core.errors import OutcomeUnknown, ServerUnavailable
from mx_rmq.core.message import Priority
from mx_rmq.core.outcome import Complete, DeadLetter, Quarantine, Release, RetryLater
from mx_rmq.runtime import engine
from mx_rmq.runtime.event_bus import Events
from mx_rmq.runtime.lifecycle import Lifecycle
from mx_rmq.store.store import Store
from mx_rmq.store.worker_calls import release_replaced
from tests.lab.messages import FAILURE, LEASE, TOPIC, draft, pending, take
from tests.lab.proxy import Proxy
from tests.lab.snapshot import snapshot
from tests.runtime.stage import Seen, handler, on_a_server, queue, slots_for, until

if TYPE_CHECKING:
    from pathlib import Path

    from redis.asyncio import Redis

    from mx_rmq.core.outcome import Outcome
    from mx_rmq.runtime.held import HeldMessage
    from mx_rmq.runtime.slots import TopicSlots
    from tests.lab.clock import Clock
    from tests.lab.servers import Server

pytestmark = on_a_server

BOOM = ValueError("boom")


class Work:
    """A lifecycle, and messages that w1 has finished."""

    def __init__(self, store: Store, *, size: int = 5000) -> None:
        self.store = store
        self.bus = Events()
        self.seen = Seen(self.bus)
        self.slots = slots_for([handler(TOPIC)], concurrency=size)
        self.settled = 0
        dispatcher: Any = self
        self.lifecycle = Lifecycle(store, self.slots, dispatcher, self.bus, worker="w1")

    def freed(self, topic: TopicSlots) -> None:
        """Stand in for the dispatcher."""
        assert topic.topic == TOPIC
        self.settled += 1

    async def held(self, count: int = 1, *, large: int = 0, **fields: Any) -> list[HeldMessage]:
        if large:
            await self.store.produce_normal_message(TOPIC, [draft("x" * large)] * count)
        else:
            await pending(self.store, count, **fields)
        leased = await take(self.store, count)
        topic = self.slots.topics[TOPIC]
        self.slots.reserve(topic, count)
        self.slots.receive(topic, count, leased, time.monotonic())
        running = []
        while (held := self.slots.start_next()) is not None:
            held.message = codec.decode(held.leased.record)
            held.started_at = time.monotonic()
            self.slots.finished(held)
            running.append(held)
        assert len(running) == count
        return running

    async def apply(self, held: list[HeldMessage], outcome: Any) -> None:
        for one in held:
            self.lifecycle.settle(one, outcome(one) if callable(outcome) else outcome)
        await self.lifecycle.drain(10)

    async def counts(self) -> tuple[int, int, int, int, int]:
        c = await self.store.views.counts(TOPIC)
        return c.pending, c.delayed, c.processing, c.dead, c.quarantined


def retry(held: HeldMessage) -> Outcome:
    assert held.message is not None
    return RetryLater(held.message.failed(FAILURE), 5000, BOOM)


def dead(held: HeldMessage) -> Outcome:
    assert held.message is not None
    return DeadLetter(held.message.failed(FAILURE), BOOM)


# each outcome


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (Complete(), ""),
        (Release(), ""),
        (retry, "ValueError: boom"),
        (dead, "ValueError: boom"),
        (Quarantine(BOOM), ""),
    ],
)
async def test_what_was_replaced_waits_with_its_new_record(
    store: Store, outcome: Any, error: str
) -> None:
    work = Work(store)
    held = [*await work.held(id="own"), *await work.held(2)]
    await store.replace_message(TOPIC, draft("new", id="own"))
    await work.apply(held, outcome)
    assert not work.slots.held
    (event,) = work.seen.of(events.Replaced)
    assert (event.topic, event.id, event.error) == (TOPIC, "own", error)
    assert not work.seen.of(events.LeaseLost)
    found = [one for one in await take(store, 9) if one.id == "own"]
    assert [bytes(codec.decode(one.record).payload) for one in found] == [b'"new"']


async def test_a_replacement_whose_release_is_interrupted_still_waits(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, tries = Work(store), 0
    held = await work.held(id="own")
    await store.replace_message(TOPIC, draft("new", id="own"))

    async def release(self: Store, *args: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise ServerUnavailable("away")
        answer = await release_replaced(self, *args)
        if tries == 2:
            raise OutcomeUnknown("the reply is lost")
        return answer

    monkeypatch.setattr(Store, "release_replaced", release)
    await work.apply(held, Complete())
    assert tries == 3
    assert await work.counts() == (1, 0, 0, 0, 0)
    assert work.seen.of(events.Replaced)
    assert not work.seen.of(events.LeaseLost)


async def test_what_is_complete_is_gone(store: Store) -> None:
    work = Work(store)
    (held,) = await work.held()
    await work.apply([held], Complete())
    assert await work.counts() == (0, 0, 0, 0, 0)
    assert not work.slots.held
    (event,) = work.seen.of(events.Completed)
    assert (event.topic, event.id, event.attempt) == (TOPIC, held.leased.id, 1)
    assert held.started_at is not None
    assert held.ended_at is not None
    assert event.seconds == held.ended_at - held.started_at  # without what it took to settle


async def test_what_is_retried_waits_with_its_error(store: Store, clock: Clock) -> None:
    work = Work(store)
    (held,) = await work.held()
    await work.apply([held], retry)
    assert await work.counts() == (0, 1, 0, 0, 0)
    assert await store.get_next_delay_task(TOPIC) == 5000
    (event,) = work.seen.of(events.Retried)
    assert (event.attempt, event.delay, event.error) == (1, 5.0, "ValueError: boom")
    clock.advance(5000)
    await store.process_delay_message(TOPIC, count=10)
    (again,) = await take(store)
    assert codec.decode(again.record).errors == [FAILURE]
    await store.complete_message(TOPIC, "w1", [again])


async def test_what_is_dead_is_kept_with_its_reason(store: Store) -> None:
    work = Work(store)
    await work.apply(await work.held(3), dead)
    assert await work.counts() == (0, 0, 0, 3, 0)
    assert len(work.seen.of(events.Died)) == 3


async def test_what_cannot_be_read_is_kept_as_it_is(store: Store) -> None:
    work = Work(store)
    (held,) = await work.held()
    await work.apply([held], Quarantine(BOOM))
    assert await work.counts() == (0, 0, 0, 0, 1)
    assert work.seen.of(events.Quarantined)[0].error == "boom"


async def test_what_was_not_finished_goes_back_to_the_front_uncounted(store: Store) -> None:
    work = Work(store)
    held = await work.held(3)
    later = await pending(store, 1)
    await work.apply(held, Release())
    assert await work.counts() == (4, 0, 0, 0, 0)
    assert len(work.seen.of(events.Released)) == 3
    again = await take(store, 4)
    assert [one.id for one in again] == [one.leased.id for one in held] + later
    assert all(codec.decode(one.record).attempts == 0 for one in again)


@pytest.mark.parametrize("priority", list(Priority))
async def test_what_is_released_keeps_its_priority(
    store: Store, raw: Redis, priority: Priority
) -> None:
    work = Work(store)
    held = await work.held(1, priority=priority)
    held[0].message = None  # as of one that has waited for a slot
    await work.apply(held, Release())
    found = await snapshot(raw, TOPIC)
    lists = {Priority.HIGH: found.high, Priority.NORMAL: found.normal, Priority.LOW: found.low}
    assert lists.pop(priority) == [held[0].leased.id]
    assert list(lists.values()) == [[], []]


async def test_what_is_released_unread_may_be_unreadable(store: Store) -> None:
    work = Work(store)
    held = await work.held()
    held[0].message, held[0].leased = None, held[0].leased._replace(record=b"\xff")
    await work.apply(held, Release())
    assert await work.counts() == (1, 0, 0, 0, 0)


# together


async def test_those_of_a_moment_share_a_call(
    store: Store, raw: Redis, server: Server, clock: Clock, tmp_path: Path
) -> None:
    async with (
        Proxy(server.socket, tmp_path / "p.sock") as proxy,
        await Store.open(proxy.url, clock=clock) as through,
    ):
        work = Work(through)
        held = await work.held(600)
        before = proxy.count(b"EVAL")
        outcomes: list[Any] = [Complete(), retry, Release()]
        for number, one in enumerate(held):
            chosen = outcomes[number % 3]
            work.lifecycle.settle(one, chosen(one) if callable(chosen) else chosen)
        await work.lifecycle.drain(10)
        assert proxy.count(b"EVAL") - before <= 6
        assert await work.counts() == (200, 200, 0, 0, 0)
        assert not work.slots.held


async def test_more_than_a_call_may_carry_take_several(store: Store) -> None:
    work = Work(store)
    held = [one for _ in range(3) for one in await work.held(900)]
    await work.apply(held, Complete())
    assert await work.counts() == (0, 0, 0, 0, 0)
    assert len(work.seen.of(events.Completed)) == 2700


async def test_large_records_are_retried_in_several_calls(store: Store) -> None:
    work = Work(store)
    held = [one for _ in range(12) for one in await work.held(1, large=900_000)]
    await work.apply(held, retry)
    assert await work.counts() == (0, 12, 0, 0, 0)


async def test_a_failure_is_settled_soon_although_completions_never_end(store: Store) -> None:
    work = Work(store)
    (failed, *done) = await work.held(900)
    more = iter(done)

    def another() -> None:
        """While one call is under way, the next handler returns."""
        if (one := next(more, None)) is not None:
            work.lifecycle.settle(one, Complete())

    work.bus.subscribe(lambda event: another(), events.Completed)
    for _ in range(3):
        another()
    work.lifecycle.settle(failed, retry(failed))
    await work.seen.wait(events.Retried)
    settled_before = len(work.seen.of(events.Completed))
    await work.lifecycle.drain(30)
    assert settled_before < 100


# lost


async def test_a_stale_token_is_told_and_changes_nothing(store: Store, clock: Clock) -> None:
    work = Work(store)
    held = await work.held(2)
    clock.advance(LEASE + 1)
    taken = await store.handle_timeout_message(TOPIC, "w2", count=10, recovery=LEASE)
    assert len(taken.messages) == 2
    await work.apply(held, Complete())
    assert await work.counts() == (0, 0, 2, 0, 0)
    lost = work.seen.of(events.LeaseLost)
    assert [event.id for event in lost] == [one.leased.id for one in held]
    assert [event.fence for event in lost] == [one.leased.token for one in held]
    assert [event.refused for event in lost] == ["completed", "completed"]
    assert work.seen.of(events.Completed) == []
    assert not work.slots.held
    assert work.settled > 0


async def test_of_a_batch_only_the_lost_ones_are_told_as_lost(store: Store, clock: Clock) -> None:
    work = Work(store)
    (early,) = await work.held()
    clock.advance(LEASE + 1)
    (late,) = await work.held()
    await store.handle_timeout_message(TOPIC, "w2", count=10, recovery=LEASE)
    await work.apply([early, late], Complete())
    assert [event.id for event in work.seen.of(events.LeaseLost)] == [early.leased.id]
    assert [event.id for event in work.seen.of(events.Completed)] == [late.leased.id]


async def test_those_that_are_completed_are_counted_together_without_the_lost_ones(
    store: Store, clock: Clock
) -> None:
    work = Work(store)
    counted: list[tuple[str, list[float]]] = []
    work.bus.count_completed(lambda topic, seconds: counted.append((topic, seconds)))
    early = await work.held(1)
    clock.advance(LEASE + 1)
    await store.handle_timeout_message(TOPIC, "m", count=10, recovery=1000)
    late = await work.held(2)
    for one in (*early, *late):
        one.started_at, one.ended_at = 10.0, 10.5
    await work.apply([*early, *late], Complete())
    await work.apply(await work.held(1), Release())
    assert counted == [(TOPIC, [0.5, 0.5])]


async def test_a_lost_lease_is_told_once(store: Store) -> None:
    """A message of a batch has no interrupt before and after the call, but gets an outcome."""
    work = Work(store)
    (held,) = await work.held()
    work.lifecycle.lease_lost(held)
    work.lifecycle.settle(held, None)
    assert len(work.seen.of(events.LeaseLost)) == 1


async def test_no_outcome_means_that_it_is_no_longer_ours(store: Store) -> None:
    work = Work(store)
    (held,) = await work.held()
    work.lifecycle.settle(held, None)
    (lost,) = work.seen.of(events.LeaseLost)
    assert lost.refused == ""
    assert not work.slots.held
    assert await work.counts() == (0, 0, 1, 0, 0)


# a server that is away


@pytest.mark.parametrize("outcome", [Complete(), retry, Release(), dead, Quarantine(BOOM)])
async def test_what_does_not_get_through_is_settled_when_the_server_is_back(
    store: Store, server: Server, clock: Clock, tmp_path: Path, outcome: Any
) -> None:
    proxy = Proxy(server.socket, tmp_path / "p.sock")
    async with proxy, await Store.open(proxy.url, clock=clock, patience=0.1) as through:
        work = Work(through)
        held = await work.held(2)
        await proxy.close()
        for one in held:
            work.lifecycle.settle(one, outcome(one) if callable(outcome) else outcome)
        await asyncio.sleep(0.3)  # so that patience ends at least once
        assert len(work.slots.held) == 2
        await proxy.__aenter__()
        await work.lifecycle.drain(10)
        assert not work.slots.held
        assert work.lifecycle.abandoned == 0
        assert (await store.views.counts(TOPIC)).processing == 0
        assert work.seen.of(events.LeaseLost) == []


async def test_a_reply_that_was_lost_for_good_is_no_lost_lease(
    store: Store, server: Server, clock: Clock, tmp_path: Path
) -> None:
    proxy = Proxy(server.socket, tmp_path / "p.sock")
    async with proxy, await Store.open(proxy.url, clock=clock, patience=0) as through:
        work = Work(through)
        held = await work.held(2)
        proxy.cut_reply(1)  # done, and the next call gets 0: a new call of another lane
        await work.apply(held, Complete())
        assert len(work.seen.of(events.Completed)) == 2
        assert work.seen.of(events.LeaseLost) == []
        assert not work.slots.held


async def test_closing_gives_up_what_the_server_does_not_take(
    store: Store, server: Server, clock: Clock, tmp_path: Path
) -> None:
    proxy = Proxy(server.socket, tmp_path / "p.sock")
    async with proxy, await Store.open(proxy.url, clock=clock, patience=0.05) as through:
        work = Work(through)
        held = await work.held(3)
        await proxy.close()
        for one in held:
            work.lifecycle.settle(one, Complete())
        begun = time.monotonic()
        await work.lifecycle.drain(0.3)
        assert 0.25 < time.monotonic() - begun < 2
        work.lifecycle.close()
        work.lifecycle.settle(held[0], Complete())  # too late, and harmless
        await asyncio.sleep(0)
        assert len(work.slots.held) == 3
        await proxy.__aenter__()
    assert (await store.views.counts(TOPIC)).processing == 3


# what the server refuses


@pytest.mark.corrupts
async def test_what_the_server_refuses_is_held_until_it_does_not(
    store: Store, raw: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "mx_rmq")
    work = Work(store)
    held = await work.held(4)
    await raw.set(store.keys.of(TOPIC).dlq, "no sorted set")
    for one in held[:2]:
        work.lifecycle.settle(one, dead(one))
    await until(lambda: "refuses to settle" in caplog.text)
    for one in held[2:]:
        work.lifecycle.settle(one, Complete())  # what is not refused goes on
    await until(lambda: len(work.slots.held) == 2)
    assert work.lifecycle.abandoned == 0
    assert len(work.seen.of(events.Completed)) == 2
    await raw.delete(store.keys.of(TOPIC).dlq)
    await work.lifecycle.drain(10)
    assert await work.counts() == (0, 0, 0, 2, 0)
    assert not work.slots.held
    ours = [one.getMessage() for one in caplog.records if one.name == "mx_rmq.runtime.lifecycle"]
    refused, again = ours
    assert refused.startswith(f"the server refuses to settle messages of topic {TOPIC} as dead")
    assert again.startswith(f"messages of topic {TOPIC} can be settled again, after ")


async def rights(raw: Redis, *changes: str) -> None:
    execute: Any = raw.execute_command
    await execute("ACL", "SETUSER", "default", *changes)


async def test_rights_that_are_missing_for_a_moment_cost_no_result(
    raw: Redis, server: Server
) -> None:
    runs: Counter[int] = Counter()
    async with queue(server.url) as mq:

        @mq.handler("t")
        async def handle(number: int) -> None:
            runs[number] += 1
            if number == 0:
                await rights(raw, "-evalsha", "-eval")

        await mq.produce("t", 0)
        async with Worker(mq, concurrency=4, prefetch=0) as worker:
            await until(lambda: runs[0])
            await asyncio.sleep(0.3)  # it is refused several times
            assert (worker.held, worker.trouble) == (1, "")
            await rights(raw, "+evalsha", "+eval")
            await mq.produce_many("t", range(1, 20))
            await until(lambda: len(runs) == 20 and not worker.held)
        assert set(runs.values()) == {1}
        assert (await mq.admin.stats("t")).total == 0


async def test_a_worker_that_cannot_settle_takes_no_more_and_stops_in_time(
    raw: Redis, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "STEP_WITHIN", 0.2)
    runs = []
    async with queue(server.url, audit=False) as mq:

        @mq.handler("t")
        async def handle(number: int) -> None:
            runs.append(number)

        await mq.produce_many("t", range(100))
        await rights(raw, "-zrem")
        try:
            worker = Worker(mq, concurrency=4, prefetch=0)
            await worker.start()
            await until(lambda: len(runs) == 4)
            await asyncio.sleep(0.3)
            assert (len(runs), worker.held) == (4, 4)
            assert not await worker.stop()
        finally:
            await rights(raw, "+zrem")
        assert len(runs) == 4


async def test_who_waits_for_the_end_of_handlers_hears_of_what_was_given_up(
    store: Store,
) -> None:
    work = Work(store)
    held = await work.held(1)
    assert held[0].message is not None
    await work.apply(held, RetryLater(held[0].message.failed(FAILURE), -1, BOOM))
    assert not work.slots.held
    assert work.settled > 0


async def test_one_that_cannot_be_settled_does_not_stop_the_others_of_its_call(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    work = Work(store)
    held = await work.held(10)
    bad = held[4]

    def outcome(one: HeldMessage) -> Outcome:
        assert one.message is not None
        return RetryLater(one.message.failed(FAILURE), -1 if one is bad else 5000, BOOM)

    await work.apply(held, outcome)
    assert await work.counts() == (0, 9, 1, 0, 0)
    told = [event.id for event in work.seen.of(events.Retried)]
    assert told == [one.leased.id for one in held if one is not bad]
    assert work.lifecycle.abandoned == 1
    assert not work.slots.held
    assert f"{bad.leased.id} of topic {TOPIC} cannot be settled as RetryLater" in caplog.text
