"""The local slots: how much is taken, and whose turn it is."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from mx_rmq.core.limits import Limit
from mx_rmq.net.server_clock import ServerClock
from mx_rmq.runtime import slots as slots_module
from mx_rmq.runtime.held import Stopped
from mx_rmq.runtime.slots import Slots
from tests.runtime.stage import handler, slots_for, some, take_in

if TYPE_CHECKING:
    from mx_rmq.runtime.held import HeldMessage
    from mx_rmq.runtime.slots import TopicSlots


class Time:
    """The monotonic clock of the slots, moved by the test."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(slots_module, "time", time)
    return time


def make(*topics: str, concurrency: int = 4, prefetch: int = 0, **limits: int) -> Slots:
    handlers = [handler(topic, concurrency=limits.get(topic)) for topic in topics]
    return slots_for(handlers, concurrency=concurrency, prefetch=prefetch)


def run_all(slots: Slots) -> list[HeldMessage]:
    """Start whatever may start."""
    started = []
    while (held := slots.start_next()) is not None:
        started.append(held)
    return started


def finish(slots: Slots, held: HeldMessage) -> None:
    slots.finished(held)
    slots.forget(held)


# room


def test_what_a_full_worker_handed_back_is_not_taken_again_before_a_slot_is_free() -> None:
    slots = make("busy", "waiting", concurrency=1)
    busy, waiting = slots.topics.values()
    take_in(slots, busy, 1)
    (running,) = run_all(slots)
    assert slots.room(waiting) == 1
    take_in(slots, waiting, 1)
    for held in slots.take_back():
        slots.forget(held)
    assert slots.room(waiting) == 0
    finish(slots, running)
    assert slots.room(waiting) == 1


def test_topics_that_can_take_no_more_do_not_share_the_free_slots() -> None:
    limits = {f"limited{n}": 1 for n in range(8)}
    slots = make("free", *limits, concurrency=16, **limits)
    free, *limited = slots.topics.values()
    for topic in limited:
        take_in(slots, topic, 1)
        slots.backlog[topic] = None  # each has more, and may not run it yet
    slots.backlog[free] = None
    run_all(slots)
    take_in(slots, free, slots.room(free))
    take_in(slots, free, slots.room(free))
    assert free.committed == 8


def test_a_lone_topic_may_take_as_much_as_there_are_slots() -> None:
    slots = make("a", concurrency=4)
    (a,) = slots.topics.values()
    assert slots.room(a) == 4
    take_in(slots, a, 3)
    assert slots.room(a) == 1
    take_in(slots, a, 1)
    assert slots.room(a) == 0


def test_what_is_asked_for_takes_room_before_it_comes() -> None:
    slots = make("a", concurrency=4)
    (a,) = slots.topics.values()
    slots.reserve(a, 4)
    assert slots.room(a) == 0
    slots.receive(a, 4, some(1), 0.0)
    assert slots.room(a) == 3


def test_what_is_being_settled_still_takes_room() -> None:
    slots = make("a", concurrency=1)
    (a,) = slots.topics.values()
    (held,) = take_in(slots, a, 1)
    assert slots.start_next() is held
    slots.finished(held)
    assert held.settling
    assert slots.room(a) == 0
    slots.forget(held)
    assert slots.room(a) == 1


def test_a_topics_own_limit_bounds_what_is_taken_of_it() -> None:
    slots = make("a", "b", concurrency=10, a=2)
    a, b = slots.topics.values()
    assert slots.room(a) == 2
    assert slots.room(b) == 9  # and one stays free for the other
    take_in(slots, a, 2)
    assert slots.room(a) == 0


def test_a_limit_above_the_workers_is_the_workers() -> None:
    slots = make("a", concurrency=3, a=50)
    assert slots.room(slots.topics["a"]) == 3


def test_ready_topics_share_the_room() -> None:
    slots = make("a", "b", "c", "d", concurrency=8)
    for topic in slots.topics.values():
        slots.backlog[topic] = None
    assert [slots.room(topic) for topic in slots.topics.values()] == [2, 2, 2, 2]
    del slots.backlog[slots.topics["d"]]
    assert slots.room(slots.topics["a"]) == 2
    assert slots.room(slots.topics["d"]) == 2


def test_a_topic_of_which_nothing_is_here_may_always_take_one() -> None:
    slots = make("a", "b", concurrency=2)
    a, b = slots.topics.values()
    take_in(slots, a, 2)
    assert slots.room(b) == 1
    take_in(slots, b, 1)
    assert slots.room(b) == 0


@pytest.mark.parametrize("seed", range(20))
def test_no_more_is_ever_held_than_slots_and_prefetch_and_one_a_topic(
    seed: int, time: Time
) -> None:
    chance = random.Random(seed)
    concurrency, prefetch = chance.randint(1, 8), chance.choice([0, 3, 50])
    slots = make("a", "b", "c", "d", concurrency=concurrency, prefetch=prefetch, b=2)
    topics = list(slots.topics.values())
    running: list[HeldMessage] = []
    settling: list[HeldMessage] = []
    asked: list[tuple[TopicSlots, int]] = []
    for _ in range(2000):
        time.now += chance.random() * 0.02
        topic = chance.choice(topics)
        match chance.randrange(5):
            case 0:
                slots.backlog[topic] = None
            case 1 if room := slots.room(topic):
                slots.reserve(topic, room)
                asked.append((topic, room))
            case 2 if asked:
                topic, count = asked.pop(chance.randrange(len(asked)))
                got = chance.randint(0, count)
                slots.receive(topic, count, some(got), 0.0)
                if got < count:
                    slots.backlog.pop(topic, None)
            case 3 if running:
                held = running.pop(chance.randrange(len(running)))
                slots.finished(held)
                settling.append(held)
            case 4 if settling:
                slots.forget(settling.pop(chance.randrange(len(settling))))
        running += run_all(slots)
        on_their_way = sum(count for _, count in asked)
        assert len(slots.held) + on_their_way == sum(topic.committed for topic in topics)
        assert len(slots.held) + on_their_way <= concurrency + prefetch + len(topics)
        assert slots.running == len(running) <= concurrency
        assert all(topic.running <= topic.limit for topic in topics)


# ahead


def test_nothing_is_taken_ahead_before_anything_has_finished(time: Time) -> None:
    slots = make("a", concurrency=2, prefetch=1000)
    time.now += 10
    assert slots.room(slots.topics["a"]) == 2


def work(slots: Slots, topic: TopicSlots, time: Time, count: int, *, took: float) -> None:
    """Handle messages, as many at a time as may run, each for so long."""
    take_in(slots, topic, count)
    while running := run_all(slots):
        for held in running:
            held.started_at = time.now
        time.now += took
        for held in running:
            finish(slots, held)


def test_as_much_is_taken_ahead_as_finishes_in_20_ms(time: Time) -> None:
    slots = make("a", concurrency=2, prefetch=1000)
    (a,) = slots.topics.values()
    for _ in range(20):
        work(slots, a, time, 100, took=0.002)  # two at a time, so 1,000 a second
        ahead = slots.ahead(a)
    assert 17 <= ahead <= 20
    assert slots.room(a) == 2 + ahead


def test_prefetch_bounds_what_is_taken_ahead(time: Time) -> None:
    slots = make("a", concurrency=2, prefetch=7)
    (a,) = slots.topics.values()
    work(slots, a, time, 1000, took=0.0002)
    assert slots.room(a) == 9


def test_a_worker_that_has_become_slow_takes_less_ahead(time: Time) -> None:
    slots = make("a", concurrency=2, prefetch=1000)
    (a,) = slots.topics.values()
    work(slots, a, time, 2000, took=0.0001)
    fast = slots.ahead(a)
    for _ in range(20):
        time.now += 1
        slow = slots.ahead(a)
    assert fast > 150
    assert slow == 0


def test_a_slow_topic_takes_nothing_ahead_in_a_fast_worker(time: Time) -> None:
    slots = make("quick", "slow", concurrency=4, prefetch=1000)
    quick, slow = slots.topics.values()
    work(slots, slow, time, 2, took=1.0)
    work(slots, quick, time, 20_000, took=0.0001)
    assert slots.ahead(quick) > 100
    assert slots.ahead(slow) == 0


def test_many_quick_topics_get_a_batch_each_in_turn(time: Time) -> None:
    slots = make(*(f"t{number}" for number in range(100)), concurrency=10, prefetch=200)
    topics = list(slots.topics.values())
    for topic in topics:
        work(slots, topic, time, 200, took=0.0001)
        slots.backlog[topic] = None
    taken = []
    for topic in topics:
        if room := slots.worth_asking(topic):
            taken.append(room)
            slots.reserve(topic, room)
    assert taken[:2] == [64, 64]
    assert min(taken) >= 32
    assert sum(taken) <= 210


def test_what_was_handed_back_late_is_not_taken_ahead_again(time: Time) -> None:
    slots = make("a", "b", concurrency=2, prefetch=200, a=1)
    a, b = slots.topics.values()
    work(slots, a, time, 2000, took=0.0002)
    assert slots.ahead(a) > 20
    take_in(slots, a, 20)
    assert slots.start_next() is not None  # it runs and does not end
    for _ in range(5):
        time.now += 0.1
        take_in(slots, b, 500)
        while (held := slots.start_next()) is not None:  # they keep the pace up
            held.started_at = time.now
            time.now += 0.0002
            finish(slots, held)
    slots.take_back()
    assert slots.ahead(b) > 20
    assert slots.ahead(a) == 0


def test_a_worker_that_stands_still_takes_nothing_ahead(time: Time) -> None:
    slots = make("a", concurrency=2, prefetch=200)
    (a,) = slots.topics.values()
    work(slots, a, time, 2000, took=0.0002)
    assert slots.ahead(a) > 20
    time.now += 1
    assert slots.ahead(a) == 0


# turns


def test_free_slots_go_round_among_the_topics() -> None:
    slots = make("a", "b", "c", concurrency=6)
    for topic in slots.topics.values():
        take_in(slots, topic, 2)
    assert "".join(held.topic.topic for held in run_all(slots)) == "abcabc"


def test_a_topic_at_its_limit_waits_and_keeps_its_turn() -> None:
    slots = make("a", "b", concurrency=4, a=1)
    a, b = slots.topics.values()
    first, second = take_in(slots, a, 2)
    assert run_all(slots) == [first]
    others = take_in(slots, b, 2)
    assert run_all(slots) == others
    finish(slots, first)
    assert run_all(slots) == [second]


def test_a_busy_topic_leaves_a_slot_to_each_other_one() -> None:
    slots = make("a", "b", "c", concurrency=10)
    a, b, c = slots.topics.values()
    take_in(slots, a, 10)
    assert len(run_all(slots)) == 8
    for other in (b, c):
        (held,) = take_in(slots, other, 1)
        assert run_all(slots) == [held]


def test_a_busy_topic_leaves_a_quarter_of_the_slots_at_the_most() -> None:
    slots = make(*"abcdefghijkl", concurrency=8)
    take_in(slots, slots.topics["a"], 8)
    assert len(run_all(slots)) == 6


def test_a_lone_slot_is_anybodys() -> None:
    slots = make("a", "b", concurrency=1)
    a, b = slots.topics.values()
    (first, _), (other,) = take_in(slots, a, 2), take_in(slots, b, 1)
    assert run_all(slots) == [first]
    finish(slots, first)
    assert run_all(slots) == [other]


# going


def test_a_message_that_is_gone_twice_frees_one_place() -> None:
    slots = make("a", concurrency=2)
    (a,) = slots.topics.values()
    first, _ = take_in(slots, a, 2)
    assert slots.start_next() is first
    slots.finished(first)
    slots.forget(first)
    slots.forget(first)
    assert slots.room(a) == 1
    assert a.committed == 1


def test_the_same_message_may_be_held_anew_under_another_token() -> None:
    slots = make("a", concurrency=4)
    (a,) = slots.topics.values()
    (one,) = some(1)
    slots.reserve(a, 2)
    slots.receive(a, 1, [one], 0.0)
    slots.receive(a, 1, [one._replace(token=one.token + 1000)], 0.0)
    first, second = list(slots.held)
    slots.forget(first)
    assert list(slots.held) == [second]


def test_taking_back_empties_the_lines_and_leaves_what_runs() -> None:
    slots = make("a", "b", concurrency=2)
    a, b = slots.topics.values()
    first, second, third = take_in(slots, a, 3)
    assert slots.start_next() is first
    (other,) = take_in(slots, b, 1)
    assert slots.take_back() == [second, third, other]
    assert all(held.settling for held in (second, third, other))
    assert not first.settling
    assert slots.waiting == 0
    assert slots.start_next() is None
    assert len(slots.held) == 4  # until they are settled


def test_a_waiting_message_whose_lease_is_lost_is_never_run() -> None:
    slots = make("a", concurrency=2)
    (a,) = slots.topics.values()
    first, second = take_in(slots, a, 2)
    slots.forget_waiting(first)
    assert run_all(slots) == [second]
    assert slots.room(a) == 1


def test_a_topic_whose_line_was_emptied_gets_one_turn_when_it_fills_again() -> None:
    slots = make("a", "b", concurrency=6)
    a, b = slots.topics.values()
    (lost,) = take_in(slots, a, 1)
    slots.forget_waiting(lost)
    take_in(slots, b, 2)
    take_in(slots, a, 2)
    assert sorted(
        held.topic.topic for held in (slots.start_next(), slots.start_next()) if held
    ) == ["a", "b"]


# waking and stopping


def test_a_handler_is_stopped_once_and_only_while_it_runs() -> None:
    slots = make("a")
    (held,) = take_in(slots, slots.topics["a"], 1)
    held.stop(Stopped.TIMEOUT)
    assert held.stopped is None
    strikes: list[int] = []
    held.interrupt = lambda: strikes.append(1)
    held.stop(Stopped.LEASE_LOST)
    held.stop(Stopped.SHUTDOWN)
    assert strikes == [1]
    assert held.stopped is Stopped.LEASE_LOST


@pytest.mark.parametrize("concurrency", [1, 3, 4, 10, 17, 100])
@pytest.mark.parametrize("topics", [1, 2, 5, 10, 40])
def test_no_more_is_taken_than_may_start_beside_topics_that_rest(
    concurrency: int, topics: int
) -> None:
    """What could not start here, another worker could run at once."""
    slots = make(*(f"t{number}" for number in range(topics)), concurrency=concurrency)
    first = slots.topics["t0"]
    taken = take_in(slots, first, slots.room(first))
    assert run_all(slots) == taken
    assert slots.waiting == 0
    assert slots.room(first) == 0


# partitions


def test_each_partition_has_the_handlers_limit_for_itself() -> None:
    slots = Slots(concurrency=10, prefetch=0)
    one = handler("t", concurrency=2)
    first = slots.add(one, "t", ServerClock())
    second = slots.add(one, "t/1", ServerClock())
    assert list(slots.topics) == ["t", "t/1"]
    assert {first.topic, second.topic} == {"t"}
    take_in(slots, first, 2)
    assert (slots.room(first), slots.room(second)) == (0, 2)


def test_of_an_ordered_topic_nothing_is_asked_for_while_anything_is_held() -> None:
    slots = Slots(concurrency=10, prefetch=100)
    topic = slots.add(handler("t", concurrency=1, partitions=2), "t/1", ServerClock())
    assert slots.worth_asking(topic) >= 1
    held = take_in(slots, topic, 1)
    assert slots.worth_asking(topic) == 0
    assert slots.start_next() is held[0]
    assert slots.worth_asking(topic) == 0
    finish(slots, held[0])
    assert slots.worth_asking(topic) >= 1


def test_to_a_topic_that_comes_up_later_a_slot_is_left() -> None:
    slots = make("a", concurrency=4)
    (a,) = slots.topics.values()
    take_in(slots, a, 4)
    late = slots.add(handler("b"), "b", ServerClock())
    assert len(run_all(slots)) == 3
    assert slots.room(late) == 1
    (held,) = take_in(slots, late, 1)
    assert slots.start_next() is held


# topics with limits


def with_limits(
    *topics: str, concurrency: int, prefetch: int = 0, limited: str = "limited"
) -> Slots:
    handlers = [handler(limited, limit=Limit(running=1000))]
    handlers += [handler(topic) for topic in topics]
    return slots_for(handlers, concurrency=concurrency, prefetch=prefetch)


def test_of_a_topic_with_limits_only_what_can_start_is_taken(time: Time) -> None:
    slots = with_limits(concurrency=4, prefetch=1000)
    (limited,) = slots.topics.values()
    work(slots, limited, time, 2000, took=0.0002)
    assert slots.ahead(limited) > 20
    assert slots.room(limited) == slots.worth_asking(limited) == 4
    slots.reserve(limited, 3)
    assert slots.room(limited) == 1
    slots.receive(limited, 3, some(2), time.now)
    started = run_all(slots)
    assert len(started) == 2
    assert slots.room(limited) == 2
    take_in(slots, limited, 2)
    started += run_all(slots)
    assert slots.room(limited) == 0
    slots.finished(started[0])  # it is being settled, and needs no slot
    assert slots.room(limited) == 1


def test_a_handlers_own_concurrency_bounds_what_can_start() -> None:
    one = handler("t", concurrency=2, per_key=Limit(running=1))
    slots = slots_for([one], concurrency=10, prefetch=1000)
    (topic,) = slots.topics.values()
    assert slots.room(topic) == 2
    take_in(slots, topic, 2)
    run_all(slots)
    assert slots.room(topic) == 0


def test_what_a_topic_with_limits_was_promised_no_other_topic_gets() -> None:
    slots = with_limits("other", concurrency=4)
    limited, other = slots.topics.values()
    slots.reserve(limited, 3)
    waiting = take_in(slots, other, 4)
    assert run_all(slots) == waiting[:1]
    slots.receive(limited, 3, some(1), 0.0)  # two of the slots are free again
    started = run_all(slots)
    assert {held.topic for held in started} == {limited, other}
    assert len(started) == 3


def test_a_lost_message_of_a_topic_with_limits_keeps_no_slot() -> None:
    slots = with_limits("other", concurrency=2)
    limited, other = slots.topics.values()
    first, _ = take_in(slots, limited, 2)
    slots.forget_waiting(first)
    for held in slots.take_back():
        slots.forget(held)
    take_in(slots, other, 2)
    assert len(run_all(slots)) == 2


def test_a_worker_that_cannot_settle_messages_of_topics_with_limits_takes_no_more(
    time: Time,
) -> None:
    slots = with_limits(concurrency=4, prefetch=20)
    slots.add(handler("narrow", concurrency=2, limit=Limit(running=9)), "narrow", ServerClock())
    wide, narrow = slots.topics.values()
    for topic in (wide, narrow):
        work(slots, topic, time, 2000, took=0.0002)
    for topic in (narrow, wide) * 2000:
        if room := slots.worth_asking(topic):
            take_in(slots, topic, room)
        for held in run_all(slots):
            held.started_at = time.now
            slots.finished(held)  # and never settled
        time.now += 0.0001
    assert 4 < len(slots.held) <= 4 + 20


@pytest.mark.parametrize("seed", range(20))
def test_what_comes_of_a_topic_with_limits_starts_at_once(seed: int, time: Time) -> None:
    chance = random.Random(seed)
    concurrency, prefetch = chance.randint(1, 8), chance.choice([0, 3, 50])
    slots = with_limits("a", "b", concurrency=concurrency, prefetch=prefetch)
    slots.add(handler("c", concurrency=2, per_key=Limit(running=1)), "c", ServerClock())
    topics = list(slots.topics.values())
    running: list[HeldMessage] = []
    settling: list[HeldMessage] = []
    asked: list[tuple[TopicSlots, int]] = []
    for _ in range(2000):
        time.now += chance.random() * 0.02
        topic = chance.choice(topics)
        match chance.randrange(5):
            case 0:
                slots.backlog[topic] = None
            case 1 if room := slots.worth_asking(topic):
                slots.reserve(topic, room)
                asked.append((topic, room))
            case 2 if asked:
                topic, count = asked.pop(chance.randrange(len(asked)))
                got = chance.randint(0, count)
                slots.receive(topic, count, some(got), 0.0)
                if got < count:
                    slots.backlog.pop(topic, None)
            case 3 if running:
                held = running.pop(chance.randrange(len(running)))
                slots.finished(held)
                settling.append(held)
            case 4 if settling:
                slots.forget(settling.pop(chance.randrange(len(settling))))
        running += run_all(slots)
        assert not any(topic.waiting for topic in slots.limited)
        assert slots._promised == sum(topic.asked for topic in slots.limited)
        assert slots.running + slots._promised <= concurrency
        assert all(topic.running <= topic.limit for topic in topics)


@pytest.mark.parametrize("concurrency", [1, 2, 3, 4, 10, 50])
def test_a_busy_topic_shares_the_slots_with_one_that_has_limits(
    concurrency: int, time: Time
) -> None:
    slots = with_limits("busy", concurrency=concurrency, prefetch=1000)
    limited, busy = slots.topics.values()
    slots.backlog |= {busy: None, limited: None}
    running: list[HeldMessage] = []
    ended: Counter[str] = Counter()
    for _ in range(4000):
        for topic in (limited, busy):  # the order in which the dispatcher asks
            if room := slots.worth_asking(topic):
                take_in(slots, topic, room)
        running += run_all(slots)
        time.now += 0.0001
        held = running.pop(0)
        held.started_at = time.now - 0.001
        finish(slots, held)
        ended[held.topic.topic] += 1
    assert sum(ended.values()) == 4000
    assert 0.4 < ended["limited"] / 4000 < 0.6


def test_a_topic_with_limits_that_has_nothing_pending_costs_the_others_no_slot() -> None:
    slots = with_limits("busy", concurrency=3)
    _, busy = slots.topics.values()
    take_in(slots, busy, 3)
    assert len(run_all(slots)) == 3


def test_partitions_share_the_limits_of_their_topic() -> None:
    slots = Slots(concurrency=10, prefetch=0)
    one = handler("t", limit=Limit(running=10, rate="50/s"), per_key=Limit(running=1))
    second = slots.add(one, "t/1", ServerClock(), 4)
    assert second.in_turn
    assert second.limits == "3 80 1.25 1 - - 0"
    second.share_limits(8)
    assert second.limits == "2 160 1 1 - - 0"
    plain = slots.add(handler("p"), "p", ServerClock())
    assert (plain.in_turn, plain.limits) == (False, "")
