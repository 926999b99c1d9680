"""The expirer: messages whose time to live passes while they wait."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import Worker
from mx_rmq.core import events
from mx_rmq.core.message import State
from mx_rmq.net.server_clock import ServerClock
from mx_rmq.runtime import caretaker, site
from mx_rmq.runtime import recovery as recovery_module
from mx_rmq.runtime.deadlines import Deadlines
from mx_rmq.runtime.event_bus import Events
from mx_rmq.runtime.expirer import PAUSE, Expirer
from mx_rmq.runtime.loop import FailureLog
from tests.lab.archives import find_archived
from tests.lab.messages import TOPIC, delayed, draft, leased, message, pending, take
from tests.lab.snapshot import snapshot
from tests.runtime.stage import Seen, handler, on_a_server, queue, recovery, until_so

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from mx_rmq import MessageQueue
    from mx_rmq.store.store import Store
    from tests.lab.clock import Clock
    from tests.lab.servers import Server

pytestmark = on_a_server

TTL = 1000


class Stage:
    """An expirer called e, and what it told."""

    def __init__(self, store: Store) -> None:
        self.bus = Events()
        self.seen = Seen(self.bus)
        self.recovery = recovery(store, self.bus, "e")
        self.expirer = Expirer(store, self.recovery, ServerClock(), defaultdict(handler))

    async def act(self) -> float | None:
        """Tell it that something has expired, and let it act."""
        self.expirer.surveyed(TOPIC, 0)
        return await self.expirer.step()


@pytest.fixture
async def stage(store: Store) -> Stage:
    return Stage(store)


# alone


async def test_what_has_expired_ends_in_the_dead_letters_and_is_told_once(
    store: Store, raw: Redis, clock: Clock, stage: Stage
) -> None:
    (id,) = await pending(store, ttl=TTL)
    (other,) = await delayed(store, 9 * TTL, ttl=TTL - 500)
    clock.advance(TTL)
    assert await stage.act() is None
    found = await snapshot(raw, TOPIC)
    assert found.dead.keys() == {id, other}
    assert (found.records, found.normal, found.delayed, found.leases) == ({}, [], {}, {})
    assert {(one.id, one.attempts, one.reason) for one in stage.seen.of(events.Died)} == {
        (id, 0, "expired: 0.000 s after its time to live"),
        (other, 0, "expired: 0.500 s after its time to live"),
    }
    assert (await store.views.counts(TOPIC)).ever == {"produced": 1, "delayed": 1, "died": 2}
    assert [one.what for one in await store.views.history.of(TOPIC, id)] == ["produced", "died"]


async def test_a_topic_with_many_expired_messages_does_not_hold_up_the_others(
    store: Store, raw: Redis, clock: Clock, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery_module, "BATCH", 2)
    await pending(store, 5, ttl=TTL)
    await store.produce_normal_message("other", [draft(ttl=TTL)])
    clock.advance(TTL)
    stage.expirer.surveyed(TOPIC, 0)
    stage.expirer.surveyed("other", 0)
    assert await stage.expirer.step() == 0.0
    assert len((await snapshot(raw, TOPIC)).dead) == 2
    assert len((await snapshot(raw, "other")).dead) == 1
    assert await stage.expirer.step() == 0.0
    assert await stage.expirer.step() is None
    assert len((await snapshot(raw, TOPIC)).dead) == 5


async def test_it_acts_again_when_the_next_one_expires_but_not_sooner_than_after_a_pause(
    store: Store, clock: Clock, stage: Stage
) -> None:
    await pending(store, ttl=TTL)
    await pending(store, ttl=TTL + 5)
    clock.advance(TTL)
    assert await stage.act() == pytest.approx(PAUSE, abs=0.5)
    await pending(store, ttl=60_000)
    clock.advance(5)
    assert await stage.act() == pytest.approx(60, abs=1)


async def test_who_finds_nothing_leaves_it_to_others_until_the_next_survey(
    store: Store, stage: Stage
) -> None:
    await pending(store, ttl=TTL)
    assert await stage.act() is None


async def test_a_topic_in_which_nothing_expires_is_forgotten(stage: Stage) -> None:
    stage.expirer.surveyed(TOPIC, 5000)
    stage.expirer.surveyed("other", 9000)
    stage.expirer.surveyed(TOPIC, None)
    assert await stage.expirer.step() == pytest.approx(9, abs=0.5)


@pytest.mark.corrupts
async def test_a_broken_topic_does_not_stop_the_others(
    store: Store, raw: Redis, clock: Clock, stage: Stage
) -> None:
    await store.produce_normal_message("broken", [draft(ttl=TTL)])
    await pending(store, ttl=TTL)
    await raw.set(store.keys.of("broken").cancelled, "no set")
    clock.advance(TTL)
    stage.expirer.surveyed("broken", 0)
    assert await stage.act() == pytest.approx(2, abs=0.5)
    assert (await store.views.counts(TOPIC)).dead == 1


@pytest.mark.corrupts
async def test_what_cannot_be_read_is_quarantined(
    store: Store, raw: Redis, clock: Clock, stage: Stage
) -> None:
    (id,) = await pending(store, ttl=TTL)
    await raw.hset(store.keys.of(TOPIC).payload, id, "no record")
    clock.advance(TTL)
    await stage.act()
    (one,) = stage.seen.of(events.Quarantined)
    assert one.id == id
    assert await find_archived(store, TOPIC, State.QUARANTINED, id)


@pytest.mark.corrupts
@pytest.mark.parametrize("delay", [0, 5000])
async def test_a_message_that_lives_waits_on_if_its_id_had_a_time_that_was_left_behind(
    store: Store, raw: Redis, clock: Clock, stage: Stage, delay: int
) -> None:
    produce = store.produce_delay_message
    ((id, _),) = await produce(TOPIC, [draft(id="own", delay=delay)])
    await raw.zadd(store.keys.of(TOPIC).expiry, {id: clock.now})
    due = clock.now + delay
    clock.advance(TTL)
    await stage.act()
    assert stage.seen.all == []
    clock.advance(due - clock.now - 1)
    assert await store.process_delay_message(TOPIC, count=9) == []
    clock.advance(TTL + 1)
    await store.process_delay_message(TOPIC, count=9)
    (one,) = await take(store)
    assert message(one).attempts == 0


async def test_in_order_others_may_go_on_as_soon_as_it_is_gone(
    store: Store, raw: Redis, clock: Clock, stage: Stage
) -> None:
    await pending(store, ttl=TTL)
    await pending(store)
    await raw.delete(store.keys.of(TOPIC).doorbell)
    clock.advance(TTL)
    await stage.act()
    assert (await snapshot(raw, TOPIC)).rung


@pytest.mark.parametrize("past", [True, False])
async def test_a_message_that_was_lost_after_its_time_expires_without_a_crash(
    store: Store, clock: Clock, stage: Stage, past: bool
) -> None:
    await leased(store, ttl=TTL if past else 9 * TTL, lease=TTL)
    clock.advance(TTL)
    deadlines = Deadlines(TTL / 1000, store.link_of(0), ServerClock())
    failures = FailureLog("test")
    await stage.recovery.take_over(
        TOPIC, deadlines, failures, expected=None, far=None, max_crashes=1
    )
    (died,) = stage.seen.of(events.Died)
    assert died.attempts == (0 if past else 1)
    assert died.reason.partition(":")[0] == ("expired" if past else "crashed")


# real workers


@pytest.fixture
async def mq(
    raw: Redis, server: Server, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[MessageQueue]:
    """A queue whose workers look around and make their rounds more often than they do."""
    monkeypatch.setattr(site, "SURVEY_EVERY", 0.2)
    monkeypatch.setattr(caretaker, "ROUND", 0.2)
    async with queue(server.url) as mq:
        yield mq


async def end_of(mq: MessageQueue, topic: str, ids: list[str]) -> None:
    """Wait until messages are dead, and see that each expired at its time and nothing else did."""

    async def dead() -> bool:
        return (await mq.admin.stats(topic)).dead >= len(ids)

    await until_so(dead)
    for id in ids:
        one = await mq.admin.get(topic, id)
        assert one is not None
        assert one.state == State.DEAD
        assert one.reason.startswith("expired: ")
        assert one.archived_at is not None
        assert one.expires_at is not None
        assert 0 <= one.archived_at - one.expires_at < 20


@pytest.mark.parametrize("where", ["paused", "unserved", "backed up", "delayed"])
async def test_a_waiting_message_expires_wherever_it_waits(mq: MessageQueue, where: str) -> None:
    ran = []

    @mq.handler("busy", concurrency=1)
    async def handle(payload: Any) -> None:
        ran.append(payload)
        if payload == "block":
            await until_so(blocked)

    async def blocked() -> bool:
        return (await mq.admin.stats(topic)).dead == 3

    topic = "unserved" if where == "unserved" else "busy"
    async with Worker(mq, concurrency=1):
        if where == "paused":
            await mq.admin.pause(topic)
        if where == "backed up":
            await mq.produce(topic, "block")
            await until_so(lambda: _ran(ran))
        at = time.time() + 500 if where == "delayed" else None
        ids = [await mq.produce(topic, n, ttl=0.3, at=at) for n in range(3)]
        lives = await mq.produce(topic, "lives", at=at, ttl=600)
        began = time.monotonic()
        await end_of(mq, topic, ids)
        assert time.monotonic() - began < 20
        if where == "backed up":
            await until_so(lambda: _ran(ran, 2))
    assert set(ran) <= {"block", "lives"}
    if where != "backed up":
        assert await mq.admin.get(topic, lives) is not None


async def _ran(ran: list[Any], count: int = 1) -> bool:
    return len(ran) >= count
