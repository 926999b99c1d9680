"""What a message takes of the server's memory, and what is left when it is gone."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import TYPE_CHECKING, Final

import pytest

from bench.own.load import PAYLOAD
from tests.cost.meter import Handlers, Stopwatch
from tests.lab.servers import Kind
from tests.runtime.stage import on_servers, queue

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from tests.lab.servers import Server

LIMITS: Final = {Kind.VALKEY_9_1: 420, Kind.REDIS_7_0: 480}
"""Bytes that a pending message with a payload of 200 bytes may take."""

WITH_KEY: Final = 400
"""Bytes that it may take in addition if it is the only one of its key."""

RECEIPTS: Final = 31 * 1024
"""Bytes that the receipts may take after a drain: the last answer of each lane, up to 5 KB."""

ENTRY: Final = 1200
"""Bytes that an entry of the history may take, which is about up to 25 messages: 700, and its share
of the stream's nodes, which are of 4 to 4.6 KB whether full or not, and go only as a whole."""

COUNTERS: Final = 1024
"""Bytes that all other keys may take after a drain; a byte for each message would be twenty times
as much."""


async def memory(raw: Redis) -> int:
    """Return the bytes of the server's data, when all that was deleted has been given back."""
    while True:
        info = await raw.info("memory")
        if not info.get("lazyfree_pending_objects"):
            return int(info["used_memory"])
        await asyncio.sleep(0.01)


async def keys_memory(raw: Redis) -> Counter[str]:
    """Return the bytes of all keys by kind; what clients and the allocator keep is not in it."""
    taken: Counter[str] = Counter()
    async for key in raw.scan_iter():
        kind = re.fullmatch(r"mx-rmq:\{t\}:(receipt|history)(:.+)?", key.decode())
        taken[kind[1] if kind else "other"] += await raw.memory_usage(key, samples=0) or 0
    return taken


@on_servers
async def test_a_pending_message_takes_little_memory(
    raw: Redis, server: Server, kind: Kind
) -> None:
    async with queue(server.url) as mq:
        await mq.produce_many("t", [PAYLOAD])  # connections are made, scripts are loaded
        before = await memory(raw)
        await mq.produce_many("t", [PAYLOAD] * 20_000)
        taken = (await memory(raw) - before) / 20_000
    assert taken <= LIMITS[kind], (
        f"a pending message takes {taken:.0f} bytes, the limit is {LIMITS[kind]}. "
        "If the change is meant, move the limit in LIMITS in the same commit and say why."
    )


@on_servers
@pytest.mark.parametrize("history", [0, 50])
async def test_what_is_left_after_a_drain_does_not_depend_on_how_much_there_was(
    raw: Redis, server: Server, monkeypatch: pytest.MonkeyPatch, history: int
) -> None:
    async with queue(server.url, history=history) as mq:
        handlers = Handlers(mq, Stopwatch(monkeypatch))
        handlers.declare("t")
        for count in (5_000, 20_000):  # 50 entries of a history are full long before
            await mq.produce_many("t", [PAYLOAD] * count)
            await handlers.handle(count, ["t"])
            left = await keys_memory(raw)
            assert left["receipt"] <= RECEIPTS, f"after {count:,} messages: {left}"
            assert left["history"] <= history * ENTRY, f"after {count:,} messages: {left}"
            assert left["other"] <= COUNTERS, f"after {count:,} messages: {left}"


@on_servers
async def test_an_idle_key_takes_nothing(
    raw: Redis, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with queue(server.url, history=0) as mq:
        handlers = Handlers(mq, Stopwatch(monkeypatch))
        handlers.declare("t")
        keys = [f"tenant-{number}" for number in range(2_000)]
        await mq.produce_many("t", [PAYLOAD] * 2_000, keys=keys)
        await handlers.handle(2_000, ["t"])
        left = {key.decode() async for key in raw.scan_iter("mx-rmq:{t}:*")}
        assert await raw.hkeys("mx-rmq:{t}:keyed") == [b"!"]  # the last number given out
    named = {f"mx-rmq:{{t}}:{name}" for name in ("lines", "ring", "blocked", "running", "buckets")}
    assert not left & named


@on_servers
async def test_a_waiting_key_takes_a_bounded_amount(raw: Redis, server: Server, kind: Kind) -> None:
    async with queue(server.url, history=0) as mq:
        await mq.produce_many("t", [PAYLOAD], keys=["first"])
        before = await memory(raw)
        keys = [f"tenant-{number:07d}" for number in range(20_000)]
        await mq.produce_many("t", [PAYLOAD] * 20_000, keys=keys)
        taken = (await memory(raw) - before) / 20_000
    limit = LIMITS[kind] + WITH_KEY
    assert taken <= limit, f"a message with a key of its own takes {taken:.0f} B, limit {limit}"
