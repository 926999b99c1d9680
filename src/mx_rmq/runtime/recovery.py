"""Takes over messages whose worker went silent or that have expired, and decides about them.

The monitor, the caretaker and the expirer say when. The lifecycle applies the decisions.
"""

from __future__ import annotations

import random
import time
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
from mx_rmq.runtime.lifecycle import Decided, how_many_fit
from mx_rmq.runtime.loop import AWAY, FailureLog, each

if TYPE_CHECKING:
    from collections.abc import Callable

    from mx_rmq.core.message import Message
    from mx_rmq.core.outcome import Outcome
    from mx_rmq.runtime.deadlines import Deadlines
    from mx_rmq.runtime.event_bus import Events
    from mx_rmq.runtime.lifecycle import Lifecycle
    from mx_rmq.store import Store
    from mx_rmq.store.results import Leased, TimedOut

BATCH: Final = 100  # messages per call


class Recovery:
    """Takes over messages in the name of this worker, and decides what becomes of them."""

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

    async def take_over(
        self,
        name: str,
        deadlines: Deadlines,
        failures: FailureLog,
        *,
        expected: int | None,
        far: int | None,
        max_crashes: int,
        grace: float = 0.0,
    ) -> TimedOut:
        """Take over a batch of messages whose leases ran out `grace` seconds ago or earlier.

        For `expected` and `far`, see `Store.handle_timeout_message`.
        """
        asked_at = time.monotonic()
        taken = await self._store.handle_timeout_message(
            name,
            self._worker,
            count=BATCH,
            recovery=deadlines.decide_within,
            expected=expected,
            jump=deadlines.jump,
            far=far,
            grace=round(grace * 1000),
        )
        deadlines.clock.update(taken.now, asked_at)

        def lost(one: Leased) -> Decided:
            """Count the crash. The message waits for its next attempt, or is dead."""
            self._bus.emit(events.TakenOver(topic_of(name), one.id, one.lost_by))
            return self._decide(
                name,
                one,
                deadlines.clock.now(),
                lambda message, at: after_crash(message, max_crashes, one.lost_by, at),
            )

        await self._settle(name, [lost(one) for one in taken.messages], failures)
        return taken

    async def expire(self, name: str, failures: FailureLog, ttl: int | None = None) -> int | None:
        """Dead-letter a batch of waiting messages of a topic whose time to live has passed.

        `ttl`: that of messages without their own, in ms. Returns the ms until the next one expires,
        0 if more have expired; None if none will, or if we found nothing, because another worker
        was faster.
        """
        taken = await self._store.expire_message(
            name, self._worker, count=BATCH, recovery=decide_within(self._lease)
        )
        if not taken.messages:
            return None

        after = partial(_after_expiry, ttl)
        decided = [self._decide(name, one, taken.now, after) for one in taken.messages]
        await self._settle(name, decided, failures)
        await self._store.ring_doorbell(name)  # in an ordered topic, workers that asked got none
        return taken.wait

    def _decide(
        self,
        name: str,
        one: Leased,
        now: int,
        decide: Callable[[Message, Circumstances], Outcome],
    ) -> Decided:
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
        return Decided(one, message, outcome)

    async def _settle(self, name: str, decided: list[Decided], failures: FailureLog) -> None:
        """Settle all within their short leases: those that wait for another attempt share calls."""
        alone = [one for one in decided if not isinstance(one.outcome, RetryLater)]
        together = [one for one in decided if isinstance(one.outcome, RetryLater)]
        while together:
            count = how_many_fit(together, len(together))
            some, together = together[:count], together[count:]
            try:
                await self._lifecycle.settle_now(name, some)
            except AWAY:
                raise
            except Exception:  # noqa: BLE001 - one of them may be the cause; each is logged
                alone += some
        await each(alone, lambda one: self._lifecycle.settle_now(name, [one]), failures)


def _after_expiry(ttl: int | None, message: Message, at: Circumstances) -> Outcome:
    if ttl is not None:
        message = message.with_default_ttl(ttl)
    dead = expired(message, at.now)
    if dead is not None:
        return dead
    # A worker of an older release left a stale expiry entry, and the id is in use again; or the
    # topic's default ttl was raised or removed.
    return RetryLater(message, max(0, (message.ready_at or at.now) - at.now))
