"""Pages: the messages of a state over all partitions of a topic, in one order.

A cursor says for each partition, and in it for each level, how many messages the pages before have
shown: `2.0.0_0.1.0`. A partition of which they have shown nothing is left empty, and left out at
the end, where those stand that come up later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mx_rmq.admin.spread import ask_all
from mx_rmq.admin.view import Page, is_number, message_view
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.partition import number_of, topic_of
from mx_rmq.store.pages import check_count, levels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.core.message import State
    from mx_rmq.store.pages import Entry, Found, Pages

FARTHEST: Final = 2**52
"""Positions that every server takes."""


async def turn_page(
    pages: Pages, parts: Sequence[str], state: State, *, limit: int, cursor: str | None
) -> Page:
    """Return the next page. Only the messages that are on it are read, of the others the ids."""
    shown = _positions(cursor, len(parts), levels(state))
    most = check_count(limit) + 1  # one more: is there a next page?
    first: list[Entry] = []

    async def look(part: str) -> None:
        first.extend(await pages.entries(part, state, shown[number_of(part)], most))
        first.sort()
        del first[most:]

    await ask_all(parts, look)
    chosen = first[:limit]
    for entry in chosen:
        shown[entry.partition][entry.level] += 1
    messages = [
        message_view(topic_of(parts[0]), found, partition=entry.partition)
        for entry, found in zip(chosen, await _read(pages, parts, state, chosen), strict=True)
        if found is not None
    ]
    return Page(messages, _cursor(shown) if len(first) > limit else None)


async def _read(
    pages: Pages, parts: Sequence[str], state: State, entries: Sequence[Entry]
) -> list[Found | None]:
    """Read messages of several partitions; return them in the order given."""
    of: dict[str, list[Entry]] = {}
    for entry in entries:
        of.setdefault(parts[entry.partition], []).append(entry)
    known: dict[Entry, Found | None] = {}

    async def read(part: str) -> None:
        known.update(zip(of[part], await pages.read(part, state, of[part]), strict=True))

    await ask_all(list(of), read)
    return [known[entry] for entry in entries]


def _cursor(shown: Sequence[Sequence[int]]) -> str:
    parts = [".".join(map(str, levels)) if any(levels) else "" for levels in shown]
    return "_".join(parts).rstrip("_")


def _positions(cursor: str | None, count: int, levels: int) -> list[list[int]]:
    """Return how many messages of each partition and level were shown; refuse what no page said."""
    shown = [[0] * levels for _ in range(count)]
    if cursor is None:
        return shown
    try:
        for number, part in enumerate(cursor.split("_")):
            if part:
                shown[number] = [_position(text) for text in part.split(".")]
    except (IndexError, ValueError):
        raise _refused(cursor) from None
    if cursor != _cursor(shown) or not cursor or any(len(one) != levels for one in shown):
        raise _refused(cursor)
    return shown


def _position(text: str) -> int:
    if not is_number(text) or int(text) >= FARTHEST:
        raise ValueError
    return int(text)


def _refused(cursor: str) -> InvalidInput:
    return InvalidInput(f"cursor={cursor!r:.80} is not one that a page gave")
