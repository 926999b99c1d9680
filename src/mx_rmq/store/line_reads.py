"""Read the lines of a topic: which keys wait, what each waits for, and the limits that are set.

Every read is bounded, whatever the number of keys: see `busiest`. To the store each partition is a
topic. Times are those of `shared/line_clock.lua`, ms: the server's, plus `TopicLines.ahead`.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from mx_rmq.store.lines import id_in_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mx_rmq.store.keys import TopicKeys
    from mx_rmq.store.reads import Counts
    from mx_rmq.store.store import Store

SAMPLE: Final = 1000  # messages in lines that `busiest` looks at
RUNNING_SAMPLE: Final = 200  # and messages that run
MOST_SET: Final = 200  # keys whose limits one call reads
FOREVER: Final = 9e15  # a pause until this time ends when it is resumed; `limit_key.lua` has it
TOPIC: Final = b""  # what stands for the whole topic among the keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A limit as the server has it; None: no limit."""

    running: int | None = None
    interval: float | None = None  # ms per unit of cost
    burst: float | None = None

    @classmethod
    def sum(cls, shares: Iterable[Bound]) -> Bound:
        """Return the limit of a topic from the shares of its partitions."""
        every = list(shares)
        running = [one.running for one in every if one.running is not None]
        rates = [one for one in every if one.interval is not None]
        return cls(
            running=sum(running) if running else None,
            interval=1 / sum(1 / one.interval for one in rates if one.interval) if rates else None,
            burst=sum(one.burst or 1.0 for one in rates) if rates else None,
        )

    def or_declared(self, declared: Bound) -> Bound:
        """Return what is set here, and what is declared otherwise."""
        rate = declared if self.interval is None else self
        return Bound(
            running=declared.running if self.running is None else self.running,
            interval=rate.interval,
            burst=rate.burst,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SetByOperator:
    """What an operator has set for a key or a topic; None: not set."""

    bound: Bound = Bound()
    weight: float | None = None
    until: float | None = None  # when the pause ends; FOREVER: when it is resumed
    reason: str = ""

    @classmethod
    def read(cls, text: bytes | None) -> Self:
        """Read a value of `limits`: see keys.py. What cannot be read counts as not set."""
        parts = (text or b"").split(b" ", 5)
        running, interval, burst, weight, until, reason = [*parts, *[b""] * 6][:6]
        return cls(
            bound=_bound(running, interval, burst),
            weight=_number(weight),
            until=_number(until),
            reason=reason.decode("utf-8", "replace"),
        )

    def is_paused(self, at: float) -> bool:
        return (self.until or 0) > at


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLines:
    """The lines of a topic as a whole."""

    now: int  # the server's time; 0: the topic is idle
    ahead: float  # how far the clock of lines is ahead of it
    limit: Bound  # what the handler declares for the topic,
    per_key: Bound  # and for each key
    overtake: bool
    declared: bool  # whether it declares anything
    set: SetByOperator
    full_at: float  # when the topic's bucket is full
    waiting: int  # messages in lines
    keys: int  # keys with messages in line
    blocked: int  # how many of them may not start now
    topic_blocked: float | None  # until when the whole topic may not start, as far as it is known

    @property
    def at(self) -> float:
        """The time by the clock of lines."""
        return self.now + self.ahead

    def server_time(self, at: float | None) -> float | None:
        """Return a time of the lines by the server's clock, in seconds; None: forever."""
        return None if at is None or at >= FOREVER else (at - self.ahead) / 1000

    @property
    def in_force(self) -> Bound:
        """The limit of the topic."""
        return self.set.bound.or_declared(self.limit)

    @property
    def is_held_back(self) -> bool:
        """Whether a limit of the topic, or its pause, lets nothing start now."""
        return (self.topic_blocked or 0) > self.at


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLine:
    """The line of one key."""

    key: bytes
    waiting: int
    running: int
    record: bytes | None  # of its first message; None: nothing waits
    cost: int  # of that message
    set: SetByOperator
    full_at: float  # when its bucket is full
    snoozed_until: float
    turn: float | None  # its turn, if it may start
    blocked: float | None  # when to look at it again, if it may not


class LineReads:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._caller = store.caller
        self._keys = store.keys

    async def limits_of(self, topic: str, key: bytes = TOPIC) -> SetByOperator:
        """Return what is set for a key, or for the topic."""
        text = await self._caller.command("HGET", self._keys.of(topic).limits, key)
        return SetByOperator.read(text)

    async def topic_lines(self, topic: str) -> TopicLines:
        """Return the lines of a topic."""
        return await self._lines(topic, pending=True, limited=True)

    async def counted_lines(self, topic: str, counts: Counts) -> TopicLines:
        """Return the lines of a topic that was counted: without a call if it is idle and no limit
        was ever set, with two calls if it uses neither keys nor limits."""
        limited = "limited" in counts.ever
        pending = bool(counts.pending or counts.processing)
        return await self._lines(topic, pending=pending, limited=limited)

    async def _lines(self, topic: str, *, pending: bool, limited: bool) -> TopicLines:
        keys, ask = self._keys.of(topic), self._caller.command
        declared, ahead, token, full_at = (None,) * 4
        if pending or limited:
            words = (keys.meta, "limits", "clock_ahead", "token", "bucket")
            declared, ahead, token, full_at = await ask("HMGET", *words)
        text = await ask("HGET", keys.limits, TOPIC) if limited else None
        in_lines = await ask("ZCARD", keys.lines) if pending else 0
        ring = blocked = 0
        whole: float | None = None
        if pending and (in_lines or declared or limited):
            ring, blocked, whole = await asyncio.gather(
                ask("ZCARD", keys.ring),
                ask("ZCARD", keys.blocked),
                ask("ZSCORE", keys.blocked, TOPIC),
            )
            blocked -= whole is not None
        now = await self._store.time(keys.meta) if pending or limited else 0
        limit, per_key, overtake = _declared(declared)
        return TopicLines(
            now=now,
            ahead=_ahead(now, ahead, token),
            limit=limit,
            per_key=per_key,
            overtake=overtake,
            declared=bool(declared),
            set=SetByOperator.read(text),
            full_at=_number(full_at) or 0.0,
            waiting=in_lines,
            keys=ring + blocked,
            blocked=blocked,
            topic_blocked=whole,
        )

    async def busiest(self, topic: str, most: int) -> list[bytes]:
        """Return up to `most` keys: those with the most waiting, then those that run.

        With more than SAMPLE messages in lines, it looks at that many, chosen at random. So it
        finds every key that has more than a few per cent of what waits; and every key that waits,
        if there are no more than `most`.
        """
        keys = self._keys.of(topic)
        found: Counter[bytes] = Counter()
        for index, count in ((keys.lines, SAMPLE), (keys.running, RUNNING_SAMPLE)):
            members = await self._caller.command("ZRANDMEMBER", index, count)
            seen = Counter(member.partition(b"\t")[0] for member in members)
            seen.pop(TOPIC, None)  # only a cost, no key
            if not found:
                found = seen
            else:
                for key in seen:
                    found.setdefault(key, -1)
            if len(members) == SAMPLE and len(found) < most:  # the sample may have missed some
                for names in (keys.ring, keys.blocked):
                    for key in await self._caller.command("ZRANGE", names, 0, most):
                        found.setdefault(key, 0)
                found.pop(TOPIC, None)
        return [key for key, _ in sorted(found.items(), key=lambda one: (-one[1], one[0]))][:most]

    async def limits_of_keys(self, topic: str) -> tuple[dict[bytes, SetByOperator], bool]:
        """Return what is set for keys, at most about MOST_SET; and whether there is more."""
        found: dict[bytes, SetByOperator] = {}
        cursor = 0
        while True:
            words = (self._keys.of(topic).limits, cursor, "COUNT", MOST_SET)
            cursor, some = await self._caller.command("HSCAN", *words)
            found |= {key: SetByOperator.read(text) for key, text in some.items() if key != TOPIC}
            if cursor == 0 or len(found) >= MOST_SET:
                return found, cursor != 0

    async def key_lines(self, topic: str, wanted: Sequence[bytes]) -> list[KeyLine]:
        """Return the lines of these keys, also of those that have nothing in line."""
        if not wanted:
            return []
        keys, ask = self._keys.of(topic), self._caller.command
        sets, full, snoozed, turns, blocked = await asyncio.gather(
            ask("HMGET", keys.limits, *wanted),
            ask("ZMSCORE", keys.buckets, *wanted),
            ask("ZMSCORE", keys.buckets, *(key + b"\t" for key in wanted)),
            ask("ZMSCORE", keys.ring, *wanted),
            ask("ZMSCORE", keys.blocked, *wanted),
        )
        counted = await asyncio.gather(*(self._count(keys, key) for key in wanted))
        heads = [head for _, _, head in counted]
        records = await self._records(keys, heads)
        return [
            KeyLine(
                key=key,
                waiting=counted[n][0],
                running=counted[n][1],
                record=records[n],
                cost=_cost_in(heads[n]),
                set=SetByOperator.read(sets[n]),
                full_at=full[n] or 0.0,
                snoozed_until=snoozed[n] or 0.0,
                turn=turns[n],
                blocked=blocked[n],
            )
            for n, key in enumerate(wanted)
        ]

    async def has_key(self, topic: str, key: bytes) -> bool:
        """Return whether a key waits or runs here, or has limits that are set."""
        keys, ask = self._keys.of(topic), self._caller.command
        if await ask("HGET", keys.limits, key) is not None:
            return True
        return any((await self._count(keys, key))[:2])

    async def next_records(self, topic: str, count: int) -> list[bytes]:
        """Return the record of the first message of some lines: those next in turn, and those
        whose block ends next. Lines that are paused are left out."""
        keys, ask = self._keys.of(topic), self._caller.command
        chosen = [key for key, _ in await ask("ZRANGE", keys.ring, 0, count - 1, "WITHSCORES")]
        blocked = await ask("ZRANGE", keys.blocked, 0, count, "WITHSCORES")
        if blocked:
            names = [key for key, _ in blocked if key != TOPIC][:count]
            sets = await ask("HMGET", keys.limits, *names) if names else []
            at = await self._store.time(keys.meta)
            chosen += [
                key
                for key, text in zip(names, sets, strict=True)
                if not SetByOperator.read(text).is_paused(at)
            ]
        heads = await asyncio.gather(*(self._head(keys, key) for key in chosen))
        return [one for one in await self._records(keys, heads) if one is not None]

    async def _count(self, keys: TopicKeys, key: bytes) -> tuple[int, int, bytes | None]:
        """Return how many messages of a key wait and run, and its first place in line."""
        least, beyond = line_range(key)
        waiting = await self._caller.command("ZLEXCOUNT", keys.lines, least, beyond)
        running = await self._caller.command("ZLEXCOUNT", keys.running, least, beyond)
        return waiting, running, await self._head(keys, key) if waiting else None

    async def _head(self, keys: TopicKeys, key: bytes) -> bytes | None:
        words = (keys.lines, *line_range(key), "LIMIT", 0, 1)
        found = await self._caller.command("ZRANGEBYLEX", *words)
        return found[0] if found else None

    async def _records(
        self, keys: TopicKeys, members: Sequence[bytes | None]
    ) -> list[bytes | None]:
        """Return the record of the message in each place. None: there is none."""
        wanted = [id_in_line(member) for member in members if member is not None]
        read = iter(await self._caller.command("HMGET", keys.payload, *wanted) if wanted else ())
        return [None if member is None else next(read) for member in members]


def line_range(key: bytes) -> tuple[bytes, bytes]:
    """Return the bounds of what belongs to a key, in `lines` and in `running`."""
    return b"[" + key + b"\t", b"(" + key + b"\n"


def _cost_in(member: bytes | None) -> int:
    parts = (member or b"").partition(b"\t")[2].split(b" ", 2)
    return int(parts[1]) if len(parts) == 3 and parts[1].isdigit() else 1


def _declared(text: bytes | None) -> tuple[Bound, Bound, bool]:
    parts = [*(text or b"").split(b" "), *[b"-"] * 7]
    return _bound(*parts[:3]), _bound(*parts[3:6]), parts[6] == b"1"


def _bound(running: bytes, interval: bytes, burst: bytes) -> Bound:
    most = _number(running)
    return Bound(
        running=None if most is None else int(most),
        interval=_number(interval) or None,
        burst=_number(burst),
    )


def _number(data: bytes | None) -> float | None:
    """Return a number that a script wrote; None: it is none."""
    try:
        number = float(data or b"")
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _ahead(now: int, noted: bytes | None, token: bytes | None) -> float:
    """Return how far the clock of lines is ahead: see `shared/line_clock.lua`."""
    ahead, latest = _number(noted) or 0.0, (_number(token) or 0.0) // 1000
    return latest - now if latest < 8e12 and now + ahead < latest - 1000 else ahead
