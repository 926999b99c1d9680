"""The caretaker: looks after the topics that its worker does not serve.

Moving due messages, dead-lettering expired ones and taking over lost ones needs no handler, so no
topic is neglected as long as any worker of the queue is alive. One worker at a time makes the
rounds, and keeps the turn while its rounds succeed. The others ask again right after the turn would
end, so a caretaker that was killed or frozen is replaced before its next round would be a second
late. One that stops gives up its turn. That only saves calls; two caretakers at once would do no
harm.

A worker that serves a topic knows its handler's `max_crashes`, so it should be the one that takes
over. The caretaker leaves that to it for a grace after the lease has run out. It also waits until
it has seen the lease overdue for as long as a live holder needs to extend it, with the server
answering all that time: after an outage, live holders have overdue leases too.
"""

from __future__ import annotations

import asyncio
import random
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from mx_rmq.core import events
from mx_rmq.core.handler import MAX_CRASHES
from mx_rmq.core.partition import partitions, topic_of
from mx_rmq.net.server_clock import ServerClock
from mx_rmq.runtime.deadlines import Deadlines, was_frozen
from mx_rmq.runtime.default_ttl import set_expiry_times
from mx_rmq.runtime.loop import FailureLog, Loop, each
from mx_rmq.runtime.recovery import BATCH
from mx_rmq.runtime.scheduler import BATCH as MOVED
from mx_rmq.settings import LONGEST_LEASE

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from mx_rmq.runtime.event_bus import Events
    from mx_rmq.runtime.recovery import Recovery
    from mx_rmq.store import Store
    from mx_rmq.store.results import Survey

ROUND: Final = 10.0  # seconds from one round to the next
TURN: Final = 10.5  # seconds that a turn lasts after each request, even if the worker dies
SPREAD: Final = 0.5  # seconds over which the other workers ask when a turn may have ended
GRACE: Final = 30.0  # seconds in which only workers that serve the topic take over a lost message


class Caretaker:
    """Makes the rounds through every topic of the queue but those in `served`."""

    def __init__(
        self, store: Store, bus: Events, recovery: Recovery, served: Container[str], *, worker: str
    ) -> None:
        self.topics: list[str] = []
        """The topics and partitions it looks after; empty while another worker does."""
        self._store = store
        self._bus = bus
        self._recovery = recovery
        self._served = served
        self._worker = worker
        self._deadlines: dict[int, Deadlines] = {}  # by site
        self._ttls: dict[str, int] = {}  # the default times to live, in ms
        self._overdue: dict[str, float] = {}
        """By topic, since when we know of an overdue lease, on the monotonic clock."""
        self._expected_at = float("inf")
        self._round_ends = float("-inf")  # when to leave the rest to the next round
        self._may_have_turn = False
        self._failures = FailureLog("caretaker")
        self.loop = Loop("caretaker", self.step)

    async def step(self) -> float:
        """Make a round if it is our turn; return the seconds until the next one."""
        if self._expected_at == float("inf"):  # spread workers that start together
            return self._after(_jitter())
        if was_frozen(self._expected_at):
            self._overdue.clear()  # perhaps the holders were frozen, too
        begun = time.monotonic()
        self._round_ends = begun + ROUND
        self._may_have_turn = True
        registry = await self._store.tend_topics(self._worker, turn=round(TURN * 1000))
        if isinstance(registry, int):
            self._may_have_turn = False
            self.topics = []
            self._overdue.clear()
            return self._after(registry / 1000 + _jitter())
        self._ttls = registry.ttls
        known = registry.partitions
        names = [name for topic in known for name in partitions(topic, known[topic])]
        self.topics = [name for name in names if name not in self._served]
        rounds = (self._visit(sites) for sites in self._store.by_server(self.topics))
        done = all(await asyncio.gather(*rounds))
        # A worker that cannot reach a server asks again after all others had a chance to.
        pause = ROUND if done else TURN + 2 * SPREAD
        return self._after(max(0.0, begun + pause - time.monotonic()))

    async def leave(self) -> None:
        """Give up the turn: the next worker that asks gets it."""
        if self._may_have_turn:
            await self._store.give_up_turn(self._worker)

    def _after(self, pause: float) -> float:
        self._expected_at = time.monotonic() + pause
        return pause

    async def _visit(self, sites: dict[int, list[str]]) -> bool:
        """Look after the topics of one server, site by site; return whether all of it worked."""
        try:
            expiring = []
            for site, topics in sites.items():
                expiring += await self._look_after(site, topics)
            await self._expire(expiring)
        except Exception as error:  # noqa: BLE001 - logged, and tried again
            self._failures.log(error)
            return False
        return True

    def _has_time(self) -> bool:
        """Return whether to go on: we claim the next turn before this one ends."""
        return time.monotonic() < self._round_ends

    async def _look_after(self, site: int, topics: Sequence[str]) -> list[str]:
        """Act on what is due or overdue in the topics of a site; return where messages expired."""
        if site not in self._deadlines:
            # The workers that serve the topics may have a longer lease than ours.
            link = self._store.link_of(site)
            self._deadlines[site] = Deadlines(LONGEST_LEASE, link, ServerClock())
        deadlines = self._deadlines[site]
        dated = [topic for topic in topics if topic_of(topic) in self._ttls]
        await each(dated, self._set_expiry_times, self._failures)
        asked_at = time.monotonic()
        answer = await self._store.survey_topics(topics)
        deadlines.clock.update(answer.now, asked_at)
        await each(answer.topics.items(), partial(self._tend, deadlines), self._failures)
        return [topic for topic, found in answer.topics.items() if found.expires == 0]

    async def _set_expiry_times(self, topic: str) -> None:
        await set_expiry_times(self._store, topic, self._ttls[topic_of(topic)])

    async def _expire(self, topics: list[str]) -> None:
        """Dead-letter what has expired: a batch of each topic, in turn."""
        while topics and self._has_time():
            unfinished: list[str] = []
            await each(topics, partial(self._expire_batch, unfinished), self._failures)
            topics = unfinished

    async def _expire_batch(self, unfinished: list[str], topic: str) -> None:
        ttl = self._ttls.get(topic_of(topic))
        if await self._recovery.expire(topic, self._failures, ttl) == 0:
            unfinished.append(topic)

    async def _tend(self, deadlines: Deadlines, found: tuple[str, Survey]) -> None:
        """Take over lost messages of a topic and move due ones."""
        topic, survey = found
        taken = False
        if survey.deadline is None or 0 < survey.deadline <= deadlines.far:
            self._overdue.pop(topic, None)
        else:  # overdue, or so far ahead that it was set before the clock was set back
            since = self._overdue.setdefault(topic, time.monotonic())
            if deadlines.overdue_for(since) >= deadlines.hold_back:
                taken = await self._take_over(deadlines, topic)
        if survey.due == 0 or taken:
            await self._promote(topic)

    async def _promote(self, topic: str) -> None:
        """Move due messages from delayed to pending."""
        while True:
            moved = len(await self._store.process_delay_message(topic, count=MOVED))
            if moved and events.Due in self._bus.wanted:
                self._bus.emit(events.Due(topic_of(topic), moved))
            if moved < MOVED or not self._has_time():
                break

    async def _take_over(self, deadlines: Deadlines, topic: str) -> bool:
        """Take over messages that were lost long enough ago; return whether there were any."""
        found = False
        while True:
            taken = await self._recovery.take_over(
                topic,
                deadlines,
                self._failures,
                expected=deadlines.clock.now(),
                far=deadlines.far,
                max_crashes=MAX_CRASHES,
                grace=GRACE,
            )
            found = found or bool(taken.messages)
            if taken.surprised:  # the clock was set, or the call was on its way through an outage
                self._overdue[topic] = time.monotonic()
            if len(taken.messages) < BATCH or not self._has_time():
                break
        if found:  # in an ordered topic, workers that asked meanwhile were refused
            await self._store.ring_doorbell(topic)
        return found


def _jitter() -> float:
    return random.uniform(0.0, SPREAD)  # noqa: S311 - not for security
