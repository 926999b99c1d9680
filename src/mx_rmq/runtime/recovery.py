"""Decides about messages that were taken over: their worker went silent, or they expired.

The monitor, the caretaker and the expirer take messages over. The lifecycle applies the decision.
"""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Final

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
from mx_rmq.runtime.deadlines import decide_within
from mx_rmq.runtime.loop import Complaints, each

if TYPE_CHECKING:
    from collections.abc import Callable

    from mx_rmq.core.message import Message
    from mx_rmq.core.outcome import Outcome
    from mx_rmq.runtime.event_bus import Events
    from mx_rmq.runtime.lifecycle import Lifecycle
    from mx_rmq.store import Store
    from mx_rmq.store.results import Leased, TakenMessage

EXPIRE_BATCH: Final = 100  # expired messages per call


class Recovery:
    """Decides what becomes of messages that this worker took over."""

    def __init__(
        self,
        store: Store,
        lifecycle: Lifecycle,
        bus: Events,
        *,
        worker: str,
        lease: float,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._store = store
        self._lifecycle = lifecycle
        self._bus = bus
        self._worker = worker
        self._lease = lease
        self._chance = chance

    async def lost(self, name: str, one: TakenMessage, *, max_crashes: int, now: int) -> None:
        """Count the crash. The message waits for its next attempt, or is dead."""
        self._bus.emit(events.TakenOver(topic_of(name), one.id, one.lost_by))
        await self._settle(
            name, one, now, lambda message, at: after_crash(message, max_crashes, one.lost_by, at)
        )

    async def expire(self, name: str, complaints: Complaints) -> int | None:
        """Dead-letter a batch of waiting messages of a topic whose time to live has passed.

        Returns the ms until the next one expires, 0 if more have expired; None if none will, or if
        we found nothing, because another worker was faster.
        """
        taken = await self._store.expire_message(
            name, self._worker, count=EXPIRE_BATCH, recovery=decide_within(self._lease)
        )
        if not taken.messages:
            return None
        await each(taken.messages, partial(self._expired, name, taken.now), complaints)
        await self._store.ring_doorbell(name)  # in an ordered topic, workers that asked got none
        return taken.wait

    async def _expired(self, name: str, now: int, one: Leased) -> None:
        await self._settle(name, one, now, _after_expiry)

    async def _settle(
        self,
        name: str,
        one: Leased | TakenMessage,
        now: int,
        decide: Callable[[Message, Circumstances], Outcome],
    ) -> None:
        at = Circumstances(now=now, worker=self._worker, chance=self._chance())
        message: Message | None = None
        outcome: Outcome
        try:
            message = codec.decode_as(one.record, topic_of(name), one.id)
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
