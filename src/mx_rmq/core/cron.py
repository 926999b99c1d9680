"""When a cron expression fires. Times are milliseconds since 1970."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, tzinfo
from enum import StrEnum
from itertools import islice, takewhile
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.text import shown

LATE_MS: Final = 10_000  # a tick that could not fire within this many ms was missed
MAX_COUNTED: Final = 1_000  # missed ticks are counted up to this number

FIELDS: Final = (
    "it has five fields, minute (0-59) hour (0-23) day (1-31) month (1-12) weekday (0-7), or six "
    "with the second (0-59) first"
)


class Missed(StrEnum):
    """What happens to ticks at which no worker was running."""

    SKIP = "skip"
    """They are skipped."""
    ONCE = "once"
    """The latest one fires as soon as a worker runs."""


@dataclass(frozen=True, slots=True)
class Cron:
    """A schedule of a topic."""

    topic: str
    expression: str
    zone: tzinfo
    missed: Missed = Missed.SKIP

    @classmethod
    def of(
        cls, topic: str, expression: str, tz: str | tzinfo = "UTC", missed: str = "skip"
    ) -> Cron:
        """Make a schedule, or refuse invalid values."""
        if not isinstance(expression, str):
            raise InvalidInput(f"cron expression {shown(expression)} is not a text; {FIELDS}")
        if missed not in set(Missed):
            raise InvalidInput(f"missed={missed!r} is not one of {', '.join(Missed)}")
        try:
            zone = ZoneInfo(tz) if isinstance(tz, str) else tz
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise InvalidInput(f"tz={tz!r} is not a time zone, such as Europe/Berlin") from error
        if not isinstance(zone, tzinfo):
            raise InvalidInput(f"tz={tz!r} is not a time zone or the name of one")
        cron = cls(topic, expression, zone, Missed(missed))
        try:
            cron.next_after(0)
        except (CronSimError, AttributeError) as error:
            raise InvalidInput(f"cron expression {expression!r}: {error}; {FIELDS}") from error
        except StopIteration:
            raise InvalidInput(f"cron expression {expression!r} never fires") from None
        return cron

    def next_after(self, at: int) -> int:
        return _ms(next(CronSim(self.expression, self._datetime(at))))

    def latest(self, until: int, after: int) -> int | None:
        """Return the last tick up to `until`, if it came after `after`."""
        # Reverse iteration is exclusive, and a tick at `until` itself counts.
        before = CronSim(self.expression, self._datetime(until + 1000), reverse=True)
        tick = next(tick for tick in map(_ms, before) if tick <= until)
        return tick if tick > after else None

    def ticks(self, after: int, until: int) -> int:
        """Count the ticks after one time and up to another, at most MAX_COUNTED."""
        coming = islice(CronSim(self.expression, self._datetime(after)), MAX_COUNTED)
        return sum(1 for _ in takewhile(lambda tick: _ms(tick) <= until, coming))

    def due(self, now: int, last: int) -> int | None:
        """Return the tick that must fire now, if the last one fired at `last`."""
        tick = self.latest(now, last)
        if tick is None or (self.missed is Missed.SKIP and now - tick > LATE_MS):
            return None
        return tick

    def _datetime(self, at: int) -> datetime:
        return datetime.fromtimestamp(at // 1000, self.zone)


def _ms(tick: datetime) -> int:
    return round(tick.timestamp() * 1000)
