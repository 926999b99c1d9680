"""Batches in the slots: how much is taken for them, and when they start."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq.core.limits import Limit
from mx_rmq.net.server_clock import ServerClock
from mx_rmq.runtime import slots as slots_module
from tests.runtime.stage import handler, slots_for, some
from tests.runtime.test_slots import Time

if TYPE_CHECKING:
    from mx_rmq.runtime.held import HeldMessage
    from mx_rmq.runtime.slots import Slots, TopicSlots


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(slots_module, "time", time)
    return time


async def nothing(events: list[Any]) -> None: ...


def make(*, concurrency: int = 4, prefetch: int = 0, **options: Any) -> tuple[Slots, TopicSlots]:
    one = handler("t", nothing, **options)
    slots = slots_for([one], concurrency=concurrency, prefetch=prefetch)
    return slots, slots.topics["t"]


def take_in(slots: Slots, topic: TopicSlots, count: int, time: Time) -> None:
    slots.reserve(topic, count)
    slots.receive(topic, count, some(count), time.now)


def start(slots: Slots) -> list[int]:
    """Start whatever may start; return the sizes of the batches."""
    sizes = []
    while (first := slots.start_next()) is not None:
        sizes.append(len(slots.gathered.pop(first)))
    return sizes


def test_a_full_batch_is_taken_for_each_slot() -> None:
    slots, topic = make(concurrency=4, batch=100)
    assert slots.room(topic) == 400
    slots.reserve(topic, 130)
    assert slots.room(topic) == 270


def test_a_batch_starts_when_it_is_full_or_has_lingered(time: Time) -> None:
    slots, topic = make(batch=10, linger=1)
    take_in(slots, topic, 9, time)
    assert start(slots) == []
    assert slots.lingering == {topic: time.now + 1}
    time.now += 0.5
    take_in(slots, topic, 4, time)
    assert start(slots) == [10]
    assert slots.waiting == 3
    assert slots.lingering == {topic: time.now + 1}  # of the first that is left
    time.now += 0.9
    slots.end_lingering()
    assert start(slots) == []
    time.now += 0.2
    slots.end_lingering()
    assert start(slots) == [3]
    assert not slots.lingering


def test_what_lingers_starts_early_if_the_server_has_no_more(time: Time) -> None:
    slots, topic = make(batch=10, linger=1)
    take_in(slots, topic, 3, time)
    slots.backlog[topic] = None
    slots.end_lingering(early=True)
    assert start(slots) == []
    slots.backlog.clear()
    slots.reserve(topic, 5)
    slots.end_lingering(early=True)
    assert start(slots) == []
    slots.receive(topic, 5, [], time.now)
    slots.end_lingering(early=True)
    assert start(slots) == [3]


def test_a_message_that_is_lost_while_it_lingers_is_forgotten(time: Time) -> None:
    slots, topic = make(batch=10, linger=1, per_key=Limit(running=1))
    take_in(slots, topic, 2, time)
    assert slots._promised == 1
    for held in list(topic.waiting):
        slots.forget_waiting(held)
    assert (slots._promised, slots.waiting, topic.committed, slots._committed) == (0, 0, 0, 0)
    time.now += 2
    slots.end_lingering()
    assert start(slots) == []


def test_only_a_batch_that_waits_for_a_slot_is_handed_back(time: Time) -> None:
    slots, topic = make(concurrency=1, batch=10, linger=5)
    take_in(slots, topic, 10, time)
    assert start(slots) == [10]
    slots.reserve(topic, 13)
    slots.receive(topic, 13, some(13), time.now)
    time.now += 2
    assert len(slots.take_back(time.now - 1)) == 10  # it was full
    assert slots.waiting == 3  # these still linger
    time.now += 5
    assert len(slots.take_back(time.now - 1)) == 3


def test_a_full_batch_is_no_larger_than_the_limit_allows(time: Time) -> None:
    slots, topic = make(batch=100, linger=60, limit=Limit(running=5))
    assert slots.room(topic) == 4 * 5
    take_in(slots, topic, 5, time)
    assert start(slots) == [5]


@pytest.mark.parametrize("seed", range(30))
def test_the_counts_are_right_whatever_happens(seed: int, time: Time) -> None:
    chance = random.Random(seed)
    concurrency, prefetch = chance.randint(1, 6), chance.choice([0, 3, 50])
    slots = slots_for([handler("plain")], concurrency=concurrency, prefetch=prefetch)
    kinds: dict[str, dict[str, Any]] = {
        "batch": {"linger": 0.05},
        "few": {"concurrency": 2},
        "limited": {"linger": 0.02, "per_key": Limit(running=1)},
    }
    for name, options in kinds.items():
        size = chance.choice([1, 2, 7, 30])
        slots.add(handler(name, nothing, batch=size, **options), name, ServerClock())
    topics = list(slots.topics.values())
    running: list[HeldMessage] = []
    batches: dict[HeldMessage, list[HeldMessage]] = {}
    settling: list[HeldMessage] = []
    asked: list[tuple[TopicSlots, int]] = []
    for _ in range(2000):
        time.now += chance.random() * 0.02
        topic = chance.choice(topics)
        match chance.randrange(8):
            case 0:
                slots.backlog[topic] = None
            case 1 if room := slots.worth_asking(topic):
                slots.reserve(topic, room)
                asked.append((topic, room))
            case 2 if asked:
                topic, count = asked.pop(chance.randrange(len(asked)))
                got = chance.randint(0, count)
                slots.receive(topic, count, some(got), time.now)
                if got < count:
                    slots.backlog.pop(topic, None)
            case 3 if running:
                held = running.pop(chance.randrange(len(running)))
                slots.finished(held)
                settling += batches.pop(held, [held])
            case 4 if settling:
                slots.forget(settling.pop(chance.randrange(len(settling))))
            case 5:
                slots.end_lingering(early=chance.random() < 0.1)
            case 6 if topic.waiting and chance.random() < 0.3:
                slots.forget_waiting(chance.choice(list(topic.waiting)))
            case 7 if chance.random() < 0.1:
                settling += slots.take_back(time.now - 0.1)
        while (first := slots.start_next()) is not None:
            running.append(first)
            if first.topic.batch:
                batches[first] = slots.gathered.pop(first)
                assert len(batches[first]) <= first.topic.batch
        on_their_way = sum(count for _, count in asked)
        assert len(slots.held) + on_their_way == sum(topic.committed for topic in topics)
        assert slots._committed == sum(topic.committed // topic.per_slot for topic in topics)
        assert slots.waiting == sum(len(topic.waiting) for topic in topics)
        assert slots.running == len(running) <= concurrency
        assert all(topic.running <= topic.limit for topic in topics)
        (limited,) = slots.limited
        unstarted = limited.asked + len(limited.waiting)
        assert slots._promised == -(-unstarted // limited.batch)
        # One more if a batch has started that was not full, and more of it is under way.
        assert slots.running + slots._promised <= concurrency + 1
        for one in topics:
            most = (one.limit + prefetch + 1) * one.per_slot
            assert one.committed <= max(most, concurrency + prefetch + 1)
            stuck = one.waiting and one.running < one.limit and not one.has_turn
            assert not stuck or one in slots.lingering
