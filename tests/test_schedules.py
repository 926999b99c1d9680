"""Schedules as data: what an operator stores, what workers fire, and what stops them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest

from mx_rmq import Delivery, InvalidInput, MessageQueue, Worker
from mx_rmq.core.errors import PayloadTooLarge, QueueFull
from mx_rmq.core.schedule import TICK
from mx_rmq.runtime import schedules as part
from tests.lab.calls import resend_next
from tests.runtime.stage import on_a_server, queue, until, until_so

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from tests.lab.servers import Server

pytestmark = on_a_server

SECOND = "* * * * * *"
NEVER = "0 0 1 1 *"  # not while a test runs, unless it is a special night


@pytest.fixture
async def mq(raw: Redis, server: Server) -> AsyncIterator[MessageQueue]:
    async with queue(server.url) as mq:
        yield mq


class Ticks:
    """Handles a topic, and notes what it gets."""

    def __init__(self, mq: MessageQueue, topic: str = "t") -> None:
        self.got: list[tuple[Any, str]] = []

        @mq.handler(topic)
        async def handle(payload: Any, delivery: Delivery) -> None:
            self.got.append((payload, delivery.headers[TICK]))

    async def until(self, count: int) -> None:
        await until(lambda: len(self.got) >= count)


async def test_every_tick_makes_one_message_with_the_payload(mq: MessageQueue) -> None:
    ticks = Ticks(mq)
    await mq.admin.schedule("nightly", "t", SECOND, {"a": [1, None]}, headers={"who": "ann"})
    async with Worker(mq), Worker(mq):
        await ticks.until(3)
    payloads, times = zip(*ticks.got, strict=True)
    assert all(payload == {"a": [1, None]} for payload in payloads)
    seconds = [datetime.fromisoformat(at) for at in times]
    assert len(set(seconds)) == len(seconds)
    assert {at.tzinfo for at in seconds} == {UTC}


async def test_a_running_worker_learns_of_a_schedule_and_of_its_end_at_once(
    mq: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part, "LOOK_EVERY", 3600.0)  # so it is the notice that it hears
    ticks = Ticks(mq)
    async with Worker(mq):
        await mq.admin.schedule("s", "t", SECOND, 1)
        await ticks.until(2)
        assert await mq.admin.unschedule("s") is True
        await asyncio.sleep(0.2)
        count = len(ticks.got)
        await mq.admin.schedule("end", "t", SECOND, "end")
        await until(lambda: ticks.got[-1][0] == "end")
        assert [payload for payload, _ in ticks.got[count:]].count(1) == 0
    assert await mq.admin.unschedule("s") is False


async def test_a_worker_that_hears_no_notice_looks_from_time_to_time(
    mq: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part, "LOOK_EVERY", 0.2)
    monkeypatch.setattr(part.Schedules, "look_again", lambda _: None)
    ticks = Ticks(mq)
    async with Worker(mq):
        await mq.admin.schedule("s", "t", SECOND, 1)
        await ticks.until(1)
        await mq.admin.schedule("s", "t", SECOND, 2)
        await until(lambda: ticks.got[-1][0] == 2)


async def test_any_worker_fires_schedules_of_topics_that_no_worker_serves(
    mq: MessageQueue,
) -> None:
    Ticks(mq, "other")
    await mq.admin.schedule("s", "t", SECOND, 1, priority="high", ttl=3600, max_attempts=7)
    async with Worker(mq):

        async def waits() -> bool:
            return (await mq.admin.stats("t")).pending > 0

        for _ in range(100):
            if await waits():
                break
            await asyncio.sleep(0.1)
    (first, *_) = (await mq.admin.list("t", "pending")).messages
    assert (first.payload, first.priority, first.max_attempts) == (1, "high", 7)
    assert first.id.endswith("@s")
    assert (
        first.headers[TICK]
        == datetime.fromtimestamp(
            int(first.id.removeprefix("cron-").removesuffix("@s")) / 1000, UTC
        ).isoformat()
    )


async def test_the_same_name_replaces_also_in_another_topic(mq: MessageQueue) -> None:
    await mq.admin.schedule("s", "a", "1 2 * * *", 1, tz="Europe/Berlin", missed="once")
    before = await mq.admin.get_schedule("s")
    assert (before.topic, before.tz, before.missed) == ("a", "Europe/Berlin", "once")
    after = await mq.admin.schedule("s", "b", "3 4 * * *", 2)
    assert (after.topic, after.tz, after.missed, after.payload) == ("b", "UTC", "skip", 2)
    assert await mq.admin.schedules() == [after]


async def test_a_paused_schedule_stays_paused_in_another_topic(mq: MessageQueue) -> None:
    await mq.admin.schedule("s", "old", "* * * * *")
    await mq.admin.pause_schedule("s", "an incident")
    moved = await mq.admin.schedule("s", "new", "* * * * *")
    assert (moved.topic, moved.paused, moved.pause_reason) == ("new", True, "an incident")
    assert await mq.admin.resume_schedule("s")


async def test_next_runs_follow_the_time_zone(mq: MessageQueue) -> None:
    view = await mq.admin.schedule("s", "t", "30 2 * * *", tz=ZoneInfo("Europe/Berlin"))
    runs = view.next_runs()
    assert len(runs) == 10
    assert runs[0] == view.next_run
    local = [datetime.fromtimestamp(run, ZoneInfo("Europe/Berlin")) for run in runs]
    assert {(at.hour, at.minute) for at in local} <= {(2, 30), (3, 0), (3, 30)}
    assert runs == sorted(set(runs))
    for bad in (0, 1001, True, "x"):
        with pytest.raises(InvalidInput, match="count="):
            view.next_runs(bad)  # type: ignore[arg-type] # on purpose


async def test_a_paused_schedule_fires_nothing_and_skips_what_it_missed(mq: MessageQueue) -> None:
    ticks = Ticks(mq)
    await mq.admin.schedule("s", "t", SECOND, 1, missed="once")
    async with Worker(mq):
        await ticks.until(1)
        assert await mq.admin.pause_schedule("s", "too many") is True
        assert await mq.admin.pause_schedule("s") is False
        view = await mq.admin.get_schedule("s")
        assert (view.paused, view.pause_reason, view.next_run) == (True, "too many", None)
        assert view.next_runs() == []
        paused_at = view.paused_at or 0
        await asyncio.sleep(2.2)
        assert await mq.admin.resume_schedule("s") is True
        resumed_at = await mq.admin.now()
        assert await mq.admin.resume_schedule("s") is False
        count = len(ticks.got)
        await ticks.until(count + 1)
    times = [datetime.fromisoformat(at).timestamp() for _, at in ticks.got]
    assert [at for at in times if paused_at < at <= resumed_at - 0.5] == []


async def test_run_now_makes_one_message_and_leaves_the_next_tick_alone(
    mq: MessageQueue, raw: Redis
) -> None:
    ticks = Ticks(mq)
    before = await mq.admin.schedule("s", "t", NEVER, "now")
    resend_next(mq.store, raw)
    id = await mq.admin.run_schedule("s")
    assert id
    after = await mq.admin.get_schedule("s")
    assert (after.next_run, after.last_run) == (before.next_run, None)
    await mq.admin.pause_schedule("s")
    assert await mq.admin.run_schedule("s") != id
    await Worker(mq).drain()
    assert [payload for payload, _ in ticks.got] == ["now", "now"]


async def test_run_now_respects_the_cap_on_waiting_messages(raw: Redis, server: Server) -> None:
    async with queue(server.url, max_pending=1) as mq:
        await mq.admin.schedule("s", "t", NEVER)
        await mq.admin.run_schedule("s")
        with pytest.raises(QueueFull):
            await mq.admin.run_schedule("s")


async def test_crons_in_code_are_listed_by_their_topic(mq: MessageQueue) -> None:
    ran: list[str] = []

    @mq.cron("*/5 * * * *", tz="Asia/Tokyo", topic="report")
    async def report() -> None:
        ran.append("report")

    await mq.admin.schedule("a", "t", NEVER)
    async with Worker(mq):

        async def shown() -> bool:
            return len(await mq.admin.schedules()) == 2

        for _ in range(100):
            if await shown():
                break
            await asyncio.sleep(0.05)
        stored, cron = await mq.admin.schedules()
        assert (stored.declared, cron.declared) == (False, True)
        assert (cron.name, cron.topic, cron.expression, cron.tz) == (
            *("report", "report"),
            *("*/5 * * * *", "Asia/Tokyo"),
        )
        assert cron.next_run is not None
        for refused in (
            mq.admin.unschedule("report"),
            mq.admin.schedule("report", "t", NEVER),
        ):
            with pytest.raises(InvalidInput, match=r"'report'.* declared in code"):
                await refused
        await mq.admin.run_schedule("report")
        await until(lambda: ran == ["report"])
    assert len(await mq.admin.schedules()) == 2  # also when no worker runs


async def test_a_cron_that_no_worker_declares_for_a_day_is_no_longer_listed(
    mq: MessageQueue, raw: Redis
) -> None:
    async def is_listed(names: list[str]) -> bool:
        return [one.name for one in await mq.admin.schedules()] == names

    key, ages = mq.store.keys.schedule_topics, {"gone": 86_400_000, "kept": 86_000_000}
    for topic in ages:
        mq.cron(NEVER, topic=topic)(_nothing)
    async with Worker(mq):
        await until_so(partial(is_listed, ["gone", "kept"]))
    for topic, age in ages.items():
        declared = await raw.hget(key, f"!{topic}")
        assert isinstance(declared, bytes)
        seen, _, declaration = declared.partition(b" ")
        await raw.hset(key, f"!{topic}", b"%d %s" % (int(seen) - age, declaration))
    async with MessageQueue(mq.settings.url) as other:  # its workers declare none
        Ticks(other)
        async with Worker(other):
            await until_so(partial(is_listed, ["kept"]))


async def _nothing() -> None: ...


async def test_a_cron_in_code_can_be_paused_and_resumed(mq: MessageQueue) -> None:
    ran: list[float] = []

    @mq.cron(SECOND, topic="tick")
    async def tick(delivery: Delivery) -> None:
        ran.append(datetime.fromisoformat(delivery.headers[TICK]).timestamp())

    async with Worker(mq):
        await until(lambda: len(ran) > 0)
        assert await mq.admin.pause_schedule("tick") is True
        assert (await mq.admin.get_schedule("tick")).paused
        at = await mq.admin.now()
        await asyncio.sleep(2.1)
        assert await mq.admin.resume_schedule("tick") is True
        back = await mq.admin.now()
        count = len(ran)
        await until(lambda: len(ran) > count)
    assert [tick for tick in ran if at < tick <= back - 0.5] == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "a b"}, "schedule 'a b' must consist of"),
        ({"name": ""}, "schedule '' must consist of"),
        ({"name": "x" * 101}, "at most 100"),
        ({"name": None}, "schedule None must consist of"),
        ({"topic": "a/b"}, "topic 'a/b' must consist of"),
        ({"expression": "61 * * * *"}, "cron expression '61 \\* \\* \\* \\*'.*minute"),
        ({"expression": "hourly"}, "cron expression 'hourly'"),
        ({"expression": "0 0 30 2 *"}, "cron expression '0 0 30 2 \\*'"),
        ({"expression": None}, "cron expression None"),
        ({"tz": "Europe/Nowhere"}, "tz='Europe/Nowhere' is not a time zone"),
        ({"tz": timezone(timedelta(hours=2))}, "tz=.*has no name to store"),
        ({"missed": "twice"}, "missed='twice' is not one of skip, once"),
        ({"payload": object()}, "cannot be encoded as JSON"),
        ({"payload": "x" * 2000}, "the limit is 1,000"),
        ({"priority": "urgent"}, "priority='urgent'"),
        ({"ttl": 0}, "ttl="),
        ({"headers": {"a": 1}}, "headers="),
        ({"max_attempts": 0}, "max_attempts=0"),
    ],
)
async def test_what_is_wrong_is_named_and_nothing_is_stored(
    raw: Redis, server: Server, change: dict[str, Any], words: str
) -> None:
    given = {"name": "s", "topic": "t", "expression": NEVER, "payload": 1, **change}
    async with queue(server.url, max_payload=1000) as mq:
        with pytest.raises(InvalidInput, match=words):
            await mq.admin.schedule(**given)
        assert await raw.exists("mx-rmq:schedule_topics", "mx-rmq:topics") == 0
        if "payload" in change and isinstance(change["payload"], str):
            with pytest.raises(PayloadTooLarge):
                await mq.admin.schedule(**given)


async def test_an_unknown_option_or_name_is_refused(mq: MessageQueue) -> None:
    with pytest.raises(TypeError, match="schedule\\(\\) has no option 'delay'"):
        await mq.admin.schedule("s", "t", NEVER, delay=3)  # type: ignore[call-arg] # on purpose
    await mq.admin.schedule("known", "t", NEVER)
    for work in (
        mq.admin.pause_schedule("typo"),
        mq.admin.resume_schedule("typo"),
        mq.admin.run_schedule("typo"),
        mq.admin.get_schedule("typo"),
    ):
        with pytest.raises(InvalidInput, match=r"no schedule 'typo'.*known schedules .1.: known"):
            await work
    for bad in ("a b", None):
        with pytest.raises(InvalidInput, match="must consist of"):
            await mq.admin.unschedule(bad)  # type: ignore[arg-type] # on purpose


async def test_synchronous_code_has_the_same_calls(mq: MessageQueue) -> None:
    def work() -> None:
        sync = mq.sync
        assert sync.schedule("s", "t", NEVER, 1, priority="low").priority == "low"
        assert [one.name for one in sync.schedules()] == ["s"]
        assert sync.pause_schedule("s", "why") is True
        assert sync.resume_schedule("s") is True
        assert sync.run_schedule("s")
        assert sync.unschedule("s") is True
        sync.close()

    await asyncio.to_thread(work)
    assert (await mq.admin.stats("t")).pending == 1


async def test_a_clock_that_was_set_back_does_not_hide_the_next_run(
    mq: MessageQueue, raw: Redis
) -> None:
    await mq.admin.schedule("s", "t", "* * * * *")
    now = await mq.admin.now()
    await raw.hset("mx-rmq:{t}:schedules", "@s", round((now + 7200) * 1000))
    view = await mq.admin.get_schedule("s")
    assert view.next_run is not None
    assert view.next_run <= now + 61
