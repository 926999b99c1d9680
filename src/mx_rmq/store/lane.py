"""Lanes: how a call that is sent again is recognised, and where message ids come from."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections import defaultdict
from typing import Final, Self

from mx_rmq.core.errors import InvalidInput, QueueFull
from mx_rmq.core.partition import suffix

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_LENGTH: Final = 13
_LETTERS: Final = _ALPHABET[10:]
"""A lane's name begins with one: ids of streams, which are numbers, shall not look like ours."""
_GENERATED: Final = re.compile(
    rf"([{_LETTERS}][{_ALPHABET}]{{{_LENGTH - 1}}})-[0-9]{{1,15}}(\.[0-9]{{1,4}})?", re.ASCII
)

LIFETIME: Final = 600.0
"""Seconds after which a lane is replaced. Its receipt is gone ten minutes later, so an id that it
made is not taken for ever because the process that made it is still busy."""


class Withdrawn(Exception):
    """A call was not sent, because the check right before found that it is not wanted any more."""


class Lane:
    """A line of calls of which at most one is under way.

    Each call has a number, and the server keeps the number and the answer of the lane's last one.
    So a call that is sent again is recognised, however late it arrives, and the memory for it
    grows with the number of callers, not with their throughput. Message ids are the lane's name
    and a number, too.
    """

    __slots__ = ("_home", "_suffix", "name", "number", "retire_at")

    def __init__(self, home: list[Lane], topic: str = "") -> None:
        self._home = home
        self._suffix = suffix(topic)
        self.name = secrets.choice(_LETTERS) + "".join(
            secrets.choice(_ALPHABET) for _ in range(_LENGTH - 1)
        )
        self.number = 0
        self.retire_at = time.monotonic() + LIFETIME

    def id_at(self, offset: int) -> str:
        """Return the id of the offset-th message of the next call, from 1."""
        return f"{self.name}-{self.number + offset}{self._suffix}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Go back to the idle ones, but only after an answer.

        After an error nobody knows what the server will still do with the call, or its ids may
        come back as a caller's own: the lane is never used again.
        """
        known = InvalidInput | QueueFull | Withdrawn  # not sent, or answered
        if kind is None or issubclass(kind, known):
            self.give_back()

    def give_back(self) -> None:
        """Go back to the idle ones: no call is under way."""
        self._home.append(self)


class Lanes:
    """The idle lanes of each topic."""

    def __init__(self) -> None:
        self._idle: defaultdict[str, list[Lane]] = defaultdict(list)
        self._pid = os.getpid()

    def lane(self, topic: str) -> Lane:
        """Lend a lane for one call: `with lanes.lane(topic) as lane: …`"""
        if self._pid != os.getpid():  # after a fork, parent and child must not share a lane
            self._pid = os.getpid()
            self._idle.clear()
        idle = self._idle[topic]
        while idle:
            lane = idle.pop()
            if lane.number % 8 or lane.retire_at > time.monotonic():  # asked for now and then
                return lane
        return Lane(idle, topic)


def maker_of(id: str) -> str | None:
    """Return the lane that made an id, if it looks like one that a lane makes."""
    generated = _GENERATED.fullmatch(id)
    return generated[1] if generated else None
