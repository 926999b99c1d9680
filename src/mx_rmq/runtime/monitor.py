"""The monitor: takes over messages whose worker went silent, and decides about them.

It acts at the deadline of the next lease that it knows. It holds back for a while after the
server was away, after a jump of the server's clock, and after its own process stood still: then
leases ran out that nobody could extend, and their holders get the chance to do it now. After the
server's clock was set back, it is the other way round: the deadlines of those who are gone lie far
ahead, and that tells them from the others, who have extended theirs.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final

from mx_rmq.core import codec, events
from mx_rmq.core.errors import DecodeError
from mx_rmq.core.outcome import DeadLetter, RetryLater, after_crash
from mx_rmq.runtime.clock import JUMP
from mx_rmq.runtime.loop import TRY_AGAIN, Complaints, Loop, each
from mx_rmq.store.answers import Retried
from mx_rmq.store.quarantine import Quarantined

if TYPE_CHECKING:
    from collections.abc import Callable

    from mx_rmq.core.handler import Handler
    from mx_rmq.core.outcome import Circumstances
    from mx_rmq.runtime.bus import Events
    from mx_rmq.runtime.clock import ServerClock
    from mx_rmq.store import Store
    from mx_rmq.store.answers import TakenOver
    from mx_rmq.store.link import Link

BATCH: Final = 100
STOOD_STILL: Final = 1.0
"""Seconds by which a step may come late before the process counts as having stood still."""


class Monitor:
    """Watches the leases of every worker, in the topics of one site that this one serves."""

    def __init__(
        self,
        store: Store,
        handlers: dict[str, Handler],
        clock: ServerClock,
        bus: Events,
        *,
        worker: str,
        lease: float,
        link: Link,
        circumstances: Callable[[ServerClock], Circumstances],
    ) -> None:
        self._store = store
        self._handlers = handlers
        self._clock = clock
        self._bus = bus
        self._worker = worker
        self._lease = lease
        self._hold_back = min(lease / 3, 10.0) + 0.5
        self._link = link
        self._circumstances = circumstances
        self._deadlines: dict[str, float | None] = {}
        """When to look, on the monotonic clock; None: nothing is in processing."""
        self._set_back: set[str] = set()
        """Topics in which deadlines may be of the time before the server's clock was set back."""
        self._set_back_at = float("-inf")
        self._expected_at = float("inf")
        self._stood_still_at = float("-inf")
        self._complaints = Complaints("monitor")
        self.loop = Loop("monitor", self.step)

    def saw(self, topic: str, wait: int | None) -> None:
        """Somebody looked around and saw the next lease run out in `wait` ms."""
        known = self._deadlines.get(topic)
        act = None if wait is None else time.monotonic() + wait / 1000
        self._deadlines[topic] = act
        sooner = act is not None and (known is None or act < known)
        if sooner or self._clock.set_back_at != self._set_back_at:
            self.loop.wake()

    async def step(self) -> float | None:
        """Take over what is past its deadline; return the seconds until the next one."""
        now = time.monotonic()
        late = now - self._expected_at
        if late > STOOD_STILL and now - self._stood_still_at > 4 * self._hold_back:
            self._stood_still_at = now  # not again and again, or a busy loop would never recover
        troubled = max(self._link.back_at, self._clock.jumped_at, self._stood_still_at)
        if self._clock.set_back_at != self._set_back_at:
            self._set_back_at = self._clock.set_back_at
            self._set_back = set(self._deadlines if self._set_back_at > 0 else ())
        pause = troubled + self._hold_back - now
        if pause <= 0:
            topics = [one for one, at in self._deadlines.items() if at is not None and at <= now]
            topics += self._set_back.difference(topics)
            for failed in await each(topics, self._take_over, self._complaints):
                self._deadlines[failed] = time.monotonic() + TRY_AGAIN
            waits = [at - time.monotonic() for at in self._deadlines.values() if at is not None]
            pause = max(0.0, min(waits)) if waits else float("inf")
        self._expected_at = time.monotonic() + pause
        return None if pause == float("inf") else pause

    async def _take_over(self, topic: str) -> None:
        began = time.monotonic()
        far = round((self._lease + JUMP) * 1000) if topic in self._set_back else None
        slow = False
        while True:
            asked_at = time.monotonic()
            expected = self._clock.now() if self._clock.knows and not slow else None
            taken = await self._store.handle_timeout_message(
                topic,
                self._worker,
                count=BATCH,
                recovery=round(self._lease * 1000),
                expected=expected,
                jump=round(JUMP * 1000),
                far=far,
            )
            self._clock.heard(taken.now, asked_at)
            await each(taken.messages, partial(self._decide, topic), self._complaints)
            if self._clock.jumped_at >= began:  # it may have been refused: hold back, then again
                self._deadlines[topic] = began
                return
            # Refused, but no jump: the call was under way for so long. The next one is believed.
            slow = expected is not None and abs(taken.now - expected) > JUMP * 1000
            if len(taken.messages) < BATCH and not slow:
                break
        self._set_back.discard(topic)
        if self._handlers[topic].ordered:  # who asked meanwhile was refused
            await self._store.ring_doorbell(topic)
        survey = (await self._store.survey_topics([topic])).topics[topic]
        self.saw(topic, survey.deadline)

    async def _decide(self, name: str, one: TakenOver) -> None:
        store, worker = self._store, self._worker
        handler = self._handlers[name]
        topic = handler.topic
        self._bus.emit(events.TakenOver(topic, one.id, one.lost_by))
        try:
            message = codec.decode_as(one.record, topic, one.id)
        except DecodeError as error:
            about = Quarantined.of(
                id=one.id, topic=topic, error=error, data=one.record, worker=worker
            )
            if await store.handle_parse_error(name, worker, one.claim, about):
                self._bus.emit(events.Quarantined(topic, one.id, str(error)))
            return
        outcome = after_crash(message, handler, one.lost_by, self._circumstances(self._clock))
        attempt = outcome.message.attempts
        if isinstance(outcome, DeadLetter):
            if await store.move_to_dlq(name, worker, one.claim, outcome.message):
                self._bus.emit(events.Died(topic, one.id, attempt, outcome.message.reason))
        elif isinstance(outcome, RetryLater):
            again = Retried(one.claim, outcome.message, outcome.delay)
            (done,) = await store.retry_message(name, worker, [again])
            if done:
                delay = outcome.delay / 1000
                self._bus.emit(events.Retried(topic, one.id, attempt, delay, str(outcome.error)))
