"""Bad data cannot fill the server: archives stay in their budget, and a produce is taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mx_rmq.core.errors import ServerFull
from mx_rmq.core.message import State
from mx_rmq.settings import Limits
from mx_rmq.store import archive_budgets as budgets
from mx_rmq.store import memory_use as memory
from mx_rmq.store.results import Placed
from tests.lab.archives import ARCHIVES, archive, archived
from tests.lab.messages import TOPIC, draft, kept, take
from tests.lab.servers import Kind, Server, chosen

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from redis.asyncio import Redis

    from mx_rmq.store.results import Leased
    from mx_rmq.store.store import Store
    from tests.lab.clock import Clock

pytestmark = pytest.mark.parametrize("kind", chosen(Kind.VALKEY_9_1), indirect=True)

MIB = 1_048_576
SPARE = 64 * MIB


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return a server whose memory these tests may shrink."""
    server = Server(Kind.VALKEY_9_1, tmp_path_factory.mktemp("small")).start()
    yield server
    server.kill()


@pytest.fixture
def server(kind: Kind, small: Server) -> Server:
    return small


@pytest.fixture
async def spare(raw: Redis) -> AsyncIterator[int]:
    """Leave 64 MiB to the queue."""
    limit = (await raw.info("memory"))["used_memory"] + SPARE
    await raw.config_set("maxmemory", limit)
    yield limit
    await raw.config_set("maxmemory", 0)


async def large(store: Store) -> Leased:
    """Produce a message of a megabyte and dispatch it."""
    await store.produce_normal_message(TOPIC, [draft("x" * 1_000_000)])
    (one,) = await take(store)
    return one


@pytest.mark.parametrize("state", ARCHIVES)
async def test_61_bad_messages_of_a_megabyte_do_not_stop_a_produce(
    store: Store, clock: Clock, spare: int, state: State
) -> None:
    for _ in range(61):
        clock.advance(1)
        assert await archive(store, state, await large(store))
    for _ in range(20):
        ((_, placed),) = await store.produce_normal_message(TOPIC, [draft("y" * 1_000_000)])
        assert placed is Placed.STORED
    counts = await store.views.counts(TOPIC)
    held = counts.dead_bytes if state is State.DEAD else counts.quarantined_bytes
    assert 4 * MIB < held <= spare * budgets.SHARE
    assert counts.overflowed == clock.now


async def test_a_share_is_divided_over_the_topics_and_follows_maxmemory(
    store: Store, raw: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budgets, "REFRESH_EVERY", 0.0)
    assert await store.budget(TOPIC, State.DEAD) == 256 * MIB
    await store.register(TOPIC)
    await store.register("large", 4)
    await raw.config_set("maxmemory", 100 * MIB)
    try:
        for part in (TOPIC, "large", "large/3"):
            assert await store.budget(part, State.DEAD) == 2 * MIB
            assert await store.budget(part, State.QUARANTINED) == 2 * MIB
        store.limits = Limits(dlq_max_bytes=40 * MIB, quarantine_max_bytes=0)
        assert await store.budget(TOPIC, State.DEAD) == 40 * MIB
        assert await store.budget("large/3", State.DEAD) == 10 * MIB
        assert await store.budget("large", State.QUARANTINED) == 0
    finally:
        await raw.config_set("maxmemory", 0)
    store.limits = Limits()
    assert await store.budget("large/3", State.DEAD) == 64 * MIB


@pytest.mark.parametrize(
    ("holder", "cure"),
    [
        (State.DEAD, "dead letters of topic orders hold 4[0-9.]+ MiB. Discard them, set a lower"),
        (State.QUARANTINED, "quarantined messages of topic orders hold 4[0-9.]+ MiB. Discard"),
        (State.COMPLETED, "results of topic orders hold 4[0-9.]+ MiB. Set a lower results_bytes"),
        (None, "waiting messages of topic orders hold 4[0-9.]+ MiB. Let workers catch up"),
    ],
)
async def test_a_refused_produce_says_what_holds_the_memory(
    raw: Redis, store: Store, holder: State | None, cure: str
) -> None:
    store.limits = Limits(dlq_max_bytes=0, quarantine_max_bytes=0, results_bytes=0)
    for _ in range(5):
        one = await large(store)
        if holder is State.COMPLETED:
            result = (one, kept(b"1" * 1_000_000, 60_000))
            assert await store.complete_with_result(TOPIC, "w1", [result], ttl=60_000)
        elif holder is not None:
            assert await archive(store, holder, one)
    await raw.config_set("maxmemory", 1)
    try:
        with pytest.raises(ServerFull, match=f"MiB used, maxmemory is 1 bytes.*; {cure}"):
            await store.produce_normal_message("other", [draft(1)])
    finally:
        await raw.config_set("maxmemory", 0)


async def test_many_refused_at_once_look_once(
    raw: Redis, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await archived(store, State.DEAD)
    await raw.config_set("maxmemory", 1)
    await raw.config_resetstat()
    try:
        for _ in range(5):
            with pytest.raises(ServerFull, match="raise maxmemory"):
                await store.produce_normal_message(TOPIC, [draft(1)])
    finally:
        await raw.config_set("maxmemory", 0)
    assert (await raw.info("commandstats"))["cmdstat_hkeys"]["calls"] == 1
    assert memory.REUSE_FOR > 1
