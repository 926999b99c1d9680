"""Plays one role of one queue, in that queue's own environment.

    python -m bench.child ADAPTER produce MESSAGES WARM_UP CALLERS
    python -m bench.child ADAPTER produce_many MESSAGES
    python -m bench.child ADAPTER paced MESSAGES WARM_UP INTERVAL DELAY
    python -m bench.child ADAPTER call MESSAGES WARM_UP CALLERS SECONDS
    python -m bench.child ADAPTER work CONCURRENCY
    python -m bench.child ADAPTER describe

The last line it prints is JSON. Only the standard library and the queue are imported.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import json
import logging
import platform
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from bench.adapter import BaseAdapter, run
from bench.handler import record
from bench.payload import payload

if TYPE_CHECKING:
    from collections.abc import Awaitable

WARM_UP_SECONDS = 30


async def produce(
    adapter: BaseAdapter, messages: int, warm_up: int, callers: int
) -> dict[str, Any]:
    """Produce one by one, by one caller or by several at once."""
    await adapter.open()
    for index in range(warm_up):
        await adapter.produce(payload(index))
    shares = [
        [payload(index) for index in range(caller, messages, callers)] for caller in range(callers)
    ]

    async def caller(share: list[dict[str, Any]]) -> None:
        for each in share:
            await adapter.produce(each)

    async def all_of_them() -> None:
        if callers == 1:
            await caller(shares[0])
        else:
            await asyncio.gather(*(caller(share) for share in shares))

    measured = await _timed(all_of_them())
    await adapter.close()
    return measured


async def produce_many(adapter: BaseAdapter, messages: int) -> dict[str, Any]:
    """Produce in bulk."""
    await adapter.open()
    chunks = [
        [payload(index) for index in range(start, min(messages, start + adapter.chunk))]
        for start in range(0, messages, adapter.chunk)
    ]

    async def all_of_them() -> None:
        for chunk in chunks:
            await adapter.produce_many(chunk)

    measured = await _timed(all_of_them())
    await adapter.close()
    return measured


async def paced(
    adapter: BaseAdapter, messages: int, warm_up: int, interval: float, delay: float
) -> dict[str, Any]:
    """Produce one every `interval` seconds, and note when."""
    noted = record()
    await adapter.open()
    for index in range(warm_up):
        await adapter.produce(payload(index))
        await asyncio.sleep(0.02)
    deadline = time.monotonic() + WARM_UP_SECONDS
    while not all(noted.flags[:warm_up]) and time.monotonic() < deadline:  # noqa: ASYNC110 - a file
        await asyncio.sleep(0.01)
    began = time.monotonic() + 0.05
    for number in range(messages):
        await asyncio.sleep(max(0, began + number * interval - time.monotonic()))
        each = payload(warm_up + number)
        noted.produced[warm_up + number] = time.monotonic_ns()
        if delay:
            await adapter.produce_delayed(each, delay)
        else:
            await adapter.produce(each)
    await adapter.close()
    return {}


async def call(
    adapter: BaseAdapter, messages: int, warm_up: int, callers: int, seconds: float
) -> dict[str, Any]:
    """Produce and wait for the result, one by one, by one caller or by several at once.

    Blocking callers are threads. After `seconds` no caller starts another round trip.
    """
    await adapter.open()
    if callers > 1:
        adapter.poll *= 5  # the best for a hundred of them
    took: list[float] = []

    async def caller(indexes: range, until: float) -> None:
        for index in indexes:
            began = time.monotonic()
            if began > until:
                break
            assert await adapter.call(payload(index)) == index
            took.append(time.monotonic() - began)

    with ThreadPoolExecutor(callers) as threads:

        async def all_of_them(first: int, last: int, within: float) -> None:
            until = time.monotonic() + within
            work = [caller(range(first + one, last, callers), until) for one in range(callers)]
            if not adapter.is_async and callers > 1:
                run_in = asyncio.get_running_loop().run_in_executor
                await asyncio.gather(*(run_in(threads, asyncio.run, one) for one in work))
            else:
                await asyncio.gather(*work)

        await all_of_them(0, warm_up, WARM_UP_SECONDS)
        took.clear()
        measured = await _timed(all_of_them(warm_up, warm_up + messages, seconds))
    await adapter.close()
    took.sort()
    return {
        **measured,
        "messages": len(took),
        "p50": took[len(took) // 2] * 1000,
        "p99": took[int(len(took) * 0.99)] * 1000,
    }


def describe(adapter: BaseAdapter) -> dict[str, Any]:
    """Print what this is, and its settings."""
    versions = {}
    for package in (*adapter.packages, "redis", "hiredis", "uvloop"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "runtime": f"Python {platform.python_version()}",
        "versions": versions,
        "concurrency": adapter.concurrency,
        "settings": adapter.settings,
        "bulk": adapter.bulk,
        "results": adapter.results,
        "is_async": adapter.is_async,
        "has_delay": adapter.has_delay,
    }


async def _timed(work: Awaitable[None]) -> dict[str, Any]:
    began, cpu = time.monotonic(), time.process_time()
    await work
    return {"seconds": time.monotonic() - began, "cpu": time.process_time() - cpu}


def main() -> None:
    logging.basicConfig(level=logging.WARNING)
    name, role, *rest = sys.argv[1:]
    adapter: BaseAdapter = importlib.import_module(f"bench.adapters.{name}").Adapter()
    if role == "work":
        adapter.work(int(rest[0]) or adapter.concurrency)
        return
    if role == "produce":
        result = run(produce(adapter, *map(int, rest)))
    elif role == "produce_many":
        result = run(produce_many(adapter, int(rest[0])))
    elif role == "paced":
        messages, warm_up, interval, delay = rest
        result = run(paced(adapter, int(messages), int(warm_up), float(interval), float(delay)))
    elif role == "call":
        messages, warm_up, callers, seconds = rest
        result = run(call(adapter, int(messages), int(warm_up), int(callers), float(seconds)))
    else:
        result = describe(adapter)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
