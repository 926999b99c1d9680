"""The endpoint of a real worker on a real server: right counts, health and readiness."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import InvalidInput, MessageQueue, Worker
from mx_rmq.core import events
from mx_rmq.metrics import Endpoint
from tests.lab.servers import Kind, Server
from tests.metrics.asking import get, metrics
from tests.runtime.stage import Seen, on_a_server, queue, until, until_so

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from redis.asyncio import Redis

pytestmark = on_a_server


@pytest.fixture
async def mq(raw: Redis, server: Server) -> AsyncIterator[MessageQueue]:
    async with queue(server.url) as mq:
        yield mq


async def test_what_became_of_messages_is_shown_as_it_was(mq: MessageQueue) -> None:
    @mq.handler("t", max_attempts=2, retry=0)
    async def handle(payload: int) -> None:
        await asyncio.sleep(0.01)
        if payload == 1:
            raise ValueError("no")

    @mq.handler("typed")
    async def typed(payload: int) -> None: ...

    await mq.produce_many("t", range(20))
    await mq.produce("typed", "not a number")
    worker = Worker(mq)
    async with Endpoint(worker, port=0) as endpoint:
        await worker.drain(delayed=True)
        shown = await metrics(endpoint.port)
    outcomes = {
        (topic, outcome): shown[f"mx_rmq_messages_total{{outcome={outcome},topic={topic}}}"]
        for topic in ("t", "typed")
        for outcome in ("completed", "retried", "dead", "quarantined", "released")
    }
    assert {one: count for one, count in outcomes.items() if count} == {
        ("t", "completed"): 19,
        ("t", "retried"): 1,
        ("t", "dead"): 1,
        ("typed", "quarantined"): 1,
    }
    assert shown["mx_rmq_handler_seconds_count{topic=t}"] == 21
    assert shown["mx_rmq_handler_seconds_bucket{le=0.005,topic=t}"] == 0
    assert shown["mx_rmq_handler_seconds_sum{topic=t}"] >= 0.21
    assert shown["mx_rmq_queue_seconds_count{topic=t}"] == 21
    assert shown["mx_rmq_handler_seconds_count{topic=typed}"] == 0
    assert shown["mx_rmq_concurrency"] == 100
    assert shown["mx_rmq_server_away"] == 0
    assert shown["process_resident_memory_bytes"] > 1_000_000
    assert any(name.startswith("mx_rmq_worker_info{") and worker.name in name for name in shown)


async def test_what_runs_is_shown_while_it_runs(mq: MessageQueue) -> None:
    go = asyncio.Event()

    @mq.handler("t")
    async def handle(payload: int) -> None:
        await go.wait()

    await mq.produce_many("t", range(3))
    worker, seen = Worker(mq, concurrency=2), Seen(mq.events)
    async with Endpoint(worker, port=0) as endpoint, worker:
        await until(lambda: worker.running == 2)
        shown = await metrics(endpoint.port)
        assert (shown["mx_rmq_running"], shown["mx_rmq_ready"]) == (2, 1)
        assert shown["mx_rmq_held"] >= 2
        go.set()
        await seen.wait(events.Completed, 3)
        await until(lambda: not worker.held)
        shown = await metrics(endpoint.port)
        assert (shown["mx_rmq_running"], shown["mx_rmq_held"]) == (0, 0)


async def test_a_wait_counts_from_when_a_message_was_due(mq: MessageQueue) -> None:
    due: dict[str, float] = {}
    begun: dict[str, float] = {}

    @mq.handler("t", retry=0.5)
    async def handle(payload: str) -> None:
        begun[payload] = time.time()
        if payload == "again" and "again" not in due:
            due["again"] = time.time() + 0.5
            raise ValueError

    seen = Seen(mq.events)
    due["at once"] = time.time()
    ids = {await mq.produce("t", "at once"): "at once"}
    await asyncio.sleep(0.5)  # it is the waiting that is measured
    due["later"] = due["then"] = time.time() + 0.5
    ids[await mq.produce("t", "later", delay=0.5)] = "later"
    ids[await mq.produce("t", "then", at=due["then"])] = "then"
    ids[await mq.produce("t", "again")] = "again"
    async with Worker(mq):
        done = await seen.wait(events.Completed, 4)
    waits = {ids[event.id]: event.waited or 0 for event in done}
    for payload, waited in waits.items():  # clocks that count milliseconds
        assert waited <= begun[payload] - due[payload] + 0.01, payload
    assert waits["at once"] >= 0.49  # the one that waited for a worker


async def test_a_refused_outcome_is_shown_as_stale(mq: MessageQueue, raw: Redis) -> None:
    @mq.handler("t")
    async def handle(payload: int) -> None:
        await raw.hset(mq.store.keys.of("t").processing, held[0], "1:somebody-else")

    held = [await mq.produce("t", 1)]
    worker, seen = Worker(mq), Seen(mq.events)
    async with Endpoint(worker, port=0) as endpoint, worker:
        await seen.one(events.LeaseLost, refused="completed")
        shown = await metrics(endpoint.port)
    assert shown["mx_rmq_stale_settles_total{outcome=completed,topic=t}"] == 1
    assert shown["mx_rmq_leases_lost_total{topic=t}"] == 1
    assert shown["mx_rmq_messages_total{outcome=completed,topic=t}"] == 0


# health and readiness


async def ready(endpoint: Endpoint) -> tuple[int, str]:
    reply = await get(endpoint.port, "/readyz")
    return reply.status, reply.body


async def test_a_worker_is_ready_from_its_start_until_it_is_told_to_stop(mq: MessageQueue) -> None:
    go = asyncio.Event()

    @mq.handler("t")
    async def handle(payload: int) -> None:
        await go.wait()

    await mq.produce("t", 1)
    worker = Worker(mq)
    async with Endpoint(worker, port=0) as endpoint:
        assert await ready(endpoint) == (503, "the worker has not started\n")
        assert (await get(endpoint.port, "/healthz")).status == 200
        await worker.start()
        assert await ready(endpoint) == (200, "ready\n")
        await until(lambda: worker.running)
        stopping = asyncio.create_task(worker.stop())
        await until_so(lambda: _says(endpoint, (503, "the worker is stopping\n")))
        assert (await metrics(endpoint.port))["mx_rmq_ready"] == 0
        assert (await get(endpoint.port, "/healthz")).body == "alive\n"
        go.set()
        assert await stopping
        assert await ready(endpoint) == (503, "the worker has not started\n")


async def _says(endpoint: Endpoint, expected: tuple[int, str]) -> bool:
    return await ready(endpoint) == expected


async def test_readiness_and_metrics_tell_when_the_server_is_away_and_back(
    kind: Kind, short_path: Path
) -> None:
    with Server(kind, short_path) as server:
        async with queue(server.url, patience=1.0) as mq:

            @mq.handler("t")
            async def handle(payload: Any) -> None: ...

            worker = Worker(mq)
            async with Endpoint(worker, port=0) as endpoint, worker:
                assert await ready(endpoint) == (200, "ready\n")
                assert (await metrics(endpoint.port, "/metrics/depth"))["mx_rmq_depth_up"] == 1
                server.kill()
                await until_so(lambda: _says(endpoint, (503, "the server is unreachable\n")))
                shown = await metrics(endpoint.port)
                assert (shown["mx_rmq_server_away"], shown["mx_rmq_ready"]) == (1, 0)
                assert (await get(endpoint.port, "/healthz")).status == 200
                server.start()
                await until_so(lambda: _says(endpoint, (200, "ready\n")))
                shown = await metrics(endpoint.port)
                assert (shown["mx_rmq_server_away"], shown["mx_rmq_reconnects_total"]) == (0, 1)
                assert shown["mx_rmq_server_away_seconds_total"] > 0


# depth


async def test_the_depth_of_all_topics_is_a_page_of_its_own(mq: MessageQueue) -> None:
    @mq.handler("t", partitions=2)
    async def handle(payload: int) -> None: ...

    @mq.handler("u")
    async def other(payload: int) -> None: ...

    worker = Worker(mq, topics=["t"])
    async with Endpoint(worker, port=0) as endpoint, worker:
        await mq.produce("u", 1)
        await mq.admin.pause("t")
        await mq.produce_many("t", range(5))
        shown = await metrics(endpoint.port, "/metrics/depth")
    assert shown["mx_rmq_depth{state=pending,topic=t}"] == 5
    assert shown["mx_rmq_depth{state=dead,topic=t}"] == 0
    assert shown["mx_rmq_oldest_pending_seconds{topic=t}"] >= 0
    assert (shown["mx_rmq_paused{topic=t}"], shown["mx_rmq_partitions{topic=t}"]) == (1, 2)
    assert shown["mx_rmq_workers{state=alive}"] == 1
    assert shown["mx_rmq_topic_workers{topic=t}"] == 1
    assert shown["mx_rmq_depth{state=pending,topic=u}"] == 1  # of which nobody else would tell
    assert shown["mx_rmq_topic_workers{topic=u}"] == 0
    assert "mx_rmq_messages_total{outcome=completed,topic=t}" not in shown


# where


def test_it_needs_a_port(mq: MessageQueue) -> None:
    with pytest.raises(InvalidInput, match=r"^no port for the metrics: pass one, or"):
        Endpoint(Worker(mq))
    assert Endpoint(Worker(mq, metrics_port=9464)).url == "http://127.0.0.1:9464/metrics"
    assert Endpoint(Worker(mq), port=1, host="::1").url == "http://[::1]:1/metrics"
