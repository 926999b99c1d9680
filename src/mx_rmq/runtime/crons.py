"""The crons: produce a message at every tick of a timetable, once across all workers.

Every worker tries at every tick; the server knows the last tick and lets the first one win. Ticks
follow the server's clock.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from mx_rmq.core.cron import Missed
from mx_rmq.core.events import CronFired, CronMissed
from mx_rmq.core.schedule import Schedule
from mx_rmq.runtime.loop import TRY_AGAIN, FailureLog, Loop, each

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mx_rmq.core.cron import Cron
    from mx_rmq.net.server_clock import ServerClock
    from mx_rmq.runtime.event_bus import Events
    from mx_rmq.store import Store
    from mx_rmq.store.results import Ticked

LONGEST_SLEEP: Final = 60.0  # seconds, in case the server's clock was set meanwhile
ASK_EVERY: Final = 10.0  # seconds between questions for the time, if no survey asks for it
SET_BACK: Final = 60_000  # ms; if the last tick is further ahead, the clock was set back


@dataclass(frozen=True, slots=True)
class Timetable:
    """When to produce which message."""

    cron: Cron
    schedule: Schedule
    generation: str = ""  # empty: the cron is declared in code

    @classmethod
    def declared(cls, cron: Cron) -> Timetable:
        """Return the timetable of a cron that is declared in code."""
        zone = getattr(cron.zone, "key", None) or str(cron.zone)
        schedule = Schedule(
            name="", topic=cron.topic, expression=cron.expression, tz=zone, missed=cron.missed
        )
        return cls(cron, schedule)

    @property
    def name(self) -> str:
        """The name of the schedule; empty: the cron is declared in code."""
        return self.schedule.name

    @property
    def key(self) -> str:
        return self.name or self.cron.topic


class Crons:
    """Fires the timetables of one site.

    `on_gone` is called when the server has another definition than we do. `asks`: no survey keeps
    the clock up to date, so this asks for the time.
    """

    def __init__(
        self,
        store: Store,
        timetables: Iterable[Timetable],
        clock: ServerClock,
        bus: Events,
        *,
        on_gone: Callable[[], None] = lambda: None,
        asks: bool = False,
    ) -> None:
        self._store = store
        self._timetables = {one.key: one for one in timetables}
        self._clock = clock
        self._bus = bus
        self._on_gone = on_gone
        self._asks = asks
        self._last: dict[str, int] = {}
        self._next: dict[str, int] = {}
        self._failures = FailureLog("crons")
        self.loop = Loop("crons", self.step)

    def replace(self, timetables: Iterable[Timetable]) -> None:
        """Fire these from now on, and no others."""
        new = {one.key: one for one in timetables}
        for key, one in self._timetables.items():
            if key not in new or new[key].generation != one.generation:
                self._last.pop(key, None)
                self._next.pop(key, None)
        self._timetables = new
        self.loop.wake()

    async def step(self) -> float:
        """Fire due ticks; return the seconds until the next one."""
        if self._asks and self._timetables:
            first = next(iter(self._timetables.values()))
            asked_at = time.monotonic()
            self._clock.update(await self._store.views.now(first.cron.topic), asked_at)
        failed = await each(list(self._timetables.values()), self._fire, self._failures)
        now = self._clock.now()
        longest = ASK_EVERY if self._asks else LONGEST_SLEEP
        waits = [TRY_AGAIN if failed else longest]
        waits += [(tick - now) / 1000 for tick in self._next.values()]
        return max(0.0, min(waits))

    async def _fire(self, timetable: Timetable) -> None:
        """Fire a tick that is due, and compute the next one."""
        key, cron = timetable.key, timetable.cron
        self._next.pop(key, None)
        last = known = self._last.get(key)
        now = self._clock.now()
        if last is None or last > now + SET_BACK or cron.latest(now, last) is not None:
            asked_at = time.monotonic()
            report = await self._produce(timetable, 0)
            self._clock.update(report.now, asked_at)
            if report.state:
                self._skip_ticks(timetable, report)
                return
            last = report.last if report.last is not None else report.now
        now = self._clock.now()
        # Ticks up to here have fired or were reported as missed.
        reported = last if known is None or known > now else max(last, known)
        tick = cron.due(now, last)
        if tick is not None:
            fired = await self._produce(timetable, tick)
            if fired.state:
                self._skip_ticks(timetable, fired)
                return
            now = min(now, fired.now)  # it may have been too early, by the server's clock
            last = last if fired.last is None else fired.last
            if fired.id is not None:
                if cron.missed is Missed.SKIP:
                    self._report_missed(timetable, reported, tick - 1)
                self._bus.emit(CronFired(cron.topic, fired.id, tick / 1000, timetable.name))
        elif (missed := cron.latest(now, last)) is not None:
            self._report_missed(timetable, reported, missed)
            last = missed
        if timetable is self._timetables.get(key):  # not replaced while we asked
            self._last[key] = last
            self._next[key] = cron.next_after(max(now, last))

    async def _produce(self, timetable: Timetable, tick: int) -> Ticked:
        """Produce the message of a tick; 0: only ask for the last one."""
        schedule, topic = timetable.schedule, timetable.cron.topic
        message = None
        if tick:
            message = schedule.message(tick, ttl=self._store.ttls.get(topic))
            if schedule.name:
                message = msgspec.structs.replace(message, id=schedule.message_id(tick))
        return await self._store.produce_cron_message(
            topic, tick, message, name=schedule.name, generation=timetable.generation
        )

    def _skip_ticks(self, timetable: Timetable, found: Ticked) -> None:
        """Skip the ticks of a schedule that is paused, or no longer defined as we know it."""
        if timetable is not self._timetables.get(timetable.key):
            return
        if found.state == "paused":
            self._last[timetable.key] = found.now
            self._next[timetable.key] = timetable.cron.next_after(found.now)
        else:
            self._timetables.pop(timetable.key)
            self._last.pop(timetable.key, None)
            self._on_gone()

    def _report_missed(self, timetable: Timetable, after: int, until: int) -> None:
        """Emit that the ticks between two times were missed."""
        cron = timetable.cron
        latest = cron.latest(until, after)
        if latest is not None:
            ticks = cron.ticks(after, latest)
            self._bus.emit(CronMissed(cron.topic, latest / 1000, ticks, timetable.name))
