"""A message, its states and its record.

The record is one line of JSON in the topic's `payload` hash. The server stamps `created_at`
when it stores a new message, so that every time in the system comes from one clock.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

import msgspec

from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.names import check_id, check_key
from mx_rmq.core.text import shown, storable, text_of
from mx_rmq.core.tracebacks import traceback_of

VERSION: Final = 1
"""The record format of plain messages. This release reads this one, WITH_STEPS and older ones.

A release that only adds a field at the top level of the record keeps the number: older releases
carry the field along (`Extended`). The number grows when an older release would handle the message
wrongly; older releases then leave the message to newer workers.
"""

WITH_STEPS: Final = 2
"""The record format of messages that have `steps`."""

MAX_COST: Final = 1_000_000_000
MAX_PATH: Final = 200  # characters kept of an error type's path
MAX_ERRORS: Final = 10  # a message carries its latest failures, at most this many


_NO_STEPS: Final = msgspec.Raw()


class State(StrEnum):
    """Where a message is. It is in exactly one of these, or gone."""

    PENDING = "pending"
    """Waits in a list, first in, first out within its priority."""
    DELAYED = "delayed"
    """Waits for its due time."""
    WAITING = "waiting"
    """Waits for signals, or for other messages to complete."""
    PROCESSING = "processing"
    """Leased to a worker."""
    DEAD = "dead"
    """Given up; kept with the reason until an operator acts or a limit is reached."""
    QUARANTINED = "quarantined"
    """Its bytes could not be read; kept exactly as they were."""
    COMPLETED = "completed"
    """Handled; known while its result is kept, and only if its handler has a `result_ttl`."""

    @property
    def is_archive(self) -> bool:
        """Whether messages in this state are kept until a limit is reached."""
        return self in ARCHIVES


UNSTARTED: Final = (State.PENDING, State.DELAYED, State.WAITING)  # an operator cancels these
LIVE: Final = (*UNSTARTED, State.PROCESSING)  # an operator aborts these
FAILED: Final = (State.DEAD, State.QUARANTINED)  # an operator requeues, edits or discards these
ARCHIVES: Final = (*FAILED, State.COMPLETED)


class Priority(StrEnum):
    """High goes before normal, normal before low; two of every ten turns start with a lower one."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """One failed attempt."""

    type: str
    text: str
    at: int  # server time, ms
    worker: str = ""
    traceback: str = ""
    path: str = ""  # module and qualified name of the type; empty: a built-in one

    @classmethod
    def of(cls, error: BaseException, *, at: int, worker: str = "") -> Failure:
        """Describe an exception. Its text and its traceback are made short and safe to store."""
        return cls(
            type=storable(type(error).__name__),
            text=text_of(error),
            at=at,
            worker=worker,
            traceback=traceback_of(error),
            path=_path(type(error)),
        )

    @property
    def summary(self) -> str:
        return f"{self.type}: {self.text}" if self.text else self.type


class Message(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    kw_only=True,
    gc=False,
    forbid_unknown_fields=True,
):
    """One message, as it is stored. A record with further fields becomes an `Extended`."""

    v: int
    id: str
    topic: str
    payload: msgspec.Raw
    created_at: int = 0  # server time of the produce, ms; 0 until the server has stamped it
    priority: Priority = Priority.NORMAL
    attempts: int = 0  # failed attempts so far, including those whose worker went silent
    crashes: int = 0  # attempts lost because the worker was killed, frozen or cut off
    max_attempts: int | None = None  # None: the handler's limit
    retry: dict[str, Any] | None = None  # a stored policy; None: the handler's
    ttl: int | None = None  # ms after `created_at`; from then on no handler gets it
    headers: dict[str, str] = {}
    errors: list[Failure] = []  # the latest failures, oldest first, at most MAX_ERRORS
    reason: str = ""  # why it is in the dead letters
    delay: int = 0  # ms to wait, counted from `created_at` or from the last failure
    due: int | None = None
    """Server time, ms: when to run it (`at`, snoozed, rescheduled), or when it was requeued."""
    requeued: int | None = None
    """Server time of the last requeue, ms. Unlike `due` it stays if the message is rescheduled.
    Release 2.0 writes only `due`."""
    key: str | None = None  # whose line it stands in; None: the line of messages without a key
    cost: int = 1  # how much it counts against a rate
    steps: msgspec.Raw = _NO_STEPS  # see `core/steps.py`; empty: its work is one handler call

    @classmethod
    def new(
        cls,
        payload: msgspec.Raw,
        *,
        topic: str = "",
        id: str | None = None,
        priority: str = Priority.NORMAL,
        delay: int = 0,
        at: int | None = None,
        max_attempts: int | None = None,
        retry: dict[str, Any] | None = None,
        ttl: int | None = None,
        headers: dict[str, str] | None = None,
        key: str | None = None,
        cost: int = 1,
    ) -> Message:
        """Check the fields and return a message to produce. Times are in ms.

        The payload comes from `codec.encode_payload`. Without a custom id, the store makes one.
        """
        if id is not None:
            check_id(id)
        if priority is not Priority.NORMAL and priority not in tuple(Priority):
            raise InvalidInput(f"priority={priority!r:.80} is not one of {', '.join(Priority)}")
        if type(delay) is not int or delay:
            _check("delay", delay, 0)
        if delay and at is not None:
            raise InvalidInput(f"pass either delay={delay} or at={at}, not both")
        if headers and not (
            isinstance(headers, dict)
            and all(isinstance(text, str) for pair in headers.items() for text in pair)
        ):
            raise InvalidInput(f"headers={headers!r:.80} is not a dict of str to str")
        if retry is not None and not isinstance(retry, dict):
            raise InvalidInput(f"retry={retry!r:.80} is not a dict")
        if at is not None:
            _check("at", at, 0)
        if ttl is not None:
            _check("ttl", ttl, 1)
        if max_attempts is not None:
            _check("max_attempts", max_attempts, 1)
        if key is not None:
            check_key(key)
        if type(cost) is not int or not 1 <= cost <= MAX_COST:
            raise InvalidInput(f"cost={shown(cost)} is not a whole number from 1 to {MAX_COST:,}")
        return cls(
            v=VERSION,
            id=id or "",
            topic=topic,
            payload=payload,
            priority=priority,  # type: ignore[arg-type] # a plain str equals its Priority
            max_attempts=max_attempts,
            retry=retry,
            ttl=ttl,
            headers=headers or {},
            delay=delay,
            due=at,
            key=key,
            cost=cost,
        )

    @property
    def is_delayed(self) -> bool:
        """Whether a new message waits for a due time."""
        return bool(self.delay) or self.due is not None

    @property
    def ready_at(self) -> int | None:
        """Server time from which it could be handled, ms; None: unknown."""
        if self.attempts:
            return max(self.errors[-1].at + self.delay, self.due or 0) if self.errors else None
        return self.created_at + self.delay if self.due is None else self.due

    @property
    def expires_at(self) -> int | None:
        """Server time after which no handler may get it, ms; None: never."""
        return None if self.ttl is None else self.created_at + self.ttl

    def with_default_ttl(self, ttl: int) -> Message:
        """Return the message with its topic's default ttl in ms, unless it has its own.

        It counts from the produce, or from the requeue: else a requeued message would expire again.
        """
        if self.ttl is not None:
            return self
        since = self.requeued
        if since is None and self.errors and not self.attempts:  # requeued by release 2.0
            since = self.due
        since = max(self.created_at, since or 0)
        return msgspec.structs.replace(self, ttl=since + ttl - self.created_at)

    @property
    def failures(self) -> int:
        """How many attempts ended because the handler failed, not its worker."""
        return self.attempts - self.crashes

    def failed(self, failure: Failure) -> Message:
        """Return the message after a failed attempt."""
        errors = [*self.errors, failure][-MAX_ERRORS:]
        return msgspec.structs.replace(self, attempts=self.attempts + 1, errors=errors)

    def crashed(self, failure: Failure) -> Message:
        """Return the message after an attempt whose worker went silent."""
        return msgspec.structs.replace(self.failed(failure), crashes=self.crashes + 1)

    def revived(self) -> Message:
        """Return the message to requeue. It keeps its errors, but loses its counts and its ttl.

        With its ttl, an expired message would expire again. The server stamps the requeue time.
        """
        return msgspec.structs.replace(
            self, attempts=0, crashes=0, reason="", ttl=None, due=None, requeued=None
        )


class Extended(Message, frozen=True, kw_only=True, gc=False):
    """A message whose record has fields that this release does not know.

    They are written back with the record, so a newer release finds them again.
    """

    unknown: dict[str, msgspec.Raw]


def _path(kind: type[BaseException]) -> str:
    if kind.__module__ == "builtins":
        return ""
    return storable(f"{kind.__module__}.{kind.__qualname__}", MAX_PATH)


def _check(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**52:
        raise InvalidInput(f"{name}={value!r} is not a whole number from {least} to 2^52")
