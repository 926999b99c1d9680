"""Wakes messages that wait for other messages, where these cannot tell them.

A message tells those that wait for it when it completes. That is not enough if it was produced
outside the flow and does not know of them, or if it died, was cancelled or was discarded without a
worker that could tell.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

from mx_rmq.core import codec
from mx_rmq.core import steps as core_steps
from mx_rmq.core.errors import DecodeError
from mx_rmq.core.message import State
from mx_rmq.core.partition import topic_of
from mx_rmq.core.status import Kept
from mx_rmq.core.steps import MAX_AFTER
from mx_rmq.runtime.follow_ups import COMPLETED, DIED, send_signals, signal_of_death
from mx_rmq.runtime.loop import FailureLog, Loop, each
from mx_rmq.store.flow_head import read_carried
from mx_rmq.store.results import Signal

if TYPE_CHECKING:
    from mx_rmq.core.message import Message
    from mx_rmq.core.steps import Prerequisite, Steps
    from mx_rmq.store import Store
    from mx_rmq.store.flow_head import Carried
    from mx_rmq.store.waiter_calls import RawStatus

BATCH: Final = 100  # waiting messages of a topic that are checked in one step
EVERY: Final = 2.0
"""Seconds between two checks of a message that waits for one that does not know of it. All others
are checked after each survey."""


class WaitingCheck:
    """Looks after the waiting messages of one site."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._topics: dict[str, int] = {}  # those with waiting messages -> where to go on
        self._uninformed = False
        self._parking = False  # a message that waits for an uninformed one is about to be parked
        self._failures = FailureLog("waiting check")
        self.loop = Loop("waiting check", self.step)

    def surveyed(self, topic: str, waiting: int) -> None:
        """Learn how many messages of a topic wait."""
        if not waiting:
            self._topics.pop(topic, None)
            return
        self._topics.setdefault(topic, 0)
        self.loop.wake()

    def parks(self, topic: str) -> None:
        """Learn that a message of a topic is about to wait for one that may not know of it."""
        self._topics.setdefault(topic, 0)
        self._parking = True
        if not self._uninformed:  # else the next check comes soon in any case
            self.loop.wake()

    async def step(self) -> float | None:
        """Check the next waiting messages of each topic."""
        self._uninformed, self._parking = self._parking, False
        await each(list(self._topics), self._check, self._failures)
        return EVERY if self._uninformed else None

    async def _check(self, topic: str) -> None:
        start = self._topics.get(topic, 0)
        ids = await self._store.views.waiting(topic, start, BATCH)
        for id in ids:
            record = await self._store.views.record(topic, id)
            if record is None:
                continue
            try:
                message = codec.decode(record, topic_of(topic), id)
                found = await look_for_sources(self._store, topic, message, parked=True)
                self._uninformed |= found.left_uninformed
            except DecodeError:  # only a worker that runs it can quarantine it
                continue
        if topic in self._topics:
            self._topics[topic] = start + BATCH if len(ids) == BATCH else 0


class Sources(NamedTuple):
    """What became of the messages that a message waits for."""

    sent: int  # signals that were sent for them
    left_uninformed: bool  # whether some of them do not know that it waits


async def look_for_sources(
    store: Store, topic: str, message: Message, *, parked: bool = False
) -> Sources:
    """Send the signals that a message waits for and that nothing else will send.

    `parked`: the server knows which are missing. Those that have come may be large results.
    """
    steps = core_steps.read(message)
    after = steps.after
    if parked:
        missing = await _missing(store, topic, message.id)
        after = [source for source in after if source.signal in missing]
    # Read before the states: what the head no longer carries has been produced.
    carried = await read_carried(store, steps.head)
    by_part: defaultdict[str, list[Prerequisite]] = defaultdict(list)
    for source in after:
        by_part[source.part].append(source)
    found: list[tuple[Prerequisite, RawStatus | None]] = []
    for part, sources in by_part.items():
        if not part:
            found += [(source, None) for source in sources]
            continue
        ids = [source.id for source in sources]
        found += zip(sources, await store.read_status(part, ids), strict=True)
    # Read after the states: a message sends its signal before it completes.
    if found and parked:
        missing = await _missing(store, topic, message.id)
    elif found:
        signals = await store.signals_of(topic, message.id)
        missing = {source.signal for source in after} - signals.keys()
    send, left_uninformed = [], False
    for source, status in found:
        if source.signal not in missing:
            continue
        if source in carried and (carried.failed is None or _is_over(status)):
            value = _value_if_carried(carried, steps)  # what is known is of an older one
            left_uninformed |= value is None
        else:
            value = _value(source, status, steps)
        if value is not None and value.startswith(DIED):
            send.append(signal_of_death(source, message.id, value, steps.on_dead))
        elif value is not None:
            send.append(Signal(message.id, source.signal, value))
        elif not source.told:
            left_uninformed = True
    await send_signals(store, topic, send)
    return Sources(len(send), left_uninformed)


async def _missing(store: Store, topic: str, id: str) -> set[str]:
    """Return the signals that a parked message still waits for."""
    return set((await store.views.waits.awaited(topic, id, MAX_AFTER)).names)


def _value(source: Prerequisite, status: RawStatus | None, steps: Steps) -> bytes | None:
    """Return the signal for a source in this state; None: none, it may still send its own."""
    if status is None and not source.told:
        return COMPLETED + b"null"
    if status is not None and status.state is State.COMPLETED:
        return COMPLETED + Kept.read(status.data)[1]
    if status is not None and status.state not in (State.DEAD, State.QUARANTINED):
        return None
    if steps.on_dead == "wait":
        return None
    return DIED + (b"it is gone" if status is None else status.error().encode())


def _is_over(status: RawStatus | None) -> bool:
    """Return whether a message is gone or completed, so that it sends no signal any more."""
    return status is None or status.state is State.COMPLETED


def _value_if_carried(carried: Carried, steps: Steps) -> bytes | None:
    """Return the signal for a source that only the head of the flow has; None: none yet."""
    if carried.failed is None or carried.ids is None or steps.on_dead == "wait":
        return None
    failed = carried.failed
    return DIED + f"the head of its flow is {failed.state}: {failed.error()}".encode()
