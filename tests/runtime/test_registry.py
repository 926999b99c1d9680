"""What a worker says of itself."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from mx_rmq import MessageQueue, Worker
from mx_rmq.admin import Doing
from mx_rmq.core.partition import partitions
from mx_rmq.runtime import registry
from tests.lab.crew import until
from tests.runtime.stage import on_a_server

if TYPE_CHECKING:
    import pytest
    from redis.asyncio import Redis

    from mx_rmq.admin import WorkerView
    from tests.lab.servers import Server

pytestmark = on_a_server


async def test_a_worker_tells_what_it_has_been_running_the_longest(
    raw: Redis, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "BEAT", 0.05)
    mq = MessageQueue(server.url)
    go_on = asyncio.Event()

    @mq.handler("orders", max_attempts=2, retry=0.001)
    async def ship(number: int) -> None:
        if number == 0 and not failed:
            failed.append(number)
            raise ValueError("once")
        await go_on.wait()

    failed: list[int] = []
    seen: WorkerView | None = None

    async def runs(count: int) -> bool:
        nonlocal seen
        (seen,) = await mq.admin.workers()
        return seen.running == count

    async with mq, Worker(mq, concurrency=50):
        first = await mq.produce("orders", 0)
        await until(lambda: runs(1))
        assert seen is not None
        (one,) = seen.doing
        name = f"{ship.__module__}.{ship.__qualname__}"
        assert (one.topic, one.id, one.attempt, one.handler) == ("orders", first, 2, name)
        assert 0 <= one.seconds < 60
        await mq.produce_many("orders", range(1, 30))
        await until(lambda: runs(30))
        assert len(seen.doing) == registry.SHOWN
        assert seen.doing[0].id == first
        spans = [one.seconds for one in seen.doing]
        assert spans == sorted(spans, reverse=True)
        go_on.set()
        await until(lambda: runs(0))
        assert seen.doing == ()


async def test_a_worker_notes_for_how_long_it_keeps_results(raw: Redis, server: Server) -> None:
    mq = MessageQueue(server.url)

    async def handle(payload: int) -> None: ...

    mq.handler("plain")(handle)
    mq.handler("broken", result_ttl=60)(handle)
    mq.handler("kept", result_ttl=60, partitions=2)(handle)
    async with mq:
        keys = mq.store.keys
        await raw.set(keys.of("broken").meta, "no hash")
        async with Worker(mq):
            noted = [await mq.store.views.result_ttl(part) for part in partitions("kept", 2)]
        assert noted == [60_000, 60_000]
        assert not await raw.exists(keys.of("plain").meta)


async def test_what_a_worker_says_is_read_as_far_as_it_goes(raw: Redis, server: Server) -> None:
    good = {"topic": "a", "id": "1", "handler": "h", "attempt": 1, "seconds": 2}
    bad = [5, {}, {**good, "attempt": "x"}, {**good, "seconds": None}]
    async with MessageQueue(server.url) as mq:
        await mq.store.beat_worker("w1", msgspec.json.encode({"doing": [good, *bad]}))
        await mq.store.beat_worker("w2", msgspec.json.encode({"doing": 7}))
        first, second = await mq.admin.workers()
    assert first.doing == (Doing(topic="a", id="1", handler="h", attempt=1, seconds=2.0),)
    assert second.doing == ()
