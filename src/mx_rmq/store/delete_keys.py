"""Delete everything under a prefix. For tests and benchmarks only."""

from __future__ import annotations

from mx_rmq.net.url import connect
from mx_rmq.store.keys import Keys


async def wipe(url: str, prefix: str) -> None:
    """Delete every key under a prefix. This scans all keys of the servers."""
    keys = Keys(prefix)  # refuses a prefix that would match other keys
    servers = await connect(url)
    try:
        for node in servers.nodes():
            client = node.client
            async for key in client.scan_iter(f"{keys.prefix}:*", count=1000):
                await client.unlink(key)
    finally:
        await servers.close()
