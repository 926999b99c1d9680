"""The history: what every script writes of what it did, and how it is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from redis.exceptions import NoPermissionError

from mx_rmq.core import codec
from mx_rmq.core.errors import ScriptFailed
from mx_rmq.core.message import State
from mx_rmq.settings import Limits
from mx_rmq.store.history import SEARCH_STEP, STEP
from mx_rmq.store.upkeep_calls import LARGE_ENTRY
from tests.lab.archives import ARCHIVES, archived, limits
from tests.lab.broken import broken
from tests.lab.messages import TOPIC, delayed, draft, drafts, leased, pending, take
from tests.lab.servers import Kind, chosen

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.store.store import Store
    from tests.lab.clock import Clock

one_kind = pytest.mark.parametrize("kind", chosen(Kind.VALKEY_9_1))


async def told(store: Store, topic: str = TOPIC) -> list[tuple[str, str, int, str]]:
    """Return everything that a history tells: what, by whom, of how many, and more."""
    found = await store.views.history.after({topic: "0-0"})
    return [(one.what, one.by, len(one.ids), one.about) for _, one in found]


async def test_a_life_is_told_from_produce_to_the_end(store: Store, clock: Clock) -> None:
    (other, id) = await pending(store, 2)
    first = await take(store, 2)
    await store.complete_message(TOPIC, "w1", [first[0]])
    assert [one.what for one in await store.views.history.of(TOPIC, other)] == [
        "produced",
        "dispatched",
        "completed",
    ]
    life = await store.views.history.of(TOPIC, id)
    assert [(one.what, one.by, one.ids) for one in life] == [
        ("produced", "", (id,)),
        ("dispatched", "w1", (id,)),
    ]


async def test_an_entry_is_about_twenty_five_messages_at_the_most(store: Store) -> None:
    await store.produce_normal_message(TOPIC, drafts(60))
    assert await told(store) == [("produced", "", n, "") for n in (25, 25, 10)]
    assert (await store.views.counts(TOPIC)).ever == {"produced": 60}


async def test_switched_off_it_writes_nothing_and_still_counts(store: Store, raw: Redis) -> None:
    store.limits = Limits(history=0)
    await leased(store, 2)
    assert await told(store) == []
    assert not await raw.exists(store.keys.of(TOPIC).history)
    assert (await store.views.counts(TOPIC)).ever == {"produced": 2, "dispatched": 2}


@one_kind
async def test_it_keeps_the_newest_entries_and_about_as_many_as_it_shall(
    store: Store, raw: Redis
) -> None:
    store.limits = Limits(history=100)
    for _ in range(500):
        await store.produce_normal_message(TOPIC, [draft()])
    assert 100 <= await raw.xlen(store.keys.of(TOPIC).history) <= 200


@one_kind
async def test_a_message_is_found_however_much_has_come_since(store: Store) -> None:
    (id,) = await pending(store)
    for _ in range(2 * SEARCH_STEP):
        await store.produce_normal_message(TOPIC, [draft()])
    assert [one.what for one in await store.views.history.of(TOPIC, id)] == ["produced"]


async def test_a_message_is_found_by_its_whole_id_and_by_no_part_of_others(store: Store) -> None:
    ids = ("a.b", "a", "ba", "ab", "a-a")
    await store.produce_normal_message(TOPIC, [draft(id=id) for id in ids])
    for id in ids:
        (entry,) = await store.views.history.of(TOPIC, id)
        assert (entry.what, entry.ids) == ("produced", (id,))
    for id in ("b", "a.", "", " ", "a ba", "a.b a", "*", "%a", "produced"):
        assert await store.views.history.of(TOPIC, id) == []


@one_kind
async def test_only_what_is_found_travels(store: Store, raw: Redis) -> None:
    key = store.keys.of(TOPIC).history
    ids = " ".join(str(number) * 60 for number in range(25))
    for number in range(3 * SEARCH_STEP):
        what = {"what": "dispatched", "by": "", "ids": f"{ids} mine-{number}", "about": ""}
        assert await raw.xadd(key, what)  # type: ignore[arg-type]
    await store.views.history.of(TOPIC, "x")  # so that the server knows the script
    before = (await raw.info("stats"))["total_net_output_bytes"]
    (entry,) = await store.views.history.of(TOPIC, "mine-7")
    assert entry.what == "dispatched"
    assert (await raw.info("stats"))["total_net_output_bytes"] - before < 10_000


async def test_a_life_begins_with_its_last_birth(store: Store, clock: Clock) -> None:
    for _ in range(2):
        await store.produce_normal_message(TOPIC, [draft(id="own")])
        (one,) = await take(store)
        await store.complete_message(TOPIC, "w1", [one])
        clock.advance(1_000_000)
    assert len(await store.views.history.of(TOPIC, "own")) == 3


async def test_it_says_why_and_by_whom(store: Store, clock: Clock) -> None:
    (one,) = await leased(store, worker="w1")
    message = codec.decode(one.record)
    await store.move_to_dlq(TOPIC, "w1", one, msgspec.structs.replace(message, reason="why"))
    await archived(store, State.QUARANTINED)
    await leased(store, worker="gone")
    clock.advance(10**9)
    await store.handle_timeout_message(TOPIC, "m", count=1, recovery=1000)
    await store.pause_topic(TOPIC, by="ann")
    found = {what: (by, about) for what, by, _, about in await told(store)}
    assert found["taken_over"] == ("m", "gone")
    assert found["paused"] == ("ann", "")
    assert found["died"] == ("w1", "why")
    assert found["quarantined"][1] == "ValueError: no"


@pytest.mark.corrupts
async def test_entries_of_a_foreign_hand_are_passed_over(store: Store, raw: Redis) -> None:
    (id,) = await pending(store)
    await raw.xadd(store.keys.of(TOPIC).history, {b"\xff": b"\xff", "ids": id})
    assert [one.what for one in await store.views.history.of(TOPIC, id)] == ["produced", ""]
    await raw.hset(store.keys.of(TOPIC).totals, mapping={"produced": "x", "died": "3"})
    assert (await store.views.counts(TOPIC)).ever == {"died": 3}


async def test_delayed_ones_are_due_in_time(store: Store, clock: Clock) -> None:
    (id,) = await delayed(store, 1000)
    clock.advance(1000)
    await store.process_delay_message(TOPIC, count=10)
    assert [one.what for one in await store.views.history.of(TOPIC, id)] == ["delayed", "due"]


async def test_a_history_of_a_wrong_type_stops_nobody(store: Store, raw: Redis) -> None:
    keys = store.keys.of(TOPIC)
    await pending(store)
    for key in (keys.history, keys.totals):
        async with broken(raw, key):
            assert len(await leased(store)) == 1


async def taken(raw: Redis, key: str) -> int:
    """Return how many bytes a key takes."""
    return await raw.memory_usage(key, samples=0) or 0


async def raw_ms(raw: Redis) -> int:
    """Return the server's time, ms."""
    seconds, micros = await raw.time()
    return seconds * 1000 + micros // 1000


# many histories


async def fill(raw: Redis, store: Store, topics: dict[str, range]) -> None:
    """Write an entry into a topic's history at each of some milliseconds."""
    pipe = raw.pipeline(transaction=False)
    for topic, times in topics.items():
        key = store.keys.of(topic).history
        for at in times:
            pipe.execute_command("XADD", key, f"{at}-1", "what", "due", "ids", "x")
    await pipe.execute()


@one_kind
async def test_what_is_read_of_many_histories_at_once_is_bounded_and_nothing_is_left_out(
    store: Store, raw: Redis
) -> None:
    topics = {f"t/{number}": range(number, 1000, 20) for number in range(1, 201)}
    topics |= {"busy": range(1, 3000)}
    await fill(raw, store, topics)
    places = dict.fromkeys(topics, "0-0")
    seen: list[tuple[str, int]] = []
    while some := await store.views.history.after(places):
        assert len(some) <= 2 * STEP
        assert [entry.at for _, entry in some] == sorted(entry.at for _, entry in some)
        places |= {topic: entry.place for topic, entry in some}
        seen += [(topic, entry.at) for topic, entry in some]
    assert sorted(seen) == sorted((topic, at) for topic, times in topics.items() for at in times)


@one_kind
async def test_a_busy_history_holds_up_no_quiet_ones_nor_they_it(store: Store, raw: Redis) -> None:
    quiet = {f"t/{number}": range(5, 6) for number in range(1, 1000)}
    await fill(raw, store, {"busy": range(1, 3 * STEP), **quiet})
    places = dict.fromkeys(("busy", *quiet), "0-0")
    some = await store.views.history.after(places)
    assert {topic for topic, _ in some} == set(places)
    places |= {topic: entry.place for topic, entry in some}
    assert len(await store.views.history.after(places)) > STEP


@pytest.mark.corrupts
@one_kind
async def test_a_history_that_cannot_be_read_is_passed_over_and_told_of_once(
    store: Store, raw: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    topics = [f"t/{number}" for number in range(1, 12)]
    await fill(raw, store, dict.fromkeys(topics, range(1, 3)))
    await raw.delete(store.keys.of("t/4").history)
    await raw.set(store.keys.of("t/4").history, "no stream")
    for _ in range(2):
        some = await store.views.history.after(dict.fromkeys(topics, "0-0"))
        assert {topic for topic, _ in some} == {*topics} - {"t/4"}
        assert len(some) == 20
        assert await store.views.history.of("t/4", "x") == []
        assert await store.views.history.last("t/4") == "0-0"
    (told,) = caplog.messages
    assert "skipping the history of t/4" in told
    await raw.delete(store.keys.of("t/4").history)
    await fill(raw, store, {"t/4": range(1, 3)})
    assert len(await store.views.history.after(dict.fromkeys(topics, "0-0"))) == 22


# how long it is


@one_kind
async def test_the_partitions_of_a_topic_share_its_history(store: Store, raw: Redis) -> None:
    store.limits = Limits(history=400)
    await store.register("t", 2)
    for part in ("t", "t/1"):
        for _ in range(500):
            await store.produce_normal_message(part, [draft()])
        assert 200 <= await raw.xlen(store.keys.of(part).history) <= 300
    await store.register("t", 8)
    await store.produce_normal_message("t/1", [draft()])
    assert 100 <= await raw.xlen(store.keys.of("t/1").history) <= 200


@pytest.mark.parametrize(("history", "left"), [(0, range(1)), (100, range(100, 201))])
async def test_a_history_that_shall_be_shorter_is_shortened_also_when_nothing_happens(
    store: Store, raw: Redis, history: int, left: range
) -> None:
    for _ in range(500):
        await store.produce_normal_message(TOPIC, [draft()])
    store.limits = Limits(history=history)
    await store.trim_history(TOPIC)
    assert await raw.xlen(store.keys.of(TOPIC).history) in left


@one_kind
async def test_a_history_keeps_within_its_bytes_also_between_two_measurements(
    store: Store, raw: Redis
) -> None:
    key, budget = store.keys.of(TOPIC).history, 64 * 1024
    store.limits = Limits(history_max_bytes=budget)
    for size in (25, 1, 25):  # large entries, then small ones
        for _ in range(4):
            for _ in range(250):
                await store.produce_normal_message(TOPIC, drafts(size))
            await store.trim_history(TOPIC)
            assert await taken(raw, key) <= budget * 1.2
        fits = store.fits[TOPIC]
        for _ in range(2 * fits):
            await store.produce_normal_message(TOPIC, drafts(size))
        assert fits <= await raw.xlen(key) <= fits + 100
        assert budget / 2 < await taken(raw, key) <= budget * 1.3


async def test_entries_over_the_age_are_dropped(store: Store, raw: Redis) -> None:
    now, day = await raw_ms(raw), 86_400_000
    old = range(now - 8 * day, now - 8 * day + 300)
    await fill(raw, store, {TOPIC: old, "other": old})
    await pending(store)
    await store.trim_history(TOPIC)
    left = [one.at for _, one in await store.views.history.after({TOPIC: "0-0"})]
    assert len(left) <= 100  # whole blocks of a hundred go
    assert left[-1] >= now
    store.limits = Limits(history_ttl=0)
    await store.trim_history("other")
    assert await raw.xlen(store.keys.of("other").history) == 300


async def test_an_hour_of_twenty_messages_a_second_fits(store: Store, raw: Redis) -> None:
    """One by one, with a worker's generated name and generated ids."""
    for _ in range(200):
        await pending(store)
        (one,) = await take(store, worker="worker-host-name-12345-a1b2c3d4")
        await store.complete_message(TOPIC, "worker-host-name-12345-a1b2c3d4", [one])
    key, an_hour = store.keys.of(TOPIC).history, 20 * 3600 * 3
    assert await raw.xlen(key) == 600
    await store.trim_history(TOPIC)
    assert store.fits[TOPIC] >= an_hour
    assert await raw.xlen(key) == 600


async def test_where_memory_usage_is_not_allowed_entries_count_as_large_ones(
    store: Store, raw: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pending(store)
    command = store.caller.command

    async def deny(name: str, *words: object, at: str | None = None) -> object:
        if name == "MEMORY":
            raise ScriptFailed("MEMORY: not allowed") from NoPermissionError()
        return await command(name, *words, at=at)  # type: ignore[arg-type]

    monkeypatch.setattr(store.caller, "command", deny)
    await store.trim_history(TOPIC)
    assert store.fits[TOPIC] == 32 * 1024**2 // LARGE_ENTRY


async def test_a_history_says_how_far_back_it_reaches(store: Store, raw: Redis) -> None:
    assert await store.views.history.begins(TOPIC) is None
    await fill(raw, store, {TOPIC: range(1000, 1003)})
    assert await store.views.history.begins(TOPIC) == 1000


# what is dropped from the archives


@pytest.mark.parametrize("state", ARCHIVES)
async def test_what_an_archive_has_no_room_for_is_told_of(
    store: Store, clock: Clock, state: State
) -> None:
    ids = await archived(store, state, 30, clock=clock)
    store.limits = limits(state, keep=2)
    (last,) = await archived(store, state, clock=clock)
    dropped = ids[:29]
    found = [one for _, one in await store.views.history.after({TOPIC: "0-0"})]
    trimmed = [one for one in found if one.what == "trimmed"]
    assert [len(one.ids) for one in trimmed] == [25, 4]
    assert [id for one in trimmed for id in one.ids] == dropped
    assert (await store.views.counts(TOPIC)).ever["trimmed"] == 29
    *_, end = await store.views.history.of(TOPIC, ids[0])
    assert end.what == "trimmed"
    *_, end = await store.views.history.of(TOPIC, last)
    assert end.what == {State.DEAD: "died", State.QUARANTINED: "quarantined"}[state]


@pytest.mark.parametrize("state", ARCHIVES)
async def test_that_it_cannot_be_told_what_was_dropped_stops_nobody(
    store: Store, raw: Redis, state: State
) -> None:
    keys = store.keys.of(TOPIC)
    await archived(store, state, 2)
    store.limits = limits(state, keep=1)
    for key in (keys.history, keys.totals):
        async with broken(raw, key):
            await archived(store, state)
            assert await store.trim_archive(TOPIC, state) == 0
    assert (await store.views.counts(TOPIC)).total == 1
