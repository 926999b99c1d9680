"""What an operator sees: values without behaviour, made from what the store found.

Times are seconds: since 1970 where they name an instant, and always the server's.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mx_rmq.admin.rates import Totals
from mx_rmq.core import codec
from mx_rmq.core.errors import DecodeError, NewerRecord
from mx_rmq.core.message import State
from mx_rmq.store.quarantine import read

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mx_rmq.core.message import Failure, Message, Priority
    from mx_rmq.store.messages import Found
    from mx_rmq.store.reads import WorkerSeen

ALIVE_WITHIN: Final = 60.0
"""Seconds after its last sign of life for which a worker counts as alive."""

OVERDUE: Final = 60.0
"""Seconds after which a delayed message that is due should have become pending, and a lease that
ran out should have been taken over, whether the topic has workers of its own or not. The doctor,
the dashboard and the alerts use it."""

MISSED_WITHIN: Final = 600.0
"""Seconds for which a worker that went silent with messages needs attention."""


class Cancelled(StrEnum):
    """What became of a message that was to be cancelled. Only DONE is true."""

    DONE = "cancelled"
    ABSENT = "absent"
    """It is neither pending nor delayed: finished, dead, quarantined or never there."""
    PROCESSING = "processing"
    """A worker has it: too late. It can be discarded if it fails for good."""

    def __bool__(self) -> bool:
        return self is Cancelled.DONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """How a topic is doing, all counts of one moment; of each partition, if it has several."""

    topic: str
    pending: int
    processing: int
    delayed: int
    dead: int
    quarantined: int
    oldest_pending: float | None
    """How many seconds the one that is taken next has waited, of all priorities and partitions the
    longest: since it was produced, requeued, due or to be retried. None: nothing is pending, or
    it is unknown, as for messages that cannot be read."""
    paused: bool
    """Whether workers take nothing of it, or of some of its partitions."""
    dropped: int
    """Ids without a message that were ever dropped: above 0, something else wrote to the keys."""
    delayed_overdue: float | None = None
    """How many seconds ago the first delayed message was due; None: none is due. A worker moves it
    at once, or within about ten seconds if no worker serves the topic: see OVERDUE."""
    lease_overdue: float | None = None
    """How many seconds ago the first lease ran out; None: none has. A worker takes the message over
    at once, or within about 40 seconds if no worker serves the topic: see OVERDUE."""
    partitions: int = 1
    dead_bytes: int = 0
    quarantined_bytes: int = 0
    """What the archives take on the server, as it counts against their budgets."""
    dead_budget: int = 0
    quarantined_budget: int = 0
    """Bytes that they may take; over it the oldest are dropped. 0: no bound."""
    overflowed_at: float | None = None
    """When an archive last dropped messages for its bytes."""
    totals: Totals = field(default_factory=Totals)
    """How many of its messages each thing has happened to, ever."""

    @property
    def total(self) -> int:
        """How many messages there are, in any state."""
        return self.pending + self.processing + self.delayed + self.dead + self.quarantined


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureView:
    """One failed attempt."""

    type: str
    text: str
    at: float
    worker: str
    traceback: str


@dataclass(frozen=True, kw_only=True)
class MessageView:
    """A message, as far as it can be read. Its payload is decoded on first use."""

    id: str
    topic: str
    state: State
    raw: bytes = field(repr=False)
    """The record as it is stored; of a quarantined message, the bytes that were set aside."""
    length: int
    """How long `raw` was. Of a very long quarantined message less is kept."""
    content: bytes = field(default=b"", repr=False)
    """The payload as it is stored, JSON; nothing if the record cannot be read."""
    broken: str = ""
    """Why the record cannot be read; empty when it can."""
    newer: bool = False
    """Whether that is because a newer release wrote it."""
    priority: Priority | None = None
    attempts: int = 0
    """Attempts that have failed, crashes included."""
    crashes: int = 0
    max_attempts: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    errors: tuple[FailureView, ...] = ()
    """The latest failures, oldest first."""
    reason: str = ""
    """Why it is dead."""
    created_at: float | None = None
    expires_at: float | None = None
    due: float | None = None
    """When a delayed one becomes pending."""
    lease_deadline: float | None = None
    """Until when its worker may be silent, if it is in processing."""
    worker: str = ""
    """Who has it in processing, or who quarantined it."""
    token: int | None = None
    """The fencing token by which its worker holds it."""
    archived_at: float | None = None
    """When it became dead or quarantined."""
    error_type: str = ""
    """Why it is quarantined: the type of the error, and in `error` its text."""
    error: str = ""
    partition: int = 0
    """In which partition of its topic it is."""

    @property
    def earlier(self) -> int:
        """How many of `errors`, the first ones, are from before it was last requeued."""
        return max(0, len(self.errors) - self.attempts)

    @property
    def payload(self) -> Any:
        """Decoded JSON; None too if it is unreadable."""
        return self._decoded[0]

    @property
    def unreadable(self) -> str:
        """Why the record or its payload cannot be read; empty when it can."""
        return self.broken or self._decoded[1]

    @cached_property
    def _decoded(self) -> tuple[Any, str]:
        """The payload, and why there is none."""
        if self.broken:
            return None, self.broken
        try:
            return msgspec.json.decode(self.content), ""
        except (ValueError, RecursionError, MemoryError) as error:
            return None, f"the payload is not JSON: {error}"


@dataclass(frozen=True, slots=True)
class Repair:
    """One thing that a repair has done, or would do."""

    topic: str
    id: str
    """The message, or '' for the topic itself."""
    what: str

    def __str__(self) -> str:
        return f"{self.topic}: {self.id or '(topic)'}: {self.what}"


@dataclass(frozen=True, slots=True)
class Page:
    """Some messages of a state."""

    messages: list[MessageView]
    cursor: str | None
    """What `list` takes to go on; None: there are no more."""
    looked: int = 0
    """How many messages were looked at. With a filter, a page may be short, or empty, and still
    have a cursor: there is more to look at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Doing:
    """A handler that a worker runs."""

    topic: str
    id: str
    handler: str
    """Module and qualified name of the function."""
    attempt: int
    """1 for the first."""
    seconds: float
    """How long it had been running at the worker's last report, `seen_ago` before now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """A worker, as it last reported itself."""

    name: str
    host: str
    pid: int | None
    topics: tuple[str, ...]
    concurrency: int | None
    running: int | None
    """Handlers that run."""
    held: int | None
    """Messages that it holds, waiting ones included."""
    started_at: float | None
    seen_ago: float
    """Seconds since its last report; the other figures are as old."""
    doing: tuple[Doing, ...] = ()
    """What it runs, the longest first, at most 20."""
    version: str = ""
    """Its release of mx-rmq; empty: one before 2.0."""
    down: dict[str, str] = field(default_factory=dict)
    """Parts of it that are down and being restarted, each with the reason."""

    @property
    def alive(self) -> bool:
        """Whether it was seen within the last minute."""
        return self.seen_ago <= ALIVE_WITHIN

    @property
    def missed(self) -> bool:
        """Whether it went silent with messages in the last ten minutes.

        Later, other workers have them, or the figures of their topics show it.
        """
        return not self.alive and bool(self.held) and self.seen_ago <= MISSED_WITHIN


def message_view(topic: str, found: Found, *, partition: int = 0) -> MessageView:
    """Read a message as far as possible. Never fails, whatever the server holds."""
    raw, length = found.data, len(found.data)
    fields: dict[str, Any] = {}
    try:
        if found.state is State.QUARANTINED:
            about, raw = read(found.data)
            length = about.length
            fields.update(error_type=about.error_type, error=about.error, worker=about.worker)
        fields |= _message_fields(codec.decode_as(raw, topic, found.id))
    except DecodeError as error:
        fields.update(broken=error.reason, newer=isinstance(error, NewerRecord))
    if found.lease is not None:
        token, _, worker = found.lease.decode("utf-8", "backslashreplace").partition(":")
        fields.update(worker=worker, token=int(token) if is_number(token) else None)
    return MessageView(
        id=found.id,
        topic=topic,
        state=found.state,
        raw=raw,
        length=length,
        due=seconds(found.due),
        lease_deadline=seconds(found.deadline),
        archived_at=seconds(found.archived),
        partition=partition,
        **fields,
    )


def _message_fields(message: Message) -> dict[str, Any]:
    return {
        "content": bytes(message.payload),
        "priority": message.priority,
        "attempts": message.attempts,
        "crashes": message.crashes,
        "max_attempts": message.max_attempts,
        "headers": message.headers,
        "errors": tuple(_failure(one) for one in message.errors),
        "reason": message.reason,
        "created_at": seconds(message.created_at or None),
        "expires_at": seconds(message.expires_at),
    }


def _failure(failure: Failure) -> FailureView:
    return FailureView(
        type=failure.type,
        text=failure.text,
        at=failure.at / 1000,
        worker=failure.worker,
        traceback=failure.traceback,
    )


def worker_view(seen: WorkerSeen) -> WorkerView:
    info = seen.info

    def number(name: str) -> int | None:
        value = info.get(name)
        return value if isinstance(value, int) else None

    topics, started = info.get("topics"), info.get("started")
    return WorkerView(
        name=seen.name,
        host=str(info.get("host", "")),
        pid=number("pid"),
        topics=tuple(map(str, topics)) if isinstance(topics, list) else (),
        concurrency=number("concurrency"),
        running=number("running"),
        held=number("held"),
        started_at=float(started) if isinstance(started, int | float) else None,
        seen_ago=seen.age / 1000,
        doing=_doing(info.get("doing")),
        version=str(info.get("version", "")),
        down=_down(info.get("down")),
    )


def _down(said: object) -> dict[str, str]:
    return {str(part): str(why) for part, why in said.items()} if isinstance(said, dict) else {}


def _doing(said: object) -> tuple[Doing, ...]:
    """Read what a worker says it runs; what cannot be read is left out."""
    found = []
    for one in said if isinstance(said, list) else ():
        with suppress(msgspec.ValidationError):
            found.append(msgspec.convert(one, Doing))
    return tuple(found)


def created_at(data: bytes) -> int | None:
    """Return when a message was produced, ms; None: unknown."""
    try:
        return codec.decode(data).created_at or None
    except DecodeError:
        return None


def ready_at(data: bytes) -> int | None:
    """Return since when a message could have been taken, ms; None: unknown."""
    try:
        return codec.decode(data).ready_at
    except DecodeError:
        return None


def seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


def is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 20
