"""survey_topics: what comes next in each of many topics"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mx_rmq.core.errors import InvalidInput
from mx_rmq.store.results import Survey, Surveyed
from mx_rmq.store.store import Store
from tests.lab.broken import broken, key_named
from tests.lab.calls import resend_next
from tests.lab.messages import LEASE, TOPIC, Priority, delayed, draft, leased, pending, take
from tests.lab.snapshot import snapshot
from tests.store.contracts import ONE_SERVER

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from tests.lab.clock import Clock
    from tests.lab.servers import Server

EMPTY = Survey(0, None, None)
KEYS = [
    *("pending_high", "pending", "pending_low"),
    *("delay_tasks_high", "delay_tasks", "delay_tasks_low"),
    *("expire_monitor", "meta"),
]


async def survey(store: Store) -> Survey:
    return (await store.survey_topics([TOPIC])).topics[TOPIC]


async def busy(store: Store) -> None:
    """Leave two messages pending, delayed and in processing at each level."""
    for n, level in enumerate(Priority):
        await leased(store, 2, priority=level, lease=LEASE + n)
    for n, level in enumerate(Priority):
        await delayed(store, 100 + n, 2, priority=level)
        await pending(store, 2, priority=level)


async def test_nothing_comes_next_in_an_empty_topic(store: Store, raw: Redis, clock: Clock) -> None:
    assert await store.survey_topics([TOPIC]) == Surveyed(clock.now, {TOPIC: EMPTY})
    assert await raw.dbsize() == 0


async def test_a_survey_of_no_topics_tells_the_time(store: Store, clock: Clock) -> None:
    assert await store.survey_topics([]) == Surveyed(clock.now, {})


async def test_all_levels_count_and_the_earliest_of_them(store: Store, raw: Redis) -> None:
    await busy(store)
    before = await snapshot(raw, TOPIC)
    assert await survey(store) == Survey(6, 100, LEASE)
    assert await snapshot(raw, TOPIC) == before


async def test_each_topic_has_its_own_answer(store: Store) -> None:
    await pending(store, 2)
    await store.produce_delay_message("later", [draft(delay=7)])
    await store.produce_normal_message("held", [draft()])
    await store.dispatch_message("held", "w1", count=1, lease=9)
    found = await store.survey_topics(["held", "nobody", TOPIC, "later"])
    assert found.topics == {
        "held": Survey(0, None, 9),
        "nobody": EMPTY,
        TOPIC: Survey(2, None, None),
        "later": Survey(0, 7, None),
    }


@pytest.mark.parametrize("wait", [1, 500, 2**52 - 1])
async def test_the_waits_are_until_the_time_has_come_then_nought(
    store: Store, clock: Clock, wait: int
) -> None:
    await delayed(store, wait)
    await leased(store, lease=wait)
    assert await survey(store) == Survey(0, wait, wait)
    clock.advance(wait - 1)
    assert await survey(store) == Survey(0, 1, 1)
    for late in (1, 1, 10_000):
        clock.advance(late)
        assert await survey(store) == Survey(0, 0, 0)


async def test_what_the_survey_calls_due_is_there_to_be_had(store: Store, clock: Clock) -> None:
    await delayed(store, 50)
    await leased(store, lease=70)
    clock.advance((await survey(store)).due or 0)
    assert len(await store.process_delay_message(TOPIC, count=9)) == 1
    clock.advance((await survey(store)).deadline or 0)
    late = await store.handle_timeout_message(TOPIC, "m1", count=9, recovery=1000)
    assert len(late.messages) == 1
    assert len(await take(store, (await survey(store)).pending)) == 1
    assert await survey(store) == Survey(0, None, 1000)


async def test_nobody_is_sent_too_early_by_a_part_of_a_millisecond(
    store: Store, raw: Redis, clock: Clock
) -> None:
    (id,) = await delayed(store, 1)
    await raw.zadd(store.keys.of(TOPIC).delay_tasks, {id: clock.now + 0.5})
    assert await survey(store) == Survey(0, 1, None)


async def test_a_paused_topic_has_nothing_to_dispatch_but_its_times_run_on(store: Store) -> None:
    await busy(store)
    await store.pause_topic(TOPIC)
    assert await survey(store) == Survey(0, 100, LEASE)
    await store.resume_topic(TOPIC)
    assert await survey(store) == Survey(6, 100, LEASE)


@pytest.mark.parametrize("name", KEYS)
async def test_a_key_of_a_wrong_type_counts_as_empty_and_hides_nothing_else(
    store: Store, raw: Redis, name: str
) -> None:
    await busy(store)
    await store.produce_normal_message("other", [draft()])
    async with broken(raw, key_named(store, name)):
        found = (await store.survey_topics([TOPIC, "other"])).topics
    lost = {
        # What is due at a level whose pending list is broken could not be moved there.
        "pending_high": Survey(4, 101, LEASE),
        "pending": Survey(4, 100, LEASE),
        "pending_low": Survey(4, 100, LEASE),
        "delay_tasks_high": Survey(6, 101, LEASE),
        "expire_monitor": Survey(6, 100, None),
    }
    assert found == {TOPIC: lost.get(name, Survey(6, 100, LEASE)), "other": Survey(1, None, None)}


async def test_a_topic_of_nothing_but_wrong_types_is_an_empty_one(store: Store, raw: Redis) -> None:
    for name in KEYS:
        await raw.set(key_named(store, name), "nonsense")
    await store.produce_normal_message("other", [draft()])
    found = (await store.survey_topics([TOPIC, "other"])).topics
    assert found == {TOPIC: EMPTY, "other": Survey(1, None, None)}
    await raw.delete(*(key_named(store, name) for name in KEYS))


@ONE_SERVER
async def test_more_than_a_thousand_topics_are_surveyed_in_several_calls(
    store: Store, clock: Clock
) -> None:
    topics = [f"topic-{n}" for n in range(2001)]
    for n in (0, 999, 1000, 2000):
        await store.produce_normal_message(topics[n], [draft()])
    found = await store.survey_topics(topics)
    assert found.now == clock.now
    assert list(found.topics) == topics
    assert [n for n, topic in enumerate(topics) if found.topics[topic].pending] == [
        *(0, 999, 1000, 2000)
    ]


async def test_a_topic_that_is_named_twice_is_answered_once(store: Store) -> None:
    await pending(store)
    assert (await store.survey_topics([TOPIC, TOPIC])).topics == {TOPIC: Survey(1, None, None)}


async def test_a_name_that_is_no_topic_is_refused(store: Store) -> None:
    with pytest.raises(InvalidInput, match="topic 'a,b'"):
        await store.survey_topics([TOPIC, "a,b"])


async def test_repeating_is_harmless(store: Store, raw: Redis) -> None:
    await busy(store)
    resend_next(store, raw)
    assert await survey(store) == Survey(6, 100, LEASE)


async def test_without_a_clock_of_the_tests_the_time_is_the_servers(
    store: Store, server: Server, raw: Redis
) -> None:
    async with await Store.open(server.url) as real:
        await real.produce_delay_message(TOPIC, [draft(delay=100_000)])
        found = await real.survey_topics([TOPIC])
        due = found.topics[TOPIC].due
        assert due is not None
        assert 50_000 < due <= 100_000
        seconds, _ = await raw.time()
        assert abs(found.now - seconds * 1000) < 60_000


async def test_it_tells_when_the_next_waiting_message_expires(store: Store, clock: Clock) -> None:
    async def expires() -> int | None:
        return (await store.survey_topics([TOPIC])).topics[TOPIC].expires

    await pending(store)
    assert await expires() is None
    await pending(store, ttl=500)
    await pending(store, ttl=300)
    assert await expires() == 300
    clock.advance(400)
    assert await expires() == 0
    await take(store, 9)
    assert await expires() is None
