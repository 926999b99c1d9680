"""What scripts return and what callers pass to them: plain values. Times are milliseconds."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from mx_rmq.core.message import Priority

if TYPE_CHECKING:
    from mx_rmq.core.message import Message


class Placed(StrEnum):
    """The result for one produced message."""

    STORED = "1"
    REPEATED = "2"  # stored when this call was sent the first time; its reply was lost
    REPLACED = "r"  # stored in place of the message that had this id
    LIVE = "l"
    """A message with this id is pending, or in any live state if the caller did not ask which."""
    DELAYED = "w"
    PROCESSING = "p"
    DEAD = "d"
    QUARANTINED = "q"
    FINISHED = "f"
    """A message with this id was produced within the dedup window, or by a lane, and is gone."""

    @property
    def duplicate(self) -> bool:
        """Whether the id was taken, so nothing was stored."""
        return self not in (Placed.STORED, Placed.REPEATED, Placed.REPLACED)

    @property
    def state(self) -> str:
        """The state of the message that has the id."""
        return _STATES[self]


_STATES: Final = {
    Placed.LIVE: "pending",
    Placed.DELAYED: "delayed",
    Placed.PROCESSING: "processing",
    Placed.DEAD: "dead",
    Placed.QUARANTINED: "quarantined",
    Placed.FINISHED: "completed",
}


class Settled(StrEnum):
    """The result for one message that a worker or an operator tried to move."""

    DONE = "1"
    REPEATED = "2"  # done when this call was sent the first time; its reply was lost
    LOST = "0"  # the caller no longer holds it: nothing was changed
    PROCESSING = "p"  # a worker holds it, so it cannot be cancelled or rescheduled
    CHANGED = "c"  # its record is no longer the one that the caller saw
    REPLACED = "r"  # the caller holds it, but it has a new record: call `release_replaced`

    def __bool__(self) -> bool:
        return self in (Settled.DONE, Settled.REPEATED)


class Signalled(StrEnum):
    """The result for one signal."""

    KEPT = "1"
    REPEATED = "2"  # kept when this call was sent the first time; its reply was lost
    THERE = "s"  # a signal with this name has arrived before, and counts
    UNKNOWN = "0"  # there is no such message
    FULL = "f"  # too many signals are kept for the message
    COPIED = "c"  # the topic has subscriptions; only their copies get signals

    def __bool__(self) -> bool:
        return self not in (Signalled.UNKNOWN, Signalled.FULL, Signalled.COPIED)


PLACED: Final = {ord(placed): placed for placed in Placed}
SETTLED: Final = {ord(settled): settled for settled in Settled}
"""Results, by the character that the scripts return for each message."""


def decoded(data: bytes) -> str:
    """Decode an id or a name from the server, so that any bytes survive the round trip."""
    return data.decode("utf-8", "surrogateescape")


def subscriptions_in(listed: bytes) -> dict[str, int]:
    """Return the subscriptions in a topic's list, and since when each exists, ms."""
    words = listed.split()
    return {
        decoded(name): int(since) if since.isdigit() else 0
        for name, since in zip(words[::2], words[1::2], strict=False)
        if not name.startswith(b"-")  # it was removed
    }


def wait_of(ms: int) -> int | None:
    return None if ms < 0 else ms


class FannedOut(NamedTuple):
    """What a fan-out did."""

    names: tuple[str, ...]  # the subscriptions; if others were passed, nothing was moved
    moved: int
    left: int  # messages that still wait for a fan-out


class Produced(NamedTuple):
    id: str
    placed: Placed


class Claim(NamedTuple):
    """A message and the token of the lease on it."""

    id: str
    token: int


class Leased(NamedTuple):
    id: str
    token: int
    record: bytes
    lost_by: str = ""  # the worker whose lease ran out, if the message was taken over


Held = Claim | Leased
"""Anything with a message's id and the token of the lease on it."""


class Dispatched(NamedTuple):
    now: int
    messages: list[Leased]
    wait: int | None = None
    """The ms after which the caller must ask again, or None."""
    in_turn: bool = False
    """Whether to call `dispatch_in_turn` next, because keys or limits are in use."""


class TimedOut(NamedTuple):
    now: int
    messages: list[Leased]
    surprised: bool  # the server's time was not what the caller expected, so nothing was taken over
    behind: int  # how far the server's clock was set back, ms


class Expired(NamedTuple):
    now: int
    messages: list[Leased]
    wait: int | None
    """The ms until the next message expires, 0 if there are more, None if there are none."""


class Undated(NamedTuple):
    messages: list[tuple[str, bytes]]  # id and record
    go_on: tuple[int, int] | None
    """Where the next call begins; None: all have been seen."""


class HandedBack(NamedTuple):
    """An unfinished message that goes back to the front of its level."""

    claim: Held
    priority: Priority = Priority.NORMAL
    expires: int | None = None  # server time, ms; None: never


class RetryRequest(NamedTuple):
    claim: Held
    message: Message
    delay: int


class Signal(NamedTuple):
    """Something that a message waits for, or may wait for."""

    id: str  # the message's
    name: str
    value: bytes
    wake: bool = False  # whether the message runs at once, whatever else it waits for


class Survey(NamedTuple):
    """What comes next in a topic."""

    pending: int  # how many messages wait for dispatch; 0 if the topic is paused
    due: int | None
    """The ms until the next due time, 0 if something is due, None if nothing is delayed."""
    deadline: int | None
    """The ms until a lease runs out, 0 if one has, None if nothing is in processing."""
    expires: int | None = None
    """The ms until a waiting message expires, 0 if one has, None if none has a time to live."""
    waiting: int = 0  # how many messages wait for signals


class Surveyed(NamedTuple):
    now: int
    topics: dict[str, Survey]


class Ticked(NamedTuple):
    """The result for one tick of a topic's schedule."""

    now: int
    last: int | None  # the last tick that fired, or the time of the first call if none has
    id: str | None
    """The message, if this call made it. None also if an earlier try made it and lost its reply."""
    state: str = ""
    """`paused`; `gone`: the definition was removed or replaced; empty: neither."""
