"""Removing all that is stored under a prefix. For tests and benchmarks: nothing else forgets."""

from __future__ import annotations

from mx_rmq.store.connect import connect
from mx_rmq.store.keys import Keys


async def wipe(url: str, prefix: str) -> None:
    """Remove every key under a prefix. It looks at all keys of the servers."""
    keys = Keys(prefix)  # refuses one that would match those of others
    servers = await connect(url)
    try:
        for node in servers.nodes():
            client = node.client
            async for key in client.scan_iter(f"{keys.prefix}:*", count=1000):
                await client.unlink(key)
    finally:
        await servers.close()
