"""One hour of figures of one topic, in memory, and its chart data."""

from __future__ import annotations

from array import array
from math import isnan, nan
from statistics import fmean
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

KEPT: Final = 3600.0  # seconds

DEPTHS: Final = ("pending", "processing", "delayed", "dead", "quarantined")
RATES: Final = ("produced", "completed", "failed")
FIGURES: Final = (*DEPTHS, "oldest", *RATES)
"""The values of a point. `oldest` is an age in seconds, rates are per second."""

_WIDTH: Final = 1 + len(FIGURES)
_OLD: Final = 64  # points too old are dropped in chunks of this many

Point = dict[str, float | None]


class Series:
    """Points in time, oldest first. About 80 bytes per point."""

    def __init__(self) -> None:
        self._numbers = array("d")

    def __len__(self) -> int:
        return len(self._numbers) // _WIDTH

    def add(self, at: float, point: Mapping[str, float | None]) -> None:
        """Add the newest point; drop those that are too old."""
        self._numbers.append(at)
        values = (point.get(name) for name in FIGURES)
        self._numbers.extend(nan if value is None else value for value in values)
        if len(self) > _OLD and self._numbers[_OLD * _WIDTH] < at - KEPT:
            del self._numbers[: _OLD * _WIDTH]

    def chart(self, since: float, most: int) -> dict[str, list[float | None]]:
        """Return at most `most` points from a time on, one column per figure.

        Where several points become one, a rate is their mean and everything else the largest: a
        chart must not hide a peak.
        """
        times = self._numbers[::_WIDTH]
        first = next((place for place, at in enumerate(times) if at >= since), len(times))
        step = max(1, -(-(len(times) - first) // most))
        starts = range(first, len(times), step)
        columns: dict[str, list[float | None]] = {
            "at": [times[min(start + step, len(times)) - 1] for start in starts]
        }
        for place, name in enumerate(FIGURES, 1):
            column = self._numbers[place::_WIDTH]
            merge = fmean if name in RATES else max
            columns[name] = [_merged(column[start : start + step], merge) for start in starts]
        return columns


def _merged(values: Iterable[float], merge: Callable[[list[float]], float]) -> float | None:
    known = [value for value in values if not isnan(value)]
    return round(merge(known), 3) if known else None
