"""Pages of the messages of a state, merged over all partitions of a topic into one order.

A cursor holds, for each partition and each level in it, how many messages the pages so far have
passed: `2.0.0_0.1.0`. Pending messages with a key are a fourth level, which is left out while it is
zero. A partition with only zeros is left empty, and left out at the end, so partitions can be added
between two pages.

With a filter, one call reads a bounded number of messages; the next one continues there.
"""

from __future__ import annotations

import math
from collections import deque
from contextlib import suppress
from heapq import heappop, heappush
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from mx_rmq.admin.fanout import ask_all
from mx_rmq.admin.filter import Filter, matches, times
from mx_rmq.admin.models import Page, message_view
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.message import State
from mx_rmq.core.partition import number_of
from mx_rmq.store.messages import IN_LINES, REPLY_BYTES, check_count, levels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.admin.models import MessageView
    from mx_rmq.store.messages import Found, ListedId, Pages

PAGE_BYTES: Final = 8 * 1_048_576  # a page ends after this many bytes of messages
FARTHEST: Final = 2**52  # positions below this work on every server
LOOK: Final = 5000  # messages that a filtered call reads by default, within REPLY_BYTES
STEP: Final = 250  # messages that it reads at a time
AHEAD: Final = 5000  # ids to read ahead, in all partitions together
FEWEST: Final = 20  # ids to read ahead in each partition, at least


async def read_page(
    pages: Pages,
    parts: Sequence[str],
    state: State,
    *,
    filter: Filter | None,
    limit: int,
    cursor: str | None,
    look: int,
) -> Page:
    """Return the next page. With a filter, it ends when it is full or `look` messages were read."""
    check_count(limit)
    if not filter:
        # Messages that wait are in the index of delayed ones, too, and are skipped there.
        look = LOOK if state is State.DELAYED else limit
        filter, step, most_bytes = Filter(), limit, PAGE_BYTES
    elif isinstance(look, bool) or not isinstance(look, int) or look < 1:
        raise InvalidInput(f"look={look!r:.80} must be a whole number of at least 1")
    else:
        step, most_bytes = STEP, REPLY_BYTES
    passed = positions(cursor, len(parts), levels(state))
    if cursor is None:
        await _skip_outside(pages, parts, state, filter, passed)
    merged = MergedIds(pages, parts, state, passed, key=_key(filter))
    messages: list[MessageView] = []
    looked = size = 0
    rest: list[ListedId] = []
    while not rest and len(messages) < limit and looked < look and size < most_bytes:
        ids = _up_to_end(await merged.take(min(step, look - looked)), state, filter)
        if not ids:
            break
        begun = looked
        read = await read_some(pages, parts, state, ids, most_bytes - size)
        for entry, found in zip(ids, read, strict=False):
            looked += 1
            passed[entry.partition][entry.level] = entry.position + 1
            size += len(found.data) if found is not None else 0
            part = parts[entry.partition]
            if found is not None and (not filter or matches(filter, part, found)):
                messages.append(message_view(part, found))
                if len(messages) == limit:
                    break
        rest = ids[looked - begun :]
    more = rest or _up_to_end(await merged.take(1), state, filter)
    return Page(messages, cursor_at(passed) if more else None, looked)


async def _skip_outside(
    pages: Pages, parts: Sequence[str], state: State, filter: Filter, passed: list[list[int]]
) -> None:
    """Skip, unread, the messages listed before the filter's time range, or before its line."""
    if state is State.PENDING and filter.key is not None:
        await _skip_to_line(pages, parts, _key(filter), passed)
        return
    low, high = times(filter, state)
    if state.is_archive:  # newest first
        before = math.nextafter(high, math.inf), math.inf
    else:
        before = -math.inf, math.nextafter(low, -math.inf)
    if before[0] == before[1]:
        return

    async def count(part: str) -> None:
        for level in range(levels(state)):
            passed[number_of(part)][level] = await pages.count(part, state, level, *before)

    await ask_all(parts, count)


async def _skip_to_line(
    pages: Pages, parts: Sequence[str], key: bytes, passed: list[list[int]]
) -> None:
    async def count(part: str) -> None:
        skipped = passed[number_of(part)]
        for level in range(IN_LINES):
            skipped[level] = await pages.count(part, State.PENDING, level)
        skipped[IN_LINES], _ = await pages.line_of(part, key)

    await ask_all(parts, count)


def _key(filter: Filter) -> bytes:
    return b"" if filter.key is None else filter.key.encode("utf-8", "surrogateescape")


def _up_to_end(ids: list[ListedId], state: State, filter: Filter) -> list[ListedId]:
    """Return the ids before the end of the filter's time range."""
    low, high = times(filter, state)
    for number, entry in enumerate(ids):
        if entry.at is not None and (entry.at < low if state.is_archive else entry.at > high):
            return ids[:number]
    return ids


class MergedIds:
    """The ids of all partitions in one order. `start`: how many to skip, by partition and level.

    `key`: leave out the lines behind that of this key.
    """

    def __init__(
        self,
        pages: Pages,
        parts: Sequence[str],
        state: State,
        start: Sequence[Sequence[int]],
        *,
        key: bytes = b"",
    ) -> None:
        self._key = key
        self._pages = pages
        self._parts = parts
        self._state = state
        self._start = [list(levels) for levels in start]
        self._ahead: list[deque[ListedId]] = [deque() for _ in parts]
        self._first: list[ListedId] = []  # a heap of the next id of each partition
        self._dry = list(parts)  # partitions to ask before another id is taken

    async def take(self, count: int) -> list[ListedId]:
        """Return the next ids, fewer only at the end."""
        taken: list[ListedId] = []
        while len(taken) < count:
            if self._dry:
                await self._refill(count)
            if not self._first:
                break
            entry = heappop(self._first)
            taken.append(entry)
            if ahead := self._ahead[entry.partition]:
                heappush(self._first, ahead.popleft())
            else:
                self._dry.append(self._parts[entry.partition])
        return taken

    async def _refill(self, count: int) -> None:
        step = min(count + 1, max(FEWEST, AHEAD // len(self._parts)))  # one more: the next page's

        async def ask(part: str) -> None:
            number = number_of(part)
            start = self._start[number]
            found = await self._pages.entries(part, self._state, start, step)
            if self._key:
                found = [entry for entry in found if entry.key <= self._key]
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
    return [known[entry] for entry in takewhile(known.__contains__, entries)]


def cursor_at(passed: Sequence[Sequence[int]]) -> str:
    shown = [levels[:IN_LINES] if not any(levels[IN_LINES:]) else levels for levels in passed]
    parts = [".".join(map(str, levels)) if any(levels) else "" for levels in shown]
    return "_".join(parts).rstrip("_")


def positions(cursor: str | None, count: int, levels: int) -> list[list[int]]:
    """Return how many messages of each partition and level to skip; refuse a made-up cursor."""
    passed = [[0] * levels for _ in range(count)]
    if cursor is None:
        return passed
    with suppress(IndexError, ValueError):
        for number, part in enumerate(cursor.split("_")):
            if part:
                read = [int(text) for text in part.split(".")]
                passed[number] = read + passed[number][max(IN_LINES, len(read)) :]
        whole = all(len(one) == levels and 0 <= min(one) <= max(one) < FARTHEST for one in passed)
        if cursor and whole and cursor == cursor_at(passed):
            return passed
    raise InvalidInput(f"cursor={cursor!r:.80} is not the cursor of an earlier page")
