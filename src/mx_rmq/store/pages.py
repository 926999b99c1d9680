"""Messages, one or a page of a state at a time, as the server holds them: found, not yet read.

Every read is bounded: so many ids, and contents in replies of a few MiB.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.message import State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.store.call import Caller
    from mx_rmq.store.keys import Keys, TopicKeys

MAX_PAGE: Final = 1000
"""Messages that one call returns at the most."""

FIRST_STEP: Final = 4
LONGEST_STEP: Final = 100
"""Contents read by one command; how many depends on how long they turn out to be."""
REPLY_BYTES: Final = 4 * 1_048_576
"""About how long one reply with contents may become."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A message where it stands."""

    id: str
    state: State
    data: bytes
    """Its record; of a quarantined one, the line about the error and the bytes."""
    due: int | None = None
    """When it is due, ms. Delayed ones have it."""
    lease: bytes | None = None
    """`token:worker`. Those in processing have it."""
    deadline: int | None = None
    """When the lease ends, ms."""
    archived: int | None = None
    """When it was archived, ms. Dead and quarantined ones have it."""


@dataclass(frozen=True, slots=True)
class FoundPage:
    """Some messages of a state, and from where to go on; None: that was the last page."""

    messages: list[Found]
    after: tuple[int, ...] | None


class Pages:
    """The messages of one server."""

    def __init__(self, caller: Caller, keys: Keys) -> None:
        self._caller = caller
        self._keys = keys

    async def find(self, topic: str, id: str) -> Found | None:
        """Return one message, wherever it stands."""
        keys = self._keys.of(topic)
        for _ in range(2):  # one that moves between two reads is looked for once more
            if found := await self._find_live(keys, id):
                return found
            for state in (State.DEAD, State.QUARANTINED):
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
                return Found(id=id, state=State.DELAYED, data=data, due=_ms(due))
        # In no other place, so pending: to look for it there would walk the lists.
        still = await self._caller.command("HEXISTS", keys.payload, id)
        return Found(id=id, state=State.PENDING, data=data) if still else None

    async def find_archived(self, topic: str, state: State, id: str) -> Found | None:
        """Return one dead letter or quarantined message."""
        index, payload = self._keys.of(topic).archive_of(state)
        # The time first: if the message is replaced in between, requeue finds the time outdated.
        at = _ms(await self._caller.command("ZSCORE", index, id))
        data = await self._caller.command("HGET", payload, id)
        if at is None or data is None:
            return None
        return Found(id=id, state=state, data=data, archived=at)

    async def page(
        self, topic: str, state: State, *, start: Sequence[int] = (), count: int = 100
    ) -> FoundPage:
        """Return some messages of a state, in its order, from where the page before ended.

        Pending ones in the order in which they are taken, delayed ones by due time, those in
        processing by deadline, archived ones newest first.
        """
        keys = self._keys.of(topic)
        indexes = _indexes(keys, state)
        starts = list(start) or [0] * len(indexes)
        if len(starts) != len(indexes) or not all(0 <= at < 2**52 for at in starts):
            raise InvalidInput(f"start={tuple(starts)} is not where a page of {state} ended")
        check_count(count)
        read = self._lists if state is State.PENDING else self._sorted_sets
        entries = await read(state, indexes, starts, count + 1)  # one more: is there a next page?
        chosen = entries[:count]
        passed = Counter(level for level, _, _ in chosen)
        after = tuple(at + passed[level] for level, at in enumerate(starts))
        messages = await self._messages(keys, state, [(id, at) for _, id, at in chosen])
        return FoundPage(messages, after if len(entries) > count else None)

    async def oldest_archived(
        self, topic: str, state: State, *, start: int, count: int
    ) -> list[tuple[str, int]]:
        """Return ids and times of an archive, oldest first, without what is kept of them."""
        index, _ = self._keys.of(topic).archive_of(state)
        last = start + check_count(count) - 1
        found = await self._caller.command("ZRANGE", index, start, last, "WITHSCORES")
        return [(_id(id), _ms(at) or 0) for id, at in found]

    async def next_records(self, topic: str) -> list[bytes]:
        """Return the record of the message that is taken next, of each priority that has one."""
        keys = self._keys.of(topic)
        ids: list[bytes] = []
        for key in _indexes(keys, State.PENDING):
            ids += await self._caller.command("LRANGE", key, -1, -1)
        records = await self._contents(keys.payload, ids)
        return [record for record in records if record is not None]

    async def _lists(
        self, state: State, indexes: Sequence[str], starts: Sequence[int], count: int
    ) -> list[tuple[int, bytes, Any]]:
        """Read list after list from the right, where ids are taken."""
        entries: list[tuple[int, bytes, Any]] = []
        for level, (key, start) in enumerate(zip(indexes, starts, strict=True)):
            if rest := count - len(entries):
                ids = await self._caller.command("LRANGE", key, -start - rest, -start - 1)
                entries += [(level, id, None) for id in reversed(ids)]
        return entries

    async def _sorted_sets(
        self, state: State, indexes: Sequence[str], starts: Sequence[int], count: int
    ) -> list[tuple[int, bytes, Any]]:
        """Read the sorted sets as if they were one."""
        command = "ZREVRANGE" if _is_archive(state) else "ZRANGE"
        entries: list[tuple[int, bytes, Any]] = []
        for level, (key, start) in enumerate(zip(indexes, starts, strict=True)):
            last = start + count - 1
            found = await self._caller.command(command, key, start, last, "WITHSCORES")
            entries += [(level, id, score) for id, score in found]
        if len(indexes) > 1:
            entries.sort(key=lambda entry: entry[2])
        return entries[:count]

    async def _messages(
        self, keys: TopicKeys, state: State, entries: Sequence[tuple[bytes, Any]]
    ) -> list[Found]:
        """Read what belongs to the ids. One that has left its place meanwhile is not shown."""
        ids = [id for id, _ in entries]
        archive = _is_archive(state)
        payload = keys.archive_of(state)[1] if archive else keys.payload
        contents = await self._contents(payload, ids)
        leases: list[bytes | None] = [None] * len(ids)
        if ids and state is State.PROCESSING:
            leases = await self._caller.command("HMGET", keys.processing, *ids)
        return [
            Found(
                id=_id(id),
                state=state,
                data=data,
                due=_ms(at) if state is State.DELAYED else None,
                lease=lease,
                deadline=_ms(at) if state is State.PROCESSING else None,
                archived=_ms(at) if archive else None,
            )
            for (id, at), data, lease in zip(entries, contents, leases, strict=True)
            if data is not None and (lease is not None or state is not State.PROCESSING)
        ]

    async def _contents(self, key: str, ids: Sequence[bytes]) -> list[bytes | None]:
        """Read fields of a hash, few at a time when they are long: no reply shall be huge."""
        contents: list[bytes | None] = []
        step = FIRST_STEP
        while rest := ids[len(contents) : len(contents) + step]:
            found = await self._caller.command("HMGET", key, *rest)
            contents += found
            mean = sum(len(data or b"") for data in found) // len(found)
            step = max(1, min(LONGEST_STEP, REPLY_BYTES // max(1, mean)))
        return contents


def check_count(count: int) -> int:
    """Return how many messages are wanted, or refuse it."""
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_PAGE:
        raise InvalidInput(f"{count!r} messages: a page has from 1 to {MAX_PAGE}")
    return count


def _indexes(keys: TopicKeys, state: State) -> tuple[str, ...]:
    """Return where the ids of a state are listed: high, normal and low where it has levels."""
    match state:
        case State.PENDING:
            return keys.pending_high, keys.pending, keys.pending_low
        case State.DELAYED:
            return keys.delay_tasks_high, keys.delay_tasks, keys.delay_tasks_low
        case State.PROCESSING:
            return (keys.expire_monitor,)
        case State.DEAD | State.QUARANTINED:
            return (keys.archive_of(state)[0],)


def _is_archive(state: State) -> bool:
    return state in (State.DEAD, State.QUARANTINED)


def _ms(score: float | None) -> int | None:
    """Return a score as a time; of a foreign hand, it may be none."""
    return int(score) if score is not None and math.isfinite(score) else None


def _id(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
