"""What an operator sees of messages and workers: plain values, made from what the store found.

Durations are seconds; times are seconds since 1970, always by the server's clock.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mx_rmq.admin.steps import StepsView, WaitView, steps_view
from mx_rmq.core import codec
from mx_rmq.core.errors import DecodeError, NewerRecord
from mx_rmq.core.message import State
from mx_rmq.core.partition import number_of, topic_of
from mx_rmq.core.status import Kept
from mx_rmq.store.quarantine import read

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mx_rmq.core.message import Failure, Message, Priority
    from mx_rmq.store.messages import Found
    from mx_rmq.store.reads import WorkerSeen


ALIVE_WITHIN: Final = 60.0  # seconds since its last report for which a worker counts as alive
MISSED_WITHIN: Final = 600.0  # seconds for which a worker that went silent with messages matters


class Cancelled(StrEnum):
    """The result of a cancel. Only DONE is true."""

    DONE = "cancelled"
    ABSENT = "absent"  # not pending, delayed or waiting: finished, dead, quarantined or never there
    PROCESSING = "processing"  # too late, a worker has it; it can be discarded if it dies

    def __bool__(self) -> bool:
        return self is Cancelled.DONE


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureView:
    """One failed attempt."""

    type: str
    text: str
    at: float
    worker: str
    traceback: str
    path: str = ""  # module and qualified name of the type; empty: a built-in one


@dataclass(frozen=True, kw_only=True)
class MessageView:
    """A message, as far as it can be read. Its payload is decoded on first use."""

    id: str
    topic: str
    state: State
    raw: bytes = field(repr=False)  # the record as stored, the bytes set aside, or the result
    length: int  # of `raw`, before it was cut: a very long quarantined message is not kept whole
    content: bytes = field(default=b"", repr=False)
    """The payload as JSON, or the result of a completed message; b"" if broken."""
    broken: str = ""  # why the record cannot be read; empty if it can
    newer: bool = False  # whether that is because a newer release wrote it
    priority: Priority | None = None
    key: str | None = None  # whose line it stands in; None: it has no key
    cost: int = 1  # how much it counts against a rate
    attempts: int = 0  # failed ones, including crashes
    crashes: int = 0
    max_attempts: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    errors: tuple[FailureView, ...] = ()  # the latest failures, oldest first
    reason: str = ""  # why it is dead
    created_at: float | None = None
    expires_at: float | None = None
    due: float | None = None  # when a delayed message becomes pending
    lease_deadline: float | None = None  # when its lease ends, if it is in processing
    worker: str = ""  # the worker that has it in processing, or that quarantined it
    token: int | None = None  # the token of its lease
    progress: float | None = None
    """What its handler last reported with `delivery.progress`, a share from 0 to 1. Only
    `admin.get` reads this and the note."""
    note: str = ""
    steps: StepsView | None = None  # how far it is; None: its work is one handler call
    wait: WaitView | None = None  # what it waits for; None: it is not waiting
    signals: tuple[str, ...] = ()
    """The signals that have arrived for it, at most 100. Only `admin.get` reads them."""
    archived_at: float | None = None  # when it became dead, quarantined or completed
    error_type: str = ""  # why it is quarantined: the type of the error
    error: str = ""  # and its text
    partition: int = 0

    @property
    def earlier(self) -> int:
        """How many of `errors`, the first ones, are from before it was last requeued."""
        return max(0, len(self.errors) - self.attempts)

    @property
    def payload(self) -> Any:
        """The decoded JSON; None also if it is unreadable."""
        return self._decoded[0]

    @property
    def unreadable(self) -> str:
        """Why the record or its payload cannot be read; empty if both can."""
        return self._decoded[1]

    @cached_property
    def _decoded(self) -> tuple[Any, str]:
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
    id: str  # '': the topic itself
    what: str

    def __str__(self) -> str:
        return f"{self.topic}: {self.id or '(topic)'}: {self.what}"


@dataclass(frozen=True, slots=True)
class Page:
    """Some messages of a state."""

    messages: list[MessageView]
    cursor: str | None  # pass it to `list` for the next page; None: there are no more
    looked: int = 0
    """How many messages were read. With a filter, a page may be short or empty and still have a
    cursor: there is more to search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Doing:
    """A running handler, as its worker last reported it."""

    topic: str
    id: str
    handler: str  # module and qualified name of the function
    attempt: int  # 1 for the first
    seconds: float  # how long it had been running then
    batch: int | None = None  # messages of this call, if it is a batch; `id` is the first


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """A worker, as it last reported itself."""

    name: str
    host: str
    pid: int | None
    topics: tuple[str, ...]
    concurrency: int | None
    running: int | None  # handlers that run
    held: int | None  # messages leased to it, running or not
    started_at: float | None
    seen_ago: float  # seconds since its last report; the other figures are as old
    doing: tuple[Doing, ...] = ()  # what it runs, the longest first, at most 20
    version: str = ""  # its release of mx-rmq; empty: before 2.0
    down: dict[str, str] = field(default_factory=dict)  # parts being restarted, and why
    batches: dict[str, int] = field(default_factory=dict)
    """Its topics with a batch handler, and how many messages that gets at most."""

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


def message_view(part: str, found: Found) -> MessageView:
    """Read a message of a partition as far as possible. Never fails, whatever the server holds."""
    topic, raw, length = topic_of(part), found.data, len(found.data)
    fields: dict[str, Any] = {}
    try:
        if found.state is State.QUARANTINED:
            about, raw = read(found.data)
            length = about.length
            fields.update(error_type=about.error_type, error=about.error, worker=about.worker)
        if found.state is State.COMPLETED:
            kept, raw = Kept.read(found.data)
            length = len(raw)
            fields |= _result_fields(kept, raw)
        else:
            message = codec.decode(raw, topic, found.id)
            fields |= _message_fields(message)
            fields["steps"] = steps_view(message)
    except DecodeError as error:
        fields.update(broken=error.reason, newer=isinstance(error, NewerRecord))
    if found.lease is not None:
        lease, _, _ = found.lease.decode("utf-8", "backslashreplace").partition(" ")
        token, _, worker = lease.partition(":")
        fields.update(worker=worker, token=int(token) if is_number(token) else None)
    waits = found.state is State.WAITING
    if waits:
        fields["wait"] = WaitView(since=seconds(found.since), until=seconds(found.due))
    return MessageView(
        id=found.id,
        topic=topic,
        state=found.state,
        raw=raw,
        length=length,
        due=None if waits else seconds(found.due),
        lease_deadline=seconds(found.deadline),
        archived_at=seconds(found.archived),
        partition=number_of(part),
        **fields,
    )


_COPIED: Final = (
    "priority",
    "key",
    "cost",
    "attempts",
    "crashes",
    "max_attempts",
    "headers",
    "reason",
)


def _message_fields(message: Message) -> dict[str, Any]:
    return {name: getattr(message, name) for name in _COPIED} | {
        "content": bytes(message.payload),
        "errors": tuple(map(_failure_view, message.errors)),
        "created_at": seconds(message.created_at or None),
        "expires_at": seconds(message.expires_at),
    }


def _result_fields(kept: Kept, result: bytes) -> dict[str, Any]:
    return {
        "content": result,
        "attempts": kept.attempt - 1,
        "created_at": seconds(kept.created_at or None),
        "worker": kept.worker,
    }


def _failure_view(failure: Failure) -> FailureView:
    return FailureView(**msgspec.structs.asdict(failure) | {"at": failure.at / 1000})


def worker_view(seen: WorkerSeen) -> WorkerView:
    """Read a worker's report; what cannot be read is left out."""
    info = seen.info

    def number(name: str) -> int | None:
        value = info.get(name)
        return value if isinstance(value, int) else None

    topics, started, down = info.get("topics"), info.get("started"), info.get("down")
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
        down={str(part): str(why) for part, why in down.items()} if isinstance(down, dict) else {},
        batches=_batches(info.get("batches")),
    )


def _batches(reported: object) -> dict[str, int]:
    known = reported if isinstance(reported, dict) else {}
    return {str(topic): size for topic, size in known.items() if isinstance(size, int)}


def _doing(reported: object) -> tuple[Doing, ...]:
    found = []
    for one in reported if isinstance(reported, list) else ():
        with suppress(msgspec.ValidationError):
            found.append(msgspec.convert(one, Doing))
    return tuple(found)


def seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1000


def is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 20
