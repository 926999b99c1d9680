"""Schedules as operators see and change them: those on the server, and crons declared in code."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from mx_rmq.admin.arguments import check_text, unknown
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.names import SCHEDULE, TOPIC, check_schedule
from mx_rmq.core.schedule import Schedule
from mx_rmq.store import producer_calls

if TYPE_CHECKING:
    from datetime import tzinfo

    from mx_rmq.core.cron import Cron
    from mx_rmq.core.schedule import ScheduleOptions
    from mx_rmq.store import Store
    from mx_rmq.store.schedule_calls import DeclaredCron, ScheduleList, StoredSchedule

SET_BACK: Final = 60_000  # ms; a last tick further ahead counts for nothing
MAX_RUNS: Final = 1000  # next runs that one call returns


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleView:
    """A schedule. Times are seconds since 1970, by the server's clock."""

    name: str  # of a cron: its topic
    topic: str
    expression: str
    tz: str
    missed: str  # what happens to ticks at which no worker was running: skip or once
    declared: bool  # in code, by `@mq.cron`; otherwise it was stored by `admin.schedule`
    declared_at: float | None = None  # when a worker last declared it
    paused: bool = False
    paused_at: float | None = None
    pause_reason: str = ""
    next_run: float | None = None  # None: paused, or this machine lacks its time zone
    last_run: float | None = None  # the last tick that fired; None: none has
    waits_since: float | None = None
    """Ticks later than this one have not fired yet. None: no worker has looked at it."""
    payload: Any = None
    priority: str = "normal"
    ttl: float | None = None  # seconds
    headers: dict[str, str] = field(default_factory=dict)
    max_attempts: int | None = None
    retry: dict[str, Any] | None = None

    def next_runs(self, count: int = 10, after: float | None = None) -> list[float]:
        """Return the next runs, at most 1,000; none if it is paused. `after`: instead of now."""
        if self.next_run is None:
            return []
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_RUNS:
            raise InvalidInput(f"count={count!r:.40} is not a whole number from 1 to {MAX_RUNS}")
        cron = _cron_of(self)
        runs = [self.next_run] if after is None else [cron.next_after(round(after * 1000)) / 1000]
        while len(runs) < count:
            runs.append(cron.next_after(round(runs[-1] * 1000)) / 1000)
        return runs


class _Found(NamedTuple):
    """A schedule to act on. An empty name means the topic's cron."""

    schedule: Schedule
    name: str

    @property
    def topic(self) -> str:
        return self.schedule.topic


class ScheduleActions:
    """Reads and changes schedules."""

    def __init__(self, store: Store, *, by: str) -> None:
        self._store = store
        self._by = by

    async def schedule(
        self,
        name: str,
        topic: str,
        expression: str,
        payload: Any,
        *,
        tz: str | tzinfo,
        missed: str,
        options: ScheduleOptions,
    ) -> ScheduleView:
        """Store a schedule, in place of the one with its name."""
        limit = self._store.limits.max_payload
        schedule = Schedule.of(
            name,
            topic,
            expression,
            payload,
            tz=tz,
            missed=missed,
            max_payload=limit,
            options=options,
        )
        producer_calls.check_size(self._store, schedule.message(0), topic)
        before = await self._store.read_schedules(name)
        if name in before.crons and name not in before.schedules:
            raise InvalidInput(f"schedule {name!r} is taken by the cron of that topic: {_IN_CODE}")
        await self._store.put_schedule(schedule, by=self._by)
        return await self.get(name)

    async def unschedule(self, name: str) -> bool:
        """Remove a schedule; return whether there was one."""
        check_schedule(name)
        known = await self._store.read_schedules(name)
        if name in known.crons and name not in known.schedules:
            raise InvalidInput(f"schedule {name!r} cannot be removed: {_IN_CODE}")
        return await self._store.drop_schedule(name, by=self._by)

    async def pause(self, name: str, reason: str) -> bool:
        """Stop a schedule from firing; return whether that changed anything."""
        check_text("reason=", reason)
        found = await self._find(name)
        changed = await self._store.pause_schedule(
            found.topic, found.name, reason=reason, by=self._by
        )
        await self._store.list_schedule()
        return changed

    async def resume(self, name: str) -> bool:
        """Let a schedule fire again; return whether it was paused."""
        found = await self._find(name)
        changed = await self._store.resume_schedule(found.topic, found.name, by=self._by)
        await self._store.list_schedule()
        return changed

    async def run(self, name: str) -> str:
        """Produce the message of a schedule now; return its id."""
        found = await self._find(name)
        topic = found.topic
        now = await self._store.views.now(topic)
        if topic not in self._store.partitions:
            await self._store.register(topic)
        message = found.schedule.message(now, ttl=self._store.ttls.get(topic))
        (produced,) = await self._store.produce_normal_message(topic, [message])
        return produced.id

    async def get(self, name: str) -> ScheduleView:
        """Return one schedule."""
        found = await self._store.read_schedules(_check_name(name))
        if views := await self._views(found):
            return views[0]
        raise await self._unknown(name)

    async def all(self) -> list[ScheduleView]:
        """Return all schedules, by name."""
        return await self._views(await self._store.read_schedules())

    async def _find(self, name: str) -> _Found:
        known = await self._store.read_schedules(_check_name(name))
        if name in known.schedules:
            return _Found(known.schedules[name].schedule, name)
        if name in known.crons:
            return _Found(known.crons[name].schedule, "")
        raise await self._unknown(name)

    async def _unknown(self, name: str) -> InvalidInput:
        found = await self._store.read_schedules()
        known = sorted({*found.schedules, *found.crons})
        return unknown("schedule", name, known, self._store.keys.prefix)

    async def _views(self, found: ScheduleList) -> list[ScheduleView]:
        if not (found.schedules or found.crons):
            return []
        now = await self._store.views.now()
        stored = [_view(one, now) for one in found.schedules.values()]
        crons = [_view(one, now) for one in found.crons.values()]
        return sorted([*stored, *crons], key=lambda view: (view.name, view.declared))


_IN_CODE: Final = "it is declared in code, by @mq.cron; change it there, or pause it"


def _view(one: StoredSchedule | DeclaredCron, now: int) -> ScheduleView:
    schedule, tick, pause = one.schedule, one.tick, one.pause
    seen = getattr(one, "seen", None)
    next_run = last_run = None
    try:
        cron = schedule.cron
    except InvalidInput:  # no such time zone here
        pass
    else:
        if pause is None:
            ahead = tick is not None and now < tick <= now + SET_BACK
            next_run = cron.next_after(tick if ahead and tick else now) / 1000
        if tick is not None and cron.latest(tick, tick - 1) is not None:
            last_run = tick / 1000
    return ScheduleView(
        name=schedule.name or schedule.topic,
        topic=schedule.topic,
        expression=schedule.expression,
        tz=schedule.tz,
        missed=schedule.missed,
        declared=seen is not None,
        declared_at=None if seen is None else seen / 1000,
        paused=pause is not None,
        paused_at=None if pause is None else pause.since / 1000,
        pause_reason="" if pause is None else pause.reason,
        next_run=next_run,
        last_run=last_run,
        waits_since=None if tick is None else tick / 1000,
        payload=msgspec.json.decode(schedule.payload),
        priority=schedule.priority,
        ttl=None if schedule.ttl is None else schedule.ttl / 1000,
        headers=schedule.headers,
        max_attempts=schedule.max_attempts,
        retry=schedule.retry,
    )


def _cron_of(view: ScheduleView) -> Cron:
    return Schedule(
        name=view.name, topic=view.topic, expression=view.expression, tz=view.tz, missed=view.missed
    ).cron


def _check_name(name: str) -> str:
    """Check a name that may also be the topic of a cron."""
    if isinstance(name, str) and (SCHEDULE.fullmatch(name) or TOPIC.fullmatch(name)):
        return name
    return check_schedule(name)
