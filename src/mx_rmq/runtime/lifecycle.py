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
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from mx_rmq.core import codec, events
from mx_rmq.core.errors import (
    DecodeError,
    InvalidInput,
    OutcomeUnknown,
    ScriptFailed,
    ServerUnavailable,
)
from mx_rmq.core.message import State
from mx_rmq.core.outcome import (
    Complete,
    DeadLetter,
    Finish,
    Outcome,
    Park,
    Postpone,
    Quarantine,
    Release,
    ReleaseReplaced,
    Result,
    RetryLater,
    SnoozeLater,
    undecided,
)
from mx_rmq.core.partition import topic_of
from mx_rmq.core.text import named
from mx_rmq.runtime.follow_ups import FollowUps
from mx_rmq.runtime.held import HeldMessage, Stopped
from mx_rmq.runtime.loop import Backoff, how_it_ended, spawn
from mx_rmq.runtime.outcome_events import (
    after_losing,
    after_outcome,
    after_settling,
    seconds_run,
)
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

T = TypeVar("T")

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
    Finish: _Kind("completed", events.Completed, most=100),
    RetryLater: _Kind("retried", events.Retried),
    SnoozeLater: _Kind("snoozed", events.Snoozed),
    Park: _Kind("parked", events.Parked, most=100),
    DeadLetter: _Kind("dead", events.Died, most=1),
    Quarantine: _Kind("quarantined", events.Quarantined, most=1),
    Release: _Kind("released", events.Released),
    Postpone: _Kind("postponed", events.Postponed),
    ReleaseReplaced: _Kind("replaced", events.Replaced, most=1),
}


class Decided(NamedTuple):
    """A message that `Recovery` took over. It has no slot here, and no handler runs it."""

    leased: Leased
    message: Message | None  # None: it cannot be read
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
        self.follow_ups = FollowUps(store, worker=worker)
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
                if isinstance(_completion(waiting[0].outcome), Result):
                    budget = await self._store.budget(topic, State.COMPLETED)
                    count = min(count, self._store.limits.results_max or count)
                    count = how_many_fit(waiting, count, budget)
                elif kind in (RetryLater, SnoozeLater, Park, Postpone, Finish):  # carry records
                    count = how_many_fit(waiting, count)
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
            except Exception as error:  # our bug, before anything was sent: it would fail again
                if len(batch) > 1:  # one message may be the cause: try them one by one
                    for one in batch:
                        await self._settle_batch(topic, kind, [one])
                    return
                finish = batch[0].outcome
                if isinstance(error, InvalidInput) and isinstance(finish, Finish):
                    logger.exception("%s of topic %s cannot be finished", batch[0].leased.id, topic)
                    self.settle(batch[0], undecided(finish.message, error))
                    return  # no crash is counted after its handler, so it would never end
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
            durations = [
                seconds_run(held)
                for held, answer in zip(batch, answers, strict=True)
                if answer or (answer is Settled.LOST and held.unsure)
            ]
            self._bus.emit_completed(batch[0].topic.topic, durations)
        wanted = event in self._bus.wanted
        for held, answer in zip(batch, answers, strict=True):
            if answer is Settled.LOST and not held.unsure:
                self._forget_lost(held, refused=_KINDS[kind].word)
                continue
            if answer is Settled.REPLACED:
                if held.outcome is not None and not isinstance(held.outcome, ReleaseReplaced):
                    self.settle(held, ReleaseReplaced(held.outcome))
                continue
            self._slots.forget(held)
            if wanted and (settled := after_settling(held, kind)) is not None:
                self._bus.emit(settled)
        self.progress.set()
        self._dispatcher.freed(batch[0].topic)

    async def _apply(
        self, topic: str, kind: type, batch: Sequence[HeldMessage | Decided]
    ) -> list[Settled]:
        """Make the call for a kind of outcome."""
        store, worker = self._store, self._worker
        if kind is Complete:
            return await store.complete_message(topic, worker, [one.leased for one in batch])
        if kind is Result:
            completed = _outcomes(batch, Result)
            ttl = completed[0][1].ttl
            results = [(claim, result.kept) for claim, result in completed]
            return await store.complete_with_result(topic, worker, results, ttl=ttl)
        if kind is Release:
            back = [handed_back(one) for one in batch if isinstance(one, HeldMessage)]
            return await store.release_message(topic, worker, back)
        if kind is RetryLater:
            retried = [
                RetryRequest(claim, later.message, later.delay)
                for claim, later in _outcomes(batch, RetryLater)
            ]
            return await store.retry_message(topic, worker, retried)
        if kind is SnoozeLater:
            return await store.snooze_message(topic, worker, _outcomes(batch, SnoozeLater))
        if kind is Finish:
            return await self.follow_ups.finish(topic, _outcomes(batch, Finish))
        if kind is Park:
            return await store.park_message(topic, worker, _outcomes(batch, Park))
        if kind is Postpone:
            return await store.postpone_message(topic, worker, _outcomes(batch, Postpone))
        ((claim, outcome),) = [(one.leased, one.outcome) for one in batch]
        if kind is ReleaseReplaced:
            return [await store.release_replaced(topic, worker, claim)]
        if isinstance(outcome, DeadLetter):
            message = outcome.message
            answer = await store.move_to_dlq(topic, worker, claim, message)
            if answer and message.steps:
                await self.follow_ups.tell_death(topic, message, message.reason)
            return [answer]
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

    async def settle_now(self, topic: str, decided: Sequence[Decided]) -> None:
        """Apply outcomes of one kind to messages that were taken over, not dispatched.

        Makes one call and raises its errors. If it fails, the messages' short leases run out, and
        they are taken over again.
        """
        answers = await self._apply(topic, type(decided[0].outcome), decided)
        for one, answer in zip(decided, answers, strict=True):
            settled = bool(answer)
            if answer is Settled.REPLACED:
                one = one._replace(outcome=ReleaseReplaced(one.outcome))  # noqa: PLW2901 - the same
                (released,) = await self._apply(topic, ReleaseReplaced, [one])
                settled = bool(released)
            event = after_outcome(topic_of(topic), one.leased.id, one.message, one.outcome)
            if settled and event is not None:
                self._bus.emit(event)

    # messages that are no longer ours

    def _forget_lost(self, held: HeldMessage, *, refused: str = "") -> None:
        if held in self._slots.held:  # else `lease_lost` has told it, outside the call of its batch
            self._bus.emit(after_losing(held, refused))
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
            self._bus.emit(after_losing(held))

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


def _outcomes(batch: Sequence[HeldMessage | Decided], kind: type[T]) -> list[tuple[Leased, T]]:
    return [(one.leased, one.outcome) for one in batch if isinstance(one.outcome, kind)]


def _completion(outcome: Outcome | None) -> Outcome | None:
    """Return how a message completes in the end, if it does."""
    return outcome.completion if isinstance(outcome, Finish) else outcome


def how_many_fit(waiting: Sequence[HeldMessage | Decided], count: int, budget: int = 0) -> int:
    """Return how many of the first messages may share a call, by the size of what it carries.

    `budget`: bytes that an archive may take; what arrives together must fit in it. 0: no limit.
    """
    size = kept = 0
    for number, held in enumerate(islice(waiting, count)):
        outcome = held.outcome
        if isinstance(completion := _completion(outcome), Result):
            kept += len(completion.kept) + OVERHEAD
        if not isinstance(outcome, Result):
            size += len(held.leased.record)
        if isinstance(outcome, Finish | Park | SnoozeLater | RetryLater):
            size += len(outcome.message.steps)  # what the record does not have yet
        if number and (size + kept > MAX_BYTES or 0 < budget < kept):
            return number
    return count


def handed_back(held: HeldMessage) -> HandedBack:
    """Return what it takes to hand back an unfinished message: lease, priority, expiry time."""
    record = held.leased.record
    try:
        message = held.message or codec.decode(record, held.topic.topic, held.leased.id)
    except DecodeError:
        created_at, priority, ttl, *_ = codec.glance(record)
        return HandedBack(held.leased, priority, None if ttl is None else created_at + ttl)
    return HandedBack(held.leased, message.priority, message.expires_at)
