"""The limits of a topic and of its keys: what the handler declares, and what operators set.

The partitions of a topic share its limits. A key is in one partition, so its limits are not shared.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from mx_rmq.admin.fanout import ask_all
from mx_rmq.admin.held_back import HeldBack, held_back_topic, held_back_words
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.limits import Rate
from mx_rmq.core.text import instant
from mx_rmq.store.line_reads import Bound
from mx_rmq.store.results import decoded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.store import Store
    from mx_rmq.store.line_reads import SetByOperator, TopicLines

_UNITS: Final = (1.0, 60.0, 3600.0)  # per second, minute, hour


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitView:
    """Limits of a topic or a key, as declared or as set; None: there is none."""

    running: int | None = None
    rate: Rate | None = None
    weight: float | None = None  # how many turns a key gets for each turn of the others
    paused: bool = False
    paused_until: float | None = None  # None: it is not paused, or until it is resumed
    reason: str = ""  # why it is paused

    def __bool__(self) -> bool:
        return self.paused or (self.running, self.rate, self.weight) != (None, None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsView:
    """The limits of a topic."""

    topic: str
    declared: LimitView  # by the handler, as of the last dispatch
    per_key: LimitView  # the same for each key
    overtake: bool  # whether a failed message lets the next ones of its key go on
    set: LimitView  # by an operator, for the topic; overrides what is declared
    keys: dict[str, LimitView] = field(default_factory=dict)
    """By an operator, for keys: at most about 200 of them."""
    more: bool = False  # whether more keys have limits than are listed
    running: int = 0  # messages in processing
    held_back: HeldBack | None = None  # what holds back the whole topic

    @property
    def in_force(self) -> LimitView:
        """The running limit and the rate of the topic, set or declared."""
        return LimitView(
            running=self.declared.running if self.set.running is None else self.set.running,
            rate=self.declared.rate if self.set.rate is None else self.set.rate,
        )


async def read_limits(
    store: Store, topic: str, parts: Sequence[str], key: str | None
) -> LimitsView:
    """Return the limits of a topic; with a key, among those set for keys only its own."""
    reads = store.views.lines
    lines = await ask_all(parts, reads.topic_lines)
    counts = await ask_all(parts, store.views.counts)
    keys: dict[str, LimitView] = {}
    more = False
    for part, one in zip(parts, lines, strict=True):
        if key is None:
            found, some_more = await reads.limits_of_keys(part)
            more |= some_more
        else:
            name = key.encode()
            found = {name: await reads.limits_of(part, name)}
        for name, own in found.items():
            if view := set_view(own, one):
                keys[decoded(name)] = view
    known = [one for one in lines if one.declared]
    paused = any(one.paused for one in counts)
    held = [
        held_back_topic(one, count.paused, count.processing)
        for one, count in zip(lines, counts, strict=True)
    ]
    return LimitsView(
        topic=topic,
        declared=_declared_view(known, len(parts)),
        per_key=LimitView(
            running=known[0].per_key.running if known else None,
            rate=rate_in(known[0].per_key) if known else None,
        ),
        overtake=bool(known and known[0].overtake),
        set=_topic_view(lines, paused=paused),
        keys=dict(sorted(keys.items())),
        more=more,
        running=sum(one.processing for one in counts),
        held_back=held[0] if all(held) else None,
    )


def topic_limited_by(view: LimitsView, *, now: float) -> str:
    """Say what holds back a whole topic: "rate 50/s for 20 ms"; "": nothing does."""
    if view.held_back is None:
        return ""
    most = view.in_force
    return held_back_words(view.held_back, view.running, most.running, most.rate, now=now)


def limit_words(view: LimitView) -> str:
    """Say what is limited: "running 5, rate 50/s, burst 5"; empty: nothing is."""
    parts = []
    if view.running is not None:
        parts.append(f"running {view.running:,}")
    if view.rate is not None:
        parts.append(f"rate {view.rate}, burst {view.rate.at_once:g}")
    if view.weight is not None:
        parts.append(f"weight {view.weight:g}")
    if view.paused:
        until = "" if view.paused_until is None else f" until {instant(view.paused_until)}"
        parts.append(f"paused{until}" + (f": {view.reason}" if view.reason else ""))
    return ", ".join(parts)


def set_view(own: SetByOperator, lines: TopicLines) -> LimitView:
    """Return what an operator has set for a key."""
    paused = own.is_paused(lines.at)
    return LimitView(
        running=own.bound.running,
        rate=rate_in(own.bound),
        weight=own.weight,
        paused=paused,
        paused_until=lines.server_time(own.until) if paused else None,
        reason=own.reason if paused else "",
    )


def rate_in(bound: Bound) -> Rate | None:
    """Return a rate as people write it: in the unit that makes its count a whole number."""
    if bound.interval is None:
        return None
    counts = {unit: unit * 1000 / bound.interval for unit in _UNITS}
    whole = [unit for unit, count in counts.items() if abs(count - round(count)) < 1e-6 * count]
    unit = next((unit for unit in whole if round(counts[unit])), _UNITS[0])
    count = round(counts[unit]) if unit in whole and round(counts[unit]) else counts[unit]
    with suppress(InvalidInput):  # another program may have written anything
        return Rate(count, unit, max(1.0, bound.burst or 1.0))
    return None


def _declared_view(known: Sequence[TopicLines], parts: int) -> LimitView:
    """Return what is declared for the topic; partitions not yet served have the same share."""
    if not known:
        return LimitView()
    bounds = [one.limit for one in known]
    bounds += [min(bounds, key=lambda one: one.running or 0)] * (parts - len(known))
    total = Bound.sum(bounds)
    return LimitView(running=total.running, rate=rate_in(total))


def _topic_view(lines: Sequence[TopicLines], *, paused: bool) -> LimitView:
    total = Bound.sum([one.set.bound for one in lines])
    timed = [one for one in lines if one.set.is_paused(one.at)]
    until = [one.server_time(one.set.until) for one in timed]
    return LimitView(
        running=total.running,
        rate=rate_in(total),
        paused=paused or bool(timed),
        paused_until=None if paused or None in until else max(filter(None, until), default=None),
        reason=timed[0].set.reason if timed else "",
    )
