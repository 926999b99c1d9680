"""Everything a topic holds, as plain values: what a test compares before and after."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from mx_rmq.store.keys import Keys

if TYPE_CHECKING:
    from redis.asyncio import Redis


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Ids are str; lists are in the order in which dispatch takes them."""

    records: dict[str, bytes] = field(default_factory=dict)
    high: list[str] = field(default_factory=list)
    normal: list[str] = field(default_factory=list)
    low: list[str] = field(default_factory=list)
    cancelled: set[str] = field(default_factory=set)
    """Ids that have one place in these lists that does not count."""
    lines: list[str] = field(default_factory=list)
    """Key, tab, level, number, cost and id of each message in line, in order."""
    ring: dict[str, float] = field(default_factory=dict)
    blocked: dict[str, float] = field(default_factory=dict)
    keyed: dict[str, str] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    limits: dict[str, str] = field(default_factory=dict)
    buckets: dict[str, float] = field(default_factory=dict)
    delayed_high: dict[str, int] = field(default_factory=dict)
    delayed: dict[str, int] = field(default_factory=dict)
    delayed_low: dict[str, int] = field(default_factory=dict)
    waiting: dict[str, int] = field(default_factory=dict)
    """Since when messages wait for signals; they are delayed, too."""
    awaited: set[str] = field(default_factory=set)
    """Id, tab and name of each missing signal."""
    signals: set[str] = field(default_factory=set)
    """Id, tab, name, tab and value of each signal that has arrived."""
    expiries: dict[str, int] = field(default_factory=dict)
    """When waiting messages with a ttl expire."""
    leases: dict[str, str] = field(default_factory=dict)
    """id -> "token:worker"."""
    deadlines: dict[str, int] = field(default_factory=dict)
    dead: dict[str, int] = field(default_factory=dict)
    dead_letters: dict[str, bytes] = field(default_factory=dict)
    quarantine: dict[str, int] = field(default_factory=dict)
    quarantined: dict[str, bytes] = field(default_factory=dict)
    completed: dict[str, int] = field(default_factory=dict)
    results: dict[str, bytes] = field(default_factory=dict)
    rung: bool = False
    """Whether the doorbell has a ring."""
    rung_delay: bool = False
    meta: dict[str, str] = field(default_factory=dict)
    recent: dict[str, int] = field(default_factory=dict)
    schedules: dict[str, str] = field(default_factory=dict)


async def snapshot(raw: Redis, topic: str, prefix: str = "mx-rmq") -> Snapshot:
    """Read a whole idle topic in one round trip."""
    keys = Keys(prefix).of(topic)
    pipe = raw.pipeline(transaction=False)
    hashes = [keys.payload, keys.processing, keys.dlq_payload, keys.error_parse_payload]
    hashes += [keys.results_payload, keys.meta]
    lists = [keys.pending_high, keys.pending, keys.pending_low, keys.doorbell, keys.doorbell_delay]
    sets = [keys.delay_tasks_high, keys.delay_tasks, keys.delay_tasks_low, keys.expire_monitor]
    sets += [keys.dlq, keys.error_parse_queue, keys.results, keys.recent, keys.expiry]
    sets += [keys.waiting, keys.awaited, keys.signals]
    for key in hashes:
        pipe.execute_command("HGETALL", key)
    for key in lists:
        pipe.execute_command("LRANGE", key, 0, -1)
    for key in sets:
        pipe.execute_command("ZRANGE", key, 0, -1, "WITHSCORES")
    pipe.execute_command("SMEMBERS", keys.cancelled)
    in_turn = [keys.lines, keys.ring, keys.blocked, keys.running, keys.buckets]
    for key in in_turn:
        pipe.execute_command("ZRANGE", key, 0, -1, "WITHSCORES")
    pipe.execute_command("HGETALL", keys.keyed)
    pipe.execute_command("HGETALL", keys.limits)
    pipe.execute_command("HGETALL", keys.schedules)
    found = iter(await pipe.execute())
    records, leases, dead_letters, quarantined, results, meta = (
        {_text(id): data for id, data in next(found).items()} for _ in hashes
    )
    high, normal, low, rings, rings_delay = (
        [_text(id) for id in reversed(next(found))] for _ in lists
    )
    scores = [{_text(id): int(score) for id, score in next(found)} for _ in sets]
    delayed_high, delayed, delayed_low, deadlines, dead, quarantine, completed, *scores = scores
    recent, expiries, waiting, awaited, signals = scores
    cancelled = {_text(id) for id in next(found)}
    lines, ring, blocked, running, buckets = (
        {_text(key): float(score) for key, score in next(found)} for _ in in_turn
    )
    keyed, limits, schedules = (
        {_text(key): _text(text) for key, text in next(found).items()} for _ in "kls"
    )
    return Snapshot(
        records=records,
        high=high,
        normal=normal,
        low=low,
        cancelled=cancelled,
        lines=list(lines),
        ring=ring,
        blocked=blocked,
        keyed=keyed,
        running=set(running),
        limits=limits,
        buckets=buckets,
        delayed_high=delayed_high,
        delayed=delayed,
        delayed_low=delayed_low,
        waiting=waiting,
        awaited=set(awaited),
        signals=set(signals),
        expiries=expiries,
        leases={id: _text(lease) for id, lease in leases.items()},
        deadlines=deadlines,
        dead=dead,
        dead_letters=dead_letters,
        quarantine=quarantine,
        quarantined=quarantined,
        completed=completed,
        results=results,
        rung=bool(rings),
        rung_delay=bool(rings_delay),
        meta={name: _text(value) for name, value in meta.items()},
        recent=recent,
        schedules=schedules,
    )


async def told(raw: Redis, topic: str, prefix: str = "mx-rmq") -> tuple[int, dict[bytes, bytes]]:
    """Return how long a topic's history is, and its totals."""
    keys = Keys(prefix).of(topic)
    totals = cast("dict[bytes, bytes]", await raw.hgetall(keys.totals))
    return await raw.xlen(keys.history), totals


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
