"""The monitor: takes over messages whose worker went silent.

It acts at the next lease deadline that it knows, if `deadlines.py` says that it can be trusted.
`recovery.py` decides what becomes of the message.

After the server's clock was set back, the deadlines of dead holders lie far ahead, so no deadline
says when to check. A topic with messages in processing is therefore checked once a minute anyway.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from mx_rmq.runtime.loop import TRY_AGAIN, FailureLog, Loop, each
from mx_rmq.runtime.recovery import BATCH

if TYPE_CHECKING:
    from mx_rmq.core.handler import Handler
    from mx_rmq.runtime.deadlines import Deadlines
    from mx_rmq.runtime.recovery import Recovery
    from mx_rmq.runtime.relay import RelayedTopic
    from mx_rmq.store import Store

CHECK_EVERY: Final = 60.0  # seconds after which a topic is checked, whatever its next deadline is


class Monitor:
    """Watches the leases that any worker has in the topics of one site that this one serves."""

    def __init__(
        self,
        store: Store,
        handlers: dict[str, Handler | RelayedTopic],
        deadlines: Deadlines,
        recovery: Recovery,
    ) -> None:
        self._store = store
        self._handlers = handlers
        self.deadlines = deadlines
        self._clock = deadlines.clock
        self._recovery = recovery
        self._act_at: dict[str, float | None] = {}
        """By topic, when the next lease runs out; None: nothing is in processing."""
        self._busy_since: dict[str, float] = {}
        """By topic, since when we know that something is in processing."""
        self._checked_at: defaultdict[str, float] = defaultdict(lambda: float("-inf"))
        self._failures = FailureLog("monitor")
        self.loop = Loop("monitor", self.step)

    def surveyed(self, topic: str, wait: int | None) -> None:
        """Note that the next lease of a topic runs out in `wait` ms; None: there is none."""
        now = time.monotonic()
        known = self._act_at.get(topic)
        act = None if wait is None else now + wait / 1000
        self._act_at[topic] = act
        if known is None:
            self._busy_since[topic] = now
        jumped = self._clock.jumped_at > self._checked_at[topic]
        if act is not None and (known is None or act < known or jumped):
            self.loop.wake()

    async def step(self) -> float | None:
        """Take over what is past its deadline; return the seconds until the next one."""
        self.deadlines.step_begins()
        if (pause := self.deadlines.pause()) <= 0:
            now = time.monotonic()
            topics = [topic for topic in self._act_at if self._due_at(topic) <= now]
            for failed in await each(topics, self._take_over, self._failures):
                self._act_at[failed] = time.monotonic() + TRY_AGAIN
            due_at = min(map(self._due_at, self._act_at), default=float("inf"))
            pause = max(0.0, due_at - time.monotonic())
        self.deadlines.step_ends(pause)
        return None if pause == float("inf") else pause

    def _due_at(self, topic: str) -> float:
        """Return when to check a topic, on the monotonic clock."""
        deadline, checked_at = self._act_at[topic], self._checked_at[topic]
        if deadline is None:
            return float("inf")
        due_at = min(deadline, max(checked_at, self._busy_since[topic]) + CHECK_EVERY)
        if self._clock.jumped_at > checked_at:
            due_at = min(due_at, self._clock.jumped_at + self.deadlines.hold_back)
        sweep_at = self.deadlines.sweep_at(topic)
        return min(due_at, sweep_at) if checked_at < sweep_at else due_at

    async def _take_over(self, topic: str) -> None:
        deadlines = self.deadlines
        if deadlines.pause() > 0:  # there was trouble since the step began
            return
        if not deadlines.knows_server():
            await self._probe(topic)
            return
        began = self._checked_at[topic] = time.monotonic()
        while True:
            sweeps = deadlines.may_sweep(topic)
            taken = await self._recovery.take_over(
                topic,
                deadlines,
                self._failures,
                expected=deadlines.expected(topic),
                far=deadlines.far if sweeps else None,
                max_crashes=self._handlers[topic].max_crashes,
            )
            deadlines.not_surprised(topic)
            if taken.surprised or self._clock.jumped_at >= began:
                deadlines.surprised(topic)
                self._act_at[topic] = began
                return
            deadlines.note_behind(topic, taken.behind, began)
            more = taken.messages if sweeps else len(taken.messages) == BATCH
            if not (more or sweeps < deadlines.may_sweep(topic)):
                break
        if self._handlers[topic].ordered:  # workers that asked meanwhile were refused
            await self._store.ring_doorbell(topic)
        survey = (await self._store.survey_topics([topic])).topics[topic]
        self.surveyed(topic, survey.deadline)

    async def _probe(self, topic: str) -> None:
        """Make a harmless call before taking anything over.

        The server may have been silent until now. If the first call that it answers took messages
        over, no holder would have had time to extend a lease.
        """
        was_failing = self.deadlines.link.is_failing
        survey = (await self._store.survey_topics([topic])).topics[topic]
        self.deadlines.probed(was_failing=was_failing)
        self.surveyed(topic, survey.deadline)
