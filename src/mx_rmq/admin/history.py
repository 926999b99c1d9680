"""The history of a message, and a live tail of everything that happens."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from mx_rmq.admin.fanout import ask_all
from mx_rmq.admin.models import is_number
from mx_rmq.core.partition import topic_of
from mx_rmq.store.history import BEGINNING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from mx_rmq.store.history import History, HistoryEntry

LOOK_EVERY: Final = 0.2
"""Seconds between two polls."""
LEARN_EVERY: Final = 5.0
"""Seconds after which a tail looks for new topics and partitions."""


class What(StrEnum):
    """What can happen to a message, or to a topic."""

    PRODUCED = "produced"
    DELAYED = "delayed"
    """Produced, and not due yet."""
    DUE = "due"
    DISPATCHED = "dispatched"
    COMPLETED = "completed"
    RETRIED = "retried"
    DIED = "died"
    QUARANTINED = "quarantined"
    RELEASED = "released"
    """Handed back by a worker that stopped."""
    POSTPONED = "postponed"
    """Handed back by a worker whose release is too old to read it."""
    TAKEN_OVER = "taken_over"
    """Taken from a worker that went silent."""
    REQUEUED = "requeued"
    DISCARDED = "discarded"
    CANCELLED = "cancelled"
    TRIMMED = "trimmed"
    """Dropped from an archive, because of its age or of the archive's cap."""
    REPAIRED = "repaired"
    """Brought back into exactly one state by an operator."""
    PAUSED = "paused"
    RESUMED = "resumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """One thing that happened, to one message or to several at once."""

    at: float
    topic: str
    what: What
    ids: tuple[str, ...]
    by: str
    """The worker or the operator; empty for a producer and for the passing of time."""
    about: str
    """The error, the reason, or the worker that went silent."""


def happening(part: str, entry: HistoryEntry) -> Happening | None:
    """Return an entry as operators see it; None: not written by mx-rmq."""
    if entry.what not in set(What):
        return None
    what, about = What(entry.what), entry.about
    if what in (What.RETRIED, What.POSTPONED):
        delay, _, error = about.partition(" ")
        if is_number(delay):
            about = f"again in {int(delay) / 1000:g} s: {error}"
    return Happening(
        at=entry.at / 1000,
        topic=topic_of(part),
        what=what,
        ids=entry.ids,
        by=entry.by,
        about=about,
    )


async def follow(
    history: History, parts: Callable[[], Awaitable[Sequence[str]]], *, since: float | None
) -> AsyncIterator[Happening]:
    """Yield what happens in partitions from now on, or from an instant on."""
    places: dict[str, str] = {}
    start = None if since is None else f"{max(0, round(since * 1000))}-0"
    loop = asyncio.get_running_loop()
    learn_at = 0.0
    while True:
        if loop.time() >= learn_at:
            new = [part for part in await parts() if part not in places]
            ends = [start] * len(new) if start else await ask_all(new, history.last)
            places.update(zip(new, ends, strict=True))
            start = start or BEGINNING  # later partitions are read from their beginning
            learn_at = loop.time() + LEARN_EVERY
        fresh = await history.after(places)
        for part, entry in fresh:
            places[part] = entry.place
            if (seen := happening(part, entry)) is not None:
                yield seen
        if not fresh:
            await asyncio.sleep(LOOK_EVERY)
