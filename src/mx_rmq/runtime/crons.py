"""The crons: produce a message at every tick of a schedule, once over all workers.

Every worker tries at every tick; the server knows the last tick and lets the first one win. Ticks
follow the server's clock.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from mx_rmq.core.cron import Missed
from mx_rmq.core.events import CronFired, CronMissed
from mx_rmq.runtime.loop import TRY_AGAIN, FailureLog, Loop, each

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mx_rmq.core.cron import Cron
    from mx_rmq.net.server_clock import ServerClock
    from mx_rmq.runtime.event_bus import Events
    from mx_rmq.store import Store

LONGEST_SLEEP: Final = 60.0  # seconds, in case the server's clock was set meanwhile
SET_BACK: Final = 60_000  # ms; if the last tick is further ahead, the clock was set back
TICK: Final = "cron-tick"  # the header that names the tick


class Crons:
    """Fires the schedules of one site."""

    def __init__(
        self, store: Store, crons: Iterable[Cron], clock: ServerClock, bus: Events
    ) -> None:
        self._store = store
        self._crons = tuple(crons)
        self._clock = clock
        self._bus = bus
        self._last: dict[str, int] = {}
        self._next: dict[str, int] = {}
        self._failures = FailureLog("crons")
        self.loop = Loop("crons", self.step)

    async def step(self) -> float:
        """Fire due ticks; return the seconds until the next one."""
        failed = await each(self._crons, self._fire, self._failures)
        now = self._clock.now()
        waits = [TRY_AGAIN if failed else LONGEST_SLEEP]
        waits += [(tick - now) / 1000 for tick in self._next.values()]
        return max(0.0, min(waits))

    async def _fire(self, cron: Cron) -> None:
        """Fire a tick that is due, and compute the next one."""
        self._next.pop(cron.topic, None)
        last = known = self._last.get(cron.topic)
        now = self._clock.now()
        if last is None or last > now + SET_BACK or cron.latest(now, last) is not None:
            asked_at = time.monotonic()
            known_last = await self._store.produce_cron_message(cron.topic, 0)
            self._clock.update(known_last.now, asked_at)
            last = known_last.last if known_last.last is not None else known_last.now
        now = self._clock.now()
        # Ticks up to here have fired or were reported as missed.
        reported = last if known is None or known > now else max(last, known)
        tick = cron.due(now, last)
        if tick is not None:
            at = datetime.fromtimestamp(tick / 1000, UTC).isoformat()
            ttl = self._store.ttls.get(cron.topic)
            draft = self._store.draft(None, headers={TICK: at}, ttl=ttl)
            fired = await self._store.produce_cron_message(cron.topic, tick, draft)
            now = min(now, fired.now)  # it may have been too early, by the server's clock
            last = last if fired.last is None else fired.last
            if fired.id is not None:
                if cron.missed is Missed.SKIP:
                    self._report_missed(cron, reported, tick - 1)
                self._bus.emit(CronFired(cron.topic, fired.id, tick / 1000))
        elif (missed := cron.latest(now, last)) is not None:
            self._report_missed(cron, reported, missed)
            last = missed
        self._last[cron.topic] = last
        self._next[cron.topic] = cron.next_after(max(now, last))

    def _report_missed(self, cron: Cron, after: int, until: int) -> None:
        """Emit that the ticks between two times were missed."""
        latest = cron.latest(until, after)
        if latest is not None:
            ticks = cron.ticks(after, latest)
            self._bus.emit(CronMissed(cron.topic, latest / 1000, ticks))
