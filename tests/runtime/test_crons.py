"""The crons: once a tick, over all workers."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from mx_rmq.core import codec, events
from mx_rmq.core.cron import Cron
from mx_rmq.core.errors import ScriptFailed
from mx_rmq.core.schedule import TICK
from mx_rmq.net.server_clock import ServerClock
from mx_rmq.runtime import crons as firing
from mx_rmq.runtime.crons import LONGEST_SLEEP, Crons
from mx_rmq.runtime.event_bus import Events
from mx_rmq.store.store import Store
from tests.lab.messages import TOPIC, take
from tests.lab.proxy import Proxy
from tests.runtime.stage import Seen, on_a_server

if TYPE_CHECKING:
    from pathlib import Path

    from redis.asyncio import Redis

    from tests.lab.clock import Clock
    from tests.lab.servers import Server

pytestmark = on_a_server

MINUTE = 60_000


class LabClock(ServerClock):
    """A clock that knows the time of the test's server."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def update(self, now: int, asked_at: float) -> None: ...

    def now(self) -> int:
        return self._clock.now


class Timetable:
    def __init__(self, store: Store, clock: Clock, *crons: Cron) -> None:
        self.bus = Events()
        self.seen = Seen(self.bus)
        tables = [firing.Timetable.declared(cron) for cron in crons]
        self.crons = Crons(store, tables, LabClock(clock), self.bus)
        self.step = self.crons.step

    @property
    def ticks(self) -> list[float]:
        return [event.tick for event in self.seen.of(events.CronFired)]


def every(expression: str = "* * * * *", missed: str = "skip", topic: str = TOPIC) -> Cron:
    return Cron.of(topic, expression, missed=missed)


async def pending(store: Store) -> int:
    return (await store.views.counts(TOPIC)).pending


async def test_the_first_start_ever_fires_nothing(store: Store, clock: Clock) -> None:
    table = Timetable(store, clock, every(missed="once"))
    assert clock.now % MINUTE == 0  # a tick is now, and nobody was there to want it
    assert await table.step() == 60.0
    assert await pending(store) == 0


async def test_it_fires_at_its_tick_and_says_which_one_it_is(store: Store, clock: Clock) -> None:
    table = Timetable(store, clock, every())
    await table.step()
    clock.advance(MINUTE)
    assert await table.step() == 60.0
    assert table.ticks == [clock.now / 1000]
    (one,) = await take(store)
    message = codec.decode(one.record)
    assert message.headers == {TICK: "2027-01-15T08:01:00+00:00"}
    assert bytes(message.payload) == b"null"
    await store.complete_message(TOPIC, "w1", [one])


async def test_before_the_tick_it_waits_for_it(store: Store, clock: Clock) -> None:
    table = Timetable(store, clock, every())
    await table.step()
    clock.advance(MINUTE - 250)
    assert await table.step() == pytest.approx(0.25)
    assert await pending(store) == 0


async def test_two_workers_fire_a_tick_once(store: Store, server: Server, clock: Clock) -> None:
    async with await Store.open(server.url, clock=clock) as other:
        tables = [Timetable(store, clock, every()), Timetable(other, clock, every())]
        for _ in range(5):
            for table in tables:
                await table.step()
            clock.advance(MINUTE)
            tables.reverse()
        assert await pending(store) == 4
        fired = sorted(tables[0].ticks + tables[1].ticks)
        assert len(set(fired)) == len(fired) == 4


async def test_a_tick_fires_once_however_often_it_is_tried(store: Store, clock: Clock) -> None:
    table = Timetable(store, clock, every())
    await table.step()
    clock.advance(MINUTE)
    for _ in range(5):
        await table.step()
    fresh = Timetable(store, clock, every())  # a worker that has just been started
    await fresh.step()
    assert await pending(store) == 1


@pytest.mark.parametrize(("missed", "count"), [("skip", 0), ("once", 1)])
async def test_what_nobody_was_there_for_is_skipped_or_fired_once(
    store: Store, clock: Clock, missed: str, count: int
) -> None:
    await Timetable(store, clock, every(missed=missed)).step()
    clock.advance(10 * MINUTE + 30_000)
    table = Timetable(store, clock, every(missed=missed))
    assert await table.step() == 30.0
    assert await pending(store) == count
    assert table.ticks == [(clock.now - 30_000) / 1000] * count
    clock.advance(30_000)
    await table.step()
    assert await pending(store) == count + 1


@pytest.mark.parametrize(("late", "count"), [(10_000, 1), (10_001, 0)])
async def test_a_tick_may_be_ten_seconds_late(
    store: Store, clock: Clock, late: int, count: int
) -> None:
    table = Timetable(store, clock, every("0 * * * *"))
    await table.step()
    clock.advance(60 * MINUTE + late)
    await table.step()
    assert await pending(store) == count


async def test_it_looks_at_the_clock_once_a_minute_at_least(store: Store, clock: Clock) -> None:
    assert await Timetable(store, clock, every("0 0 1 1 *")).step() == LONGEST_SLEEP


async def test_the_next_tick_of_several_decides(store: Store, clock: Clock) -> None:
    table = Timetable(store, clock, every("0 0 1 1 *"), every("*/20 * * * * *", topic="b"))
    assert await table.step() == 20.0


async def test_a_clock_that_was_set_back_fires_no_tick_twice(store: Store, clock: Clock) -> None:
    table = Timetable(store, clock, every(missed="once"))
    await table.step()
    clock.advance(2 * MINUTE)
    await table.step()
    clock.advance(-MINUTE)
    await table.step()
    clock.advance(MINUTE)
    await table.step()
    assert await pending(store) == 1
    clock.advance(MINUTE)
    await table.step()
    assert await pending(store) == 2


async def test_a_server_that_is_away_at_the_tick_gets_it_when_it_is_back(
    store: Store, server: Server, clock: Clock, tmp_path: Path
) -> None:
    proxy = Proxy(server.socket, tmp_path / "p.sock")
    async with proxy, await Store.open(proxy.url, clock=clock, patience=0) as through:
        table = Timetable(through, clock, every())
        await table.step()
        clock.advance(MINUTE)
        proxy.cut_request(1)
        with pytest.raises(Exception, match="produce_cron_message"):
            await table.step()
        clock.advance(3000)
        await table.step()
        assert await pending(store) == 1


async def test_a_tick_that_comes_while_it_looks_is_not_passed_over(
    store: Store, clock: Clock
) -> None:
    class Ticking(LabClock):
        """It becomes time while the schedule is read, which takes a tenth of a millisecond."""

        def now(self) -> int:
            now = clock.now
            if now % MINUTE == MINUTE - 1:
                clock.advance(1)
            return now

    table = Timetable(store, clock, every("*/5 * * * *"))
    await table.step()
    table.crons._clock = Ticking(clock)
    clock.advance(5 * MINUTE - 1)
    pause = await table.step()
    assert pause is not None
    clock.advance(round(pause * 1000))
    await table.step()
    assert len(table.ticks) == 1


@pytest.mark.corrupts
async def test_a_broken_topic_does_not_keep_the_other_schedules_from_firing(
    store: Store, clock: Clock, raw: Redis
) -> None:
    table = Timetable(store, clock, every(topic="broken"), every())
    await table.step()
    clock.advance(MINUTE)
    await raw.delete(store.keys.of("broken").meta)
    await raw.set(store.keys.of("broken").meta, "no hash")
    for _ in range(3):
        with suppress(ScriptFailed):  # the loop goes on, too
            await table.step()
    assert await pending(store) == 1


def missed_ticks(table: Timetable) -> list[float]:
    return [event.tick for event in table.seen.of(events.CronMissed)]


async def test_a_skipped_tick_is_told_once(store: Store, clock: Clock) -> None:
    table = Timetable(store, clock, every("0 * * * *"))
    await table.step()
    tick = clock.now + 60 * MINUTE
    clock.advance(60 * MINUTE + 30_000)
    for _ in range(3):
        await table.step()
        clock.advance(1000)
    assert missed_ticks(table) == [tick / 1000]
    assert table.ticks == []
    clock.now = tick + 60 * MINUTE
    await table.step()
    assert table.ticks == [clock.now / 1000]
    assert missed_ticks(table) == [tick / 1000]


async def test_ticks_before_one_that_fires_in_time_are_told(store: Store, clock: Clock) -> None:
    tables = [Timetable(store, clock, every()) for _ in range(2)]
    for table in tables:
        await table.step()
    clock.advance(7 * MINUTE + 3000)  # the server was away, and is back in time for the seventh
    for table in tables:
        await table.step()
    first, second = tables
    tick = (clock.now - 3000) / 1000
    assert first.ticks == [tick]
    (missed,) = first.seen.of(events.CronMissed)
    assert (missed.tick, missed.ticks) == (tick - 60, 6)
    assert second.ticks == missed_ticks(second) == []


async def test_ticks_that_were_told_to_be_missed_are_not_told_again(
    store: Store, clock: Clock
) -> None:
    table = Timetable(store, clock, every())
    await table.step()
    clock.advance(3 * MINUTE + 30_000)
    await table.step()
    clock.advance(2 * MINUTE - 30_000)  # the fourth is missed, the fifth fires
    await table.step()
    assert [(one.tick, one.ticks) for one in table.seen.of(events.CronMissed)] == [
        (clock.now / 1000 - 2 * 60, 3),
        (clock.now / 1000 - 60, 1),
    ]
    assert table.ticks == [clock.now / 1000]


async def test_who_wants_the_latest_of_missed_ticks_is_told_of_no_others(
    store: Store, clock: Clock
) -> None:
    table = Timetable(store, clock, every(missed="once"))
    await table.step()
    clock.advance(3 * MINUTE)
    await table.step()
    assert len(table.ticks) == 1
    assert missed_ticks(table) == []


async def test_a_tick_that_another_worker_has_fired_was_not_missed(
    store: Store, clock: Clock
) -> None:
    late, punctual = (Timetable(store, clock, every("0 * * * *")) for _ in range(2))
    await late.step()
    await punctual.step()
    clock.advance(60 * MINUTE)
    await punctual.step()
    clock.advance(30_000)
    await late.step()
    assert len(punctual.ticks) == 1
    assert missed_ticks(late) == late.ticks == []


async def test_it_goes_on_when_the_clock_was_set_back(store: Store, clock: Clock) -> None:
    table = Timetable(store, clock, every())
    await table.step()
    clock.advance(MINUTE)
    await table.step()
    clock.advance(-60 * MINUTE)
    await table.step()
    clock.advance(MINUTE)
    await table.step()
    assert [tick * 1000 for tick in table.ticks] == [clock.now + 59 * MINUTE, clock.now]
