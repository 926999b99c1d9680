"""list_schedule, declare_crons, and what is made of them: where schedules are."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from mx_rmq.core.errors import ScriptFailed
from mx_rmq.core.schedule import Schedule
from mx_rmq.store.store import Store

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from tests.lab.clock import Clock
    from tests.lab.servers import Server

KEY = "mx-rmq:schedule_topics"


def schedule(topic: str = "a", name: str = "s", expression: str = "* * * * *") -> Schedule:
    return Schedule(name=name, topic=topic, expression=expression)


async def listed(raw: Redis) -> dict[str, str]:
    fields: dict[bytes, bytes] = await raw.hgetall(KEY)  # type: ignore[assignment] # not decoded
    found = {field.decode(): value.decode() for field, value in fields.items()}
    found.pop("", None)
    return found


async def test_an_entry_changes_only_if_it_is_as_the_caller_saw_it(
    store: Store, raw: Redis
) -> None:
    assert await store.list_schedule("s", "", "a 1") == "a 1"
    assert await store.list_schedule("s", "", "b 2") == "a 1"
    assert await store.list_schedule("s", "b 2", "") == "a 1"
    assert await listed(raw) == {"s": "a 1"}
    assert await store.list_schedule("s", "a 1", "b 2") == "b 2"
    assert await store.list_schedule("s", "b 2", "") == ""
    assert await listed(raw) == {}


async def test_every_change_is_published_and_gives_another_version(
    store: Store, raw: Redis
) -> None:
    assert await store.schedules_version() == b""
    async with raw.pubsub() as news:
        await news.subscribe(KEY)
        versions = set()
        for change in (("s", "", "a 1"), ("s", "a 1", ""), ()):
            await store.list_schedule(*change)
            versions.add(await store.schedules_version())
        await store.list_schedule("s", "b 1", "c 1")  # refused
        assert len(versions) == 3
        assert await store.schedules_version() in versions
        told: list[bytes] = []
        while (one := await news.get_message(timeout=1)) and len(told) < 3:
            if one["type"] == "message":
                told.append(one["data"])
    assert told == [b"s", b"s", b""]


async def test_a_schedule_is_stored_listed_and_removed(
    store: Store, raw: Redis, clock: Clock
) -> None:
    await store.put_schedule(schedule())
    (name, place), *more = (await listed(raw)).items()
    assert (name, place.split(" ")[0], more) == ("s", "a", [])
    found = (await store.read_schedules()).schedules["s"]
    assert (found.schedule, found.tick, found.pause) == (schedule(), clock.now, None)
    assert await store.views.topics() == ["a"]
    assert await store.drop_schedule("s") is True
    assert await listed(raw) == {}
    assert (await store.read_schedules()).schedules == {}
    assert await store.drop_schedule("s") is False


async def test_a_schedule_that_moves_is_in_one_topic_only(store: Store, raw: Redis) -> None:
    for topic in ("a", "b", "b", "c"):
        await store.put_schedule(schedule(topic))
    assert (await listed(raw))["s"].split(" ")[::2] == ["c"]
    for topic in ("a", "b"):
        assert await raw.exists(store.keys.of(topic).schedules) == 0
    assert (await store.read_schedules("s")).schedules["s"].schedule.topic == "c"


async def test_while_it_moves_the_new_definition_is_in_force_once_it_is_stored(
    store: Store,
) -> None:
    await store.put_schedule(schedule("a"))
    listed = (await store.caller.command("HGET", KEY, "s")).decode()
    await store.list_schedule("s", listed, f"b 2 {listed}")
    assert (await store.read_schedules()).schedules["s"].schedule.topic == "a"
    await store.store_schedule(schedule("b"), "2")
    assert (await store.read_schedules()).schedules["s"].schedule.topic == "b"
    await store.put_schedule(schedule("c"))  # the next call puts it right
    assert await store.remove_schedule("a", "s") is False
    assert await store.remove_schedule("b", "s") is False


async def test_an_entry_without_a_definition_means_nothing(store: Store, raw: Redis) -> None:
    await store.list_schedule("s", "", "a 1")
    assert (await store.read_schedules()).schedules == {}
    assert await store.drop_schedule("s") is False
    assert await listed(raw) == {}


async def test_of_calls_at_the_same_time_one_is_in_force(
    store: Store, server: Server, raw: Redis, clock: Clock
) -> None:
    async with await Store.open(server.url, clock=clock) as other:
        calls = [
            one.put_schedule(schedule(topic, expression=f"{number} * * * *"))
            for number, topic in enumerate("abcdefgh")
            for one in (store, other)
        ]
        await asyncio.gather(*calls)
        (stored,) = (await store.read_schedules()).schedules.values()
        holds = [topic for topic in "abcdefgh" if await raw.exists(other.keys.of(topic).schedules)]
    assert holds == [stored.schedule.topic]


async def test_a_late_copy_of_a_removal_leaves_the_next_schedule_alone(
    store: Store, raw: Redis
) -> None:
    await store.put_schedule(schedule())
    before = (await listed(raw))["s"]
    await store.drop_schedule("s")
    await store.put_schedule(schedule())
    await store.list_schedule("s", before, "")
    assert "s" in (await store.read_schedules()).schedules


async def test_crons_are_noted_and_forgotten_when_no_worker_declares_them(
    store: Store, raw: Redis, clock: Clock
) -> None:
    old, new = schedule("old", ""), schedule("new", "")
    await store.declare_crons({"old": old}, forget=1000)
    await store.put_schedule(schedule("a"))
    clock.advance(999)
    await store.declare_crons({"new": new}, forget=1000)
    found = await store.read_schedules()
    assert {topic: cron.seen for topic, cron in found.crons.items()} == {
        "old": clock.now - 999,
        "new": clock.now,
    }
    assert found.crons["old"].schedule == old
    clock.advance(1)
    await store.declare_crons({"new": new}, forget=1000)
    found = await store.read_schedules()
    assert (set(found.crons), set(found.schedules)) == ({"new"}, {"s"})
    await raw.hset(KEY, "!broken", "?")
    assert set((await store.read_schedules()).crons) == {"new"}
    await store.declare_crons({"new": new}, forget=1000)
    assert not await raw.hexists(KEY, "!broken")


async def test_what_another_release_wrote_is_left_out(store: Store, raw: Redis) -> None:
    await store.put_schedule(schedule())
    for broken in (b"", b"g t", b"g t {", b'g t {"name":"s"}', b"\xff \xff \xff"):
        await raw.hset(store.keys.of("a").schedules, "s", broken)
        assert (await store.read_schedules()).schedules == {}
    await raw.hset(KEY, mapping={"s": b"\xff", "b ad": "a 1", "t": "no{t 1"})
    assert (await store.read_schedules()).schedules == {}
    await raw.delete(KEY, store.keys.of("a").schedules)


async def test_a_key_of_a_wrong_type_is_named(store: Store, raw: Redis) -> None:
    await raw.set(KEY, "?")
    for call in (
        store.list_schedule("s", "", "a 1"),
        store.declare_crons({"a": schedule()}, forget=1),
    ):
        with pytest.raises(ScriptFailed, match="schedule_topics"):
            await call
    await raw.delete(KEY)
