"""Schedules: follows those stored on the server, so that every worker fires them.

A change is published, so workers learn of it at once. If that notice is lost, or this user may not
listen to channels, the next check of the version finds the change.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from mx_rmq.core.errors import InvalidInput
from mx_rmq.net.server_clock import ServerClock
from mx_rmq.runtime.crons import Crons, Timetable
from mx_rmq.runtime.loop import FailureLog, Loop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from mx_rmq.core.cron import Cron
    from mx_rmq.runtime.event_bus import Events
    from mx_rmq.store import Store
    from mx_rmq.store.schedule_calls import StoredSchedule

LOOK_EVERY: Final = 15.0  # seconds between two checks of the version
READ_EVERY: Final = 300.0
"""Seconds after which everything is read again: a caller may have died before it told us."""
DECLARE_EVERY: Final = 3600.0  # seconds
FORGET: Final = 86_400_000
"""Milliseconds after which a cron that no worker declares any more is forgotten."""


class Schedules:
    """Fires all schedules of a queue, in all topics and sites.

    `clocks` returns the clock of a site that this worker serves, or None. `watch` gets each loop
    that is started.
    """

    def __init__(
        self,
        store: Store,
        crons: Iterable[Cron],
        bus: Events,
        clocks: Callable[[int], ServerClock | None],
        watch: Callable[[Loop], None],
    ) -> None:
        self._store = store
        self._declared = {cron.topic: Timetable.declared(cron).schedule for cron in crons}
        self._bus = bus
        self._clocks = clocks
        self._watch = watch
        self._sites: dict[int, Crons] = {}
        self._version = b""
        self._stale = True
        self._read_at = self._declared_at = float("-inf")
        self._stopped = False
        self._failures = FailureLog("schedules")
        self.loop = Loop("schedules", self.step)

    @property
    def channel(self) -> str:
        """Where changes are published."""
        return self._store.keys.schedule_topics

    def look_again(self) -> None:
        """Read all schedules again: something has changed."""
        self._stale = True
        self.loop.wake()

    async def step(self) -> float:
        """Read the schedules if they have changed; return the seconds until the next look."""
        now = time.monotonic()
        if now >= self._declared_at + DECLARE_EVERY:  # also without crons: it forgets old ones
            await self._store.declare_crons(self._declared, forget=FORGET)
            self._declared_at = now
        if not self._stale and await self._store.schedules_version() != self._version:
            self._stale = True
        if self._stale or (self._version and now >= self._read_at + READ_EVERY):
            await self._read()
            self._read_at = now
        return LOOK_EVERY

    async def _read(self) -> None:
        self._stale = False  # a notice that comes from here on sets it again
        try:
            self._version = await self._store.schedules_version()
            if self._version or self._sites:
                found = await self._store.read_schedules()
                self._version = found.version
                self._fire(found.schedules)
        except BaseException:
            self._stale = True
            raise

    def _fire(self, schedules: Mapping[str, StoredSchedule]) -> None:
        """Fire these schedules, and no others."""
        by_site: dict[int, list[Timetable]] = {number: [] for number in self._sites}
        for stored in schedules.values():
            if stored.pause is None:
                try:
                    timetable = Timetable(stored.schedule.cron, stored.schedule, stored.generation)
                except InvalidInput as error:  # this machine has no such time zone
                    self._failures.log(error)
                    continue
                number = self._store.site_of(stored.schedule.topic)
                by_site.setdefault(number, []).append(timetable)
        for number, timetables in by_site.items():
            if number not in self._sites:
                self._open(number)
            self._sites[number].replace(timetables)

    def _open(self, number: int) -> None:
        clock = self._clocks(number)
        crons = self._sites[number] = Crons(
            self._store,
            (),
            clock or ServerClock(),
            self._bus,
            on_gone=self.look_again,
            asks=clock is None,
        )
        if not self._stopped:
            crons.loop.start()
            self._watch(crons.loop)

    async def stop(self) -> None:
        """Fire no more."""
        self._stopped = True
        await self.loop.stop()
        for crons in self._sites.values():
            await crons.loop.stop()
