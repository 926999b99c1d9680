"""The checker for limits and order by key: replays what the server noted.

running   never more leases of a key at the same moment than its limit
order     with `ordered`, no message of a key starts before the one before it has ended
rate      starts of a key in any span of time: at most the burst, and what the rate allows
ledger    what was leased ends; nothing is leased after its end
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mx_rmq import Rate

FINAL: Final = ("completed", "died", "quarantined")
GIVEN_BACK: Final = ("retried", "released", "snoozed")
TAKEN: Final = ("dispatched", "taken_over")

ROUNDING: Final = 1
"""Milliseconds by which a noted time may be off."""


class Rules(NamedTuple):
    """The rules for each key of a topic, or for the whole topic."""

    running: int | None = None
    ordered: bool = False
    rate: Rate | None = None
    per_key: bool = True
    """Whether they apply per key; False: to all messages together."""


class Entry(NamedTuple):
    """One line of the server's history."""

    at: int
    """In milliseconds, by the server's clock."""
    what: str
    ids: list[str]
    """KEY.NUMBER, numbered in the order of the produces."""


@dataclass
class Found:
    """What the checker has found."""

    violations: list[str] = field(default_factory=list)
    ended: set[str] = field(default_factory=set)
    leases: int = 0
    reached: int = 0
    """How often a key reached its limit."""


def check(
    entries: Iterable[Entry],
    rules: Rules,
    *,
    steady_until: float = float("inf"),
    rounding: float = ROUNDING,
) -> Found:
    """Replay a history. Times count only until `steady_until`, when the clock was set."""
    found = Found()
    leased: defaultdict[str, set[str]] = defaultdict(set)
    open_head: dict[str, str] = {}
    last_started: dict[str, int] = {}
    starts: defaultdict[str, list[int]] = defaultdict(list)
    for entry in entries:
        for id in entry.ids:
            key, _, number = id.rpartition(".")
            key = key if rules.per_key else "all keys"
            if entry.what in TAKEN:
                if id in found.ended:
                    found.violations.append(f"leased after its end: {id}")
                if entry.what == "dispatched":
                    found.leases += 1
                    if entry.at <= steady_until:
                        starts[key].append(entry.at)
                    if rules.ordered and open_head.get(key, id) != id:
                        found.violations.append(f"out of order: {id} before {open_head[key]} ended")
                    if rules.ordered and int(number) < last_started.get(key, 0):
                        found.violations.append(f"out of order: {id} after {last_started[key]}")
                    open_head[key], last_started[key] = id, int(number)
                leased[key].add(id)
                if rules.running is not None:
                    found.reached += len(leased[key]) == rules.running
                    if len(leased[key]) > rules.running:
                        found.violations.append(
                            f"{len(leased[key])} at a time: {', '.join(sorted(leased[key]))}"
                        )
            elif entry.what in FINAL or entry.what in GIVEN_BACK:
                leased[key].discard(id)
                if entry.what in FINAL:
                    found.ended.add(id)
                    if open_head.get(key) == id:
                        del open_head[key]
    if rules.rate is not None:
        for key, times in starts.items():
            _check_rate(key, times, rules.rate, rounding, found)
    return found


def _check_rate(key: str, times: list[int], rate: Rate, rounding: float, found: Found) -> None:
    """Replay a bucket that starts full."""
    tokens, before = rate.at_once, times[0]
    slack = 2 * rounding / rate.interval
    for at in times:
        tokens = min(rate.at_once, tokens + (at - before) / rate.interval) - 1
        before = at
        found.reached += tokens < 1
        if tokens < -slack:
            found.violations.append(f"too many starts of {key} at {at}: {-tokens:.2f} too many")
            return
