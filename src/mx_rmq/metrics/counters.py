"""What a worker has done, as plain numbers, so that counting costs a busy worker next to nothing.

Adding to a number is several times cheaper than a client library's counter with its lock. Nearly
all events come from one event loop; what another thread reads meanwhile is a moment old at worst.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from typing import Final

from mx_rmq.core.events import PARTS

OUTCOMES: Final = ("completed", "retried", "dead", "quarantined", "released", "postponed")
"""The outcomes of a message that a worker held."""

BOUNDS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0),
)
"""Upper bounds of the buckets, in seconds; above the last one there is one more."""


class Times:
    """A histogram of durations."""

    __slots__ = ("buckets", "total")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        self.buckets[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds


class TopicTally:
    """What has happened in one topic."""

    __slots__ = (
        *OUTCOMES,
        "due",
        "fired",
        "handler",
        "is_cron",
        "lost",
        "missed",
        "queue",
        "refused",
        "taken_over",
    )

    def __init__(self) -> None:
        self.completed = self.retried = self.dead = self.quarantined = self.released = 0
        self.postponed = 0
        self.handler = Times()
        """How long handlers took."""
        self.queue = Times()
        """How long after they were due messages came to a handler."""
        self.lost = 0
        """Leases lost."""
        self.refused: Counter[str] = Counter()
        """Outcomes that the server refused, because the lease was lost."""
        self.taken_over = 0
        self.due = 0
        """Delayed messages moved to pending."""
        self.fired = 0
        self.missed = 0
        """Ticks of its cron."""
        self.is_cron = False


class Tally:
    """What has happened in one queue, as far as this process knows."""

    def __init__(self) -> None:
        self.topics: defaultdict[str, TopicTally] = defaultdict(TopicTally)
        self.blocks: Counter[str] = Counter()
        """How often a handler kept the event loop from running."""
        self.deaths = Counter(dict.fromkeys(PARTS, 0))
        """How often a part of the worker died."""
        self.away = False
        """Whether the server is away."""
        self.reconnects = 0
        self.away_seconds = 0.0
