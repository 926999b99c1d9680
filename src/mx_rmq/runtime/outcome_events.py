"""The events that tell subscribers what became of a message."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from mx_rmq.core import events
from mx_rmq.core.outcome import (
    Complete,
    DeadLetter,
    Park,
    Postpone,
    Quarantine,
    Release,
    ReleaseReplaced,
    RetryLater,
    SnoozeLater,
)
from mx_rmq.core.text import named, text_of
from mx_rmq.runtime.held import Stopped

if TYPE_CHECKING:
    from mx_rmq.core.message import Message
    from mx_rmq.core.outcome import Outcome
    from mx_rmq.runtime.held import HeldMessage


def after_settling(held: HeldMessage, kind: type) -> events.Event | None:
    """Return the event for a message that was settled with this kind of outcome."""
    topic, id, outcome = held.topic.topic, held.leased.id, held.outcome
    if outcome is None or type(outcome) is not kind:
        # The worker handed it back while stopping; afterwards its handler ended and set another
        # outcome.
        return events.Released(topic, id)
    seconds = waited = None
    if held.started_at is not None:
        seconds = seconds_run(held)
        if held.message is not None and held.message.ready_at is not None:
            since_ready = (held.topic.clock.now() - held.message.ready_at) / 1000
            waited = max(0.0, since_ready - (time.monotonic() - held.started_at))
    return after_outcome(topic, id, held.message, outcome, seconds, waited)


def after_losing(held: HeldMessage, refused: str = "") -> events.Aborted | events.LeaseLost:
    """Return the event for a message that is no longer ours; `refused`: what could not be done."""
    topic, claim = held.topic, held.leased
    if held.stopped is Stopped.ABORTED:
        seconds = None if held.started_at is None else seconds_run(held)
        return events.Aborted(topic.topic, claim.id, topic.handler.name, seconds)
    return events.LeaseLost(topic.topic, claim.id, claim.token, topic.handler.name, refused)


def seconds_run(held: HeldMessage) -> float:
    """Return for how long its handler has run; 0 if it did not start."""
    now = time.monotonic()
    return (held.ended_at or now) - (held.started_at or now)


def after_outcome(
    topic: str,
    id: str,
    message: Message | None,
    outcome: Outcome,
    seconds: float | None = None,
    waited: float | None = None,
) -> events.Event | None:
    """Return the event for an outcome; None: nothing failed, the message only waits again.

    `seconds`: how long the handler ran. `waited`: from when the message was due until its handler
    began. None: no handler ran, or it is not known.
    """
    attempt = 1 + (message.attempts if message else 0)
    match outcome:
        case Complete():
            return events.Completed(topic, id, attempt, seconds or 0.0, waited)
        case RetryLater(after, delay, error):
            if error is None:
                return None
            why, traceback = named(error), after.errors[-1].traceback
            return events.Retried(topic, id, attempt, delay / 1000, why, traceback, seconds, waited)
        case SnoozeLater(_, delay, reason):
            return events.Snoozed(topic, id, attempt, delay / 1000, reason, seconds, waited)
        case Park(_, _, delay, reason):
            timeout = None if delay is None else delay / 1000
            return events.Parked(topic, id, timeout, reason, seconds, waited)
        case DeadLetter(after, None):  # it had expired before a handler saw it
            return events.Died(topic, id, after.attempts, after.reason)
        case DeadLetter(after):
            traceback = after.errors[-1].traceback
            return events.Died(topic, id, after.attempts, after.reason, traceback, seconds, waited)
        case Quarantine(error):
            return events.Quarantined(topic, id, text_of(error))
        case Postpone():
            return events.Postponed(topic, id, outcome.delay / 1000, outcome.why)
        case Release():
            return events.Released(topic, id)
        case ReleaseReplaced(RetryLater() | DeadLetter() as old) if old.error is not None:
            return events.Replaced(topic, id, named(old.error), seconds, waited)
        case ReleaseReplaced():
            return events.Replaced(topic, id, "", seconds, waited)
