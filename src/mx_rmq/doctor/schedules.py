"""What is wrong with schedules. No I/O: command line and dashboard use these findings alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mx_rmq.core.text import duration
from mx_rmq.doctor.finding import Finding, bad, warn

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from mx_rmq.admin import ScheduleView

LONG: Final = 24 * 3600  # seconds after which a pause may have been forgotten
LATE: Final = 120.0  # seconds after which a tick is overdue, which any worker should have fired


def check_schedules(
    schedules: Iterable[ScheduleView], *, served: Collection[str], now: float
) -> list[Finding]:
    """Check every schedule. `served`: the topics that a live worker serves; `now`: server time."""
    return [found for one in schedules for found in _check(one, served, now)]


def _check(one: ScheduleView, served: Collection[str], now: float) -> Iterator[Finding]:
    what = f"cron {one.name}" if one.declared else f"schedule {one.name}"
    if one.paused:
        since = now - (one.paused_at or now)
        if since > LONG:
            why = f" ({one.pause_reason})" if one.pause_reason else ""
            cure = f"Resume it with: mx-rmq resume-schedule {one.name}; or remove it"
            yield warn(f"{what} has been paused for {duration(since)}{why}", cure, one.topic)
        return
    if one.next_run is None:
        yield warn(
            f"{what}: this machine has no time zone {one.tz!r}",
            "Install the package tzdata, here and wherever workers run",
            one.topic,
        )
        return
    if one.topic not in served and not one.declared:
        yield warn(
            f"{what} produces messages here, but no live worker serves the topic",
            f"Start a worker with a handler for it, or remove it: mx-rmq unschedule {one.name}",
            one.topic,
        )
    if one.waits_since is not None and (due := one.next_runs(1, after=one.waits_since)):
        late = now - due[0]
        if late > LATE and not (one.declared and one.topic not in served):
            yield bad(
                f"{what} should have run {duration(late)} ago, and no worker has fired it",
                "Any worker of the queue fires it: start one, or check the workers' logs",
                one.topic,
            )
