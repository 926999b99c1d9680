"""What the scripts answer, and what a caller hands to them: values without behaviour."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from mx_rmq.core.message import Priority

if TYPE_CHECKING:
    from mx_rmq.core.message import Message


class Placed(StrEnum):
    """What became of one produced message."""

    STORED = "1"
    REPEATED = "2"
    """Stored when this call was sent the first time; its reply was lost."""
    LIVE = "l"
    """A message with this id is pending, delayed or in processing."""
    DEAD = "d"
    QUARANTINED = "q"
    FINISHED = "f"
    """A message with this id was produced within the dedup window, or by a lane, and is gone."""

    @property
    def duplicate(self) -> bool:
        """Say whether the id was taken, so that nothing was stored."""
        return self not in (Placed.STORED, Placed.REPEATED)


class Settled(StrEnum):
    """What became of one message that its holder wanted to move on."""

    DONE = "1"
    REPEATED = "2"
    """Done when this call was sent the first time; its reply was lost."""
    LOST = "0"
    """No longer the caller's: nothing was changed."""
    PROCESSING = "p"
    """A worker has it, so it cannot be cancelled."""

    def __bool__(self) -> bool:
        return self in (Settled.DONE, Settled.REPEATED)


class Produced(NamedTuple):
    id: str
    placed: Placed


class Claim(NamedTuple):
    """A message and the token by which a worker holds it."""

    id: str
    token: int


class Leased(NamedTuple):
    id: str
    token: int
    record: bytes

    @property
    def claim(self) -> Claim:
        return Claim(self.id, self.token)


class TakenOver(NamedTuple):
    id: str
    token: int
    lost_by: str
    """The worker whose lease ran out."""
    record: bytes

    @property
    def claim(self) -> Claim:
        return Claim(self.id, self.token)


Held = Claim | Leased | TakenOver
"""What names a message and the token by which it is held."""


class Dispatched(NamedTuple):
    now: int
    messages: list[Leased]


class TimedOut(NamedTuple):
    now: int
    messages: list[TakenOver]
    surprised: bool
    """The time was not what the caller expected, so nothing was taken over."""
    behind: int
    """How far the server's clock is behind what it has been, ms."""


class Expired(NamedTuple):
    now: int
    messages: list[Leased]
    wait: int | None
    """The ms until the next message expires, 0 if there are more, None if there are none."""


class HandedBack(NamedTuple):
    """An unfinished message that goes back to the front of its level."""

    claim: Held
    priority: Priority = Priority.NORMAL
    expires: int | None = None
    """Server time, ms; None: never."""


class Retried(NamedTuple):
    """A failed message, as it shall wait for its next attempt."""

    claim: Held
    message: Message
    delay: int


class Survey(NamedTuple):
    """What comes next in a topic."""

    pending: int
    """How many wait to be dispatched; 0 if the topic is paused."""
    due: int | None
    """The ms until the next due time, 0 if something is due, None if nothing is delayed."""
    deadline: int | None
    """The ms until a lease runs out, 0 if one has, None if nothing is in processing."""
    expires: int | None = None
    """The ms until a waiting message expires, 0 if one has, None if none has a time to live."""


class Surveyed(NamedTuple):
    now: int
    topics: dict[str, Survey]


class Ticked(NamedTuple):
    """What became of one tick of a topic's timetable."""

    now: int
    last: int | None
    """The last tick that has fired, after this call, or when somebody looked the first time."""
    id: str | None
    """The message, if this call made it. None also if it did, but its first reply was lost."""
