"""A figure, its goal, and the verdict: values without I/O."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class Bound(StrEnum):
    """On which side of its limit a figure must be."""

    MOST = "≤"
    LEAST = "≥"


@dataclass(frozen=True, slots=True)
class Goal:
    """What a figure must be."""

    bound: Bound
    limit: float

    def met_by(self, value: float) -> bool:
        """Return whether a value is good enough."""
        return value <= self.limit if self.bound is Bound.MOST else value >= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One line of the table."""

    name: str
    """The part that measured it, a dot, and which of its figures it is."""
    what: str
    value: float
    unit: str
    goal: Goal | None = None
    """None: it has no goal, or none that can be judged here."""
    beside: str = ""
    """A goal that depends on another figure."""
    excuse: str = ""
    """Why a missed goal means nothing here: the figure is not judged."""
    note: str = ""
    others: bool = False
    """Whether the traffic of other clients would be included."""

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None: not judged."""
        if self.goal is None:
            return None
        if self.goal.met_by(self.value):
            return True
        return None if self.excuse else False


def at_most(limit: float) -> Goal:
    return Goal(Bound.MOST, limit)


def at_least(limit: float) -> Goal:
    return Goal(Bound.LEAST, limit)


def share(values: Iterable[float], part: float) -> float:
    """Return the value below which this share of all values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def growth(turns: Sequence[Mapping[int, float]]) -> float:
    """Return how much the highest level costs over the lowest one.

    The median of one ratio per turn, because the machine's speed changes from turn to turn.
    """
    low, high = min(turns[0]), max(turns[0])
    return statistics.median(turn[high] / turn[low] for turn in turns)
