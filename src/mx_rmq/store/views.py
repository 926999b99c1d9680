"""Reads: the time, the topics, counts, the archives. Nothing here changes anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.partition import partitions_of
from mx_rmq.store.history import History
from mx_rmq.store.pages import Pages, check_count
from mx_rmq.store.script import load
from mx_rmq.store.scripted import wait_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from mx_rmq.core.message import State
    from mx_rmq.store.call import Caller
    from mx_rmq.store.keys import Keys


WORKERS: Final = 100
"""Workers read at a time, about: each may tell of twenty handlers."""


@dataclass(frozen=True, slots=True)
class Counts:
    """How many messages of a topic are in which state."""

    pending: int
    delayed: int
    processing: int
    dead: int
    quarantined: int
    paused: int
    """1: dispatch gives nothing."""
    dropped: int
    """Ids without a message that were ever dropped: above 0, somebody else wrote to the keys."""
    delayed_overdue: int | None
    """How many ms ago the first delayed message was due; None: none is due."""
    lease_overdue: int | None
    """How many ms ago the first lease ran out; None: none has."""
    ever: dict[str, int]
    """What happened, and to how many messages, since the topic exists."""

    @property
    def total(self) -> int:
        """How many messages there are, in any state."""
        return self.pending + self.delayed + self.processing + self.dead + self.quarantined


@dataclass(frozen=True, slots=True)
class Archived:
    """A dead letter or a quarantined message."""

    id: str
    at: int
    """Server time of its archiving, ms. Requeue and discard ask for it."""
    data: bytes


@dataclass(frozen=True, slots=True)
class WorkerSeen:
    """A worker, as it was last heard of."""

    name: str
    age: int
    """How long ago that was, ms of the server's clock."""
    info: dict[str, Any]
    """What it said of itself; empty if that cannot be read."""


class Views:
    """The reads. `clock` is for tests, as in the transitions."""

    def __init__(
        self, caller: Caller, keys: Keys, *, clock: Callable[[], int] | None = None
    ) -> None:
        self._caller = caller
        self._keys = keys
        self._clock = clock
        self.pages = Pages(caller, keys)
        self.history = History(caller, keys)

    async def now(self, topic: str | None = None) -> int:
        """Return the time of a topic's server, ms; None: of the one that lists the topics."""
        return await self._time(
            self._keys.topics if topic is None else self._keys.of(topic).payload
        )

    async def topics(self) -> list[str]:
        """Return every topic that was ever produced to, sorted."""
        members = await self._caller.command("HKEYS", self._keys.topics)
        return sorted(member.decode("utf-8", "backslashreplace") for member in members)

    async def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has; 0: it was never produced to."""
        count = await self._caller.command("HGET", self._keys.topics, topic)
        return 0 if count is None else partitions_of(count)

    async def counts(self, topic: str) -> Counts:
        """Return how many messages are in which state, all of one moment."""
        keys, script = self._keys.of(topic), load("count_messages")
        names = [getattr(keys, name) for name in script.keys]
        now = "" if self._clock is None else self._clock()
        *numbers, due, deadline, ever = await self._caller.run(
            script, names, script.arguments({"now_ms": now})
        )
        pending, delayed, processing, dead, quarantined, paused, dropped = numbers
        fields = iter(ever)
        return Counts(
            pending=pending,
            delayed=delayed,
            processing=processing,
            dead=dead,
            quarantined=quarantined,
            paused=paused,
            dropped=dropped,
            delayed_overdue=wait_of(due),
            lease_overdue=wait_of(deadline),
            ever={
                what.decode("utf-8", "replace"): int(number)
                for what, number in zip(fields, fields, strict=True)
                if number.isdigit()
            },
        )

    async def record(self, topic: str, id: str) -> bytes | None:
        """Return the record of a live message."""
        data: bytes | None = await self._caller.command("HGET", self._keys.of(topic).payload, id)
        return data

    async def archived(self, topic: str, state: State, id: str) -> Archived | None:
        """Return one dead letter or quarantined message."""
        found = await self.pages.find_archived(topic, state, id)
        return None if found is None else Archived(id, found.archived or 0, found.data)

    async def archive(
        self, topic: str, state: State, *, start: int = 0, count: int = 100
    ) -> list[Archived]:
        """Return a page of dead letters or quarantined messages, newest first."""
        self._keys.of(topic).archive_of(state)
        if not 0 <= start < 2**52:
            raise InvalidInput(f"start={start} is not the position of a message")
        entries = await self.pages.entries(topic, state, [start], check_count(count))
        found = await self.pages.read(topic, state, entries)
        return [Archived(one.id, one.archived or 0, one.data) for one in found if one is not None]

    async def workers(self) -> list[WorkerSeen]:
        """Return the workers that were heard of and not forgotten, sorted by name."""
        entries: dict[bytes, bytes] = {}
        cursor = 0
        while True:
            words = (self._keys.workers, cursor, "COUNT", WORKERS)
            cursor, some = await self._caller.command("HSCAN", *words)
            entries.update(some)
            if cursor == 0:
                break
        now = await self._time(self._keys.workers)
        found = []
        for name, entry in sorted(entries.items()):
            seen, space, info = entry.partition(b" ")
            if space and seen.isdigit():
                age = max(0, now - int(seen))
                found.append(WorkerSeen(name.decode("utf-8", "backslashreplace"), age, _info(info)))
        return found

    async def _time(self, key: str) -> int:
        return await self._caller.time(key) if self._clock is None else self._clock()


def _info(data: bytes) -> dict[str, Any]:
    try:
        info = msgspec.json.decode(data)
    except (ValueError, RecursionError):
        return {}
    return info if isinstance(info, dict) else {}
