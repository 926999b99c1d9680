"""How many messages each thing has happened to: ever, and per second."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """How many messages of a topic each thing has happened to, since the topic exists."""

    produced: int = 0
    """Delayed ones included."""
    due: int = 0
    """Moved from delayed to pending: retries, and messages that were produced with a delay."""
    dispatched: int = 0
    completed: int = 0
    retried: int = 0
    died: int = 0
    quarantined: int = 0
    released: int = 0
    postponed: int = 0
    """Handed back because only a newer release can read them."""
    taken_over: int = 0
    requeued: int = 0
    discarded: int = 0
    cancelled: int = 0
    trimmed: int = 0
    """Dropped from an archive, because of its age or of the archive's cap."""
    repaired: int = 0

    @property
    def failed(self) -> int:
        """How many attempts did not succeed."""
        return self.retried + self.died + self.quarantined


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Messages per second, measured over a short time."""

    topic: str
    produced: float
    completed: float
    failed: float


def totals(counted: Iterable[Mapping[str, int]]) -> Totals:
    """Add up what the partitions of a topic have counted."""
    sums = {one.name: 0 for one in fields(Totals)}
    for ever in counted:
        for what, number in ever.items():
            name = "produced" if what == "delayed" else what
            if name in sums:
                sums[name] += number
    return Totals(**sums)


def rates(topic: str, before: Totals, after: Totals, seconds: float) -> Rates:
    """Return the rates between two readings."""

    def rate(was: int, now: int) -> float:
        return max(0, now - was) / seconds

    return Rates(
        topic=topic,
        produced=rate(before.produced, after.produced),
        completed=rate(before.completed, after.completed),
        failed=rate(before.failed, after.failed),
    )
