"""What a message takes of the server's memory, and what is left when it is gone."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import pytest

from mx_rmq.bench.load import PAYLOAD
from tests.cost.meter import Handlers, Stopwatch
from tests.lab.servers import Kind
from tests.runtime.stage import on_servers, queue

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from tests.lab.servers import Server

LIMITS: Final = {Kind.VALKEY_9_1: 420, Kind.REDIS_7_0: 480}
"""Bytes that a pending message with a payload of 200 bytes may take."""

LEFT: Final = 32 * 1024
"""Bytes that the keys may take after a drain: counters, and the last answer of each lane."""

ENTRY: Final = 700
"""Bytes that an entry of the history may take, which is about up to 25 messages."""

DRIFT: Final = 8 * 1024
"""Bytes by which that may differ between few messages and many."""


async def memory(raw: Redis) -> int:
    """Return the bytes of the server's data, when all that was deleted has been given back."""
    while True:
        info = await raw.info("memory")
        if not info.get("lazyfree_pending_objects"):
            return int(info["used_memory"])
        await asyncio.sleep(0.01)


async def keys_memory(raw: Redis) -> int:
    """Return the bytes of all keys together; what clients and the allocator keep is not in it."""
    return sum([await raw.memory_usage(key, samples=0) or 0 async for key in raw.scan_iter()])


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
    limit = LEFT + history * ENTRY  # 50 entries are full long before 5,000 are handled
    async with queue(server.url, history=history) as mq:
        handlers = Handlers(mq, Stopwatch(monkeypatch))
        handlers.declare("t")
        left = []
        for count in (5_000, 20_000):
            await mq.produce_many("t", [PAYLOAD] * count)
            await handlers.handle(count, ["t"])
            left.append(await keys_memory(raw))
    few, many = left
    assert max(left) <= limit, f"{max(left):,} bytes stay after a drain, the limit is {limit:,}"
    assert many - few <= DRIFT, (
        f"after 20,000 messages {many:,} bytes stay, after 5,000 {few:,}: it shall not grow"
    )
