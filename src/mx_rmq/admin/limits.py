"""The limits of a topic and of its keys: what the handler declares, and what operators set.

The partitions of a topic share its limits. A key is in one partition, so its limits are not shared.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, Final, Literal

from mx_rmq.admin.fanout import ask_all
from mx_rmq.core.durations import SHORTEST, Seconds, as_seconds
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.limits import MAX_RUNNING, Rate, rate_of
from mx_rmq.core.partition import number_for, number_of
from mx_rmq.core.text import duration, instant, shown
from mx_rmq.store.line_reads import FOREVER, Bound
from mx_rmq.store.operator_calls import KEEP, Keep
from mx_rmq.store.results import decoded

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from mx_rmq.store import Store
    from mx_rmq.store.line_reads import SetByOperator, TopicLines

    Parts = Callable[[str], Awaitable[list[str]]]

LEAST_WEIGHT: Final = 0.001
MOST_WEIGHT: Final = 1000.0

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
class HeldBack:
    """Why nothing of a key or a topic starts now."""

    by: Literal["paused", "running", "rate", "snoozed"]
    until: float | None = None
    """When that ends; None: when it is resumed, or when a message ends."""
    reason: str = ""


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


class Limiter:
    """Reads and sets the limits of topics and keys."""

    def __init__(self, store: Store, parts: Parts, *, by: str) -> None:
        self._store = store
        self._lines = store.views.lines
        self._parts = parts  # refuses an unknown topic
        self._by = by

    async def limit(self, topic: str, key: str | None, given: dict[str, Any]) -> None:
        """Set what is given; None restores what is declared."""
        if all(value is KEEP for value in given.values()):
            raise InvalidInput("limit() changes nothing: pass running=, rate= or weight=")
        running = _check_running(given["running"])
        rate = given["rate"]
        rate = rate if rate is KEEP or rate is None else rate_of(rate)
        weight = _check_weight(given["weight"])
        if key is None and weight is not KEEP:
            raise InvalidInput("weight= needs key=: it says how many turns that key gets")

        def share(number: int, parts: int) -> dict[str, Any]:
            number, parts = (number, parts) if key is None else (0, 1)
            return {
                "running": _share(running, number, parts),
                "interval": _share_of_rate(rate, parts),
                "weight": weight,
            }

        await self._set(topic, key, share, _change_words(running, rate, weight))

    async def pause(self, topic: str, key: str | None, seconds: Seconds | None, why: str) -> bool:
        """Pause a key or a topic; return whether that changed anything."""
        ms = inf if seconds is None else as_seconds("seconds=", seconds, SHORTEST) * 1000
        before = await self._sets(topic, key)
        words = "paused" if seconds is None else f"paused for {duration(ms / 1000)}"
        words += f": {why}" if why else ""
        await self._set(topic, key, lambda _, __: {"pause": ms, "reason": why}, words)
        again = [one.until == FOREVER and one.reason == why for one in before]
        return not (ms == inf and again and all(again))

    async def resume(self, topic: str, key: str | None) -> bool:
        """End the pause of a key or a topic; return whether there was one."""
        before = await self._sets(topic, key)
        if all(one.until is None for one in before):
            return False
        paused = [await self._is_paused(topic, one) for one in before]
        await self._set(topic, key, lambda _, __: {"pause": None}, "resumed")
        return any(paused)

    async def reshare(self, topic: str, before: int) -> None:
        """Share what is set out again, after a topic has grown from `before` partitions."""
        parts = await self._parts(topic)
        old = parts[:before]
        sets = await ask_all(old, self._lines.limits_of)
        bound = _sum([one.bound for one in sets])
        changes: dict[str, Any] = {}
        if bound.running is not None:
            changes["running"] = bound.running
        if bound.interval is not None:
            changes["rate"] = rate_in(bound)
        if changes:
            await self.limit(topic, None, {"rate": KEEP, "running": KEEP, "weight": KEEP} | changes)
        if until := max((one.until or 0 for one in sets), default=0):
            await self._copy_pause(parts, "", until, sets[0].reason)
        for part in old:
            found, _ = await self._lines.all_set(part)
            for key, one in found.items():
                name = decoded(key)
                home = parts[number_for(name, len(parts))]
                if home != part:
                    await self._copy(home, name, one)

    async def limits(self, topic: str, key: str | None) -> LimitsView:
        """Return the limits of a topic; with a key, among those set for keys only its own."""
        parts = await self._parts(topic)
        lines = await ask_all(parts, self._lines.lines)
        counts = await ask_all(parts, self._store.views.counts)
        keys: dict[str, LimitView] = {}
        more = False
        for part, one in zip(parts, lines, strict=True):
            if key is None:
                found, some_more = await self._lines.all_set(part)
                more |= some_more
            else:
                name = key.encode()
                found = {name: await self._lines.limits_of(part, name)}
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

    async def _sets(self, topic: str, key: str | None) -> list[SetByOperator]:
        parts = await self._places(await self._parts(topic), key)
        name = (key or "").encode()
        return await ask_all(parts, lambda part: self._lines.limits_of(part, name))

    async def _is_paused(self, topic: str, one: SetByOperator) -> bool:
        return one.until is not None and one.is_paused((await self._lines.lines(topic)).at)

    async def _set(
        self,
        topic: str,
        key: str | None,
        share: Callable[[int, int], dict[str, Any]],
        words: str,
    ) -> None:
        """Set something on the partitions that have a key, or on all of them.

        `share` returns what to set, for the number of a partition and how many there are. `words`
        say what changes. If the topic grows meanwhile, all of it is done again.
        """
        parts: list[str] = []
        about = words if key is None else f"key {key}: {words}"
        while len(now := await self._parts(topic)) > len(parts):
            parts = now

            async def one(part: str, count: int = len(parts)) -> None:
                changes = share(number_of(part), count)
                await self._store.limit_key(part, key, **changes, by=self._by, about=about)

            await ask_all(await self._places(parts, key), one)

    async def _places(self, parts: Sequence[str], key: str | None) -> list[str]:
        """Return the partitions that a key is in: before a topic grew, it may have been in another.

        Without a key: all of them.
        """
        if key is None or len(parts) == 1:
            return [*parts]
        home, name = parts[number_for(key, len(parts))], key.encode()
        there = await ask_all(parts, lambda part: self._lines.has(part, name))
        return [
            part for part, is_there in zip(parts, there, strict=True) if is_there or part == home
        ]

    async def _copy(self, part: str, key: str, one: SetByOperator) -> None:
        """Give a key the same limits in another partition."""
        bound = one.bound
        rate = KEEP if bound.interval is None else (bound.interval, bound.burst or 1.0)
        await self._store.limit_key(
            part,
            key,
            running=KEEP if bound.running is None else bound.running,
            interval=rate,
            weight=KEEP if one.weight is None else one.weight,
            by=self._by,
            about=f"key {key}: the same limits as before the topic grew",
        )
        if one.until is not None:
            await self._copy_pause([part], key, one.until, one.reason)

    async def _copy_pause(self, parts: Sequence[str], key: str, until: float, reason: str) -> None:
        for part in parts:
            left = until - (await self._lines.lines(part)).at
            if left > 0:
                pause = inf if until >= FOREVER else left
                await self._store.limit_key(
                    part,
                    key,
                    pause=pause,
                    reason=reason,
                    by=self._by,
                    about=(f"key {key}: " if key else "") + "paused as before the topic grew",
                )


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


def _change_words(
    running: int | Keep | None, rate: Rate | Keep | None, weight: float | Keep | None
) -> str:
    """Say what an operator changes: "running 2, rate as declared"."""
    parts = []
    if running is not KEEP:
        parts.append("running as declared" if running is None else f"running {running:,}")
    if isinstance(rate, Rate):
        parts.append(f"rate {rate}, burst {rate.at_once:g}")
    elif rate is None:
        parts.append("rate as declared")
    if weight is not KEEP:
        parts.append(f"weight {1 if weight is None else weight:g}")
    return ", ".join(parts)


def set_view(own: SetByOperator, lines: TopicLines) -> LimitView:
    """Return what an operator has set for a key."""
    paused = own.is_paused(lines.at)
    return LimitView(
        running=own.bound.running,
        rate=rate_in(own.bound),
        weight=own.weight,
        paused=paused,
        paused_until=_time(own.until, lines) if paused else None,
        reason=own.reason if paused else "",
    )


def held_back_topic(lines: TopicLines, paused: bool | int, running: int) -> HeldBack | None:
    """Return what holds back a whole topic, if anything."""
    if paused:
        return HeldBack(by="paused", reason=lines.set.reason)
    bound = lines.in_force
    return held_back(lines, lines.set, bound, running=running, full_at=lines.full_at)


def held_back(
    lines: TopicLines,
    own: SetByOperator,
    bound: Bound,
    *,
    running: int,
    full_at: float,
    snoozed_until: float = 0.0,
    cost: int = 1,
) -> HeldBack | None:
    """Return why the next message may not start, decided as `dispatch_in_turn.lua` does."""
    if own.is_paused(lines.at):
        return HeldBack(by="paused", until=_time(own.until, lines), reason=own.reason)
    if snoozed_until > lines.at:
        return HeldBack(by="snoozed", until=_time(snoozed_until, lines))
    if bound.running is not None and running >= bound.running:
        return HeldBack(by="running")
    if bound.interval is not None:
        burst = bound.burst or 1.0
        tokens = burst - max(0.0, full_at - lines.at) / bound.interval + 1e-6
        if (missing := min(cost, burst) - tokens) > 0:
            return HeldBack(by="rate", until=_time(lines.at + missing * bound.interval, lines))
    return None


def _time(at: float | None, lines: TopicLines) -> float | None:
    """Return a time of the lines by the server's clock, in seconds; None: forever."""
    return None if at is None or at >= FOREVER else (at - lines.ahead) / 1000


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
    total = _sum(bounds)
    return LimitView(running=total.running, rate=rate_in(total))


def _topic_view(lines: Sequence[TopicLines], *, paused: bool) -> LimitView:
    total = _sum([one.set.bound for one in lines])
    timed = [one for one in lines if one.set.is_paused(one.at)]
    until = [_time(one.set.until, one) for one in timed]
    return LimitView(
        running=total.running,
        rate=rate_in(total),
        paused=paused or bool(timed),
        paused_until=None if paused or None in until else max(filter(None, until), default=None),
        reason=timed[0].set.reason if timed else "",
    )


def _sum(bounds: Iterable[Bound]) -> Bound:
    """Return the limit of a topic from the shares of its partitions."""
    every = list(bounds)
    running = [one.running for one in every if one.running is not None]
    rates = [one for one in every if one.interval is not None]
    return Bound(
        running=sum(running) if running else None,
        interval=1 / sum(1 / one.interval for one in rates if one.interval) if rates else None,
        burst=sum(one.burst or 1.0 for one in rates) if rates else None,
    )


def _share(running: int | Keep | None, number: int, parts: int) -> int | Keep | None:
    """Return a partition's share of a running limit: at least 1, unless nothing may run."""
    if running is KEEP or not running:
        return running
    return max(1, running // parts + (number < running % parts))


def _share_of_rate(rate: Rate | Keep | None, parts: int) -> tuple[float, float] | Keep | None:
    if not isinstance(rate, Rate):
        return rate
    return rate.interval * parts, max(1.0, rate.at_once / parts)


def _check_running(running: Any) -> int | Keep | None:
    if running is KEEP or running is None:
        return running
    if type(running) is not int or not 0 <= running <= MAX_RUNNING:
        raise InvalidInput(
            f"running={shown(running)} is not a whole number from 0 to {MAX_RUNNING:,}"
        )
    return running


def _check_weight(weight: Any) -> float | Keep | None:
    if weight is KEEP or weight is None:
        return weight
    number = isinstance(weight, int | float) and not isinstance(weight, bool)
    if not number or not LEAST_WEIGHT <= weight <= MOST_WEIGHT:
        raise InvalidInput(
            f"weight={shown(weight)} is not a number from {LEAST_WEIGHT} to {MOST_WEIGHT:g}"
        )
    return float(weight)
