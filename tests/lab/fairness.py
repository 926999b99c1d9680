"""What no single dispatch shows: limits hold over time, and no line waits for long."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.lab.lines import InForce

TOPIC = "\n"
"""Stands for the whole topic; no key has a line break in it."""

ROUND = 4
"""How many turns another line may have before one that could start. A key with weight 2 gets two
turns for one of the others; then it may share the turn of the waiting one, and wake up first."""


class Witness:
    """Watches what starts, by the line clock."""

    def __init__(self) -> None:
        self._starts: dict[str, tuple[tuple[float, float], list[tuple[float, int]]]] = {}
        self._passed: dict[str, Counter[str]] = {}

    def starts(self, key: str, limits: InForce, at: float, cost: int) -> None:
        """Note that a message starts: no time window may have more than the bucket gives in it.

        The last one in the window may leave a debt, if it costs more than the burst.
        """
        if limits.interval is None:
            self._starts.pop(key, None)
            return
        rate = limits.interval, limits.burst
        known, seen = self._starts.get(key, (rate, []))
        seen = [*(seen if known == rate else []), (at, cost)][-50:]
        self._starts[key] = rate, seen
        debt, spent = max(0, cost - limits.burst), 0
        for since, units in reversed(seen):
            spent += units
            given = limits.burst + (at - since) / limits.interval
            assert spent <= given + debt + 1e-3, f"{key!r} spends {spent} where {given} are given"

    def forget(self, key: str) -> None:
        """Note that a rate was set or declared: what the bucket holds then is not checked here."""
        self._starts.pop(key, None)

    def turns(self, order: Sequence[str], ready: set[str]) -> None:
        """Note turns in this order; the lines in `ready` could have had one all the time."""
        self._passed = {key: passed for key, passed in self._passed.items() if key in ready}
        for key in order:
            for other in ready - {key}:
                self._passed.setdefault(other, Counter())[key] += 1
            self._passed.pop(key, None)
            for other, passed in self._passed.items():
                assert passed[key] <= ROUND, f"{other!r} waits while {key!r} has its turns"
