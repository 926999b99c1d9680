"""Pages of messages of a state, over all partitions of a topic in one order, and a cursor to go on.

A cursor says for each partition, and in it for each level, how many messages the pages before have
passed: `2.0.0_0.1.0`. A partition of which nothing was passed is left empty, and left out at the
end, where partitions that are added later stand.

With a filter, one call reads a bounded number of messages; the next one continues there.
"""

from __future__ import annotations

import math
from collections import deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from mx_rmq.admin.fanout import ask_all
from mx_rmq.admin.filter import matches, times
from mx_rmq.admin.models import Page, is_number, message_view
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.partition import number_of, topic_of
from mx_rmq.store.messages import REPLY_BYTES, check_count, levels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.admin.filter import Filter
    from mx_rmq.admin.models import MessageView
    from mx_rmq.core.message import State
    from mx_rmq.store.messages import Found, ListedId, Pages

PAGE_BYTES: Final = 8 * 1_048_576
"""Bytes of messages after which a page ends, however many were asked for."""

FARTHEST: Final = 2**52
"""Positions that every server takes."""

LOOK: Final = 5000
"""Messages that one call looks at, unless it says how many, and not after REPLY_BYTES of them."""

STEP: Final = 250
"""Messages that are read at a time."""

AHEAD: Final = 5000
FEWEST: Final = 20
"""Ids that are read ahead of all partitions together, and of each at the least."""


async def turn_page(
    pages: Pages, parts: Sequence[str], state: State, *, limit: int, cursor: str | None
) -> Page:
    """Return the next page. Only the messages that are on it are read, of the others the ids."""
    passed = positions(cursor, len(parts), levels(state))
    most = check_count(limit) + 1  # one more: is there a next page?
    first = await MergedIds(pages, parts, state, passed).take(most)
    read = await read_some(pages, parts, state, first[:limit], PAGE_BYTES)
    messages = []
    for entry, found in zip(first, read, strict=False):
        passed[entry.partition][entry.level] = entry.position + 1
        if found is not None:
            messages.append(message_view(topic_of(parts[0]), found, partition=entry.partition))
    return Page(messages, cursor_at(passed) if len(first) > len(read) else None, len(read))


async def search_page(
    pages: Pages,
    parts: Sequence[str],
    state: State,
    *,
    filter: Filter,
    limit: int,
    cursor: str | None,
    look: int,
) -> Page:
    """Return the next page. It ends where it is full, or where enough was looked at."""
    check_count(limit)
    if isinstance(look, bool) or not isinstance(look, int) or look < 1:
        raise InvalidInput(f"look={look!r:.80} is not a whole number from 1 on")
    passed = positions(cursor, len(parts), levels(state))
    if cursor is None:
        await _pass_early(pages, parts, state, filter, passed)
    line, topic = MergedIds(pages, parts, state, passed), topic_of(parts[0])
    messages: list[MessageView] = []
    looked = size = 0
    rest: list[ListedId] = []
    while not rest and len(messages) < limit and looked < look and size < REPLY_BYTES:
        ids = _until_late(await line.take(min(STEP, look - looked)), state, filter)
        if not ids:
            break
        begun = looked
        read = await read_some(pages, parts, state, ids, REPLY_BYTES - size)
        for entry, found in zip(ids, read, strict=False):
            looked += 1
            passed[entry.partition][entry.level] = entry.position + 1
            size += len(found.data) if found is not None else 0
            if found is not None and matches(filter, topic, found):
                messages.append(message_view(topic, found, partition=entry.partition))
                if len(messages) == limit:
                    break
        rest = ids[looked - begun :]
    more = rest or _until_late(await line.take(1), state, filter)
    return Page(messages, cursor_at(passed) if more else None, looked)


async def _pass_early(
    pages: Pages, parts: Sequence[str], state: State, filter: Filter, passed: list[list[int]]
) -> None:
    """Pass what stands before the times that are meant, unseen."""
    low, high = times(filter, state)
    if state.is_archive:
        before = math.nextafter(high, math.inf), math.inf
    else:
        before = -math.inf, math.nextafter(low, -math.inf)
    if before[0] == before[1]:
        return

    async def count(part: str) -> None:
        for level in range(levels(state)):
            passed[number_of(part)][level] = await pages.count(part, state, level, *before)

    await ask_all(parts, count)


def _until_late(ids: list[ListedId], state: State, filter: Filter) -> list[ListedId]:
    """Return the ids up to the first that stands behind the times that are meant."""
    low, high = times(filter, state)
    for number, entry in enumerate(ids):
        if entry.at is not None and (entry.at < low if state.is_archive else entry.at > high):
            return ids[:number]
    return ids


class MergedIds:
    """The ids, from some positions on: of each partition and level how many to pass."""

    def __init__(
        self, pages: Pages, parts: Sequence[str], state: State, start: Sequence[Sequence[int]]
    ) -> None:
        self._pages = pages
        self._parts = parts
        self._state = state
        self._start = [list(levels) for levels in start]
        self._ahead: list[deque[ListedId]] = [deque() for _ in parts]
        self._first: list[ListedId] = []
        """A heap: of each partition the first one that was not taken."""
        self._dry = list(parts)
        """The partitions that must be asked before another id is taken."""

    async def take(self, count: int) -> list[ListedId]:
        """Return the next ids, fewer only at the end."""
        taken: list[ListedId] = []
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
    pages: Pages, parts: Sequence[str], state: State, entries: Sequence[ListedId], most: int
) -> list[Found | None]:
    """Read messages in order until about `most` bytes are read, but at least one."""
    of: dict[str, list[ListedId]] = {}
    for entry in entries:
        of.setdefault(parts[entry.partition], []).append(entry)
    share = most // max(1, len(of))
    known: dict[ListedId, Found | None] = {}

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


# cursors


def cursor_at(passed: Sequence[Sequence[int]]) -> str:
    """Return the cursor of positions."""
    parts = [".".join(map(str, levels)) if any(levels) else "" for levels in passed]
    return "_".join(parts).rstrip("_")


def positions(cursor: str | None, count: int, levels: int) -> list[list[int]]:
    """Return how many messages of each partition and level to pass; refuse what no page said."""
    passed = [[0] * levels for _ in range(count)]
    if cursor is None:
        return passed
    try:
        for number, part in enumerate(cursor.split("_")):
            if part:
                passed[number] = [_position(text) for text in part.split(".")]
    except (IndexError, ValueError):
        raise _refused(cursor) from None
    if cursor != cursor_at(passed) or not cursor or any(len(one) != levels for one in passed):
        raise _refused(cursor)
    return passed


def _position(text: str) -> int:
    if not is_number(text) or int(text) >= FARTHEST:
        raise ValueError
    return int(text)


def _refused(cursor: str) -> InvalidInput:
    return InvalidInput(f"cursor={cursor!r:.80} is not one that a page gave")
