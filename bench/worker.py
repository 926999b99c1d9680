"""What a worker does in a second, how late it is, and what an idle one costs the server."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from redis.asyncio import Redis

from mx_rmq import Delivery, MessageQueue, Worker

PAYLOAD = {"order": 42, "text": "x" * 170}
TOPIC = "bench"


async def measure_worker(url: str, *, messages: int, idle: float) -> None:
    """Print throughput, latency, lateness and the commands of an idle worker."""
    await _throughput(url, messages)
    await _lateness(url)
    for topics in (1, 200):
        await _idle(url, topics, idle)


async def _throughput(url: str, messages: int) -> None:
    mq = MessageQueue(url)

    @mq.handler(TOPIC)
    async def nothing(payload: dict[str, Any]) -> None: ...

    async with mq:
        began = time.perf_counter()
        await mq.produce_many(TOPIC, [PAYLOAD] * messages)
        many = messages / (time.perf_counter() - began)

        async def caller() -> None:
            for _ in range(messages // 500):
                await mq.produce(TOPIC, PAYLOAD)

        began = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(100)))
        together = messages // 500 * 100 / (time.perf_counter() - began)
        began = time.perf_counter()
        for _ in range(messages // 50):
            await mq.produce(TOPIC, PAYLOAD)
        alone = messages // 50 / (time.perf_counter() - began)
        waiting = (await mq.admin.stats(TOPIC)).pending
        began, cpu = time.perf_counter(), time.process_time()
        await Worker(mq).drain()
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    print(f"produce_many            {many:10,.0f} /s")
    print(f"produce, 100 callers    {together:10,.0f} /s")
    print(f"produce, one caller     {alone:10,.0f} /s")
    print(f"drain, async no-op      {waiting / seconds:10,.0f} /s")
    print(f"worker CPU              {cpu / waiting * 1e6:10.1f} ms per 1,000")


async def _lateness(url: str) -> None:
    started: dict[str, float] = {}
    mq = MessageQueue(url)

    @mq.handler(TOPIC)
    async def note(payload: dict[str, Any], delivery: Delivery) -> None:
        started[delivery.id] = time.time()

    async with mq, Worker(mq):
        late = []
        for _ in range(500):
            began = time.time()
            id = await mq.produce(TOPIC, PAYLOAD)
            await _until(started, id)
            late.append(started[id] - began)
        _print("latency, idle worker", late)
        due = {}
        for number in range(200):
            delay = 0.5 + number * 0.013
            due[await mq.produce(TOPIC, PAYLOAD, delay=delay)] = time.time() + delay
        for id in due:
            await _until(started, id)
        _print("delayed: late", [started[id] - at for id, at in due.items()])


async def _idle(url: str, topics: int, seconds: float) -> None:
    mq = MessageQueue(url)

    async def nothing(payload: dict[str, Any]) -> None: ...

    for number in range(topics):
        mq.handler(f"idle-{number}")(nothing)
    raw = Redis.from_url(url)
    async with mq, Worker(mq):
        await asyncio.sleep(2)  # until it has settled down
        before, cpu = await _commands(raw), time.process_time()
        await asyncio.sleep(seconds)
        after, cpu = await _commands(raw), time.process_time() - cpu
    await raw.aclose()
    rate = (after - before - 1) / seconds  # without our own question
    print(
        f"idle worker, {topics:3} topics {rate:10.2f} commands/s, "
        f"{cpu / seconds * 100:.2f} % CPU (goal: below 0.5)"
    )


async def _commands(raw: Redis) -> int:
    """Return how many commands clients have sent."""
    stats: dict[str, Any] = await raw.info("commandstats")
    inside = ("evalsha", "eval", "blpop", "info", "sadd", "hdel", "client", "ping", "hello")
    return sum(
        int(found["calls"])
        for name, found in stats.items()
        if name.removeprefix("cmdstat_").split("|")[0] in inside
    )


async def _until(started: dict[str, float], id: str) -> None:
    async with asyncio.timeout(30):
        while id not in started:  # noqa: ASYNC110 - what is measured must not be waited for by more
            await asyncio.sleep(0.0005)


def _print(what: str, seconds: list[float]) -> None:
    ordered = sorted(seconds)
    p50, p99 = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]
    print(f"{what:23} {p50 * 1000:7.2f} ms p50, {p99 * 1000:.2f} ms p99")
