"""The lifecycle: applies outcomes. Each is one transition; those of a moment share a call.

A call that does not get through, or that the server refuses, is made again until it is answered:
the token decides whether it still counts. Meanwhile leases are kept and slots stay taken, so a
worker that cannot settle stops taking messages. Only what cannot be sent at all is left to its
lease.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from mx_rmq.core import codec, events
from mx_rmq.core.errors import DecodeError, OutcomeUnknown, ScriptFailed, ServerUnavailable
from mx_rmq.core.outcome import (
    Complete,
    DeadLetter,
    Outcome,
    Postpone,
    Quarantine,
    Release,
    RetryLater,
)
from mx_rmq.core.partition import topic_of
from mx_rmq.core.text import text_of
from mx_rmq.runtime.loop import Backoff, how_it_ended, spawn
from mx_rmq.runtime.slots import Held, Stopped
from mx_rmq.safe_log import get_logger
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
    from mx_rmq.store.results import Claim, Leased

logger = get_logger(__name__)

_Line = tuple[str, type]
"""A topic, and a kind of outcome."""

BYTES: Final = 4 * 1_048_576
"""Bytes of records in one call, or a single message."""


class _Taken(NamedTuple):
    """A message that was taken over to decide about it. It has no slot and runs no handler."""

    claim: Claim
    record: bytes
    message: Message | None
    """None: it cannot be read."""
    outcome: Outcome


class Lifecycle:
    """Settles what the consumers have finished."""

    name = "lifecycle"

    def __init__(
        self,
        store: Store,
        slots: Slots,
        dispatcher: Dispatcher,
        bus: Events,
        *,
        worker: str,
    ) -> None:
        self._store = store
        self._slots = slots
        self._dispatcher = dispatcher
        self._bus = bus
        self._worker = worker
        self.progress = asyncio.Event()
        """Set whenever a handler has ended or a message is settled."""
        self._waiting: defaultdict[_Line, deque[Held]] = defaultdict(deque)
        """By topic and kind of outcome: one kind that is refused must not hold up the others."""
        self._flushing: dict[_Line, asyncio.Task[None]] = {}
        self._died: dict[_Line, str] = {}
        """Lines whose task ended before everything was settled, and how it ended."""
        self._closed = False
        self.abandoned = 0
        """Messages that could not be settled: their leases will bring them back."""

    def settle(self, held: Held, outcome: Outcome | None) -> None:
        """Apply an outcome soon; None: the message is no longer ours."""
        self.progress.set()
        if outcome is None:
            self._lost(held)
        if outcome is None or self._closed:
            return
        held.outcome = outcome
        line = held.topic.name, type(outcome)
        self._waiting[line].append(held)
        if line not in self._flushing and line not in self._died:
            self._begin(line)

    def down(self) -> str:
        """Return how a task ended that had more to settle; empty: none did."""
        return "" if self._closed else next(iter(self._died.values()), "")

    def start(self) -> None:
        """Settle what was left."""
        left = list(self._died)
        self._died.clear()
        for line in left:
            if line not in self._flushing:
                self._begin(line)

    def _begin(self, line: _Line) -> None:
        try:
            task = self._flushing[line] = spawn("lifecycle", self._flush, *line)
        except Exception as error:  # noqa: BLE001 - no memory, perhaps: the watchdog tries again
            self._died[line] = f"{type(error).__name__}: {text_of(error)}"
            return
        task.add_done_callback(lambda task: self._ended(line, task))

    def _ended(self, line: _Line, task: asyncio.Task[None]) -> None:
        if self._flushing.get(line) is task:  # it was cancelled before it began
            del self._flushing[line]
        how = how_it_ended(task)
        if line not in self._flushing and self._waiting[line]:
            self._died[line] = how

    async def flush(self, seconds: float) -> None:
        """Wait until everything is settled, but not longer than this."""
        deadline = time.monotonic() + seconds
        while self._flushing and time.monotonic() < deadline:
            await asyncio.wait(self._flushing.values(), timeout=deadline - time.monotonic())

    def close(self) -> None:
        """Give up what is not settled."""
        self._closed = True
        for task in list(self._flushing.values()):
            task.cancel()
        self.abandoned += sum(map(len, self._waiting.values()))

    async def _flush(self, topic: str, kind: type) -> None:
        waiting = self._waiting[topic, kind]
        try:
            while waiting:
                batch = _batch(kind, waiting)
                try:
                    await self._insist(topic, kind, batch)
                except BaseException:  # cancelled, or a bug: nothing may stay in hand
                    self._keep(waiting, batch)
                    raise
        finally:
            del self._flushing[topic, kind]

    async def _insist(self, topic: str, kind: type, batch: list[Held]) -> None:
        """Make a call until it is answered."""
        backoff = Backoff()
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
            except ScriptFailed as error:  # missing rights, a broken key: that can be put right
                if refused_at is None:
                    refused_at = time.monotonic()
                    logger.error(
                        "the server refuses to settle messages of topic %s as %s; they are held "
                        "and tried again: %s",
                        topic,
                        _WORDS[kind],
                        error,
                    )
            except Exception:  # ours, before anything was sent; it would be the same again
                if len(batch) > 1:  # it need not be the fault of all
                    for one in batch:
                        await self._insist(topic, kind, [one])
                    return
                logger.exception(
                    "%s of topic %s cannot be settled as %s; its lease will run out",
                    batch[0].claim.id,
                    topic,
                    kind.__name__,
                )
                self._give_up(batch)
                return
            await asyncio.sleep(backoff.next())
        if refused_at is not None:
            seconds = time.monotonic() - refused_at
            logger.info("messages of topic %s are settled again, after %.1f s", topic, seconds)
        wanted = self._bus.wants(_EVENTS[kind])
        for held, answer in zip(batch, answers, strict=True):
            if answer is Settled.LOST and not held.unsure:
                self._lost(held, refused=_WORDS[kind])
                continue
            self._slots.gone(held)
            if wanted and type(held.outcome) is kind:
                self._tell(held.topic.topic, held)
            elif wanted:  # handed back at the end of the worker; then its handler ended after all
                self._bus.emit(events.Released(held.topic.topic, held.claim.id))
        self.progress.set()
        self._dispatcher.freed(batch[0].topic)

    async def settle_now(
        self, topic: str, leased: Leased, message: Message | None, outcome: Outcome
    ) -> None:
        """Apply an outcome to a message that was taken over, not dispatched.

        One call, and its errors are the caller's: if it fails, the short lease of the message runs
        out, and it is taken over again.
        """
        taken = _Taken(leased.claim, leased.record, message, outcome)
        (answer,) = await self._apply(topic, type(outcome), [taken])
        if answer:
            self._tell(topic_of(topic), taken)

    async def _apply(self, topic: str, kind: type, batch: Sequence[Held | _Taken]) -> list[Settled]:
        store, worker = self._store, self._worker
        if kind is Complete:
            return await store.complete_message(topic, worker, [held.claim for held in batch])
        if kind is Release:
            return await store.release_message(
                topic,
                worker,
                [handed_back(one) for one in batch if isinstance(one, Held)],
            )
        if kind is RetryLater:
            retried = [
                RetryRequest(held.claim, held.outcome.message, held.outcome.delay)
                for held in batch
                if isinstance(held.outcome, RetryLater)
            ]
            return await store.retry_message(topic, worker, retried)
        if kind is Postpone:
            later = [(one.claim, one.outcome) for one in batch if isinstance(one.outcome, Postpone)]
            return await store.postpone_message(topic, worker, later)
        (held,) = batch
        outcome = held.outcome
        if isinstance(outcome, DeadLetter):
            return [await store.move_to_dlq(topic, worker, held.claim, outcome.message)]
        if isinstance(outcome, Quarantine):
            about = QuarantineReason.of(
                id=held.claim.id,
                topic=topic_of(topic),
                error=outcome.error,
                data=held.record,
                worker=worker,
            )
            return [await store.handle_parse_error(topic, worker, held.claim, about)]
        raise TypeError(f"{outcome!r} is not an outcome")

    def _tell(self, topic: str, held: Held | _Taken) -> None:
        """Emit what became of a message."""
        id, outcome = held.claim.id, held.outcome
        attempt = 1 + (held.message.attempts if held.message else 0)
        if isinstance(outcome, Complete):
            seconds = _took(held) or 0.0
            self._bus.emit(events.Completed(topic, id, attempt, seconds, _waited(held)))
        elif isinstance(outcome, RetryLater):
            if outcome.error is None:
                return
            error = f"{type(outcome.error).__name__}: {text_of(outcome.error)}"
            delay, traceback = outcome.delay / 1000, _traceback(outcome)
            took, waited = _took(held), _waited(held)
            self._bus.emit(
                events.Retried(topic, id, attempt, delay, error, traceback, took, waited)
            )
        elif isinstance(outcome, DeadLetter):
            last, traceback = outcome.message, _traceback(outcome)
            died = events.Died(topic, id, last.attempts, last.reason, traceback)
            if outcome.error is not None:  # else it had expired, and no handler saw it
                died = replace(died, seconds=_took(held), waited=_waited(held))
            self._bus.emit(died)
        elif isinstance(outcome, Quarantine):
            self._bus.emit(events.Quarantined(topic, id, text_of(outcome.error)))
        elif isinstance(outcome, Postpone):
            self._bus.emit(events.Postponed(topic, id, outcome.delay / 1000, outcome.why))
        else:
            self._bus.emit(events.Released(topic, id))

    def _lost(self, held: Held, *, refused: str = "") -> None:
        self._slots.gone(held)
        self._tell_lost(held, refused=refused)
        self.progress.set()
        self._dispatcher.freed(held.topic)

    def lease_lost(self, held: Held) -> None:
        """The lease keeper was told that another worker has the message."""
        if held not in self._slots.held or held.settling:
            return  # settled by now, or about to be: the answer to that call decides
        if held.interrupt is not None:
            held.stop(Stopped.LEASE_LOST)
        else:
            self.forget_waiting(held)
            self._tell_lost(held)

    def forget_waiting(self, held: Held) -> None:
        """Forget a waiting message that is no longer ours: handed back, or its lease is lost."""
        self._slots.forget_waiting(held)
        self.progress.set()
        self._dispatcher.freed(held.topic)

    def _tell_lost(self, held: Held, *, refused: str = "") -> None:
        topic, claim = held.topic, held.claim
        self._bus.emit(
            events.LeaseLost(topic.topic, claim.id, claim.token, topic.handler.name, refused)
        )

    def _keep(self, waiting: deque[Held], batch: list[Held]) -> None:
        """Put back what may not be settled. A call may be under way: what it did, is done."""
        left = [held for held in batch if held in self._slots.held]
        for held in left:
            held.unsure = True
        if self._closed:
            self.abandoned += len(left)
        else:
            waiting.extendleft(reversed(left))

    def _give_up(self, batch: list[Held]) -> None:
        self.abandoned += len(batch)
        for held in batch:
            self._slots.gone(held)
        self.progress.set()
        self._dispatcher.freed(batch[0].topic)


_EVENTS: Final[dict[type, type]] = {
    Complete: events.Completed,
    RetryLater: events.Retried,
    DeadLetter: events.Died,
    Quarantine: events.Quarantined,
    Release: events.Released,
    Postpone: events.Postponed,
}

_WORDS: Final[dict[type, str]] = {
    Complete: "completed",
    RetryLater: "retried",
    DeadLetter: "dead",
    Quarantine: "quarantined",
    Release: "released",
    Postpone: "postponed",
}


def _took(held: Held | _Taken) -> float | None:
    """Return how long its handler ran, in seconds; None: no handler ran here."""
    if isinstance(held, _Taken) or held.started_at is None:
        return None
    return (held.ended_at or time.monotonic()) - held.started_at


def _waited(held: Held | _Taken) -> float | None:
    """Return how many seconds after it was due its handler began; None: unknown."""
    ready_at = None if held.message is None else held.message.ready_at
    if ready_at is None or isinstance(held, _Taken) or held.started_at is None:
        return None
    ago = time.monotonic() - held.started_at
    return max(0.0, (held.topic.clock.now() - ready_at) / 1000 - ago)


def _traceback(outcome: RetryLater | DeadLetter) -> str:
    return outcome.message.errors[-1].traceback if outcome.error is not None else ""


def _batch(kind: type, waiting: deque[Held]) -> list[Held]:
    """Take as many as one call may carry."""
    most = 1 if kind in (DeadLetter, Quarantine) else MAX_BATCH
    if kind not in (RetryLater, Postpone):
        return [waiting.popleft() for _ in range(min(most, len(waiting)))]
    batch = [waiting.popleft()]
    size = len(batch[0].record)
    while waiting and len(batch) < most:
        size += len(waiting[0].record)
        if size > BYTES:
            break
        batch.append(waiting.popleft())
    return batch


def handed_back(held: Held) -> HandedBack:
    """Return an unfinished message as it goes back: to its level, with its time to live."""
    try:
        message = held.message or codec.decode(held.record, held.topic.topic, held.claim.id)
    except DecodeError:
        created_at, priority, ttl = codec.glance(held.record)
        return HandedBack(held.claim, priority, None if ttl is None else created_at + ttl)
    return HandedBack(held.claim, message.priority, message.expires_at)
