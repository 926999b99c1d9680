"""The monitor: takes over messages whose worker went silent, and decides about them.

It acts at the deadline of the next lease that it knows. It holds back for a while after trouble:
the server was away or silent, its clock jumped, or our own process stood still. Then leases ran out
that nobody could extend, and their holders get the chance to do it now. If we have not heard the
server lately, we cannot know of its silence: so it is heard first, and after a moment acted upon.

After the server's clock was set back, it is the other way round: the deadlines of those who are
gone lie far ahead, and that tells them from the others, who have extended theirs. No deadline says
when that is so; so a topic in which something is in processing is looked at once a minute in any
case.
"""

from __future__ import annotations

import time
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Final

from mx_rmq.core import codec, events
from mx_rmq.core.errors import DecodeError, NewerRecord
from mx_rmq.core.outcome import DeadLetter, RetryLater, after_crash, postponed
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
LOOK: Final = 60.0
"""Seconds after which a topic is looked at, whatever its next deadline is."""
RECOVERY: Final = 30.0
"""Seconds that a monitor may take to decide, if the lease is longer."""
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
        self._hold_back = min(lease / 3, 10.0) + 1.0
        """Seconds after trouble in which every living holder extends its leases."""
        self._moment = min(lease / 4, 1.0)
        """Seconds in which a holder extends them that could not, because the server was silent."""
        self._link = link
        self._circumstances = circumstances
        self._deadlines: dict[str, float | None] = {}
        """When to look, on the monotonic clock; None: nothing is in processing."""
        self._busy_since: dict[str, float] = {}
        """Since when something is in processing in a topic, as far as we know."""
        self._looked_at: defaultdict[str, float] = defaultdict(lambda: float("-inf"))
        """When a topic was last looked at."""
        self._slow: set[str] = set()
        """Topics whose last call ran later than it may, though the server's clock is right."""
        self._behind_since: dict[str, float] = {}
        """Since when we know, by topic, that the server's clock is behind what it has been."""
        self._heard_first_at = float("-inf")
        """When the server was heard, because nothing was known of it."""
        self._expected_at = float("inf")
        self._stood_still_at = float("-inf")
        self._silent_at = float("-inf")
        self._complaints = Complaints("monitor")
        self.loop = Loop("monitor", self.step)

    def saw(self, topic: str, wait: int | None) -> None:
        """Somebody looked around and saw the next lease run out in `wait` ms."""
        now = time.monotonic()
        known = self._deadlines.get(topic)
        act = None if wait is None else now + wait / 1000
        self._deadlines[topic] = act
        if known is None:
            self._busy_since[topic] = now
        jumped = self._clock.jumped_at > self._looked_at[topic]
        if act is not None and (known is None or act < known or jumped):
            self.loop.wake()

    async def step(self) -> float | None:
        """Take over what is past its deadline; return the seconds until the next one."""
        now = time.monotonic()
        late = now - self._expected_at
        if late > STOOD_STILL and now - self._stood_still_at > 4 * self._hold_back:
            self._stood_still_at = now  # not again and again, or a busy loop would never recover
        if (pause := self._pause()) <= 0:
            topics = [topic for topic in self._deadlines if self._due_at(topic) <= now]
            for failed in await each(topics, self._take_over, self._complaints):
                self._deadlines[failed] = time.monotonic() + TRY_AGAIN
            due_at = min(map(self._due_at, self._deadlines), default=float("inf"))
            pause = max(0.0, due_at - time.monotonic())
        self._expected_at = time.monotonic() + pause
        return None if pause == float("inf") else pause

    def _pause(self) -> float:
        """Return for how many seconds to hold back."""
        late_at = self._link.late_at
        if late_at - self._silent_at > 4 * self._hold_back:  # or a slow server would be too much
            self._silent_at = late_at
        troubled = max(
            self._link.back_at, self._clock.jumped_at, self._stood_still_at, self._silent_at
        )
        until = max(troubled + self._hold_back, self._heard_first_at + self._moment)
        return until - time.monotonic()

    def _due_at(self, topic: str) -> float:
        """Return when a topic must be looked at."""
        deadline, looked_at = self._deadlines[topic], self._looked_at[topic]
        if deadline is None:
            return float("inf")
        due_at = min(deadline, max(looked_at, self._busy_since[topic]) + LOOK)
        if self._clock.jumped_at > looked_at:
            due_at = min(due_at, self._clock.jumped_at + self._hold_back)
        sweep_at = self._behind_since.get(topic, float("inf")) + self._hold_back
        return min(due_at, sweep_at) if looked_at < sweep_at else due_at

    def _may_sweep(self, topic: str) -> bool:
        """Say whether the living had time to extend their leases since the clock was set back."""
        now = time.monotonic()
        return now - self._behind_since.get(topic, now) >= self._hold_back

    async def _take_over(self, topic: str) -> None:
        if self._pause() > 0:  # there was trouble since the step began
            return
        heard_first = time.monotonic() - self._heard_first_at <= 4 * self._moment
        if not (heard_first or self._link.is_known(self._moment)):
            await self._hear_first(topic)
            return
        began = self._looked_at[topic] = time.monotonic()
        while True:
            asked_at = time.monotonic()
            sweeps = self._may_sweep(topic)
            believes = topic in self._slow or not self._clock.knows
            taken = await self._store.handle_timeout_message(
                topic,
                self._worker,
                count=BATCH,
                recovery=round(min(self._lease, RECOVERY) * 1000),
                expected=None if believes else self._clock.now(),
                jump=round(min(JUMP, self._lease / 3) * 1000),
                far=round((self._lease + JUMP) * 1000) if sweeps else None,
            )
            self._clock.heard(taken.now, asked_at)
            await each(taken.messages, partial(self._decide, topic), self._complaints)
            self._slow.discard(topic)
            if taken.surprised or self._clock.jumped_at >= began:
                # The clock was set, or the call was under way through an outage, in which nobody
                # could extend a lease. Either way we hold back; then the call is made again, and
                # believed: else a server that is always late would never be.
                self._slow.add(topic)
                self._silent_at = time.monotonic()
                self._deadlines[topic] = began
                return
            self._note_behind(topic, taken.behind)
            more = taken.messages if sweeps else len(taken.messages) == BATCH
            if not (more or sweeps < self._may_sweep(topic)):
                break
        if self._handlers[topic].ordered:  # who asked meanwhile was refused
            await self._store.ring_doorbell(topic)
        survey = (await self._store.survey_topics([topic])).topics[topic]
        self.saw(topic, survey.deadline)

    async def _hear_first(self, topic: str) -> None:
        """Hear the server before anything is taken over: it may have been silent until now.

        A call that is made while it is away may be the first that it hears afterwards, and no
        holder would have had the time to extend a lease.
        """
        failing = self._link.is_failing
        survey = (await self._store.survey_topics([topic])).topics[topic]
        self._heard_first_at = time.monotonic()
        if failing:
            self._silent_at = self._heard_first_at
        self.saw(topic, survey.deadline)

    def _note_behind(self, topic: str, behind: int) -> None:
        """Keep in mind since when the holders of a topic can know that the clock was set back."""
        if behind <= JUMP * 1000:
            self._behind_since.pop(topic, None)
        elif topic not in self._behind_since:
            jumped_at = self._clock.jumped_at
            self._behind_since[topic] = jumped_at if jumped_at > 0 else self._looked_at[topic]

    async def _decide(self, name: str, one: TakenOver) -> None:
        store, worker = self._store, self._worker
        handler = self._handlers[name]
        topic = handler.topic
        self._bus.emit(events.TakenOver(topic, one.id, one.lost_by))
        try:
            message = codec.decode_as(one.record, topic, one.id)
        except NewerRecord as newer:  # whether it crashed too often, a newer release must say
            later = postponed(newer, self._circumstances(self._clock))
            (done,) = await store.postpone_message(name, worker, [(one.claim, later)])
            if done:
                self._bus.emit(events.Postponed(topic, one.id, later.delay / 1000, later.why))
            return
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
