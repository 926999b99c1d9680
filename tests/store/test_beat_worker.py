"""beat_worker: who works here, and when it was last seen"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mx_rmq.core.errors import InvalidInput, WrongType
from mx_rmq.store.reads import WorkerSeen
from mx_rmq.store.store import Store
from tests.store.contracts import ONE_SERVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from tests.lab.clock import Clock
    from tests.lab.servers import Server

WORKERS = "mx-rmq:workers"


@pytest.fixture
async def real(store: Store, server: Server) -> AsyncIterator[Store]:
    """A store by the server's clock: ages are of that one."""
    async with await Store.open(server.url) as real:
        yield real


async def test_a_beat_notes_the_time_and_what_the_worker_says(
    store: Store, raw: Redis, clock: Clock
) -> None:
    assert await store.beat_worker("w1", b'{"pid":7}') == clock.now
    assert await store.beat_worker("w2", b'{"pid":8}') == clock.now
    clock.advance(10)
    assert await store.beat_worker("w1", b'{"pid":9}') == clock.now
    assert await raw.hgetall(WORKERS) == {
        b"w1": b'%d {"pid":9}' % clock.now,
        b"w2": b'%d {"pid":8}' % (clock.now - 10),
    }


@pytest.mark.parametrize(("silent", "kept"), [(999, True), (1000, False), (10**10, False)])
async def test_a_worker_that_was_silent_for_too_long_is_forgotten(
    store: Store, raw: Redis, clock: Clock, silent: int, kept: bool
) -> None:
    await store.beat_worker("old", b"{}")
    clock.advance(silent)
    await store.beat_worker("new", b"{}", forget=1000)
    assert await raw.hexists(WORKERS, "old") == kept
    assert await raw.hexists(WORKERS, "new")


async def test_without_a_limit_nobody_is_forgotten(store: Store, raw: Redis, clock: Clock) -> None:
    await store.beat_worker("old", b"{}")
    await raw.hset(WORKERS, "odd", "nonsense")
    clock.advance(10**10)
    await store.beat_worker("new", b"{}")
    assert await raw.hlen(WORKERS) == 3


async def test_the_worker_that_beats_is_never_forgotten(
    store: Store, raw: Redis, clock: Clock
) -> None:
    await store.beat_worker("w1", b"{}")
    clock.advance(10**6)
    await store.beat_worker("w1", b"{}", forget=1)
    assert await raw.hgetall(WORKERS) == {b"w1": b"%d {}" % clock.now}


@pytest.mark.parametrize("entry", [b"", b"nonsense", b"12", b" {}", b"-5 {}", b"1e3 {}", b"\xff"])
async def test_an_entry_that_cannot_be_read_is_removed(
    store: Store, raw: Redis, entry: bytes
) -> None:
    await raw.hset(WORKERS, "odd", entry)
    await store.beat_worker("w1", b"{}", forget=10**15)
    assert await raw.hkeys(WORKERS) == [b"w1"]


async def test_a_worker_seen_by_a_clock_that_was_ahead_is_kept(
    store: Store, raw: Redis, clock: Clock
) -> None:
    await store.beat_worker("ahead", b"{}")
    clock.advance(-60_000)
    await store.beat_worker("w1", b"{}", forget=1)
    assert await raw.hlen(WORKERS) == 2


@ONE_SERVER
async def test_a_thousand_are_forgotten_at_a_time(store: Store, raw: Redis) -> None:
    await raw.hset(WORKERS, mapping={f"old-{n}": "1 {}" for n in range(2500)})
    for left in (1500, 500, 0, 0):
        await store.beat_worker("w1", b"{}", forget=1)
        assert await raw.hlen(WORKERS) == left + 1


async def test_repeating_is_harmless(store: Store, raw: Redis) -> None:
    await store.beat_worker("w1", b"{}", forget=1)
    before = await raw.hgetall(WORKERS)
    await store.beat_worker("w1", b"{}", forget=1)
    assert await raw.hgetall(WORKERS) == before


async def test_a_worker_beats_at_maxmemory(store: Store, raw: Redis, clock: Clock) -> None:
    await store.beat_worker("w1", b"{}")
    clock.advance(1)
    await raw.config_set("maxmemory", 1)
    try:
        await store.beat_worker("w1", b"{}", forget=1000)
        await store.beat_worker("w2", b"{}")
    finally:
        await raw.config_set("maxmemory", 0)
    assert await raw.hlen(WORKERS) == 2


async def test_a_worker_that_ends_is_struck_off(store: Store, raw: Redis) -> None:
    await store.beat_worker("w1", b"{}")
    await store.beat_worker("w2", b"{}")
    for _ in range(2):
        await store.forget_worker("w1")
        assert await raw.hkeys(WORKERS) == [b"w2"]


async def test_bad_names_and_limits_are_refused(store: Store, raw: Redis) -> None:
    with pytest.raises(InvalidInput, match="worker 'a:b'"):
        await store.beat_worker("a:b", b"{}")
    with pytest.raises(InvalidInput, match="worker 'a:b'"):
        await store.forget_worker("a:b")
    with pytest.raises(InvalidInput, match="forget=-1"):
        await store.beat_worker("w1", b"{}", forget=-1)
    assert await raw.dbsize() == 0


async def test_a_key_of_a_wrong_type_is_named(store: Store, raw: Redis) -> None:
    await raw.sadd(WORKERS, "nonsense")
    for forget in (0, 1):
        with pytest.raises(WrongType, match=f"key {WORKERS} holds a set, not a hash"):
            await store.beat_worker("w1", b"{}", forget=forget)
    await raw.delete(WORKERS)


# who is there


async def test_nobody_works_on_an_empty_server(store: Store) -> None:
    assert await store.views.workers() == []


async def test_the_workers_are_listed_by_name_with_what_they_said(real: Store) -> None:
    for name in ("w2", "w1"):
        await real.beat_worker(name, b'{"name":"%s","topics":["a"]}' % name.encode())
    found = await real.views.workers()
    assert [(one.name, one.info) for one in found] == [
        ("w1", {"name": "w1", "topics": ["a"]}),
        ("w2", {"name": "w2", "topics": ["a"]}),
    ]
    assert all(0 <= one.age < 60_000 for one in found)


async def test_the_age_is_the_time_since_the_last_beat(real: Store, raw: Redis) -> None:
    now = await real.beat_worker("w1", b"{}")
    await raw.hset(
        WORKERS, mapping={"old": f"{now - 600_000} {{}}", "ahead": f"{now + 10**6} {{}}"}
    )
    ahead, old, _ = await real.views.workers()
    assert ahead == WorkerSeen("ahead", 0, {})
    assert 600_000 <= old.age < 660_000


@pytest.mark.parametrize("info", [b"", b"{", b"[1]", b"7", b"\xff", b"null"])
async def test_what_cannot_be_read_of_a_worker_is_left_out(
    real: Store, raw: Redis, info: bytes
) -> None:
    now = await real.beat_worker("w1", info)
    await raw.hset(WORKERS, mapping={"odd": info, b"\xff": b"%d {}" % now})
    found = await real.views.workers()
    assert {one.name: one.info for one in found} == {"w1": {}, "\\xff": {}}
