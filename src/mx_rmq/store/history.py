"""Read the history streams that the scripts write.

An entry covers up to 25 messages of one call. A stream is bounded, and so is every read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mx_rmq.core.errors import WrongType
from mx_rmq.safe_log import get_logger
from mx_rmq.store.results import decoded
from mx_rmq.store.script import load

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mx_rmq.net.caller import Caller
    from mx_rmq.store.keys import Keys

logger = get_logger(__name__)

STEP: Final = 500  # entries per reply: at most about 1.6 MiB
SEARCH_STEP: Final = 200  # entries per step of a search: 0.5 to 1.5 ms of the server's time
BEGINNING: Final = "0-0"  # the position before the first entry
BIRTHS: Final = frozenset(("produced", "delayed"))  # the events that begin a message's life


class HistoryEntry(NamedTuple):
    place: str  # its stream id: the server's time (ms) and a number
    what: str
    by: str
    ids: tuple[str, ...]
    about: str

    @property
    def at(self) -> int:
        """When it happened, ms."""
        return int(self.place.partition("-")[0])


class History:
    """The histories of topics. A key of a wrong type is skipped, and logged once."""

    def __init__(self, caller: Caller, keys: Keys) -> None:
        self._caller = caller
        self._keys = keys
        self._skipped: set[str] = set()  # topics whose histories could not be read

    async def of(self, topic: str, id: str) -> list[HistoryEntry]:
        """Return what happened to a message since it was produced, oldest first."""
        script, found = load("find_history"), list[HistoryEntry]()
        before = "+"
        while before and " " not in id:  # spaces separate ids, so no id contains one
            args = script.arguments(
                {"before": before, "step": SEARCH_STEP, "id": id.encode("utf-8", "surrogateescape")}
            )
            try:
                reply = await self._caller.run(script, [self._keys.of(topic).history], args)
            except WrongType as error:
                self._skip(topic, error)
                break
            before, *words = (decoded(word) for word in reply)
            fields = iter(words)
            for place, what, by, about in zip(fields, fields, fields, fields, strict=True):
                found.append(HistoryEntry(place, what, by, (id,), about))
                if what in BIRTHS:
                    return found[::-1]
        return found[::-1]

    async def last(self, topic: str) -> str:
        """Return the position of the newest entry."""
        key = self._keys.of(topic).history
        try:
            some = await self._caller.command("XREVRANGE", key, "+", "-", "COUNT", 1)
        except WrongType as error:
            self._skip(topic, error)
            some = []
        return some[0][0].decode() if some else BEGINNING

    async def begins(self, topic: str) -> int | None:
        """Return when the oldest entry was written, ms; None: there are no entries."""
        found = await self._read({topic: BEGINNING}, 1)
        return found[topic][0].at if topic in found else None

    async def after(self, places: Mapping[str, str]) -> list[tuple[str, HistoryEntry]]:
        """Return what came after a position in each topic's history, oldest first.

        Every topic gets an equal share of STEP entries. Topics that have more share a second round,
        so at most about twice STEP entries are returned. The next call returns the rest.
        """
        found, longer = await self._read_shares(places)
        more, _ = await self._read_shares({topic: found[topic][-1].place for topic in longer})
        for topic, entries in more.items():
            found[topic] += entries
        fresh = [(topic, entry) for topic, entries in found.items() for entry in entries]
        return sorted(fresh, key=lambda one: one[1].at)

    async def _read_shares(
        self, places: Mapping[str, str]
    ) -> tuple[dict[str, list[HistoryEntry]], list[str]]:
        """Read an equal share of each topic; return it, and the topics that may have more."""
        each = max(1, STEP // max(1, len(places)))
        sites: dict[int, list[str]] = {}
        for topic in places:
            key = self._keys.of(topic).history
            sites.setdefault(self._caller.servers.site_of(key), []).append(topic)
        found: dict[str, list[HistoryEntry]] = {}
        for topics in sites.values():
            for start in range(0, len(topics), STEP):
                chunk = {topic: places[topic] for topic in topics[start : start + STEP]}
                found |= await self._read(chunk, each)
        return found, [topic for topic, entries in found.items() if len(entries) == each]

    async def _read(self, places: Mapping[str, str], each: int) -> dict[str, list[HistoryEntry]]:
        """Read the histories of one site, up to `each` entries per topic."""
        topics = {self._keys.of(topic).history: topic for topic in places}
        words = ["COUNT", str(each), "STREAMS", *topics, *places.values()]
        try:
            reply = await self._caller.command("XREAD", *words, at=next(iter(topics)))
        except WrongType as error:
            first, *others = places
            if not others:
                self._skip(first, error)
                return {}
            some, half = list(places.items()), len(places) // 2  # find the bad key by halving
            found = await self._read(dict(some[:half]), each)
            return found | await self._read(dict(some[half:]), each)
        return {
            topics[key.decode()]: [_entry(place, fields) for place, fields in entries]
            for key, entries in _streams(reply)
            if entries
        }

    def _skip(self, topic: str, error: WrongType) -> None:
        if topic not in self._skipped:
            self._skipped.add(topic)
            logger.warning("skipping the history of %s: %s", topic, error)


def _streams(reply: Any) -> list[tuple[bytes, list[tuple[bytes, dict[bytes, bytes]]]]]:
    """Return a reply as streams and their entries. The client returns it in two forms."""
    if isinstance(reply, dict):
        return [(key, [one for part in parts for one in part]) for key, parts in reply.items()]
    return [(key, entries) for key, entries in reply or ()]


def _entry(place: bytes, fields: Mapping[bytes, bytes]) -> HistoryEntry:
    """Parse an entry; fields that are missing are empty."""
    ids = tuple(id for id in decoded(fields.get(b"ids", b"")).split(" ") if id)
    what, by, about = (decoded(fields.get(name, b"")) for name in (b"what", b"by", b"about"))
    return HistoryEntry(place.decode(), what, by, ids, about)
