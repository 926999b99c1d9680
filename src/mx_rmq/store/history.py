"""What has happened to messages: the streams that the scripts write, read.

An entry is about up to 25 messages of one call. A stream is bounded, and so is every read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mx_rmq.store.call import Caller
    from mx_rmq.store.keys import Keys

STEP: Final = 500
"""Entries of one reply: of the longest ones about half a MiB."""

BIRTHS: Final = frozenset(("produced", "delayed"))
"""What a message's life begins with."""


class Entry(NamedTuple):
    """One line of a history."""

    place: str
    """Where it stands in its stream: the server's time (ms) and a number."""
    what: str
    by: str
    ids: tuple[str, ...]
    about: str

    @property
    def at(self) -> int:
        """When it was, ms."""
        return int(self.place.partition("-")[0])


class History:
    """The histories of topics."""

    def __init__(self, caller: Caller, keys: Keys) -> None:
        self._caller = caller
        self._keys = keys

    async def of(self, topic: str, id: str) -> list[Entry]:
        """Return what has happened to a message since it was produced, oldest first."""
        key, found = self._keys.of(topic).history, list[Entry]()
        before, wanted = "+", id.encode("utf-8", "surrogateescape")
        while True:
            some = await self._caller.command("XREVRANGE", key, before, "-", "COUNT", STEP)
            for place, fields in some:
                if wanted not in fields.get(b"ids", b""):
                    continue  # without a closer look: nearly all are of other messages
                entry = _entry(place, fields)
                if id in entry.ids:
                    found.append(entry._replace(ids=(id,)))
                    if entry.what in BIRTHS:
                        return found[::-1]
            if len(some) < STEP:
                return found[::-1]
            before = f"({some[-1][0].decode()}"

    async def last(self, topic: str) -> str:
        """Return the place of the newest entry."""
        key = self._keys.of(topic).history
        some = await self._caller.command("XREVRANGE", key, "+", "-", "COUNT", 1)
        return some[0][0].decode() if some else "0-0"

    async def after(self, places: Mapping[str, str]) -> list[tuple[str, Entry]]:
        """Return what has come after a place in each topic's history. They are of one site."""
        topics = {self._keys.of(topic).history: topic for topic in places}
        if not topics:
            return []
        words = ["COUNT", str(STEP), "STREAMS", *topics, *places.values()]
        reply = await self._caller.command("XREAD", *words, at=next(iter(topics)))
        return [
            (topics[key.decode()], _entry(place, fields))
            for key, entries in _streams(reply)
            for place, fields in entries
        ]


def _streams(reply: Any) -> list[tuple[bytes, list[tuple[bytes, dict[bytes, bytes]]]]]:
    """Return a reply as streams and their entries; the client has two forms of it."""
    if isinstance(reply, dict):
        return [(key, [one for part in parts for one in part]) for key, parts in reply.items()]
    return [(key, entries) for key, entries in reply or ()]


def _entry(place: bytes, fields: Mapping[bytes, bytes]) -> Entry:
    """Read an entry, whoever wrote it."""

    def text(name: bytes) -> str:
        return fields.get(name, b"").decode("utf-8", "surrogateescape")

    ids = tuple(id for id in text(b"ids").split(" ") if id)
    return Entry(place.decode(), text(b"what"), text(b"by"), ids, text(b"about"))
