"""The history of a message, and a live tail of everything that happens."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from mx_rmq.admin.fanout import ask_all
from mx_rmq.admin.models import is_number
from mx_rmq.core.partition import topic_of
from mx_rmq.core.steps import is_child, source_of
from mx_rmq.core.text import duration
from mx_rmq.store.history import BEGINNING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from mx_rmq.store.history import History, HistoryEntry

POLL_EVERY: Final = 0.2  # seconds
REFRESH_EVERY: Final = 5.0  # seconds after which a tail looks for new topics and partitions


class What(StrEnum):
    """What can happen to a message, or to a topic."""

    PRODUCED = "produced"
    DELAYED = "delayed"  # produced, and not due yet
    DUE = "due"
    DISPATCHED = "dispatched"
    COMPLETED = "completed"
    RETRIED = "retried"
    SNOOZED = "snoozed"  # its handler asked for it later, or sleeps
    NOTED = "noted"  # its handler finished a step, or all of its work
    PARKED = "parked"  # it waits for a signal, or for other messages
    SIGNALLED = "signalled"  # a signal came for it, or a message that it waits for has ended
    DIED = "died"
    QUARANTINED = "quarantined"
    RELEASED = "released"  # handed back by a worker that stopped
    POSTPONED = "postponed"  # handed back by a worker whose release is too old to read it
    TAKEN_OVER = "taken_over"  # taken from a worker that went silent
    REPLACED = "replaced"  # by a produce with the same id
    FANNED_OUT = "fanned_out"  # every subscription of its topic has got a copy
    DUPLICATE = "duplicate"  # not copied: the subscription has a message with this id
    REQUEUED = "requeued"
    DISCARDED = "discarded"
    CANCELLED = "cancelled"
    ABORTED = "aborted"  # dead-lettered by an operator
    RESCHEDULED = "rescheduled"  # given another due time
    TRIMMED = "trimmed"  # dropped from an archive, for its age or because it was full
    REPAIRED = "repaired"  # brought back into exactly one state by an operator
    PAUSED = "paused"
    RESUMED = "resumed"
    LIMITED = "limited"  # an operator set limits, or paused a key
    SCHEDULED = "scheduled"  # a schedule was stored; `about` names it, here and in the next ones
    UNSCHEDULED = "unscheduled"
    SCHEDULE_PAUSED = "schedule_paused"
    SCHEDULE_RESUMED = "schedule_resumed"
    SUBSCRIBED = "subscribed"
    UNSUBSCRIBED = "unsubscribed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """One thing that happened, to one message or to several at once."""

    at: float
    topic: str
    what: What
    ids: tuple[str, ...]
    by: str  # the worker or the operator; empty: a producer, or nothing but time
    about: str
    """The error, the reason, the worker that went silent, the limits, the step or the signal."""


def happening(part: str, entry: HistoryEntry) -> Happening | None:
    """Return an entry as operators see it; None: mx-rmq did not write it."""
    if entry.what not in set(What):
        return None
    what, about = What(entry.what), entry.about
    if what is What.PARKED:
        delay, _, about = about.partition(" ")
        about += f", at most {duration(int(delay) / 1000)}" if is_number(delay) else ""
    if what is What.SIGNALLED:
        about = _signal(about)
    if what in (What.RETRIED, What.SNOOZED, What.POSTPONED):
        delay, _, why = about.partition(" ")
        if is_number(delay):
            verb = "for" if what is What.SNOOZED else "retrying in"
            about = f"{verb} {int(delay) / 1000:g} s" + (f": {why}" if why else "")
    if what is What.ABORTED:
        about = about.removeprefix("aborted: ")
    if what is What.RESCHEDULED and is_number(about):
        about = f"due in {int(about) / 1000:g} s"
    at, topic = entry.at / 1000, topic_of(part)
    return Happening(at=at, topic=topic, what=what, ids=entry.ids, by=entry.by, about=about)


def _signal(name: str) -> str:
    """Say what a signal means: those of messages have names of their own."""
    if not is_child(name):
        return name
    source = source_of(name)
    return f"message {source.id} of {topic_of(source.part) or 'no topic'}"


async def follow(
    history: History, parts: Callable[[], Awaitable[Sequence[str]]], *, since: float | None
) -> AsyncIterator[Happening]:
    """Yield what happens in partitions from now on, or since a time."""
    places: dict[str, str] = {}
    start = None if since is None else f"{max(0, round(since * 1000))}-0"
    loop = asyncio.get_running_loop()
    refresh_at = 0.0
    while True:
        if loop.time() >= refresh_at:
            new = [part for part in await parts() if part not in places]
            ends = [start] * len(new) if start else await ask_all(new, history.last)
            places.update(zip(new, ends, strict=True))
            start = start or BEGINNING  # partitions that appear later are read whole
            refresh_at = loop.time() + REFRESH_EVERY
        fresh = await history.after(places)
        for part, entry in fresh:
            places[part] = entry.place
            if seen := happening(part, entry):
                yield seen
        if not fresh:
            await asyncio.sleep(POLL_EVERY)
