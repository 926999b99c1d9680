"""Events as log lines. The library only logs; the application configures where that goes."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from mx_rmq.core import events
from mx_rmq.safe_log import get_logger

if TYPE_CHECKING:
    from mx_rmq.core.events import Event

logger = get_logger("mx_rmq")

LOGGED: Final = (
    events.WorkerStarted,
    events.WorkerStopping,
    events.WorkerStopped,
    events.Retried,
    events.Died,
    events.Quarantined,
    events.Postponed,
    events.LeaseLost,
    events.TakenOver,
    events.LoopBlocked,
    events.ServerLost,
    events.ServerBack,
    events.PartDied,
    events.PartRestarted,
    events.WorkerFailed,
    events.CronFired,
    events.CronMissed,
)
"""What is worth a line. Completed messages are not: there are too many."""

_FIELDS: Final = (
    ("topic", "topic"),
    ("id", "message_id"),
    ("attempt", "attempt"),
    ("attempts", "attempt"),
    ("worker", "worker"),
)
"""Fields of events, and what the logs call them."""


NEWER_EVERY: Final = 60.0
"""Seconds between two lines about messages of a newer release in a topic: there may be many."""


class EventLog:
    """Logs the events of one queue."""

    def __init__(self) -> None:
        self._newer_at: dict[str, float] = {}
        """When a line about messages of a newer release was last logged, by topic."""

    def log(self, event: Event) -> None:
        """Log one event; its fields are in `extra`."""
        line = logger.about({"mx_rmq": about(event)})
        match event:
            case events.WorkerStarted(worker, topics, concurrency):
                line.info(
                    "worker %s serves %s, %d at a time", worker, ", ".join(topics), concurrency
                )
            case events.WorkerStopping(worker, running, grace):
                line.info("worker %s stops: %d running, %g s to finish", worker, running, grace)
            case events.WorkerStopped(worker, True):
                line.info("worker %s has stopped; everything is settled or handed back", worker)
            case events.WorkerStopped(worker, False):
                line.warning("worker %s has stopped; leases will bring back what is left", worker)
            case events.Retried(topic, id, attempt, delay, error, traceback):
                line.warning(
                    "%s %s: attempt %d failed, again in %g s: %s%s",
                    topic,
                    id,
                    attempt,
                    delay,
                    error,
                    _below(traceback),
                )
            case events.Died(topic, id, attempts, reason, traceback):
                line.error(
                    "%s %s: dead after %d attempt%s: %s%s",
                    topic,
                    id,
                    attempts,
                    "" if attempts == 1 else "s",
                    reason,
                    _below(traceback),
                )
            case events.Quarantined(topic, id, error):
                line.error("%s %s: quarantined: %s", topic, id, error)
            case events.Postponed(topic, id, delay, reason):
                if self._is_due(topic):
                    line.warning(
                        "%s %s: messages of a newer release wait here; upgrade this worker. "
                        "Offered again in %g s, uncounted: %s",
                        topic,
                        id,
                        delay,
                        reason,
                    )
            case events.LeaseLost(topic, id, _, handler):
                line.warning("%s %s: the lease is lost, %s was stopped", topic, id, handler)
            case events.TakenOver(topic, id, lost_by):
                line.warning("%s %s: taken over from %s, which went silent", topic, id, lost_by)
            case events.LoopBlocked(handler, seconds, stack):
                line.warning(
                    "%s blocks the event loop for %.1f s now; its lease is kept. It stands at:\n%s",
                    handler,
                    seconds,
                    stack,
                )
            case events.ServerLost(error):
                line.warning("the server is away; still trying: %s", error)
            case events.ServerBack(seconds):
                line.warning("the server is back after %.1f s", seconds)
            case events.PartDied(_, part, error):
                line.error("the %s ended unexpectedly and is being restarted: %s", part, error)
            case events.PartRestarted(_, part, seconds, restarts):
                line.warning("the %s runs again after %.1f s (restart %d)", part, seconds, restarts)
            case events.WorkerFailed(worker, error):
                line.critical("worker %s stops: %s", worker, error)
            case events.CronFired(topic, id, _):
                line.info("%s %s: the cron fired", topic, id)
            case events.CronMissed(topic, tick, ticks):
                missed = datetime.fromtimestamp(tick, UTC).isoformat()
                before = f" and {ticks - 1:,} before it were" if ticks > 1 else " was"
                line.warning("%s: the tick of %s%s missed and skipped", topic, missed, before)
            case _:
                line.debug("%s", event)

    def _is_due(self, topic: str) -> bool:
        """Return whether to log again that a topic has messages of a newer release."""
        now = time.monotonic()
        if now - self._newer_at.get(topic, float("-inf")) < NEWER_EVERY:
            return False
        self._newer_at[topic] = now
        return True


def about(event: Event) -> dict[str, Any]:
    """Return what an event is about, as the logs name it."""
    known: dict[str, Any] = {"event": type(event).__name__}
    for field, name in _FIELDS:
        if hasattr(event, field):
            known[name] = getattr(event, field)
    return known


def _below(traceback: str) -> str:
    return "\n" + traceback.rstrip() if traceback else ""
