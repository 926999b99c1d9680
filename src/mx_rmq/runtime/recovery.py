"""Settle messages that were taken over: their worker went silent, or they expired."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mx_rmq.core import codec, events
from mx_rmq.core.errors import DecodeError, NewerRecord
from mx_rmq.core.outcome import DeadLetter, RetryLater, after_crash, expired, postponed
from mx_rmq.core.partition import topic_of
from mx_rmq.store.answers import Retried
from mx_rmq.store.quarantine import Quarantined

if TYPE_CHECKING:
    from mx_rmq.core.message import Message
    from mx_rmq.core.outcome import Circumstances
    from mx_rmq.runtime.bus import Events
    from mx_rmq.store import Store
    from mx_rmq.store.answers import Leased, TakenOver


async def recover(
    store: Store, bus: Events, name: str, one: TakenOver, *, max_crashes: int, at: Circumstances
) -> None:
    """Count the crash, then let the message wait for its next attempt, or archive it."""
    bus.emit(events.TakenOver(topic_of(name), one.id, one.lost_by))
    message = await _read(store, bus, name, one, at)
    if message is not None:
        outcome = after_crash(message, max_crashes, one.lost_by, at)
        await _apply(store, bus, name, one, outcome, at.worker)


async def bury(store: Store, bus: Events, name: str, one: Leased, *, at: Circumstances) -> None:
    """Dead-letter a message that expired while it waited."""
    message = await _read(store, bus, name, one, at)
    if message is None:
        return
    dead = expired(message, at.now)
    if dead is not None:
        await _apply(store, bus, name, one, dead, at.worker)
        return
    # A worker of an older release left a stale expiry entry, and the id is in use again.
    wait = max(0, (message.ready_at or at.now) - at.now)
    await store.retry_message(name, at.worker, [Retried(one, message, wait)])


async def _read(
    store: Store, bus: Events, name: str, one: Leased | TakenOver, at: Circumstances
) -> Message | None:
    """Return the message; None: it cannot be read, and was postponed or quarantined."""
    topic, worker = topic_of(name), at.worker
    try:
        return codec.decode_as(one.record, topic, one.id)
    except NewerRecord as newer:  # a newer release must say whether it crashed too often
        later = postponed(newer, at)
        (done,) = await store.postpone_message(name, worker, [(one.claim, later)])
        if done:
            bus.emit(events.Postponed(topic, one.id, later.delay / 1000, later.why))
        return None
    except DecodeError as error:
        about = Quarantined.of(id=one.id, topic=topic, error=error, data=one.record, worker=worker)
        if await store.handle_parse_error(name, worker, one.claim, about):
            bus.emit(events.Quarantined(topic, one.id, str(error)))
        return None


async def _apply(
    store: Store,
    bus: Events,
    name: str,
    one: Leased | TakenOver,
    outcome: RetryLater | DeadLetter,
    worker: str,
) -> None:
    topic, attempt = topic_of(name), outcome.message.attempts
    if isinstance(outcome, DeadLetter):
        if await store.move_to_dlq(name, worker, one.claim, outcome.message):
            bus.emit(events.Died(topic, one.id, attempt, outcome.message.reason))
        return
    again = Retried(one.claim, outcome.message, outcome.delay)
    (done,) = await store.retry_message(name, worker, [again])
    if done:
        delay = outcome.delay / 1000
        bus.emit(events.Retried(topic, one.id, attempt, delay, str(outcome.error)))
