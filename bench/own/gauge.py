"""A server's own counters: commands, time, memory. Nothing here changes anything."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Self

from mx_rmq.net.caller import REPLY_WITHIN, Caller
from mx_rmq.net.url import connect
from mx_rmq.store.script import load, names
from mx_rmq.store.store import PATIENCE


@dataclass(frozen=True, slots=True)
class Reading:
    """The server's counters at one moment, over all its clients."""

    calls: int
    """Commands that clients sent, without commands inside scripts and our own INFO."""
    busy: int
    """Microseconds spent in them."""
    cpu: float
    """Seconds of CPU time, over all threads."""
    memory: int
    """Bytes used by data and clients."""
    freeing: int
    """Deleted keys whose memory is not freed yet."""


@dataclass(frozen=True, slots=True)
class Nature:
    """What kind of server it is."""

    name: str
    version: str
    persists: bool
    """Whether it keeps an append-only file."""
    memory: int
    maxmemory: int
    """Bytes; 0: no limit."""
    nodes: int = 1
    """Servers that hold keys; the other fields describe the first of them."""


class Gauge:
    """A separate connection for reading a server's counters."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._keys = caller.servers.key_of_each(lambda number: f"{{{number}}}")

    @classmethod
    async def open(cls, url: str, *, patience: float = PATIENCE) -> Self:
        """Connect. `embedded://DIR` starts a server, or joins the running one."""
        servers = await connect(url)
        reply_within = min(REPLY_WITHIN, max(1.0, patience))
        return cls(Caller(servers, patience=patience, reply_within=reply_within))

    async def nature(self) -> Nature:
        """Return what kind of server it is."""
        info, *_ = await self._info()
        valkey = info.get("valkey_version")
        return Nature(
            name="Valkey" if valkey else "Redis",
            version=str(valkey or info.get("redis_version", "of an unknown version")),
            persists=bool(info.get("aof_enabled")),
            memory=int(info.get("used_memory", 0)),
            maxmemory=int(info.get("maxmemory", 0)),
            nodes=len(self._keys),
        )

    async def read(self) -> Reading:
        """Return the counters, summed over all nodes."""
        readings = [_reading(info) for info in await self._info("ALL")]
        return Reading(
            calls=sum(one.calls for one in readings),
            busy=sum(one.busy for one in readings),
            cpu=sum(one.cpu for one in readings),
            memory=sum(one.memory for one in readings),
            freeing=sum(one.freeing for one in readings),
        )

    async def busy(self) -> int:
        """Return only the microseconds: cheaper, for a stopwatch."""
        return sum(_work(info)[1] for info in await self._info("COMMANDSTATS"))

    async def _info(self, *sections: str) -> list[dict[str, Any]]:
        """Return the INFO of each node."""
        return [await self._caller.command("INFO", *sections, at=key) for key in self._keys]

    async def close(self) -> None:
        """Close the connection; stop the server if we started it."""
        self._caller.closed = True
        await self._caller.servers.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _reading(info: dict[str, Any]) -> Reading:
    calls, busy = _work(info)
    return Reading(
        calls=calls,
        busy=busy,
        cpu=float(info["used_cpu_user"]) + float(info["used_cpu_sys"]),
        memory=int(info["used_memory"]),
        freeing=int(info.get("lazyfree_pending_objects", 0)),
    )


def _work(info: dict[str, Any]) -> tuple[int, int]:
    """Return how many commands clients sent, and the microseconds spent in them.

    Commands that our scripts use are left out: their work is already counted in EVALSHA.
    """
    calls = busy = 0
    for name, found in info.items():
        stat, _, command = name.partition("_")
        if stat == "cmdstat" and command.partition("|")[0] not in _inside():
            calls += int(found["calls"])
            busy += int(found["usec"])
    return calls, busy


@cache
def _inside() -> frozenset[str]:
    """Return the commands that our scripts call, except the preflight, and INFO."""
    every = (load(name).commands for name in names() if name != "preflight")
    return frozenset(command.lower() for commands in every for command in commands) | {"info"}
