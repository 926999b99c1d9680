"""Pages: some messages of a state after the other, and a cursor to go on by.

A cursor says for each partition, and in it for each level, how many messages the pages before have
passed: `2.0.0_0.1.0`. A partition of which they have passed nothing is left empty, and left out at
the end, where those stand that come up later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mx_rmq.admin.line import Line, read_some
from mx_rmq.admin.view import Page, is_number, message_view
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.partition import topic_of
from mx_rmq.store.pages import check_count, levels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.core.message import State
    from mx_rmq.store.pages import Pages

PAGE_BYTES: Final = 8 * 1_048_576
"""Bytes of messages after which a page ends, however many were asked for."""

FARTHEST: Final = 2**52
"""Positions that every server takes."""


async def turn_page(
    pages: Pages, parts: Sequence[str], state: State, *, limit: int, cursor: str | None
) -> Page:
    """Return the next page. Only the messages that are on it are read, of the others the ids."""
    passed = positions(cursor, len(parts), levels(state))
    most = check_count(limit) + 1  # one more: is there a next page?
    first = await Line(pages, parts, state, passed).take(most)
    read = await read_some(pages, parts, state, first[:limit], PAGE_BYTES)
    messages = []
    for entry, found in zip(first, read, strict=False):
        passed[entry.partition][entry.level] = entry.position + 1
        if found is not None:
            messages.append(message_view(topic_of(parts[0]), found, partition=entry.partition))
    return Page(messages, cursor_at(passed) if len(first) > len(read) else None, len(read))


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
