"""The monitor: messages whose worker went silent."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq.core import codec, events
from mx_rmq.core.errors import ScriptFailed
from mx_rmq.core.message import WITH_STEPS, Priority, State
from mx_rmq.net.server_clock import ServerClock
from mx_rmq.runtime.deadlines import FROZEN, Deadlines
from mx_rmq.runtime.event_bus import Events
from mx_rmq.runtime.monitor import CHECK_EVERY, Monitor
from tests.lab.messages import FAILURE, LEASE, TOPIC, draft, leased, rewrite, take
from tests.runtime.stage import Seen, handler, on_a_server, recovery

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.store.store import Store
    from tests.lab.clock import Clock

pytestmark = [on_a_server, pytest.mark.usefixtures("steady")]

HOLD_BACK = 2.0
"""Seconds, at a lease of 3."""


class Watch:
    """A monitor called m, and what it tells."""

    def __init__(self, store: Store, *topics: str, lease: float = 3.0, **options: Any) -> None:
        self.bus = Events()
        self.seen = Seen(self.bus)
        self.clock = ServerClock()
        self.monitor = Monitor(
            store,
            {topic: handler(topic, **options) for topic in topics or (TOPIC,)},
            Deadlines(lease, store.link_of(0), self.clock),
            recovery(store, self.bus, "m"),
        )
        self.store = store
        self.know()

    def know(self) -> None:
        """Let the server have been heard all the time."""
        link = self.store.link_of(0)
        link.answered_at, link.answered_since = time.monotonic(), float("-inf")

    async def step(self) -> float | None:
        """Look around, then do what is due."""
        self.know()
        surveyed = await self.store.survey_topics(list(self.monitor._handlers))
        for topic, survey in surveyed.topics.items():
            self.monitor.surveyed(topic, survey.deadline)
        return await self.monitor.step()

    def passed(self, seconds: float) -> None:
        """Let it be so much later, by our clock alone."""
        self.clock.jumped_at -= seconds
        monitor = self.monitor
        monitor.deadlines._silent_at -= seconds
        monitor.deadlines._probed_at -= seconds
        for times in (monitor._checked_at, monitor._busy_since, monitor.deadlines._behind_since):
            for topic in times:
                times[topic] -= seconds


async def test_with_nothing_in_processing_it_sleeps_until_it_is_woken(store: Store) -> None:
    assert await Watch(store).step() is None


async def test_it_sleeps_until_the_next_lease_runs_out(store: Store) -> None:
    await leased(store, lease=4000)
    await leased(store, lease=9000)
    watch = Watch(store)
    assert await watch.step() == pytest.approx(4, abs=0.05)
    assert watch.seen.of(events.TakenOver) == []


async def test_it_takes_over_and_counts_the_crash(store: Store, clock: Clock) -> None:
    (one,) = await leased(store, worker="gone")
    clock.advance(LEASE)
    watch = Watch(store)
    assert await watch.step() is None
    (taken,) = watch.seen.of(events.TakenOver)
    assert (taken.id, taken.lost_by) == (one.id, "gone")
    (again,) = watch.seen.of(events.Retried)
    assert (again.attempt, again.delay) == (1, 0)
    await store.process_delay_message(TOPIC, count=10)
    (back,) = await take(store)
    message = codec.decode(back.record)
    assert (message.attempts, message.crashes) == (1, 1)
    assert back.token > one.token
    await store.complete_message(TOPIC, "w1", [back])


async def test_nothing_is_taken_over_before_its_deadline(store: Store, clock: Clock) -> None:
    await leased(store)
    clock.advance(LEASE - 1)
    watch = Watch(store)
    assert await watch.step() == pytest.approx(0.001, abs=0.01)
    assert watch.seen.of(events.TakenOver) == []


async def test_a_message_that_has_killed_enough_workers_is_dead(store: Store, clock: Clock) -> None:
    (one,) = await leased(store)
    for _ in range(2):
        clock.advance(LEASE + 60_000)
        await Watch(store, max_crashes=3).step()
        clock.advance(60_000)
        await store.process_delay_message(TOPIC, count=10)
        assert len(await take(store)) == 1
    clock.advance(LEASE + 60_000)
    watch = Watch(store, max_crashes=3)
    await watch.step()
    (died,) = watch.seen.of(events.Died)
    assert died.id == one.id
    assert died.reason == "crashed: its worker was lost 3 times"
    assert (await store.views.counts(TOPIC)).dead == 1


async def test_what_it_cannot_read_it_quarantines_with_its_exact_bytes(
    store: Store, clock: Clock, raw: Redis
) -> None:
    (one,) = await leased(store)
    await raw.hset(store.keys.of(TOPIC).payload, one.id, b"\xff{")
    clock.advance(LEASE)
    watch = Watch(store)
    await watch.step()
    assert [event.id for event in watch.seen.of(events.Quarantined)] == [one.id]
    _, payload = store.keys.of(TOPIC).archive_of(State.QUARANTINED)
    kept: Any = await raw.hget(payload, one.id)
    assert kept.partition(b"\n")[2] == b"\xff{"


async def test_unknown_fields_survive_a_takeover_and_a_death_by_crashes(
    store: Store, raw: Redis, clock: Clock
) -> None:
    keys = store.keys.of(TOPIC)
    (one,) = await leased(store)
    await rewrite(raw, keys.payload, one.id, colour="red")
    clock.advance(60_000)
    await Watch(store, max_crashes=2).step()
    assert json.loads(await raw.hget(keys.payload, one.id) or b"")["colour"] == "red"
    clock.advance(60_000)
    await store.process_delay_message(TOPIC, count=10)
    await store.dispatch_message(TOPIC, "w1", count=1, lease=1000)
    clock.advance(60_000)
    await Watch(store, max_crashes=2).step()
    assert json.loads(await raw.hget(keys.dlq_payload, one.id) or b"")["colour"] == "red"


async def test_a_newer_record_that_is_taken_over_waits_uncounted_too(
    store: Store, raw: Redis, clock: Clock
) -> None:
    keys, watch = store.keys.of(TOPIC), Watch(store, max_crashes=1)
    (one,) = await leased(store, priority=Priority.HIGH)
    data = await rewrite(raw, keys.payload, one.id, v=WITH_STEPS + 1)
    clock.advance(60_000)
    await watch.step()
    assert [event.id for event in watch.seen.of(events.Postponed)] == [one.id]
    assert await raw.hget(keys.payload, one.id) == data
    assert await raw.zcard(keys.delay_tasks_high) == 1


async def test_hundreds_are_taken_over_in_one_step(store: Store, clock: Clock) -> None:
    await leased(store, 350)
    clock.advance(LEASE)
    watch = Watch(store)
    await watch.step()
    counts = await store.views.counts(TOPIC)
    assert (counts.processing, counts.delayed) == (0, 350)
    assert len(watch.seen.of(events.TakenOver)) == 350


async def test_what_a_lost_worker_held_is_retried_in_one_call(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await leased(store, 100)
    clock.advance(LEASE)
    sizes: list[int] = []
    retry = store.retry_message

    async def counted(topic: str, worker: str, batch: Any) -> Any:
        sizes.append(len(batch))
        return await retry(topic, worker, batch)

    monkeypatch.setattr(store, "retry_message", counted)
    await Watch(store).step()
    assert sizes == [100]


async def test_one_that_cannot_be_retried_holds_up_no_other(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, *others = await leased(store, 3)
    clock.advance(LEASE)
    retry = store.retry_message

    async def refused(topic: str, worker: str, batch: Any) -> Any:
        if any(one.claim.id == stuck.id for one in batch):
            raise ScriptFailed("as told")
        return await retry(topic, worker, batch)

    monkeypatch.setattr(store, "retry_message", refused)
    watch = Watch(store)
    await watch.step()
    assert {event.id for event in watch.seen.of(events.Retried)} == {one.id for one in others}


async def test_two_monitors_count_a_crash_once(store: Store, clock: Clock) -> None:
    (one,) = await leased(store)
    clock.advance(LEASE)
    first, second = Watch(store), Watch(store)
    await first.step()
    await second.step()
    assert len(first.seen.of(events.TakenOver)) == 1
    assert second.seen.of(events.TakenOver) == []
    await store.process_delay_message(TOPIC, count=10)
    (back,) = await take(store)
    assert codec.decode(back.record).crashes == 1
    assert back.id == one.id


async def test_it_learns_the_next_deadline_after_it_took_over(store: Store, clock: Clock) -> None:
    await leased(store, lease=1000)
    await leased(store, lease=8000)
    clock.advance(1000)
    assert await Watch(store).step() == pytest.approx(7, abs=0.05)


async def test_a_lease_that_was_extended_is_not_taken_over(store: Store, clock: Clock) -> None:
    (one,) = await leased(store)
    watch = Watch(store)
    watch.monitor.surveyed(TOPIC, 0)  # what it saw is old news
    await store.extend_lease(TOPIC, "w1", [one], lease=LEASE)
    assert await watch.monitor.step() == pytest.approx(LEASE / 1000, abs=0.1)
    assert watch.seen.of(events.TakenOver) == []


# holding back


async def test_it_holds_back_after_the_server_was_away(store: Store, clock: Clock) -> None:
    await leased(store)
    clock.advance(LEASE)
    watch = Watch(store, lease=3.0)
    store.link_of(0).back_at = time.monotonic()
    assert await watch.step() == pytest.approx(HOLD_BACK, abs=0.1)
    assert watch.seen.of(events.TakenOver) == []
    store.link_of(0).back_at -= HOLD_BACK + 0.1
    await watch.step()
    assert len(watch.seen.of(events.TakenOver)) == 1


async def test_it_holds_back_after_a_jump_of_the_servers_clock(store: Store, clock: Clock) -> None:
    await leased(store)
    watch = Watch(store, lease=3.0)
    watch.clock.update(clock.now, time.monotonic())
    watch.clock.update(clock.advance(LEASE), time.monotonic())
    pause = await watch.step()
    assert pause == pytest.approx(HOLD_BACK, abs=0.1)
    assert watch.seen.of(events.TakenOver) == []


async def test_a_jump_that_only_the_take_over_itself_would_notice_costs_nobody_his_message(
    store: Store, clock: Clock
) -> None:
    (one,) = await leased(store)
    watch = Watch(store, lease=3.0)
    watch.clock.update(clock.now, time.monotonic())
    watch.monitor.surveyed(TOPIC, 0)
    clock.advance(LEASE + 1)
    assert await watch.monitor.step() == 0
    assert await watch.monitor.step() == pytest.approx(HOLD_BACK, abs=0.1)
    assert watch.seen.of(events.TakenOver) == []
    assert await store.extend_lease(TOPIC, "w1", [one], lease=LEASE) == []
    watch.passed(HOLD_BACK + 0.1)
    await watch.monitor.step()
    assert watch.seen.of(events.TakenOver) == []


async def test_after_the_clock_was_set_back_only_who_is_gone_loses_his_message(
    store: Store, clock: Clock
) -> None:
    (gone,) = await leased(store, lease=3000, worker="gone")
    (held,) = await leased(store, lease=3000)
    watch = Watch(store, lease=3.0)
    watch.clock.update(clock.now, time.monotonic())
    await watch.step()
    watch.clock.update(clock.advance(-3_600_000), time.monotonic())
    assert await watch.step() == pytest.approx(HOLD_BACK, abs=0.1)
    assert await store.extend_lease(TOPIC, "w1", [held], lease=3000) == []
    watch.passed(HOLD_BACK + 0.1)
    await watch.step()
    assert [event.id for event in watch.seen.of(events.TakenOver)] == [gone.id]
    assert await watch.step() == pytest.approx(3, abs=0.1)


async def test_a_jump_that_was_noticed_before_anything_was_seen_in_processing_counts(
    store: Store, clock: Clock
) -> None:
    watch = Watch(store, lease=3.0)
    watch.clock.update(clock.now, time.monotonic())
    assert await watch.step() is None
    (gone,) = await leased(store, lease=3000, worker="gone")
    watch.clock.update(clock.advance(-3_600_000), time.monotonic())
    assert await watch.step() == pytest.approx(HOLD_BACK, abs=0.1)
    watch.passed(HOLD_BACK + 0.1)
    await watch.step()
    assert [event.id for event in watch.seen.of(events.TakenOver)] == [gone.id]


async def test_who_comes_after_the_clock_was_set_back_finds_the_messages_of_the_dead(
    store: Store, clock: Clock
) -> None:
    large = [draft("x" * 1_000_000) for _ in range(10)]  # more than one answer holds
    await store.produce_normal_message(TOPIC, large)
    taken = [one for _ in large for one in await take(store, worker="gone", lease=3000)]
    (held,) = await leased(store, lease=3000)
    clock.advance(-3_600_000)
    watch = Watch(store, lease=3.0)
    assert await watch.step() == pytest.approx(CHECK_EVERY, abs=0.1)
    watch.passed(CHECK_EVERY)
    assert await watch.step() == pytest.approx(HOLD_BACK, abs=0.1)
    assert await store.extend_lease(TOPIC, "w1", [held], lease=3000) == []
    watch.passed(HOLD_BACK + 0.1)
    await watch.step()
    lost = [event.id for event in watch.seen.of(events.TakenOver)]
    assert sorted(lost) == sorted(one.id for one in taken)


async def test_longer_leases_than_ours_are_left_alone_while_the_clock_is_right(
    store: Store, clock: Clock
) -> None:
    await leased(store, lease=3_600_000)
    watch = Watch(store, lease=3.0)
    for _ in range(3):
        assert await watch.step() == pytest.approx(CHECK_EVERY, abs=0.1)
        watch.passed(CHECK_EVERY)
    assert watch.seen.of(events.TakenOver) == []


async def test_a_call_that_was_under_way_for_long_is_made_once_more_later_and_believed(
    store: Store, clock: Clock
) -> None:
    (stuck,) = await leased(store)
    watch = Watch(store, lease=3.0)
    watch.clock.update(clock.now, time.monotonic() - LEASE / 1000 - 1)
    clock.advance(LEASE)
    await watch.step()
    assert await watch.step() == pytest.approx(HOLD_BACK, abs=0.1)
    assert watch.seen.of(events.TakenOver) == []
    watch.passed(HOLD_BACK)
    await watch.step()
    assert [event.id for event in watch.seen.of(events.TakenOver)] == [stuck.id]


async def test_a_call_that_was_under_way_through_an_outage_takes_nothing_over(
    store: Store, clock: Clock
) -> None:
    (held,) = await leased(store, lease=3000)
    watch = Watch(store, lease=3.0)
    watch.clock.update(clock.now, time.monotonic())
    await watch.step()
    clock.advance(3600)
    watch.clock._asked_at -= 3.6  # it was away while the call was tried, so this is no jump
    watch.monitor.surveyed(TOPIC, 0)
    await watch.monitor.step()
    assert await watch.step() == pytest.approx(HOLD_BACK, abs=0.1)
    assert await store.extend_lease(TOPIC, "w1", [held], lease=3000) == []
    watch.passed(HOLD_BACK)
    assert await watch.step() == pytest.approx(3, abs=0.2)
    assert watch.seen.of(events.TakenOver) == []


async def test_a_jump_that_one_topic_hears_of_costs_the_next_one_nothing(
    store: Store, clock: Clock
) -> None:
    topics = ("a", "b")
    for topic in topics:
        await store.produce_normal_message(topic, [draft(1)])
        await store.dispatch_message(topic, "w1", count=1, lease=LEASE)
    watch = Watch(store, *topics, lease=3.0)
    watch.clock.update(clock.now, time.monotonic())
    for topic in topics:
        watch.monitor.surveyed(topic, 0)
    clock.advance(LEASE + 1)
    await watch.monitor.step()
    assert watch.seen.of(events.TakenOver) == []


async def test_a_small_jump_is_held_back_after_too_if_the_lease_is_short(
    store: Store, clock: Clock
) -> None:
    await leased(store, lease=3000)
    watch = Watch(store, lease=3.0)
    watch.clock.update(clock.now, time.monotonic())
    watch.monitor.surveyed(TOPIC, 0)
    clock.advance(3001)
    await watch.monitor.step()
    assert await watch.monitor.step() == pytest.approx(HOLD_BACK, abs=0.1)
    assert watch.seen.of(events.TakenOver) == []


async def test_a_server_that_was_not_heard_lately_is_heard_first(
    store: Store, clock: Clock
) -> None:
    for topic in ("a", "b"):
        await store.produce_normal_message(topic, [draft(1)])
        await store.dispatch_message(topic, "gone", count=1, lease=LEASE)
    clock.advance(LEASE)
    watch = Watch(store, "a", "b", lease=3.0)
    watch.monitor.surveyed("a", 0)
    watch.monitor.surveyed("b", 0)
    store.link_of(0).answered_at -= 1  # nothing came from it for a second: was it there?
    await watch.monitor.step()
    assert await watch.monitor.step() == pytest.approx(0.75, abs=0.1)
    assert watch.seen.of(events.TakenOver) == []
    watch.monitor.deadlines._probed_at -= 0.75
    await watch.monitor.step()
    assert len(watch.seen.of(events.TakenOver)) == 2


async def test_when_calls_fail_it_holds_back_from_the_first_that_gets_through(
    store: Store, clock: Clock
) -> None:
    await leased(store, lease=3000)
    clock.advance(3000)
    watch = Watch(store, lease=3.0)
    watch.monitor.surveyed(TOPIC, 0)
    store.link_of(0).failed(OSError("refused"))
    await watch.monitor.step()
    assert await watch.monitor.step() == pytest.approx(HOLD_BACK, abs=0.1)
    assert watch.seen.of(events.TakenOver) == []


async def test_it_holds_back_after_an_answer_that_was_long_in_coming_but_not_for_ever(
    store: Store, clock: Clock
) -> None:
    (stuck,) = await leased(store)
    clock.advance(LEASE)
    watch = Watch(store, lease=3.0)
    for _ in range(2):
        store.link_of(0).late_at = time.monotonic()
        assert await watch.step() == pytest.approx(HOLD_BACK, abs=0.1)
        watch.monitor.deadlines._silent_at -= HOLD_BACK
        store.link_of(0).late_at = time.monotonic()
        await watch.step()
        assert [event.id for event in watch.seen.of(events.TakenOver)] == [stuck.id]
        watch.monitor.deadlines._silent_at -= 4 * HOLD_BACK


async def test_it_holds_back_after_its_process_stood_still(store: Store, clock: Clock) -> None:
    await leased(store, lease=4000)
    watch = Watch(store, lease=3.0)
    assert await watch.step() == pytest.approx(4, abs=0.1)
    watch.monitor.deadlines._expected_at = (
        time.monotonic() - FROZEN - 0.1
    )  # it should have run then
    clock.advance(4000)
    assert await watch.step() == pytest.approx(HOLD_BACK, abs=0.1)
    assert watch.seen.of(events.TakenOver) == []


async def test_it_does_not_hold_back_longer_than_ten_seconds(store: Store) -> None:
    watch = Watch(store, lease=3600.0)
    store.link_of(0).back_at = time.monotonic()
    assert await watch.step() == pytest.approx(11, abs=0.1)


@pytest.mark.corrupts
async def test_a_broken_topic_does_not_keep_the_others_from_being_taken_over(
    store: Store, clock: Clock, raw: Redis
) -> None:
    for topic in ("broken", TOPIC):
        await store.produce_normal_message(topic, [draft(1)])
        await store.dispatch_message(topic, "gone", count=1, lease=LEASE)
    clock.advance(LEASE)
    await raw.set(store.keys.of("broken").payload, "no hash")
    watch = Watch(store, "broken", TOPIC)
    for _ in range(3):
        with suppress(ScriptFailed):  # the loop goes on, too
            await watch.step()
    assert [event.topic for event in watch.seen.of(events.TakenOver)] == [TOPIC]


async def test_it_does_not_hold_back_again_and_again_for_a_loop_that_is_always_late(
    store: Store, clock: Clock
) -> None:
    await leased(store)
    clock.advance(LEASE)
    watch = Watch(store, lease=3.0)
    for _ in range(2):  # the second time the first pause is over, and it comes late again
        assert watch.seen.of(events.TakenOver) == []
        watch.monitor.deadlines._expected_at = time.monotonic() - FROZEN - 0.1
        await watch.step()
        watch.monitor.deadlines._frozen_at -= HOLD_BACK + 0.1
    assert len(watch.seen.of(events.TakenOver)) == 1


async def test_it_holds_back_anew_when_its_process_stands_still_much_later(
    store: Store, clock: Clock
) -> None:
    await leased(store)
    clock.advance(LEASE)
    watch = Watch(store, lease=3.0)
    for _ in range(2):
        watch.monitor.deadlines._expected_at = time.monotonic() - FROZEN - 0.1
        assert await watch.step() == pytest.approx(HOLD_BACK, abs=0.1)
        watch.monitor.deadlines._frozen_at -= 4 * HOLD_BACK + 0.1
    assert watch.seen.of(events.TakenOver) == []


@pytest.mark.corrupts
async def test_a_message_about_which_nothing_can_be_decided_does_not_hide_the_others(
    store: Store, clock: Clock, raw: Redis
) -> None:
    """Its dead letters have a wrong type, so it comes first and fails, at every turn."""
    taken = await leased(store, 4)
    first = min(taken, key=lambda one: one.id)  # equal deadlines: the order is that of the ids
    crashed = codec.decode(first.record).crashed(FAILURE).crashed(FAILURE)
    await raw.hset(store.keys.of(TOPIC).payload, first.id, codec.encode(crashed))
    await raw.set(store.keys.of(TOPIC).dlq, "no list")
    clock.advance(LEASE)
    watch = Watch(store, max_crashes=3)
    await watch.step()
    retried = {event.id for event in watch.seen.of(events.Retried)}
    assert retried == {one.id for one in taken if one is not first}
    left = await raw.hkeys(store.keys.of(TOPIC).processing)
    assert left == [first.id.encode()]
