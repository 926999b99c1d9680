"""The lifecycle: applies outcomes. Outcomes of one kind and topic that wait together share a call.

A call that fails, or that the server refuses, is repeated until it succeeds; the token decides
whether the worker still has the message then. Meanwhile leases are extended and the messages keep
their room, so a worker that cannot settle messages stops taking them. Only a message that can never
be sent, because of a bug in our code, is left alone until its lease runs out.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from mx_rmq.core import codec, events
from mx_rmq.core.errors import DecodeError, OutcomeUnknown, ScriptFailed, ServerUnavailable
from mx_rmq.core.message import State
from mx_rmq.core.outcome import (
    Complete,
    DeadLetter,
    GiveWay,
    Outcome,
    Postpone,
    Quarantine,
    Release,
    Result,
    RetryLater,
    SnoozeLater,
)
from mx_rmq.core.partition import topic_of
from mx_rmq.core.text import named, text_of
from mx_rmq.runtime.loop import Backoff, how_it_ended, spawn
from mx_rmq.runtime.slots import HeldMessage, Stopped
from mx_rmq.safe_log import get_logger
from mx_rmq.store.archive_budgets import OVERHEAD
from mx_rmq.store.arguments import MAX_BATCH
from mx_rmq.store.quarantine import QuarantineReason
from mx_rmq.store.results import HandedBack, RetryRequest, Settled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.core.message import Message
    from mx_rmq.runtime.dispatcher import Dispatcher
    from mx_rmq.runtime.event_bus import Events
    from mx_rmq.runtime.slots import Slots
    from mx_rmq.store import Store
    from mx_rmq.store.results import Leased

logger = get_logger(__name__)

MAX_BYTES: Final = 4 * 1_048_576  # of records in one call, unless a single one is larger

_Group = tuple[str, type]
"""A topic and a type of outcome. Groups are settled separately, so a refused one does not hold up
the others."""


class _Kind(NamedTuple):
    word: str  # for the logs
    event: type
    most: int = MAX_BATCH  # messages per call


_KINDS: Final = {
    Complete: _Kind("completed", events.Completed),
    Result: _Kind("completed", events.Completed),
    RetryLater: _Kind("retried", events.Retried),
    SnoozeLater: _Kind("snoozed", events.Snoozed),
    DeadLetter: _Kind("dead", events.Died, most=1),
    Quarantine: _Kind("quarantined", events.Quarantined, most=1),
    Release: _Kind("released", events.Released),
    Postpone: _Kind("postponed", events.Postponed),
    GiveWay: _Kind("replaced", events.Replaced, most=1),
}


class _TakenOver(NamedTuple):
    """A message that `Recovery` took over. It has no slot here, and no handler runs it."""

    leased: Leased
    outcome: Outcome


class Lifecycle:
    """Settles messages on the server."""

    name = "lifecycle"

    def __init__(
        self, store: Store, slots: Slots, dispatcher: Dispatcher, bus: Events, *, worker: str
    ) -> None:
        self._store = store
        self._slots = slots
        self._dispatcher = dispatcher
        self._bus = bus
        self._worker = worker
        self.progress = asyncio.Event()  # set whenever a handler has ended or a message is settled
        self._waiting: defaultdict[_Group, deque[HeldMessage]] = defaultdict(deque)
        self._flushing: dict[_Group, asyncio.Task[None]] = {}
        self._died: dict[_Group, str] = {}
        """Groups whose task ended before everything was settled, and how it ended."""
        self._closed = False
        self.abandoned = 0  # messages not settled; they come back when their leases run out

    def settle(self, held: HeldMessage, outcome: Outcome | None) -> None:
        """Apply an outcome soon; None: the message is no longer ours."""
        self.progress.set()
        if outcome is None:
            self._forget_lost(held)
        if outcome is None or self._closed:
            return
        held.outcome = outcome
        if held.topic.limited:
            self._dispatcher.ended(held.topic)
        group = held.topic.name, type(outcome)
        self._waiting[group].append(held)
        if group not in self._flushing and group not in self._died:
            self._start_flush(group)

    def _start_flush(self, group: _Group) -> None:
        try:
            task = self._flushing[group] = spawn("lifecycle", self._flush, *group)
        except Exception as error:  # noqa: BLE001 - perhaps out of memory: the watchdog tries again
            self._died[group] = named(error)
            return
        task.add_done_callback(lambda task: self._flush_ended(group, task))

    def _flush_ended(self, group: _Group, task: asyncio.Task[None]) -> None:
        if self._flushing.get(group) is task:  # it was cancelled before it began
            del self._flushing[group]
        how = how_it_ended(task)
        if group not in self._flushing and self._waiting[group]:
            self._died[group] = how

    async def _flush(self, topic: str, kind: type) -> None:
        """Settle what waits in a group, batch by batch."""
        waiting = self._waiting[topic, kind]
        try:
            while waiting:
                count = min(_KINDS[kind].most, len(waiting))
                if kind in (RetryLater, SnoozeLater, Postpone):  # these calls carry the records
                    count = _how_many_fit(waiting, count)
                elif kind is Result:
                    budget = await self._store.budget(topic, State.COMPLETED)
                    count = min(count, self._store.limits.results_max or count)
                    count = _how_many_fit(waiting, count, budget)
                batch = [waiting.popleft() for _ in range(count)]
                try:
                    await self._settle_batch(topic, kind, batch)
                except BaseException:  # cancelled, or a bug: some may not be settled
                    self._put_back(waiting, batch)
                    raise
        finally:
            del self._flushing[topic, kind]

    async def _settle_batch(self, topic: str, kind: type, batch: list[HeldMessage]) -> None:
        """Repeat a call until it is answered, then free the room of the messages."""
        backoff: Backoff | None = None
        refused_at: float | None = None
        while True:
            try:
                answers = await self._apply(topic, kind, batch)
                break
            except OutcomeUnknown:
                for held in batch:
                    held.unsure = True
            except ServerUnavailable:
                pass
            except ScriptFailed as error:  # missing permissions, a broken key: can be fixed
                if refused_at is None:
                    refused_at = time.monotonic()
                    logger.error(
                        "the server refuses to settle messages of topic %s as %s; they are kept "
                        "and will be retried: %s",
                        topic,
                        _KINDS[kind].word,
                        error,
                    )
            except Exception:  # our bug, before anything was sent: a retry would fail the same way
                if len(batch) > 1:  # one message may be the cause: try them one by one
                    for one in batch:
                        await self._settle_batch(topic, kind, [one])
                    return
                logger.exception(
                    "%s of topic %s cannot be settled as %s; its lease will expire",
                    batch[0].leased.id,
                    topic,
                    kind.__name__,
                )
                self.abandoned += 1
                self._forget(batch[0])
                return
            backoff = backoff or Backoff()
            await asyncio.sleep(backoff.next())
        if refused_at is not None:
            seconds = time.monotonic() - refused_at
            logger.info("messages of topic %s can be settled again, after %.1f s", topic, seconds)
        event = _KINDS[kind].event
        if event is events.Completed and self._bus.counters:
            self._bus.emit_completed(batch[0].topic.topic, _durations(batch, answers))
        wanted = event in self._bus.wanted
        for held, answer in zip(batch, answers, strict=True):
            if answer is Settled.LOST and not held.unsure:
                self._forget_lost(held, refused=_KINDS[kind].word)
                continue
            if answer is Settled.REPLACED:
                if held.outcome is not None and not isinstance(held.outcome, GiveWay):
                    self.settle(held, GiveWay(held.outcome))
                continue
            self._slots.forget(held)
            if wanted:
                self._emit_settled(held, kind)
        self.progress.set()
        self._dispatcher.freed(batch[0].topic)

    async def _apply(
        self, topic: str, kind: type, batch: Sequence[HeldMessage | _TakenOver]
    ) -> list[Settled]:
        """Make the call for a kind of outcome."""
        store, worker = self._store, self._worker
        if kind is Complete:
            return await store.complete_message(topic, worker, [one.leased for one in batch])
        if kind is Result:
            kept = [(one.leased, one.outcome) for one in batch if isinstance(one.outcome, Result)]
            ttl = kept[0][1].ttl
            results = [(claim, result.kept) for claim, result in kept]
            return await store.complete_with_result(topic, worker, results, ttl=ttl)
        if kind is Release:
            back = [handed_back(one) for one in batch if isinstance(one, HeldMessage)]
            return await store.release_message(topic, worker, back)
        if kind is RetryLater:
            retried = [
                RetryRequest(one.leased, one.outcome.message, one.outcome.delay)
                for one in batch
                if isinstance(one.outcome, RetryLater)
            ]
            return await store.retry_message(topic, worker, retried)
        if kind is SnoozeLater:
            snoozed = [
                (one.leased, one.outcome) for one in batch if isinstance(one.outcome, SnoozeLater)
            ]
            return await store.snooze_message(topic, worker, snoozed)
        if kind is Postpone:
            later = [
                (one.leased, one.outcome) for one in batch if isinstance(one.outcome, Postpone)
            ]
            return await store.postpone_message(topic, worker, later)
        ((claim, outcome),) = [(one.leased, one.outcome) for one in batch]
        if kind is GiveWay:
            return [await store.release_replaced(topic, worker, claim)]
        if isinstance(outcome, DeadLetter):
            return [await store.move_to_dlq(topic, worker, claim, outcome.message)]
        if isinstance(outcome, Quarantine):
            reason = QuarantineReason.of(
                id=claim.id,
                topic=topic_of(topic),
                error=outcome.error,
                data=claim.record,
                worker=worker,
            )
            return [await store.handle_parse_error(topic, worker, claim, reason)]
        raise TypeError(f"{outcome!r} is not an outcome")

    async def settle_now(
        self, topic: str, taken: Leased, message: Message | None, outcome: Outcome
    ) -> None:
        """Apply an outcome to a message that was taken over, not dispatched.

        Makes one call and raises its errors. If it fails, the message's short lease runs out, and
        the message is taken over again. `message`: None if it cannot be read.
        """
        (answer,) = await self._apply(topic, type(outcome), [_TakenOver(taken, outcome)])
        if answer is Settled.REPLACED:
            outcome = GiveWay(outcome)
            (answer,) = await self._apply(topic, GiveWay, [_TakenOver(taken, outcome)])
        if answer and (event := _event(topic_of(topic), taken.id, message, outcome)) is not None:
            self._bus.emit(event)

    # events

    def _emit_settled(self, held: HeldMessage, kind: type) -> None:
        topic, id, outcome = held.topic.topic, held.leased.id, held.outcome
        if outcome is None or type(outcome) is not kind:
            # The worker handed it back while stopping; afterwards its handler ended and set another
            # outcome.
            self._bus.emit(events.Released(topic, id))
            return
        seconds = waited = None
        now = time.monotonic()
        if held.started_at is not None:
            seconds = (held.ended_at or now) - held.started_at
            if held.message is not None and held.message.ready_at is not None:
                since_ready = (held.topic.clock.now() - held.message.ready_at) / 1000
                waited = max(0.0, since_ready - (now - held.started_at))
        if (event := _event(topic, id, held.message, outcome, seconds, waited)) is not None:
            self._bus.emit(event)

    def _emit_lost(self, held: HeldMessage, refused: str = "") -> None:
        topic, claim = held.topic, held.leased
        if held.stopped is Stopped.ABORTED:
            seconds = None
            if held.started_at is not None:
                seconds = (held.ended_at or time.monotonic()) - held.started_at
            self._bus.emit(events.Aborted(topic.topic, claim.id, topic.handler.name, seconds))
            return
        self._bus.emit(
            events.LeaseLost(topic.topic, claim.id, claim.token, topic.handler.name, refused)
        )

    # messages that are no longer ours

    def _forget_lost(self, held: HeldMessage, *, refused: str = "") -> None:
        self._emit_lost(held, refused)
        self._forget(held)

    def lease_lost(self, held: HeldMessage, why: Stopped = Stopped.LEASE_LOST) -> None:
        """Stop or forget a message: we learned that its lease is gone."""
        if held not in self._slots.held or held.settling:
            return  # settled, or being settled: the answer to that call decides
        if held.interrupt is not None:
            held.stop(why)
        else:
            held.stopped = why
            self.forget_waiting(held)
            self._emit_lost(held)

    def forget_waiting(self, held: HeldMessage) -> None:
        """Forget a waiting message that is no longer ours: handed back, or its lease is lost."""
        self._slots.forget_waiting(held)
        self._forget(held)

    def _forget(self, held: HeldMessage) -> None:
        self._slots.forget(held)
        self.progress.set()
        self._dispatcher.freed(held.topic)

    def _put_back(self, waiting: deque[HeldMessage], batch: list[HeldMessage]) -> None:
        left = [held for held in batch if held in self._slots.held]
        for held in left:
            held.unsure = True  # a call may be under way
        if self._closed:
            self.abandoned += len(left)
        else:
            waiting.extendleft(reversed(left))

    # what the watchdog and the engine call

    def down(self) -> str:
        """Return how a task ended before everything was settled; empty: none did."""
        return "" if self._closed else next(iter(self._died.values()), "")

    def start(self) -> None:
        """Restart the tasks that died."""
        groups = list(self._died)
        self._died.clear()
        for group in groups:
            if group not in self._flushing:
                self._start_flush(group)

    async def drain(self, seconds: float) -> None:
        """Wait up to `seconds` until everything is settled."""
        deadline = time.monotonic() + seconds
        while self._flushing and time.monotonic() < deadline:
            await asyncio.wait(self._flushing.values(), timeout=deadline - time.monotonic())

    def close(self) -> None:
        """Give up on messages that are not settled yet."""
        self._closed = True
        for task in list(self._flushing.values()):
            task.cancel()
        self.abandoned += sum(map(len, self._waiting.values()))


def _how_many_fit(waiting: deque[HeldMessage], count: int, budget: int = 0) -> int:
    """Return how many of the first messages may share a call, by the size of what it carries.

    `budget`: bytes that an archive may take; what arrives together must fit in it. 0: no limit.
    """
    size, most = 0, min(MAX_BYTES, budget or MAX_BYTES)
    for number, held in enumerate(islice(waiting, count)):
        outcome = held.outcome
        if isinstance(outcome, Result):
            size += len(outcome.kept) + OVERHEAD
        else:
            size += len(held.leased.record)
        if size > most and number:
            return number
    return count


def _durations(batch: list[HeldMessage], answers: list[Settled]) -> list[float]:
    """Return how many seconds the handlers took whose messages are settled."""
    now = time.monotonic()
    return [
        (held.ended_at or now) - (held.started_at or now)
        for held, answer in zip(batch, answers, strict=True)
        if answer or (answer is Settled.LOST and held.unsure)
    ]


def _event(
    topic: str,
    id: str,
    message: Message | None,
    outcome: Outcome,
    seconds: float | None = None,
    waited: float | None = None,
) -> events.Event | None:
    """Return the event for an outcome; None: nothing failed, the message only waits again.

    `seconds`: how long the handler ran. `waited`: from when the message was due until its handler
    began. None: no handler ran, or it is not known.
    """
    attempt = 1 + (message.attempts if message else 0)
    match outcome:
        case Complete():
            return events.Completed(topic, id, attempt, seconds or 0.0, waited)
        case RetryLater(after, delay, error):
            if error is None:
                return None
            why, traceback = named(error), after.errors[-1].traceback
            return events.Retried(topic, id, attempt, delay / 1000, why, traceback, seconds, waited)
        case SnoozeLater(_, delay, reason):
            return events.Snoozed(topic, id, attempt, delay / 1000, reason, seconds, waited)
        case DeadLetter(after, None):  # it had expired before a handler saw it
            return events.Died(topic, id, after.attempts, after.reason)
        case DeadLetter(after):
            traceback = after.errors[-1].traceback
            return events.Died(topic, id, after.attempts, after.reason, traceback, seconds, waited)
        case Quarantine(error):
            return events.Quarantined(topic, id, text_of(error))
        case Postpone():
            return events.Postponed(topic, id, outcome.delay / 1000, outcome.why)
        case Release():
            return events.Released(topic, id)
        case GiveWay(RetryLater(error=error) | DeadLetter(error=error)) if error is not None:
            return events.Replaced(topic, id, named(error), seconds, waited)
        case GiveWay():
            return events.Replaced(topic, id, "", seconds, waited)


def handed_back(held: HeldMessage) -> HandedBack:
    """Return what it takes to hand back an unfinished message: lease, priority, expiry time."""
    record = held.leased.record
    try:
        message = held.message or codec.decode(record, held.topic.topic, held.leased.id)
    except DecodeError:
        created_at, priority, ttl, *_ = codec.glance(record)
        return HandedBack(held.leased, priority, None if ttl is None else created_at + ttl)
    return HandedBack(held.leased, message.priority, message.expires_at)
