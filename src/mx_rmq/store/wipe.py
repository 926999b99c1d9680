"""Removing all that is stored under a prefix. For tests alone: nothing else forgets messages."""

from __future__ import annotations

from mx_rmq.store.connect import connect
from mx_rmq.store.keys import Keys


async def wipe(url: str, prefix: str) -> None:
    """Remove every key under a prefix. It looks at all keys of the server."""
    keys = Keys(prefix)  # refuses one that would match those of others
    connection = await connect(url)
    try:
        client = connection.client
        found = [key async for key in client.scan_iter(f"{keys.prefix}:*", count=1000)]
        if found:
            await client.unlink(*found)
    finally:
        await connection.close()
