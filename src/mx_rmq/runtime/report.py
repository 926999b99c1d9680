"""Events as log lines. The library only logs; where that goes is the application's affair."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from mx_rmq.core import events

if TYPE_CHECKING:
    from mx_rmq.core.events import Event

logger = logging.getLogger("mx_rmq")

LOGGED: Final = (
    events.WorkerStarted,
    events.WorkerStopping,
    events.WorkerStopped,
    events.Retried,
    events.Died,
    events.Quarantined,
    events.LeaseLost,
    events.TakenOver,
    events.LoopBlocked,
    events.ServerLost,
    events.ServerBack,
    events.CronFired,
    events.CronMissed,
)
"""What is worth a line. Completed messages are not: there are too many."""


def log(event: Event) -> None:
    """Log one event."""
    match event:
        case events.WorkerStarted(worker, topics, concurrency):
            logger.info("worker %s serves %s, %d at a time", worker, ", ".join(topics), concurrency)
        case events.WorkerStopping(worker, running, grace):
            logger.info("worker %s stops: %d running, %g s to finish", worker, running, grace)
        case events.WorkerStopped(worker, True):
            logger.info("worker %s has stopped; everything is settled or handed back", worker)
        case events.WorkerStopped(worker, False):
            logger.warning("worker %s has stopped; leases will bring back what is left", worker)
        case events.Retried(topic, id, attempt, delay, error, traceback):
            logger.warning(
                "%s %s: attempt %d failed, again in %g s: %s%s",
                topic,
                id,
                attempt,
                delay,
                error,
                _below(traceback),
            )
        case events.Died(topic, id, attempts, reason, traceback):
            logger.error(
                "%s %s: dead after %d attempt%s: %s%s",
                topic,
                id,
                attempts,
                "" if attempts == 1 else "s",
                reason,
                _below(traceback),
            )
        case events.Quarantined(topic, id, error):
            logger.error("%s %s: quarantined: %s", topic, id, error)
        case events.LeaseLost(topic, id, _, handler):
            logger.warning("%s %s: the lease is lost, %s was stopped", topic, id, handler)
        case events.TakenOver(topic, id, lost_by):
            logger.warning("%s %s: taken over from %s, which went silent", topic, id, lost_by)
        case events.LoopBlocked(handler, seconds, stack):
            logger.warning(
                "%s blocks the event loop for %.1f s now; its lease is kept. It stands at:\n%s",
                handler,
                seconds,
                stack,
            )
        case events.ServerLost(error):
            logger.warning("the server is away, trying on: %s", error)
        case events.ServerBack(seconds):
            logger.warning("the server is back after %.1f s", seconds)
        case events.CronFired(topic, id, _):
            logger.info("%s %s: the cron fired", topic, id)
        case events.CronMissed(topic, tick):
            missed = datetime.fromtimestamp(tick, UTC).isoformat()
            logger.warning("%s: the tick of %s was missed and is skipped", topic, missed)
        case _:
            logger.debug("%s", event)


def _below(traceback: str) -> str:
    return "\n" + traceback.rstrip() if traceback else ""
