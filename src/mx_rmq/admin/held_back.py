"""Why no message of a key or a topic may start now: paused, snoozed, or limited."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mx_rmq.core.text import took

if TYPE_CHECKING:
    from mx_rmq.core.limits import Rate
    from mx_rmq.store.line_reads import Bound, SetByOperator, TopicLines


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBack:
    """Why no message of a key or a topic may start now."""

    by: Literal["paused", "running", "rate", "snoozed"]
    until: float | None = None
    """When that ends; None: when it is resumed, or when a message ends."""
    reason: str = ""


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
        return HeldBack(by="paused", until=lines.server_time(own.until), reason=own.reason)
    if snoozed_until > lines.at:
        return HeldBack(by="snoozed", until=lines.server_time(snoozed_until))
    if bound.running is not None and running >= bound.running:
        return HeldBack(by="running")
    if bound.interval is not None:
        burst = bound.burst or 1.0
        tokens = burst - max(0.0, full_at - lines.at) / bound.interval + 1e-6
        if (missing := min(cost, burst) - tokens) > 0:
            return HeldBack(by="rate", until=lines.server_time(lines.at + missing * bound.interval))
    return None


def held_back_words(
    held: HeldBack, running: int | None, most: int | None, rate: Rate | None, *, now: float
) -> str:
    """Say what holds back a key or a topic, with the limit that does."""
    if held.by == "running" and not most:
        return "limited to 0 running"
    limit = ""
    if held.by == "running":
        limit = f" {running or 0:,} of {most:,}"
    elif held.by == "rate" and rate is not None:
        limit = f" {rate}"
    left = "" if held.until is None else f" for {took(max(0.0, held.until - now))}"
    return f"{held.by}{limit}{left}" + (f": {held.reason}" if held.reason else "")
