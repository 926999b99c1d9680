"""Load our scripts on every server in advance, for users that have EVALSHA but not EVAL.

A server forgets its scripts when it restarts, and does not replicate them. So they are loaded on
every primary and every replica.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from redis import exceptions as redis_errors
from redis.asyncio import Connection, ConnectionPool, Redis, SSLConnection

from mx_rmq.core.errors import ServerUnavailable
from mx_rmq.login import shown_url
from mx_rmq.net.topology import Node
from mx_rmq.net.url import connect

if TYPE_CHECKING:
    from collections.abc import Sequence

_TCP: Final = frozenset(("host", "port", "path", "connection_pool"))  # options of one server


@dataclass(frozen=True, slots=True)
class Loaded:
    server: str
    role: str  # primary or replica
    scripts: int  # how many were loaded
    error: str = ""  # why not all were loaded


async def load_scripts(url: str, sources: Sequence[str], *, patience: float) -> list[Loaded]:
    """Load scripts on every server of a URL. One that fails does not stop the others."""
    found: list[Loaded] = []
    within = max(1.0, patience)
    servers = await connect(url)
    try:
        for node in servers.nodes():
            one, replicas = await _load(node, "primary", node.name, sources, within)
            found.append(one)
            found += await _load_replicas(node, replicas, sources, within, seen={one.server})
    finally:
        await servers.close()
    if not any(one.scripts for one in found):
        why = found[0].error if found else "no node of the cluster answers"
        raise ServerUnavailable(f"cannot use {shown_url(url)}: {why}")
    return found


async def _load_replicas(
    primary: Node,
    addresses: Sequence[tuple[str, int]],
    sources: Sequence[str],
    within: float,
    seen: set[str],
) -> list[Loaded]:
    """Load on replicas, and on their replicas."""
    found = []
    for host, port in addresses:
        name = f"{host}:{port}"
        if name in seen:
            continue
        seen.add(name)
        node = _node_like(primary, host, port)
        try:
            one, more = await _load(node, "replica", name, sources, within)
        finally:
            await node.close()
        found.append(one)
        found += await _load_replicas(primary, more, sources, within, seen)
    return found


async def _load(
    node: Node, role: str, name: str, sources: Sequence[str], within: float
) -> tuple[Loaded, list[tuple[str, int]]]:
    """Load on one server; return what happened, and where its replicas are."""
    count = 0
    try:
        for source in sources:
            await node.execute(("SCRIPT", "LOAD", source), within)
            count += 1
        info: dict[str, Any] = await node.execute(("INFO", "replication"), within)
    except (redis_errors.RedisError, OSError) as error:
        return Loaded(name, role, count, str(error)), []
    replicas = [
        (one["ip"], int(one["port"]))
        for key, one in info.items()
        if key.startswith("slave") and isinstance(one, dict)
    ]
    return Loaded(name, role, count), replicas


def _node_like(node: Node, host: str, port: int) -> Node:
    """Return another server, with the same connection options and login."""
    pool = node.client.connection_pool
    options = {name: value for name, value in pool.connection_kwargs.items() if name not in _TCP}
    encrypted = issubclass(pool.connection_class, SSLConnection)
    return Node(
        Redis.from_pool(
            ConnectionPool(
                connection_class=SSLConnection if encrypted else Connection,
                host=host,
                port=port,
                **options,
            )
        )
    )
