"""Limits: how many messages of a topic, or of each key, run at a time and start per second.

A handler declares them. The server keeps them, over all workers: a message that may not start yet
is not leased. A rate is a token bucket that starts full.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from mx_rmq.core.durations import LONGEST, SHORTEST, Seconds, as_seconds
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.text import shown

FASTEST: Final = 1_000_000  # the highest rate per second: the server's times are accurate to 1 µs
MAX_RUNNING: Final = 1_000_000
MAX_BURST: Final = 1_000_000_000
BURST_SECONDS: Final = 0.1  # the default burst is what the rate allows in this time

_ALLOWED: Final = f"between 1 in ten years and {FASTEST:,} per second"
_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}


class Rate(msgspec.Struct, frozen=True):
    """How many messages start per time: `Rate(100, 60)` is 100 per minute."""

    count: float
    """Messages, or their costs."""
    per_seconds: float = 1.0
    """In how many seconds."""
    burst: float | None = None
    """How many may start at once after a quiet time; None: a tenth of a second's worth, at least 1.
    """

    if TYPE_CHECKING:  # it accepts more types than it stores

        def __init__(
            self, count: float, per_seconds: Seconds = ..., burst: float | None = ...
        ) -> None: ...

    def __post_init__(self) -> None:
        per = as_seconds("Rate per_seconds=", self.per_seconds, SHORTEST)
        msgspec.structs.force_setattr(self, "per_seconds", per)
        if not _is_number(self.count) or not per / LONGEST <= self.count <= per * FASTEST:
            raise InvalidInput(
                f"Rate count={shown(self.count)} in {per:g} s is not a number {_ALLOWED}"
            )
        if self.burst is not None and not (_is_number(self.burst) and 1 <= self.burst <= MAX_BURST):
            raise InvalidInput(
                f"Rate burst={shown(self.burst)} is not a number from 1 to {MAX_BURST:,}"
            )

    @property
    def interval(self) -> float:
        """The ms from one message to the next."""
        return self.per_seconds * 1000 / self.count

    @property
    def at_once(self) -> float:
        """The burst, given or not."""
        if self.burst is not None:
            return self.burst
        return max(1.0, self.count / self.per_seconds * BURST_SECONDS)

    def __str__(self) -> str:
        for unit, seconds in _UNITS.items():
            if self.per_seconds == seconds:
                return f"{self.count:g}/{unit}"
        return f"{self.count:g} per {self.per_seconds:g} s"


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """How many messages run at a time, and how many start per time, over all workers."""

    running: int | None = None
    """Messages that run at the same time; None: no limit. As `per_key`, 1 means strict order."""
    rate: Rate | None = None
    """How many start per time: "50/s", "100/m", "1000/h" or a Rate; None: no limit."""
    overtake: bool = False
    """As `per_key`: while a failed message waits for its next attempt, the next ones go on."""

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            running: int | None = ...,
            rate: Rate | str | None = ...,
            overtake: bool = ...,
        ) -> None: ...

    def __post_init__(self) -> None:
        running, overtake = self.running, self.overtake
        if running is not None and not (type(running) is int and 1 <= running <= MAX_RUNNING):
            raise InvalidInput(
                f"Limit running={shown(running)} is not a whole number from 1 to {MAX_RUNNING:,}"
            )
        if self.rate is not None:
            msgspec.structs.force_setattr(self, "rate", rate_of(self.rate))
        if not isinstance(overtake, bool):
            raise InvalidInput(f"Limit overtake={shown(overtake)} is not True or False")
        if running is None and overtake:
            raise InvalidInput("Limit overtake=True needs running: without it, no line waits")
        if running is None and self.rate is None:
            raise InvalidInput("Limit() limits nothing: pass running, rate or both")


def rate_of(value: Any) -> Rate:
    """Return the rate for a value: a Rate, or a text such as "50/s"."""
    if isinstance(value, Rate):
        return value
    if not isinstance(value, str):
        raise InvalidInput(f'rate={shown(value)} is neither a Rate nor a string such as "50/s"')
    count, _, unit = value.partition("/")
    if unit not in _UNITS or not count.isascii() or not count.replace(".", "", 1).isdigit():
        raise InvalidInput(f"rate={shown(value)} is not a rate such as 50/s, 100/m or 1000/h")
    per = _UNITS[unit]
    if not per / LONGEST <= float(count) <= per * FASTEST:
        raise InvalidInput(f"rate={shown(value)} is not {_ALLOWED}")
    return Rate(float(count), per)


def declared(limit: Limit | None, per_key: Limit | None, number: int = 0, parts: int = 1) -> str:
    """Return the limits of one of a topic's partitions as the server gets them; empty: none.

    RUNNING INTERVAL BURST, for the partition and then for each key, with - for no limit; then
    whether a failed message may be overtaken, 0 or 1. The partitions share `limit`. A key is in one
    partition, so `per_key` is not shared.
    """
    if limit is None and per_key is None:
        return ""
    overtake = per_key is not None and per_key.overtake
    return " ".join([*_share(limit, number, parts), *_share(per_key, 0, 1), str(int(overtake))])


def _share(limit: Limit | None, number: int, parts: int) -> list[str]:
    running = interval = burst = "-"
    if limit is not None and limit.running is not None:
        running = str(share_of_running(limit.running, number, parts))
    if limit is not None and limit.rate is not None:
        share = share_of_rate(limit.rate.interval, limit.rate.at_once, parts)
        interval, burst = (f"{one:.12g}" for one in share)
    return [running, interval, burst]


def share_of_running(running: int, number: int, parts: int) -> int:
    """Return a partition's share of a running limit: at least 1, unless nothing may run."""
    return running and max(1, running // parts + (number < running % parts))


def share_of_rate(interval: float, burst: float, parts: int) -> tuple[float, float]:
    """Return a partition's share of a rate: its interval and its burst."""
    return interval * parts, max(1.0, burst / parts)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
