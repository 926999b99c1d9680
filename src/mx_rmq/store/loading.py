"""Load our scripts on every server in advance, for users that have EVALSHA but not EVAL.

A server forgets its scripts when it restarts, and does not replicate them. So they are loaded on
every primary and on every replica, which may become a primary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from redis import exceptions as redis_errors
from redis.asyncio import Connection, ConnectionPool, Redis, SSLConnection

from mx_rmq.core.errors import ServerUnavailable
from mx_rmq.core.login import shown_url
from mx_rmq.store.connect import connect
from mx_rmq.store.script import load, names
from mx_rmq.store.servers import Node

if TYPE_CHECKING:
    from collections.abc import Sequence

_TCP: Final = frozenset(("host", "port", "path", "connection_pool"))
"""Connection options that are specific to one server."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What happened on one server."""

    server: str
    role: str
    """primary or replica."""
    scripts: int
    """How many it has now."""
    error: str = ""
    """Why it does not have them all."""


async def load_scripts(url: str, *, patience: float) -> list[Loaded]:
    """Load every script on every server of a URL. One that fails does not stop the others."""
    found: list[Loaded] = []
    within = max(1.0, patience)
    servers = await connect(url)
    try:
        for node in servers.nodes():
            one, replicas = await _load(node, "primary", node.name, within)
            found.append(one)
            found += await _load_replicas(node, replicas, within, seen={one.server})
    finally:
        await servers.close()
    if not any(one.scripts for one in found):
        why = found[0].error if found else "no node of the cluster answers"
        raise ServerUnavailable(f"cannot use {shown_url(url)}: {why}")
    return found


async def _load_replicas(
    primary: Node, addresses: Sequence[tuple[str, int]], within: float, seen: set[str]
) -> list[Loaded]:
    """Load on replicas, and on replicas of theirs."""
    found = []
    for host, port in addresses:
        name = f"{host}:{port}"
        if name in seen:
            continue
        seen.add(name)
        node = _node_like(primary, host, port)
        try:
            one, more = await _load(node, "replica", name, within)
        finally:
            await node.close()
        found.append(one)
        found += await _load_replicas(primary, more, within, seen)
    return found


async def _load(
    node: Node, role: str, name: str, within: float
) -> tuple[Loaded, list[tuple[str, int]]]:
    """Load on one server; return what happened, and where its replicas are."""
    count = 0
    try:
        for script in map(load, names()):
            await node.execute(("SCRIPT", "LOAD", script.source), within)
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
    """Return another server that is reached in the same way, with the same login."""
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
