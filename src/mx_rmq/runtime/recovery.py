"""Decides about messages that were taken over: their worker went silent, or they expired.

The monitor, the caretaker and the expirer take messages over. The lifecycle applies the decision.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from mx_rmq.core import codec, events
from mx_rmq.core.errors import DecodeError, NewerRecord
from mx_rmq.core.outcome import (
    Circumstances,
    Quarantine,
    RetryLater,
    after_crash,
    expired,
    postponed,
)
from mx_rmq.core.partition import topic_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from mx_rmq.core.message import Message
    from mx_rmq.core.outcome import Outcome
    from mx_rmq.runtime.event_bus import Events
    from mx_rmq.runtime.lifecycle import Lifecycle
    from mx_rmq.store.results import Leased


class Recovery:
    """Decides what becomes of messages that this worker took over."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        bus: Events,
        *,
        worker: str,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._lifecycle = lifecycle
        self._bus = bus
        self._worker = worker
        self._chance = chance

    async def lost(self, name: str, one: Leased, *, max_crashes: int, now: int) -> None:
        """Count the crash. The message waits for its next attempt, or is dead."""
        self._bus.emit(events.TakenOver(topic_of(name), one.id, one.lost_by))
        await self._settle(
            name, one, now, lambda message, at: after_crash(message, max_crashes, one.lost_by, at)
        )

    async def expired(self, name: str, one: Leased, *, now: int) -> None:
        """Dead-letter a message that expired while it waited."""
        await self._settle(name, one, now, _after_expiry)

    async def _settle(
        self,
        name: str,
        one: Leased,
        now: int,
        decide: Callable[[Message, Circumstances], Outcome],
    ) -> None:
        at = Circumstances(now=now, worker=self._worker, chance=self._chance())
        message: Message | None = None
        outcome: Outcome
        try:
            message = codec.decode(one.record, topic_of(name), one.id)
            outcome = decide(message, at)
        except NewerRecord as newer:  # a newer release must decide whether it crashed too often
            outcome = postponed(newer, at)
        except DecodeError as error:
            outcome = Quarantine(error)
        await self._lifecycle.settle_now(name, one, message, outcome)


def _after_expiry(message: Message, at: Circumstances) -> Outcome:
    dead = expired(message, at.now)
    if dead is not None:
        return dead
    # A worker of an older release left a stale expiry entry, and the id is in use again.
    return RetryLater(message, max(0, (message.ready_at or at.now) - at.now))
