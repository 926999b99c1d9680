"""get_next_delay_task: how long the scheduler may sleep"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mx_rmq.store.store import Store
from tests.lab.broken import broken, key_named
from tests.lab.calls import resend_next
from tests.lab.messages import TOPIC, Priority, delayed, draft, leased, pending
from tests.lab.snapshot import snapshot

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from tests.lab.clock import Clock
    from tests.lab.servers import Server


async def test_nothing_waits_in_an_empty_topic(store: Store, raw: Redis) -> None:
    assert await store.get_next_delay_task(TOPIC) is None
    assert await raw.dbsize() == 0


async def test_pending_and_leased_messages_do_not_count(store: Store) -> None:
    await leased(store)
    await pending(store)
    assert await store.get_next_delay_task(TOPIC) is None


@pytest.mark.parametrize("delay", [1, 500, 2**52 - 1])
async def test_it_is_the_time_until_the_message_is_due_then_nought(
    store: Store, raw: Redis, clock: Clock, delay: int
) -> None:
    await delayed(store, delay)
    before = await snapshot(raw, TOPIC)
    assert await store.get_next_delay_task(TOPIC) == delay
    clock.advance(delay - 1)
    assert await store.get_next_delay_task(TOPIC) == 1
    for late in (1, 1, 10_000):
        clock.advance(late)
        assert await store.get_next_delay_task(TOPIC) == 0
    assert await snapshot(raw, TOPIC) == before


@pytest.mark.parametrize("earliest", list(Priority))
async def test_the_earliest_of_all_levels_counts(store: Store, earliest: Priority) -> None:
    for level in Priority:
        await delayed(store, 700 if level is earliest else 900, priority=level)
        await delayed(store, 800, priority=level)
    assert await store.get_next_delay_task(TOPIC) == 700


async def test_an_absolute_time_in_the_past_is_due_now(store: Store, clock: Clock) -> None:
    await store.produce_delay_message(TOPIC, [draft(at=clock.now - 5000)])
    assert await store.get_next_delay_task(TOPIC) == 0


async def test_when_all_have_moved_nothing_waits(store: Store, clock: Clock) -> None:
    await delayed(store, 1, 3)
    clock.advance(1)
    await store.process_delay_message(TOPIC, count=3)
    assert await store.get_next_delay_task(TOPIC) is None


async def test_nobody_is_sent_too_early_by_a_part_of_a_millisecond(
    store: Store, raw: Redis, clock: Clock
) -> None:
    (id,) = await delayed(store, 1)
    await raw.zadd(store.keys.of(TOPIC).delay_tasks, {id: clock.now + 0.5})
    wait = await store.get_next_delay_task(TOPIC)
    assert wait == 1
    clock.advance(wait)
    assert await store.process_delay_message(TOPIC, count=1) == [id]


async def test_a_paused_topic_does_not_matter(store: Store) -> None:
    await delayed(store, 1000)
    await store.pause_topic(TOPIC)
    assert await store.get_next_delay_task(TOPIC) == 1000


async def test_repeating_is_harmless(store: Store, raw: Redis) -> None:
    await delayed(store, 1000)
    resend_next(store, raw)
    assert await store.get_next_delay_task(TOPIC) == 1000


@pytest.mark.parametrize("level", ["delay_tasks_high", "delay_tasks", "delay_tasks_low"])
async def test_a_level_with_a_key_of_a_wrong_type_is_passed_over(
    store: Store, raw: Redis, level: str
) -> None:
    delays = {"delay_tasks_high": 100, "delay_tasks": 200, "delay_tasks_low": 300}
    for priority, delay in zip(Priority, delays.values(), strict=True):
        await delayed(store, delay, priority=priority)
    async with broken(raw, key_named(store, level)):
        wait = await store.get_next_delay_task(TOPIC)
    assert wait == min(delay for name, delay in delays.items() if name != level)


async def test_without_a_clock_of_the_tests_the_time_is_the_servers(
    store: Store, server: Server
) -> None:
    async with await Store.open(server.url) as real:
        await real.produce_delay_message(TOPIC, [draft(delay=100_000)])
        wait = await real.get_next_delay_task(TOPIC)
        assert wait is not None
        assert 50_000 < wait <= 100_000
