"""Events as log lines. The library only logs; the application configures where that goes."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from logging import CRITICAL, ERROR, INFO, WARNING
from typing import TYPE_CHECKING, Any, Final

from mx_rmq.core import events
from mx_rmq.core.text import count, took
from mx_rmq.safe_log import get_logger

if TYPE_CHECKING:
    from mx_rmq.core.events import Event

logger = get_logger("mx_rmq")

_LINES: Final[dict[type, str]] = {
    events.WorkerStarted: (
        "worker %(worker)s started; topics: %(topics)s; concurrency: %(concurrency)d"
    ),
    events.WorkerStopping: (
        "worker %(worker)s is stopping: %(running)d running, %(grace)g s to finish"
    ),
    events.WorkerStopped: "worker %(worker)s stopped; %(left)s",
    events.Retried: (
        "%(topic)s %(id)s: attempt %(attempt)d failed%(took)s, retrying in %(delay)g s: %(error)s"
    ),
    events.Died: "%(topic)s %(id)s: dead after %(attempts)s: %(reason)s",
    events.Quarantined: "%(topic)s %(id)s: quarantined: %(error)s",
    events.Postponed: (
        "%(topic)s %(id)s: only a newer release can read this message; upgrade this worker. "
        "Offered again in %(delay)g s, not counted as an attempt: %(reason)s"
    ),
    events.Replaced: (
        "%(topic)s %(id)s: failed, but was replaced; the new payload runs next: %(error)s"
    ),
    events.LeaseLost: "%(topic)s %(id)s: lease lost, so the result of %(handler)s does not count",
    events.Aborted: "%(topic)s %(id)s: aborted; %(handler)s %(ended)s",
    events.TakenOver: "%(topic)s %(id)s: taken over from %(lost_by)s, which went silent",
    events.LoopBlocked: (
        "%(handler)s blocks the event loop, for %(seconds).1f s so far; its lease is still "
        "extended. Stack:\n%(stack)s"
    ),
    events.ServerLost: "the server is unreachable; still trying: %(error)s",
    events.ServerBack: "the server is back after %(seconds).1f s",
    events.PartDied: "the %(part)s ended unexpectedly and is being restarted: %(error)s",
    events.PartRestarted: "the %(part)s is back after %(seconds).1f s (restart %(restarts)d)",
    events.WorkerFailed: "worker %(worker)s is stopping because it failed: %(error)s",
    events.CronFired: "%(topic)s %(id)s: %(timer)s fired",
    events.CronMissed: "%(topic)s: the tick%(timer)s %(tick)s%(before)s missed, and skipped",
}

_LEVELS: Final[dict[type, int]] = {
    events.WorkerStarted: INFO,
    events.WorkerStopping: INFO,
    events.CronFired: INFO,
    events.Died: ERROR,
    events.Quarantined: ERROR,
    events.PartDied: ERROR,
    events.WorkerFailed: CRITICAL,
}
"""The others are warnings."""

LOGGED: Final[tuple[type[Any], ...]] = tuple(_LINES)
"""Events that are logged. Completed, snoozed and parked messages are not: there are too many.
`mx-rmq worker` logs them while they are few."""

_NAMES: Final = {"id": "message_id", "attempts": "attempt"}
"""Fields of events that have another name in the logs."""

NEWER_EVERY: Final = 60.0  # seconds between two lines about messages of a newer release in a topic


class EventLog:
    """Logs the events of one queue."""

    def __init__(self) -> None:
        self._newer_at: dict[str, float] = {}  # by topic, when such a message was last logged
        self._traceback = ""  # the last one; the messages of a batch that failed share it

    def log(self, event: Event) -> None:
        """Log an event; `extra` says which message or worker it is about."""
        level, line = _LEVELS.get(type(event), WARNING), _LINES[type(event)]
        fields: dict[str, Any] = {name: getattr(event, name) for name in event.__slots__}
        about = {"event": type(event).__name__} | {
            _NAMES.get(name, name): fields[name]
            for name in ("topic", "id", "attempt", "attempts", "seconds", "worker")
            if fields.get(name) is not None
        }
        if "seconds" in about:
            about["seconds"] = round(about["seconds"], 6)
        traceback = fields.get("traceback", "")
        if traceback and traceback is self._traceback:
            line += " (traceback as above)"
        elif traceback:
            self._traceback = traceback
            fields["traceback"] = traceback.rstrip()
            line += "\n%(traceback)s"
        match event:
            case events.WorkerStarted(topics=topics):
                fields["topics"] = ", ".join(topics)
            case events.WorkerStopped(clean=True):
                level, fields["left"] = INFO, "everything is settled or handed back"
            case events.WorkerStopped():
                fields["left"] = "other workers take over the rest when the leases expire"
            case events.Retried(seconds=seconds):
                fields["took"] = "" if seconds is None else f" after {took(seconds)}"
            case events.Aborted(seconds=seconds):
                fields["ended"] = (
                    "had not begun" if seconds is None else f"was stopped after {took(seconds)}"
                )
            case events.Replaced(error=""):
                return
            case events.Died(attempts=attempts):
                fields["attempts"] = count(attempts, "attempt")
            case events.Postponed(topic):
                now = time.monotonic()
                if now - self._newer_at.get(topic, float("-inf")) < NEWER_EVERY:
                    return
                self._newer_at[topic] = now
            case events.CronFired(schedule=schedule):
                fields["timer"] = f"schedule {schedule}" if schedule else "cron"
            case events.CronMissed(tick=tick, ticks=ticks, schedule=schedule):
                fields["timer"] = f" of schedule {schedule} at" if schedule else " of"
                fields["tick"] = datetime.fromtimestamp(tick, UTC).isoformat()
                fields["before"] = f" and {ticks - 1:,} before it were" if ticks > 1 else " was"
        logger.about({"mx_rmq": about}).log(level, line, fields)
