"""Reads: the time, the topics, counts, the workers. Nothing here changes anything."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mx_rmq.core.partition import partitions_of
from mx_rmq.store.archive_budgets import OVERHEAD
from mx_rmq.store.history import History
from mx_rmq.store.line_reads import LineReads
from mx_rmq.store.messages import Pages
from mx_rmq.store.preflight import AWAY
from mx_rmq.store.results import decoded, subscriptions_in, wait_of
from mx_rmq.store.wait_reads import WaitReads

if TYPE_CHECKING:
    from mx_rmq.store.store import Store


WORKERS_PER_STEP: Final = 100  # workers read at a time, about: each may describe twenty handlers


@dataclass(frozen=True, slots=True)
class Counts:
    """How many messages of a topic are in each state, and what else is counted."""

    pending: int
    delayed: int
    processing: int
    dead: int
    quarantined: int
    completed: int  # kept results
    paused: int  # 1 if dispatch is paused
    dropped: int  # ids without a message dropped so far. Above 0: another program wrote to the keys
    delayed_overdue: int | None
    """How many ms ago the first delayed message was due; None: none is due."""
    lease_overdue: int | None  # how many ms ago the first lease ran out; None: none has
    ever: dict[str, int]  # what happened, and to how many messages, since the topic was created
    waiting: int = 0  # for signals
    dead_bytes: int = 0
    quarantined_bytes: int = 0
    completed_bytes: int = 0
    """What the archives use of their budgets. For archives filled by an older release, the bytes
    are unknown until a worker has counted them."""
    overflowed: int | None = None
    """When an archive last dropped messages to stay within its bytes, ms; None: never."""
    subscriptions: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        live = self.pending + self.delayed + self.waiting + self.processing
        return live + self.dead + self.quarantined


@dataclass(frozen=True, slots=True)
class WorkerSeen:
    """A worker, as of its last heartbeat."""

    name: str
    age: int  # how long ago that was by the server's clock, ms
    info: dict[str, Any]  # what it reported about itself; empty if that cannot be decoded


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerView:
    """How full a server is, and whether it persists its data."""

    name: str  # its address
    memory: int  # bytes in use
    maxmemory: int  # the limit in bytes; 0: none is set
    aof: bool  # whether it keeps an append-only file
    aof_write_ok: bool
    """Whether the last write to that file succeeded; if not, the server refuses writes."""
    aof_rewrite_ok: bool
    snapshot_ok: bool  # whether the last rewrite and the last snapshot succeeded
    delayed_fsyncs: int  # how often it had to wait for the disk since it started
    evicted: int  # keys evicted to free memory since it started
    replicas: int
    behind: int  # how many bytes the slowest replica is behind


class Views:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._caller = store.caller
        self._keys = store.keys
        self.pages = Pages(store)
        self.lines = LineReads(store)
        self.waits = WaitReads(store)
        self.history = History(store.caller, store.keys)

    async def now(self, topic: str | None = None) -> int:
        """Return the time of a topic's server, ms; None: of the server with the registry."""
        key = self._keys.topics if topic is None else self._keys.of(topic).payload
        return await self._store.time(key)

    async def topics(self) -> list[str]:
        """Return every topic that was ever produced to, sorted."""
        members = await self._caller.command("HKEYS", self._keys.topics)
        return sorted(member.decode("utf-8", "backslashreplace") for member in members)

    async def waiting(self, topic: str, start: int, count: int) -> list[str]:
        """Return ids of messages that wait for signals, those that wait longest first."""
        ids = await self._caller.command(
            "ZRANGE", self._keys.of(topic).waiting, start, start + count - 1
        )
        return [decoded(id) for id in ids]

    async def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has; 0: it was never produced to."""
        count = await self._caller.command("HGET", self._keys.topics, topic)
        return 0 if count is None else partitions_of(count)

    async def counts(self, topic: str) -> Counts:
        """Return how many messages are in each state, read atomically."""
        reply = await self._store.run("count_messages", topic, {})
        *numbers, due, deadline, kept, listed, ever = reply
        pending, delayed, waiting, processing, dead, quarantined, completed, paused, dropped = (
            numbers
        )
        fields = iter(ever)
        return Counts(
            pending=pending,
            delayed=delayed,
            waiting=waiting,
            processing=processing,
            dead=dead,
            quarantined=quarantined,
            completed=completed,
            paused=paused,
            dropped=dropped,
            delayed_overdue=wait_of(due),
            lease_overdue=wait_of(deadline),
            dead_bytes=_number(kept[0]) + OVERHEAD * dead,
            quarantined_bytes=_number(kept[1]) + OVERHEAD * quarantined,
            completed_bytes=_number(kept[2]) + OVERHEAD * completed,
            overflowed=max(map(_number, kept[3:])) or None,
            subscriptions=tuple(subscriptions_in(listed)),
            ever={
                what.decode("utf-8", "replace"): int(number)
                for what, number in zip(fields, fields, strict=True)
                if number.isdigit()
            },
        )

    async def result_ttl(self, topic: str) -> int | None:
        """Return for how long a topic's results are kept, ms; None: they never were."""
        ttl = await self._caller.command("HGET", self._keys.of(topic).meta, "result_ttl")
        return _number(ttl) or None

    async def record(self, topic: str, id: str) -> bytes | None:
        data: bytes | None = await self._caller.command("HGET", self._keys.of(topic).payload, id)
        return data

    async def workers(self) -> list[WorkerSeen]:
        entries: dict[bytes, bytes] = {}
        cursor = 0
        while True:
            words = (self._keys.workers, cursor, "COUNT", WORKERS_PER_STEP)
            cursor, some = await self._caller.command("HSCAN", *words)
            entries.update(some)
            if cursor == 0:
                break
        now = await self._store.time(self._keys.workers)
        found = []
        for name, entry in sorted(entries.items()):
            seen, space, info = entry.partition(b" ")
            if space and seen.isdigit():
                age = max(0, now - int(seen))
                found.append(WorkerSeen(name.decode("utf-8", "backslashreplace"), age, _info(info)))
        return found

    async def servers(self) -> list[ServerView]:
        """Return the state of each reachable server. ScriptFailed: the user may not run INFO."""
        keys = self._caller.servers.key_of_each(self._keys.scratch)
        found = await asyncio.gather(*map(self._server, keys), return_exceptions=True)
        for one in found:
            if isinstance(one, BaseException) and not isinstance(one, AWAY):
                raise one
        return [one for one in found if isinstance(one, ServerView)]

    async def _server(self, key: str) -> ServerView:
        info: dict[str, Any] = await self._caller.command("INFO", at=key)
        written = info.get("master_repl_offset", 0)
        replicas = (info.get(f"slave{number}") for number in range(info.get("connected_slaves", 0)))
        offsets = [one.get("offset", 0) for one in replicas if isinstance(one, dict)]
        return ServerView(
            name=self._caller.server_of(key) or "",
            memory=info.get("used_memory", 0),
            maxmemory=info.get("maxmemory", 0),
            aof=bool(info.get("aof_enabled")),
            aof_write_ok=info.get("aof_last_write_status", "ok") == "ok",
            aof_rewrite_ok=info.get("aof_last_bgrewrite_status", "ok") == "ok",
            snapshot_ok=info.get("rdb_last_bgsave_status", "ok") == "ok",
            delayed_fsyncs=info.get("aof_delayed_fsync", 0),
            evicted=info.get("evicted_keys", 0),
            replicas=len(offsets),
            behind=max((max(0, written - offset) for offset in offsets), default=0),
        )


def _number(data: bytes | None) -> int:
    return int(data) if data and data.isdigit() else 0


def _info(data: bytes) -> dict[str, Any]:
    try:
        info = msgspec.json.decode(data)
    except (ValueError, RecursionError):
        return {}
    return info if isinstance(info, dict) else {}
