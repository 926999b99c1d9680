"""How many bytes of the server's memory does a pending message take, and what stays behind?"""

from __future__ import annotations

from redis import Redis

from bench.load import PAYLOAD_BYTES, WORKER, payloads
from mx_rmq.store.store import Store

TOPIC = "order.created"
BATCH = 1_000


async def measure_memory(url: str, *, messages: int) -> None:
    """Print bytes a pending message, beside the payload's own, and what a drain leaves."""
    with Redis.from_url(url) as raw:
        raw.execute_command("FLUSHALL", "SYNC")  # else Valkey frees behind our first reading
        async with await Store.open(url) as store:
            before = _used(raw)
            for _ in range(messages // BATCH):
                await store.produce_normal_message(TOPIC, payloads(BATCH))
            pending = _used(raw) - before
            for _ in range(messages // BATCH):
                taken = await store.dispatch_message(TOPIC, WORKER, count=BATCH, lease=600_000)
                claims = [leased.claim for leased in taken.messages]
                await store.complete_message(TOPIC, WORKER, claims)
            left = _used(raw) - before
            keys = raw.dbsize()
    print(f"\nmemory of {messages:,} pending messages, payload of {PAYLOAD_BYTES} bytes")
    print(f"bytes a message: {pending / messages:.0f}, the payload's own {PAYLOAD_BYTES} included")
    print(f"left after the drain: {left:,} bytes in {keys} keys")


def _used(raw: Redis) -> int:
    return int(raw.info("memory")["used_memory"])
