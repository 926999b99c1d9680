"""A page of the messages that a filter means.

However many there are, one call looks at a bounded number of them; the next one goes on there.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from mx_rmq.admin.filter import matches, times
from mx_rmq.admin.line import Line, read_some
from mx_rmq.admin.paging import cursor_at, positions
from mx_rmq.admin.spread import ask_all
from mx_rmq.admin.view import Page, message_view
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.partition import number_of, topic_of
from mx_rmq.store.pages import REPLY_BYTES, check_count, levels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.admin.filter import Filter
    from mx_rmq.admin.view import MessageView
    from mx_rmq.core.message import State
    from mx_rmq.store.pages import Entry, Pages

LOOK: Final = 5000
"""Messages that one call looks at, unless it says how many, and not after REPLY_BYTES of them."""

STEP: Final = 250
"""Messages that are read at a time."""


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
    line, topic = Line(pages, parts, state, passed), topic_of(parts[0])
    messages: list[MessageView] = []
    looked = size = 0
    rest: list[Entry] = []
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


def _until_late(ids: list[Entry], state: State, filter: Filter) -> list[Entry]:
    """Return the ids up to the first that stands behind the times that are meant."""
    low, high = times(filter, state)
    for number, entry in enumerate(ids):
        if entry.at is not None and (entry.at < low if state.is_archive else entry.at > high):
            return ids[:number]
    return ids
