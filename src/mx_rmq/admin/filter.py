"""Filters messages by error, time, key and text."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

from mx_rmq.admin.actions import split
from mx_rmq.core import codec
from mx_rmq.core.errors import DecodeError, InvalidInput
from mx_rmq.core.message import State
from mx_rmq.core.partition import topic_of
from mx_rmq.core.text import instant

if TYPE_CHECKING:
    from mx_rmq.core.message import Message
    from mx_rmq.store.messages import Found
    from mx_rmq.store.quarantine import QuarantineReason

EVER: Final = (-math.inf, math.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """What a message must match; None matches everything. Case does not matter."""

    error: str | None = None  # part of the last error's type, or of why it is dead or quarantined
    since: float | None = None
    until: float | None = None
    """Bounds of the message's time, inclusive, in seconds of the server's time. That is: if dead or
    quarantined, when it was archived; if delayed, when it is due; if waiting, since when; if in
    processing, when its lease ends; if pending, when it was produced."""
    key: str | None = None  # the key that it was produced with, exactly
    text: str | None = None  # part of its id or of its payload as JSON; if unreadable, of its bytes
    as_of: float | None = None
    """Only messages that were in their state by then, in seconds of the server's time: archived
    not later, or, if live, produced and last failed not later. A live message that cannot be read
    does not match."""

    def __post_init__(self) -> None:
        for name in ("error", "key", "text"):
            value = getattr(self, name)
            if not isinstance(value, str | None):
                raise InvalidInput(f"{name}={value!r:.80} is not a string")
            if value == "":  # it would match every message, by mistake
                raise InvalidInput(f"{name}='' is empty: omit it, or pass the text to find")
        for name in ("since", "until", "as_of"):
            value = getattr(self, name)
            if value is not None and not _is_time(value):
                raise InvalidInput(f"{name}={value!r:.80} is not a time in seconds since 1970")
        if self.since is not None and self.until is not None and self.since > self.until:
            since, until = instant(self.since), instant(self.until)
            raise InvalidInput(f"since={since} is after until={until}")

    def __bool__(self) -> bool:
        """Whether any condition is set."""
        return any(getattr(self, one.name) is not None for one in fields(self))


def times(wanted: Filter, state: State) -> tuple[float, float]:
    """Return the range of times to read from a state's index, ms."""
    if state is State.PENDING:
        return EVER  # the lists have no times
    low, high = _span(wanted)
    if state.is_archive and wanted.as_of is not None:
        high = min(high, round(wanted.as_of * 1000))
    return low, high


def must_read(wanted: Filter, state: State) -> bool:
    """Return whether records must be read, because the times in the index are not enough."""
    if (
        wanted.error
        or wanted.key
        or wanted.text
        or (wanted.as_of is not None and not state.is_archive)
    ):
        return True
    return state is State.PENDING and _span(wanted) != EVER


def matches(wanted: Filter, part: str, found: Found) -> bool:
    """Return whether a message of a partition matches. Never fails, whatever the server holds."""
    about, data = split(found)
    try:
        message = codec.decode(data, topic_of(part), found.id)
    except DecodeError:
        message = None
    return (
        _in_time(wanted, found, message)
        and _was_there(wanted, found, message)
        and _has_error(wanted, message, about)
        and (wanted.key is None or (message is not None and message.key == wanted.key))
        and _has_text(wanted, found.id, data if message is None else bytes(message.payload))
    )


def _span(wanted: Filter) -> tuple[float, float]:
    low = -math.inf if wanted.since is None else round(wanted.since * 1000)
    high = math.inf if wanted.until is None else round(wanted.until * 1000)
    return low, high


def _in_time(wanted: Filter, found: Found, message: Message | None) -> bool:
    low, high = _span(wanted)
    if (low, high) == EVER:
        return True
    ats = [found.due, found.deadline, found.archived]  # by its state, at most one is known
    if found.state is State.PENDING and message is not None:
        ats = [message.created_at]
    if found.state is State.WAITING:
        ats = [found.since]
    return any(at is not None and low <= at <= high for at in ats)


def _was_there(wanted: Filter, found: Found, message: Message | None) -> bool:
    if wanted.as_of is None:
        return True
    came = found.archived
    if not found.state.is_archive and message is not None:
        came = max([message.created_at, *(one.at for one in message.errors[-1:])])
    return came is not None and came <= round(wanted.as_of * 1000)


def _has_error(wanted: Filter, message: Message | None, about: QuarantineReason | None) -> bool:
    if not wanted.error:
        return True
    texts = [] if about is None else [about.error_type, about.error]
    if message is not None:
        texts += [message.reason, *(one.type for one in message.errors[-1:])]
    part = wanted.error.casefold()
    return any(part in text.casefold() for text in texts)


def _has_text(wanted: Filter, id: str, content: bytes) -> bool:
    if not wanted.text:
        return True
    part = wanted.text.casefold()
    return part in id.casefold() or part in content.decode("utf-8", "replace").casefold()


def _is_time(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and abs(value) < 2**43  # ms that every server counts exactly
