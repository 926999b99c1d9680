"""What becomes of a message that was taken over because its worker went silent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mx_rmq.core import codec, events
from mx_rmq.core.errors import DecodeError
from mx_rmq.core.outcome import DeadLetter, after_crash
from mx_rmq.core.partition import topic_of
from mx_rmq.store.answers import Retried
from mx_rmq.store.quarantine import Quarantined

if TYPE_CHECKING:
    from mx_rmq.core.outcome import Circumstances
    from mx_rmq.runtime.bus import Events
    from mx_rmq.store import Store
    from mx_rmq.store.answers import TakenOver


async def recover(
    store: Store, bus: Events, name: str, one: TakenOver, *, max_crashes: int, at: Circumstances
) -> None:
    """Count the crash, then let the message wait for its next attempt, or archive it."""
    topic = topic_of(name)
    bus.emit(events.TakenOver(topic, one.id, one.lost_by))
    try:
        message = codec.decode_as(one.record, topic, one.id)
    except DecodeError as error:
        about = Quarantined.of(
            id=one.id, topic=topic, error=error, data=one.record, worker=at.worker
        )
        if await store.handle_parse_error(name, at.worker, one.claim, about):
            bus.emit(events.Quarantined(topic, one.id, str(error)))
        return
    outcome = after_crash(message, max_crashes, one.lost_by, at)
    attempt = outcome.message.attempts
    if isinstance(outcome, DeadLetter):
        if await store.move_to_dlq(name, at.worker, one.claim, outcome.message):
            bus.emit(events.Died(topic, one.id, attempt, outcome.message.reason))
        return
    again = Retried(one.claim, outcome.message, outcome.delay)
    (done,) = await store.retry_message(name, at.worker, [again])
    if done:
        delay = outcome.delay / 1000
        bus.emit(events.Retried(topic, one.id, attempt, delay, str(outcome.error)))
