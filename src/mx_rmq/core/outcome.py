"""The outcome of a delivery: a value, decided without I/O, which the lifecycle applies.

Complete         -> complete_message      it is done
Result           -> complete_with_result  it is done, and its result is kept
Finish           -> note_record           it is done; first its follow-ups are produced and those
                                          who wait for it are told, then it completes
RetryLater       -> retry_message         it waits for another attempt
DeadLetter       -> move_to_dlq           it gets no further attempt
Quarantine       -> handle_parse_error    its record or payload cannot be read
Release          -> release_message       it was not finished and goes back: no attempt is counted
SnoozeLater      -> retry_message         its handler wants it back later: no attempt is counted
Park             -> retry_message         it waits for signals: no attempt is counted
Postpone         -> retry_message         it waits for a newer release: no attempt is counted
ReleaseReplaced  -> release_replaced      a produce replaced it meanwhile: its new record waits
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Generator
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from mx_rmq.core import codec
from mx_rmq.core.durations import Seconds, as_seconds
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.message import Failure, Message, Priority
from mx_rmq.core.retry import from_dict
from mx_rmq.core.steps import has_returned
from mx_rmq.core.text import named, shown, storable

if TYPE_CHECKING:
    from mx_rmq.core.errors import NewerRecord
    from mx_rmq.core.handler import Handler
    from mx_rmq.core.retry import Policy

# Seconds over which the messages of a lost worker are spread, doubled with each crash:
CRASH_SPREAD: Final = 2.5
LONGEST_SPREAD: Final = 60.0
# Seconds that a message of a newer release waits before a worker tries it again:
SHORTEST_WAIT: Final = 1.0
LONGEST_WAIT: Final = 60.0


class Retry(Exception):
    """Raise it in a handler to get another attempt after `delay`, in seconds or as a timedelta.

    Without a delay, the retry policy decides when. It counts as an attempt.
    """

    def __init__(self, delay: Seconds | None = None, reason: str = "") -> None:
        super().__init__(reason or "the handler asked for another attempt")
        self.delay = None if delay is None else as_seconds("Retry delay=", delay)


class Snooze(Exception):
    """Raise it in a handler to get the message again after some seconds, or a timedelta.

    No attempt and no error is counted. The message's ttl still applies. With `key`, all messages
    with the same key wait; a message without a key waits alone.
    """

    def __init__(self, seconds: Seconds, reason: str = "", *, key: bool = False) -> None:
        super().__init__(reason)
        if not isinstance(key, bool):
            raise InvalidInput(
                f"Snooze key={shown(key)} is not True or False: it means the message's own key"
            )
        if not isinstance(reason, str):
            raise InvalidInput(f"Snooze reason={shown(reason)} is not a string")
        self.key = key
        self.delay = as_seconds("Snooze seconds=", seconds)
        self.reason = reason


class Reject(Exception):
    """Raise it in a handler to dead-letter the message now, without another attempt."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class HandlerTimeout(Exception):
    """A handler took longer than its `timeout`."""


class Suspended(BaseException):
    """Ends a handler call that sleeps or waits; later it runs again from the start.

    Not an Exception, so that `except Exception` in a handler does not catch it.
    """

    def __init__(self, outcome: SnoozeLater | Park) -> None:
        super().__init__("the handler sleeps or waits; do not catch this")
        self.outcome = outcome

    def outcome_with(self, message: Message) -> SnoozeLater | Park:
        """Return the outcome with the steps that the message has now."""
        latest = msgspec.structs.replace(self.outcome.message, v=message.v, steps=message.steps)
        return dataclasses.replace(self.outcome, message=latest)


def suspension(error: BaseException) -> Suspended | None:
    """Return what has ended a handler that sleeps or waits. Task groups wrap it in a group."""
    if isinstance(error, BaseExceptionGroup) and error.split(Suspended)[1] is None:
        return suspension(error.exceptions[0])
    return error if isinstance(error, Suspended) else None


class WorkerLost(Exception):
    """A worker was killed, frozen or cut off while it held a message."""


class NotAwaited(Exception):
    """A handler has left work undone: it returned a coroutine, another awaitable or a generator, or
    did not await one of its steps.
    """


@dataclass(frozen=True, slots=True)
class Complete:
    """The handler has returned."""


@dataclass(frozen=True, slots=True)
class Result(Complete):
    """The handler has returned, and what it returned is kept."""

    kept: bytes  # as `Kept.with_result` makes it
    ttl: int  # ms


@dataclass(frozen=True, slots=True)
class Finish(Complete):
    """The handler has returned, and there is more to do before the message completes."""

    message: Message  # its record, which says what there is to do
    completion: Complete  # how it completes then
    noted: bool = False  # whether the server has this record


@dataclass(frozen=True, slots=True)
class RetryLater:
    """The attempt failed; the next one begins after `delay` ms."""

    message: Message
    delay: int
    error: BaseException | None = None  # None: nothing failed, the message goes back to wait


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """No further attempt; the message says why in `reason`."""

    message: Message
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Quarantine:
    """The bytes cannot be read."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Release:
    """Not finished: back to the front of the queue."""


@dataclass(frozen=True, slots=True)
class SnoozeLater:
    """The handler does not want the message yet; it gets it again after `delay` ms."""

    message: Message
    delay: int
    reason: str
    key: bool = False  # all messages with its key wait as long


@dataclass(frozen=True, slots=True)
class Park:
    """The message waits for signals, at most for `delay` ms; None: as long as it takes."""

    message: Message
    awaits: tuple[str, ...]
    delay: int | None
    reason: str  # for the history: what it waits for


class Postpone(NamedTuple):
    """A newer release wrote the record: it waits `delay` ms, unchanged. No attempt is counted."""

    record: bytes
    priority: Priority
    delay: int
    expires: int | None  # server time, ms; None: never, or it has already expired
    why: str


@dataclass(frozen=True, slots=True)
class ReleaseReplaced:
    """A produce replaced the message meanwhile: the outcome of the old record does not count."""

    outcome: Outcome


Outcome = (
    Complete
    | RetryLater
    | SnoozeLater
    | Park
    | DeadLetter
    | Quarantine
    | Release
    | Postpone
    | ReleaseReplaced
)


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What a decision depends on, apart from the message."""

    now: int  # server time, ms
    worker: str
    chance: float  # a random number from [0, 1)


def check_was_awaited(result: object, handler: Handler) -> None:
    """Raise NotAwaited if a handler returned a coroutine, an awaitable or a generator."""
    generator = isinstance(result, Generator | AsyncGenerator)
    if not generator and not isinstance(result, Awaitable):
        return
    if isinstance(result, Coroutine | Generator):
        with suppress(Exception):  # it has not started, so there is nothing to clean up
            result.close()  # else Python would warn that it was never awaited
    cure = "call it in a loop" if generator else "put `await` before the call that returned it"
    raise NotAwaited(
        f"{handler.name} (or middleware around it) returned a {type(result).__name__} that has "
        f"not run: {cure}"
    )


def timed_out(handler: Handler, error: BaseException) -> HandlerTimeout:
    """Return the error of a handler that was interrupted by its timeout."""
    timeout = HandlerTimeout(f"{handler.name} took longer than {handler.timeout:g} s")
    return timeout.with_traceback(error.__traceback__)


def after_error(
    message: Message,
    handler: Handler,
    error: BaseException,
    at: Circumstances,
    failure: Failure | None = None,
) -> Outcome:
    """Decide about a message whose handler raised. `failure`: the error, if already described."""
    if isinstance(error, Snooze) and (wait := _wait(error)) is not None:
        delay = round(wait * 1000)
        later = msgspec.structs.replace(message, due=at.now + delay)
        key = message.key is not None and bool(getattr(error, "key", False))
        return SnoozeLater(later, delay, storable(str(getattr(error, "reason", ""))), key)
    failed = message.failed(failure or Failure.of(error, at=at.now, worker=at.worker))
    if isinstance(error, Reject):
        return _dead(failed, f"rejected: {getattr(error, 'reason', '')}", error)
    limit = message.max_attempts or handler.max_attempts
    if failed.failures >= limit:
        times = _times(failed.failures)
        return _dead(failed, f"exhausted: failed {times}, last by {named(error)}", error)
    wait = _wait(error) if isinstance(error, Retry) else None
    if wait is None:
        wait = _policy(message, handler).delay(failed.failures, error, at.chance)
    if wait is None:
        return _dead(failed, f"not retried: {named(error)}", error)
    return _later(failed, round(wait * 1000), error)


def after_crash(
    message: Message, max_crashes: int, lost_by: str, at: Circumstances
) -> RetryLater | DeadLetter:
    """Decide about a message whose worker went silent.

    Crashes have a separate limit, so a message that kills its worker does not live forever, and a
    failing machine does not use up the handler's attempts. From the second crash on, the messages
    of a lost worker come back at different times. The one that kills workers then takes few others
    with it.

    A message whose time to live has passed expires, and no crash is counted: the lost worker may
    have held it only to dead-letter it.
    """
    if (dead := expired(message, at.now)) is not None:
        return dead
    if has_returned(message):  # only the rest is left to do, and no handler runs
        return RetryLater(message, 0)
    error = WorkerLost(f"worker {lost_by} went silent and its lease expired")
    crashed = message.crashed(Failure.of(error, at=at.now, worker=lost_by))
    if crashed.crashes >= max_crashes:
        return _dead(crashed, f"crashed: its worker was lost {_times(crashed.crashes)}", error)
    spread = 0.0
    if crashed.crashes > 1:
        spread = min(LONGEST_SPREAD, CRASH_SPREAD * 2.0 ** min(crashed.crashes, 10)) * at.chance
    return _later(crashed, round(spread * 1000), error)


def postponed(newer: NewerRecord, at: Circumstances) -> Postpone:
    """Decide about a message that only a newer release can read.

    Another worker may be newer, so the first waits are short. They grow with the message's age, so
    that it does not spin while no newer worker runs.
    """
    created_at, priority, ttl, *_ = codec.glance(newer.data)
    age = (at.now - created_at) / 1000 if created_at > 0 else inf
    seconds = min(LONGEST_WAIT, max(SHORTEST_WAIT, age / 4)) * (0.75 + at.chance / 2)
    # Once it has expired, only a newer release can dead-letter it. Without an expiry time, our own
    # expirer does not take it again.
    expires = None if ttl is None or created_at + ttl <= at.now else created_at + ttl
    return Postpone(newer.data, priority, round(seconds * 1000), expires, newer.reason)


def expired(message: Message, now: int) -> DeadLetter | None:
    """Return a dead letter if the message has expired, else None."""
    if message.expires_at is None or now < message.expires_at or has_returned(message):
        return None
    late = (now - message.expires_at) / 1000
    return DeadLetter(
        msgspec.structs.replace(message, reason=f"expired: {late:.3f} s after its time to live")
    )


def undecided(message: Message | None, error: BaseException) -> DeadLetter | Quarantine:
    """Decide about a message after a bug in our own code. `message`: None if it was not decoded."""
    if message is None:
        return Quarantine(error)
    return DeadLetter(msgspec.structs.replace(message, reason=f"undecided: {named(error)}"))


def _wait(error: Retry | Snooze) -> float | None:
    """Return the seconds that a handler asked for; None: none, or a subclass has invalid ones."""
    with suppress(AttributeError, InvalidInput):
        return as_seconds("delay=", error.delay)
    return None


def _policy(message: Message, handler: Handler) -> Policy:
    if message.retry is not None:
        try:
            return from_dict(message.retry)
        except InvalidInput:  # written by another client or a newer release
            pass
    return handler.retry


def _later(message: Message, delay: int, error: BaseException) -> RetryLater:
    return RetryLater(msgspec.structs.replace(message, delay=delay), delay, error)


def _dead(message: Message, reason: str, error: BaseException) -> DeadLetter:
    return DeadLetter(msgspec.structs.replace(message, reason=storable(reason)), error)


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
