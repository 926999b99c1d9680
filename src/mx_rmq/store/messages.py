"""Find messages by id, or page by page of a state. Records stay undecoded.

Every read is bounded: up to 1,000 ids, and contents in replies of a few MiB. Results that have
expired are left out, even if no worker has dropped them yet.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.message import ARCHIVES, State
from mx_rmq.core.partition import number_of
from mx_rmq.core.status import Kept
from mx_rmq.store.line_reads import LineReads, line_range
from mx_rmq.store.lines import id_in_line
from mx_rmq.store.results import decoded
from mx_rmq.store.script import load
from mx_rmq.store.wait_reads import WaitReads, end_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.store.keys import TopicKeys
    from mx_rmq.store.store import Store

MAX_PAGE: Final = 1000  # the most messages that one call returns
MAX_STEP: Final = 100  # contents read by one command; fewer when they are long
SEARCHED: Final = 20  # ids searched for the next message to dispatch
LOOKED_AT: Final = 5  # lines looked at for it: as many that have a turn, as many that are blocked
IN_LINES: Final = 3  # the level of pending messages that have a key, after the three priorities
REPLY_BYTES: Final = 4 * 1_048_576
"""The most bytes in one reply with contents, unless a single one is longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    id: str
    state: State
    data: bytes  # its record; of archives with a line about the message, that line and the rest
    due: int | None = None  # when it is due, ms. Only if delayed or waiting, and not forever
    since: int | None = None  # since when it waits, ms. Only if waiting
    lease: bytes | None = None  # `token:worker`. Only if in processing
    deadline: int | None = None  # when the lease ends, ms. Only if in processing
    archived: int | None = None  # when it was archived, ms. Only if in an archive


class ListedId(NamedTuple):
    """An id and its place. Entries of a state sort in its order, also across partitions."""

    rank: float  # the time that the state is ordered by, or 0 if it is not ordered by time
    level: int
    position: int  # its position within the level
    partition: int
    id: bytes
    at: float | None  # its score in the index, ms; None if pending
    key: bytes = b""  # whose line it is in; empty if it is in none


class Pages:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._caller = store.caller
        self._keys = store.keys
        self._lines = LineReads(store)
        self._waits = WaitReads(store)

    async def find(self, topic: str, id: str) -> Found | None:
        keys = self._keys.of(topic)
        for _ in range(2):  # twice: it may move between two reads
            # One call, since most topics lack it.
            wanted = [id.encode("utf-8", "surrogateescape")]
            (places,) = await self._store.run("inspect_message", topic, {"walk": 0}, wanted)
            if not places.strip(b"0"):
                break
            if found := await self._find_live(keys, id):
                return found
            for state in ARCHIVES:
                if found := await self.find_archived(topic, state, id):
                    return found
        return None

    async def _find_live(self, keys: TopicKeys, id: str) -> Found | None:
        data = await self._caller.command("HGET", keys.payload, id)
        if data is None:
            return None
        lease = await self._caller.command("HGET", keys.processing, id)
        if lease is not None:
            ends = await self._caller.command("ZSCORE", keys.expire_monitor, id)
            state = State.PROCESSING
            return Found(id=id, state=state, data=data, lease=lease, deadline=_ms(ends))
        for key in _indexes(keys, State.DELAYED):
            due = await self._caller.command("ZSCORE", key, id)
            if due is not None:
                since = await self._caller.command("ZSCORE", keys.waiting, id)
                if since is not None:
                    at, end = _ms(since), end_of(due)
                    return Found(id=id, state=State.WAITING, data=data, due=end, since=at)
                return Found(id=id, state=State.DELAYED, data=data, due=_ms(due))
        # In no other place, so it is pending. Searching the lists would be slow.
        still = await self._caller.command("HEXISTS", keys.payload, id)
        return Found(id=id, state=State.PENDING, data=data) if still else None

    async def find_archived(self, topic: str, state: State, id: str) -> Found | None:
        index, payload = self._keys.of(topic).archive_of(state)
        # Time first: if the message is replaced in between, requeue sees that the time is old.
        at = _ms(await self._caller.command("ZSCORE", index, id))
        data = await self._caller.command("HGET", payload, id)
        if at is None or data is None:
            return None
        if state is State.COMPLETED and Kept.is_over(data, at, await self._store.time(index)):
            return None
        return Found(id=id, state=state, data=data, archived=at)

    async def entries(
        self, topic: str, state: State, start: Sequence[int], count: int
    ) -> list[ListedId]:
        """Return some ids of a state, in its order; `start`: how many to skip of each level.

        Pending: in dispatch order; then those with a key, line by line. Delayed: by due time.
        Waiting: those that wait longest first. Processing: by deadline. Archived: newest first.
        """
        found: list[ListedId] = []
        for level, first in enumerate(start):
            wanted = count - len(found) if state is State.PENDING else count
            if not wanted:
                break  # lower levels come later
            found += await self.part_of(topic, state, level, first, wanted)
        return sorted(found)[:count]

    async def read(
        self, topic: str, state: State, entries: Sequence[ListedId], *, most: int | None = None
    ) -> list[Found | None]:
        """Read the messages of some ids. None: the message has left the state meanwhile.

        With `most`, stop after about that many bytes, but read at least one.
        """
        keys = self._keys.of(topic)
        ids = [entry.id for entry in entries]
        payload = keys.archive_of(state)[1] if state.is_archive else keys.payload
        contents = await self._contents(payload, ids, most)
        leases: list[bytes | None] = [None] * len(contents)
        if contents and state is State.PROCESSING:
            held = ids[: len(contents)]
            leases = await self._caller.command("HMGET", keys.processing, *held)
        if contents and state is State.DELAYED:  # those that wait for signals are there, too
            waits = await self._caller.command("ZMSCORE", keys.waiting, *ids[: len(contents)])
            contents = [
                None if since is not None else data
                for data, since in zip(contents, waits, strict=True)
            ]
        ends: list[int | None] = [None] * len(contents)
        if contents and state is State.WAITING:
            ends = await self._waits.ends(topic, ids[: len(contents)])
        if contents and state is State.COMPLETED:
            now = await self._store.time(payload)
            for n, (data, entry) in enumerate(zip(contents, entries, strict=False)):
                if data is not None and Kept.is_over(data, entry.at or 0.0, now):
                    contents[n] = None
        return [
            None
            if data is None or (lease is None and state is State.PROCESSING)
            else as_found(state, entry, data, lease, end)
            for entry, data, lease, end in zip(entries, contents, leases, ends, strict=False)
        ]

    async def part_of(
        self, topic: str, state: State, level: int, start: int, count: int
    ) -> list[ListedId]:
        """Return some ids of one level of a state, in order, from a position on."""
        key = _indexes(self._keys.of(topic), state)[level]
        last = start + count - 1
        if state is State.PENDING and level == IN_LINES:
            members = await self._caller.command("ZRANGE", key, start, last)
            return [_in_line(topic, position, one) for position, one in enumerate(members, start)]
        if state is State.PENDING:  # from the right, where ids are taken
            found = await self._caller.command("LRANGE", key, -last - 1, -start - 1)
            ids = [(id, None) for id in reversed(found)]
        else:
            command = "ZREVRANGE" if state.is_archive else "ZRANGE"
            ids = await self._caller.command(command, key, start, last, "WITHSCORES")
        return [
            ListedId(_rank(state, at), level, position, number_of(topic), id, at)
            for position, (id, at) in enumerate(ids, start)
        ]

    async def in_lines(
        self, topic: str, key: bytes, after: bytes, newest: float, count: int
    ) -> tuple[list[ListedId], bytes | None]:
        """Return some ids of messages with a key, line by line, and the last place that was read.

        `key`: only its line; empty: all. `after`: the place of the step before, empty for the
        first; None: there are no more. Those that joined their line after `newest` are left out:
        see `last_place`.
        """
        start, end = line_range(key) if key else (b"-", b"+")
        words = (b"(" + after if after else start, end, "LIMIT", 0, count)
        members = await self._caller.command("ZRANGEBYLEX", self._keys.of(topic).lines, *words)
        found = [
            _in_line(topic, position, member)
            for position, member in enumerate(members)
            if number_in_line(member) <= newest
        ]
        return found, members[-1] if members else None

    async def line_of(self, topic: str, key: bytes) -> tuple[int, int]:
        """Return how many messages are in the lines before that of a key, and how many in it."""
        lines, (start, end) = self._keys.of(topic).lines, line_range(key)
        before = await self._caller.command("ZLEXCOUNT", lines, "-", b"(" + start[1:])
        return before, await self._caller.command("ZLEXCOUNT", lines, start, end)

    async def last_place(self, topic: str) -> float:
        """Return the number of the last message that joined a line."""
        number = await self._caller.command("HGET", self._keys.of(topic).keyed, "!")
        return float(number) if number and number.isdigit() else math.inf

    async def between(
        self,
        topic: str,
        state: State,
        level: int,
        low: float,
        high: float,
        *,
        skip: int,
        count: int,
    ) -> list[ListedId]:
        """Return some ids of a level with times from low to high (ms), earliest first."""
        key = _indexes(self._keys.of(topic), state)[level]
        words = (key, repr(low), repr(high), "WITHSCORES", "LIMIT", skip, count)
        ids = await self._caller.command("ZRANGEBYSCORE", *words)
        return [
            ListedId(_rank(state, at), level, position, number_of(topic), id, at)
            for position, (id, at) in enumerate(ids)
        ]

    async def latest(self, topic: str, state: State, level: int) -> float | None:
        """Return the latest time in a level, ms; None: it is empty."""
        key = _indexes(self._keys.of(topic), state)[level]
        ids = await self._caller.command("ZRANGE", key, -1, -1, "WITHSCORES")
        return ids[0][1] if ids else None

    async def count(
        self, topic: str, state: State, level: int, low: float = -math.inf, high: float = math.inf
    ) -> int:
        """Return how many ids a level has, in total or between two times, ms."""
        key = _indexes(self._keys.of(topic), state)[level]
        if state is State.PENDING and level != IN_LINES:
            return int(await self._caller.command("LLEN", key))
        if (low, high) == (-math.inf, math.inf):
            return int(await self._caller.command("ZCARD", key))
        return int(await self._caller.command("ZCOUNT", key, repr(low), repr(high)))

    async def next_records(self, topic: str, *, lines: bool = True) -> list[bytes]:
        """Return the record of the next message to dispatch, for each priority that has one, and
        for some lines, unless `lines` is False.

        It is not found if many cancelled messages are in front of it.
        """
        keys = self._keys.of(topic)
        records = await self._lines.next_records(topic, LOOKED_AT) if lines else []
        for key in _indexes(keys, State.PENDING)[:IN_LINES]:
            for id in reversed(await self._caller.command("LRANGE", key, -SEARCHED, -1)):
                record = await self._caller.command("HGET", keys.payload, id)
                if record is not None:
                    records.append(record)
                    break
        return records

    async def _contents(
        self, key: str, ids: Sequence[bytes], most: int | None = None
    ) -> list[bytes | None]:
        """Read fields of a hash, fewer at a time when they are long, to keep replies small."""
        contents: list[bytes | None] = []
        for step in await self._steps(key, ids, most):
            contents += await self._caller.command("HMGET", key, *step)
        return contents

    async def _steps(self, key: str, ids: Sequence[bytes], most: int | None) -> list[list[bytes]]:
        """Split fields into batches that fit one reply each, up to about `most` bytes in total."""
        script, steps = load("weigh_fields"), list[list[bytes]]()
        total = size = 0
        for start in range(0, len(ids), MAX_PAGE):
            chunk = ids[start : start + MAX_PAGE]
            weights = await self._caller.run(script, [key], script.arguments({}, chunk))
            for id, weight in zip(chunk, weights, strict=True):
                if not steps or len(steps[-1]) == MAX_STEP or size + weight > REPLY_BYTES:
                    steps.append([])
                    size = 0
                steps[-1].append(id)
                size += weight
                total += weight
                if most is not None and total >= most:
                    return steps
        return steps


def as_found(
    state: State,
    entry: ListedId,
    data: bytes = b"",
    lease: bytes | None = None,
    end: int | None = None,
) -> Found:
    """Combine an entry with what was read of its message."""
    return Found(
        id=decoded(entry.id),
        state=state,
        data=data,
        due=_ms(entry.at) if state is State.DELAYED else end,
        since=_ms(entry.at) if state is State.WAITING else None,
        lease=lease,
        deadline=_ms(entry.at) if state is State.PROCESSING else None,
        archived=_ms(entry.at) if state.is_archive else None,
    )


def levels(state: State) -> int:
    """Return how many levels a state has: one per priority, or one; pending also has lines."""
    return {State.PENDING: 4, State.DELAYED: 3}.get(state, 1)


def check_count(count: int) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_PAGE:
        raise InvalidInput(f"limit={count!r} is not between 1 and {MAX_PAGE}")
    return count


def _indexes(keys: TopicKeys, state: State) -> tuple[str, ...]:
    """Return the keys that list a state's ids: high, normal and low, or a single one."""
    match state:
        case State.PENDING:
            return keys.pending_high, keys.pending, keys.pending_low, keys.lines
        case State.DELAYED:
            return keys.delay_tasks_high, keys.delay_tasks, keys.delay_tasks_low
        case State.WAITING:
            return (keys.waiting,)
        case State.PROCESSING:
            return (keys.expire_monitor,)
        case State.DEAD | State.QUARANTINED | State.COMPLETED:
            return (keys.archive_of(state)[0],)


def _in_line(topic: str, position: int, member: bytes) -> ListedId:
    id, key = id_in_line(member), member.partition(b"\t")[0]
    return ListedId(0.0, IN_LINES, position, number_of(topic), id, None, key)


def number_in_line(member: bytes) -> int:
    """Return the number by which a message stands in its line."""
    place = member.partition(b"\t")[2].partition(b" ")[0][1:]
    return int(place) if place.isdigit() else 0


def _rank(state: State, at: float | None) -> float:
    """Return the sort key of an id: archived messages come newest first."""
    return 0.0 if at is None else -at if state.is_archive else at


def _ms(score: float | None) -> int | None:
    """Return a score as a time; None: missing, or not a time that we wrote."""
    return int(score) if score is not None and math.isfinite(score) else None
