"""The messages of a state over all partitions of a topic, in one order: their ids, then what is
kept of them."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from mx_rmq.admin.spread import ask_all
from mx_rmq.core.partition import number_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.core.message import State
    from mx_rmq.store.pages import Entry, Found, Pages

AHEAD: Final = 5000
FEWEST: Final = 20
"""Ids that are read ahead of all partitions together, and of each at the least."""


class Line:
    """The ids, from some positions on: of each partition and level how many to pass."""

    def __init__(
        self, pages: Pages, parts: Sequence[str], state: State, start: Sequence[Sequence[int]]
    ) -> None:
        self._pages = pages
        self._parts = parts
        self._state = state
        self._start = [list(levels) for levels in start]
        self._ahead: list[deque[Entry]] = [deque() for _ in parts]
        self._first: list[Entry] = []
        """A heap: of each partition the first one that was not taken."""
        self._dry = list(parts)
        """The partitions that must be asked before another id is taken."""

    async def take(self, count: int) -> list[Entry]:
        """Return the next ids, fewer only at the end."""
        taken: list[Entry] = []
        while len(taken) < count:
            await self._ask(count)
            if not self._first:
                break
            entry = heappop(self._first)
            taken.append(entry)
            ahead = self._ahead[entry.partition]
            if ahead:
                heappush(self._first, ahead.popleft())
            else:
                self._dry.append(self._parts[entry.partition])
        return taken

    async def _ask(self, count: int) -> None:
        """Ask the partitions of which nothing is left here."""
        if not self._dry:
            return
        step = min(count, max(FEWEST, AHEAD // len(self._parts)))

        async def ask(part: str) -> None:
            number = number_of(part)
            start = self._start[number]
            found = await self._pages.entries(part, self._state, start, step)
            for entry in found:
                start[entry.level] = entry.position + 1
            if found:
                heappush(self._first, found[0])
                self._ahead[number].extend(found[1:])

        dry, self._dry = self._dry, []
        await ask_all(dry, ask)


async def read_some(
    pages: Pages, parts: Sequence[str], state: State, entries: Sequence[Entry], most: int
) -> list[Found | None]:
    """Read the first of some messages, until about so many bytes are read; one at the least."""
    of: dict[str, list[Entry]] = {}
    for entry in entries:
        of.setdefault(parts[entry.partition], []).append(entry)
    share = most // max(1, len(of))
    known: dict[Entry, Found | None] = {}

    async def read(part: str) -> None:
        found = await pages.read(part, state, of[part], most=share)
        known.update(zip(of[part], found, strict=False))

    await ask_all(list(of), read)
    some: list[Found | None] = []
    for entry in entries:
        if entry not in known:
            break
        some.append(known[entry])
    return some
