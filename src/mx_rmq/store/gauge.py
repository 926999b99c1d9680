"""What a server says of its own work: commands, time, memory. Nothing here changes anything."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Self

from mx_rmq.store.call import REPLY_WITHIN, Caller
from mx_rmq.store.connect import connect
from mx_rmq.store.script import load, names
from mx_rmq.store.store import PATIENCE

if TYPE_CHECKING:
    from mx_rmq.store.connect import Connection


@dataclass(frozen=True, slots=True)
class Reading:
    """The server's counters at one moment. Those of all its clients."""

    calls: int
    """Commands that clients have sent, without those that scripts run inside and our own INFO."""
    busy: int
    """Microseconds that it has spent in them."""
    cpu: float
    """Seconds of processor time, of all its threads."""
    memory: int
    """Bytes that its data and its clients take."""
    freeing: int
    """Deleted keys whose memory it has not given back yet."""


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


class Gauge:
    """A connection of its own to a server, for reading its counters."""

    def __init__(self, connection: Connection, caller: Caller) -> None:
        self._connection = connection
        self._caller = caller

    @classmethod
    async def open(cls, url: str, *, patience: float = PATIENCE) -> Self:
        """Connect. `embedded://DIR` starts its own server, or joins the running one."""
        connection = await connect(url)
        reply_within = min(REPLY_WITHIN, max(1.0, patience))
        caller = Caller(connection.client, patience=patience, reply_within=reply_within)
        return cls(connection, caller)

    async def nature(self) -> Nature:
        """Return what kind of server it is."""
        info = await self._caller.command("INFO")
        valkey = info.get("valkey_version")
        return Nature(
            name="Valkey" if valkey else "Redis",
            version=str(valkey or info.get("redis_version", "of an unknown version")),
            persists=bool(info.get("aof_enabled")),
            memory=int(info.get("used_memory", 0)),
            maxmemory=int(info.get("maxmemory", 0)),
        )

    async def read(self) -> Reading:
        """Return its counters."""
        info = await self._caller.command("INFO", "ALL")
        calls, busy = _work(info)
        return Reading(
            calls=calls,
            busy=busy,
            cpu=float(info["used_cpu_user"]) + float(info["used_cpu_sys"]),
            memory=int(info["used_memory"]),
            freeing=int(info.get("lazyfree_pending_objects", 0)),
        )

    async def busy(self) -> int:
        """Return the microseconds alone: cheaper, for a stopwatch."""
        return _work(await self._caller.command("INFO", "COMMANDSTATS"))[1]

    async def close(self) -> None:
        """Close the connection; stop the server if it was started for it."""
        self._caller.closed = True
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _work(info: dict[str, Any]) -> tuple[int, int]:
    """Return how many commands clients have sent, and the microseconds spent in them.

    A command that one of our scripts calls is taken for a script's: the server counts it there.
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
    """Return the commands that our scripts call, and INFO; the preflight's are not counted on."""
    every = (load(name).commands for name in names() if name != "preflight")
    return frozenset(command.lower() for commands in every for command in commands) | {"info"}
