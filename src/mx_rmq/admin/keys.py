"""The keys of a topic: how much of each waits and runs, and what holds it back.

A topic may have a million keys. One call reads at most a few hundred of them: those that have the
most waiting, found in a sample, and those that an operator has set limits for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from mx_rmq.admin.fanout import ask_all
from mx_rmq.admin.held_back import HeldBack, held_back, held_back_topic, held_back_words
from mx_rmq.admin.limits import rate_in
from mx_rmq.core import codec
from mx_rmq.core.errors import DecodeError, InvalidInput
from mx_rmq.store.results import decoded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.core.limits import Rate
    from mx_rmq.store import Store
    from mx_rmq.store.line_reads import KeyLine, TopicLines
    from mx_rmq.store.reads import Counts

MOST_KEYS: Final = 200  # keys in one answer


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyView:
    """The line of one key."""

    key: str | None  # None: the messages without a key, which are one line among the others
    waiting: int
    oldest: float | None  # seconds that its first message has waited; None: nothing waits
    running: int | None
    """Messages in processing, and failed ones whose next attempt the line waits for. None: unknown,
    because these messages have no key."""
    share: float  # its part of all pending messages of the topic, 0 to 1
    limited_by: HeldBack | None = None  # why its next message may not start now
    running_limit: int | None = None  # in force, set or declared
    rate: Rate | None = None  # in force, set or declared
    weight: float = 1.0
    unattended: float | None = None
    """For how many seconds it could have started without any worker checking it; None: it has a
    turn, or waits for its limit. Workers without room check nothing."""
    turnless: bool = False  # it has neither a turn nor a limit to wait for: this is a fault


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyList:
    """Some keys of a topic: those with the most waiting first."""

    topic: str
    at: float  # the server's time
    keys: list[KeyView]
    waiting: int  # how many keys have messages waiting
    blocked: int  # how many of them may not start now
    partial: bool  # whether keys that wait are left out
    held_back: HeldBack | None = None  # what holds back the whole topic


async def read_keys(store: Store, topic: str, parts: Sequence[str], limit: int) -> KeyList:
    """Return the keys with the most waiting, and those with their own limits."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MOST_KEYS:
        raise InvalidInput(f"limit={limit!r:.80} is not between 1 and {MOST_KEYS}")

    async def read(part: str) -> _PartKeys:
        busiest = await store.views.lines.busiest(part, limit)
        own, _ = await store.views.lines.limits_of_keys(part)
        paused_first = sorted(own, key=lambda key: (own[key].until is None, key))
        return await _read(store, part, [*dict.fromkeys([*busiest, *paused_first[:limit]])])

    found = await ask_all(parts, read)
    return _merged(topic, found, limit)


async def read_key(store: Store, topic: str, parts: Sequence[str], key: str) -> KeyView:
    """Return the line of one key, even if it is empty."""
    name = key.encode()
    found = await ask_all(parts, lambda part: _read(store, part, [name], plain=False))
    return _merged(topic, found, 1).keys[0]


@dataclass(frozen=True, slots=True)
class _PartKeys:
    """What was read of one partition."""

    lines: TopicLines
    counts: Counts
    keys: list[KeyView]  # `share` is missing
    held_back: HeldBack | None


async def _read(
    store: Store, part: str, wanted: Sequence[bytes], *, plain: bool = True
) -> _PartKeys:
    lines = await store.views.lines.topic_lines(part)
    counts = await store.views.counts(part)
    keys = [_view(one, lines) for one in await store.views.lines.key_lines(part, wanted)]
    if plain and (without := counts.pending - lines.waiting) > 0:
        records = await store.views.pages.next_records(part, lines=False)
        oldest = max((_waited(one, lines) or 0 for one in records), default=None)
        keys.append(KeyView(key=None, waiting=without, oldest=oldest, running=None, share=0))
    return _PartKeys(lines, counts, keys, held_back_topic(lines, counts.paused, counts.processing))


def _view(line: KeyLine, lines: TopicLines) -> KeyView:
    bound = line.set.bound.or_declared(lines.per_key)
    oldest = _waited(line.record, lines)
    unattended = None
    turnless = bool(line.waiting) and line.turn is None and line.blocked is None
    if turnless:
        unattended = oldest
    elif line.waiting and line.blocked:  # 0: it was woken, at an unknown time
        unattended = max(0.0, lines.at - line.blocked) / 1000 or None
    return KeyView(
        key=decoded(line.key),
        waiting=line.waiting,
        oldest=oldest,
        running=line.running,
        share=0,
        limited_by=held_back(
            lines,
            line.set,
            bound,
            running=line.running,
            full_at=line.full_at,
            snoozed_until=line.snoozed_until,
            cost=line.cost,
        ),
        running_limit=bound.running,
        rate=rate_in(bound),
        weight=line.set.weight or 1.0,
        unattended=unattended,
        turnless=turnless,
    )


def _waited(record: bytes | None, lines: TopicLines) -> float | None:
    """Return how long a message has been ready, in seconds; None: unknown."""
    try:
        ready = None if record is None else codec.decode(record).ready_at
    except DecodeError:
        return None
    return None if ready is None else max(0, lines.now - ready) / 1000


def _merged(topic: str, found: Sequence[_PartKeys], limit: int) -> KeyList:
    """Put partitions together. While a topic grows, a key may be in two of them."""
    pending = sum(one.counts.pending for one in found)
    rows: dict[str | None, KeyView] = {}
    for row in (row for one in found for row in one.keys):
        rows[row.key] = _both(rows[row.key], row) if row.key in rows else row
    order = sorted(
        rows.values(), key=lambda one: (-one.waiting, -(one.running or 0), one.key or "")
    )
    shown = [replace(one, share=one.waiting / pending if pending else 0.0) for one in order[:limit]]
    waiting = sum(one.lines.keys for one in found)
    partial = waiting > sum(bool(one.waiting) for one in shown if one.key is not None)
    # what dispatch has noted, which it does only for keys that it looked at
    noted = sum(one.lines.blocked for one in found) if partial else 0
    limited = sum(bool(one.waiting) and one.limited_by is not None for one in shown)
    held = [one.held_back for one in found]
    return KeyList(
        topic=topic,
        at=found[0].lines.now / 1000,
        keys=shown,
        waiting=waiting,
        blocked=max(noted, limited),
        partial=partial,
        held_back=held[0] if all(held) else None,
    )


def _both(one: KeyView, other: KeyView) -> KeyView:
    fuller = max(one, other, key=lambda row: row.waiting)
    running = None if one.running is None else one.running + (other.running or 0)
    oldest = [row.oldest for row in (one, other) if row.oldest is not None]
    return replace(
        fuller,
        waiting=one.waiting + other.waiting,
        running=running,
        oldest=max(oldest, default=None),
    )


def limited_by(view: KeyView, *, now: float) -> str:
    """Say what holds back a key: "paused for 9 min 2 s: their API is down"; "": nothing does."""
    if view.limited_by is None:
        return ""
    return held_back_words(view.limited_by, view.running, view.running_limit, view.rate, now=now)
