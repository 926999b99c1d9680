"""Reads: counts, the archives, the topics. Nothing here changes anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mx_rmq.core.errors import InvalidInput
from mx_rmq.store.script import load

if TYPE_CHECKING:
    from mx_rmq.core.message import State
    from mx_rmq.store.call import Caller
    from mx_rmq.store.keys import Keys


MAX_PAGE: Final = 1000
"""Archived messages that one call returns at the most."""


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


class Views:
    """The reads of one server."""

    def __init__(self, caller: Caller, keys: Keys) -> None:
        self._caller = caller
        self._keys = keys

    async def topics(self) -> list[str]:
        """Return every topic that was ever produced to, sorted."""
        members = await self._caller.command("SMEMBERS", self._keys.topics)
        return sorted(member.decode("utf-8", "backslashreplace") for member in members)

    async def counts(self, topic: str) -> Counts:
        """Return how many messages are in which state, all of one moment."""
        keys, script = self._keys.of(topic), load("count_messages")
        names = [getattr(keys, name) for name in script.keys]
        counts = await self._caller.run(script, names, [])
        return Counts(*counts)

    async def record(self, topic: str, id: str) -> bytes | None:
        """Return the record of a live message."""
        data: bytes | None = await self._caller.command("HGET", self._keys.of(topic).payload, id)
        return data

    async def archived(self, topic: str, state: State, id: str) -> Archived | None:
        """Return one dead letter or quarantined message."""
        index, payload = self._keys.of(topic).archive_of(state)
        # The time first: if the message is replaced in between, requeue finds the time outdated.
        at = await self._caller.command("ZSCORE", index, id)
        data = await self._caller.command("HGET", payload, id)
        if at is None or data is None:
            return None
        return Archived(id, int(at), data)

    async def archive(
        self, topic: str, state: State, *, start: int = 0, count: int = 100
    ) -> list[Archived]:
        """Return a page of dead letters or quarantined messages, newest first."""
        index, payload = self._keys.of(topic).archive_of(state)
        if start < 0 or not 1 <= count <= MAX_PAGE:
            raise InvalidInput(f"start={start}, count={count}: from 0, and 1 to {MAX_PAGE}")
        last = start + count - 1
        ids = await self._caller.command("ZREVRANGE", index, start, last, "WITHSCORES")
        if not ids:
            return []
        found = await self._caller.command("HMGET", payload, *(id for id, _ in ids))
        return [
            Archived(id.decode("utf-8", "surrogateescape"), int(at), data)
            for (id, at), data in zip(ids, found, strict=True)
            if data is not None
        ]
