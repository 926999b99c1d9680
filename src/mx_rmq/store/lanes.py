"""Lanes: how a repeated call is recognised, and where message ids come from."""

from __future__ import annotations

import os
import re
import secrets
import time
from typing import TYPE_CHECKING, Final

from mx_rmq.core.partition import suffix

if TYPE_CHECKING:
    from mx_rmq.store.keys import Keys, TopicKeys

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_LENGTH: Final = 13
_LETTERS: Final = _ALPHABET[10:]
"""A lane's name begins with a letter, so that our ids never look like stream ids."""
_GENERATED: Final = re.compile(
    rf"([{_LETTERS}][{_ALPHABET}]{{{_LENGTH - 1}}})-[0-9]{{1,15}}(\.[0-9]{{1,4}})?", re.ASCII
)

LIFETIME: Final = 600.0
"""Seconds after which a lane is replaced. Its receipt expires ten minutes later. Otherwise a busy
process would keep the ids that it made taken forever."""


class Withdrawn(Exception):
    """A call was not sent: the check right before found that it is no longer wanted."""


class Lane:
    """A sequence of calls, at most one at a time.

    Each call has a number, and the server keeps the number and the answer of the lane's last call.
    So a repeated call is recognised, however late it arrives, and the memory for this grows with
    the number of callers, not with their throughput. A message id is the lane's name and a number.
    """

    __slots__ = ("_home", "_suffix", "name", "number", "receipt", "retire_at")

    def __init__(self, home: list[Lane], keys: TopicKeys) -> None:
        self._home = home
        self._suffix = suffix(keys.topic)
        self.name = secrets.choice(_LETTERS) + "".join(
            secrets.choice(_ALPHABET) for _ in range(_LENGTH - 1)
        )
        self.receipt = keys.receipt(self.name)
        """The key of the number and the answer of its last call."""
        self.number = 0
        self.retire_at = time.monotonic() + LIFETIME

    def id_at(self, offset: int) -> str:
        """Return the id of the offset-th message of the next call, from 1."""
        return f"{self.name}-{self.number + offset}{self._suffix}"

    def give_back(self) -> None:
        """Return the lane to the idle ones, but only after an answer, or if nothing was sent.

        After an error the server may still run the call, or a caller may pass its ids again as
        custom ids. So the lane is never used again.
        """
        self._home.append(self)


class Lanes:
    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._idle: dict[str, list[Lane]] = {}
        self._pid = os.getpid()

    def lane(self, topic: str) -> Lane:
        """Lend a lane for one call."""
        if self._pid != os.getpid():  # after a fork, parent and child must not share a lane
            self._pid = os.getpid()
            self._idle.clear()
        idle = self._idle.get(topic)
        while idle:
            lane = idle.pop()
            if lane.number % 8 or lane.retire_at > time.monotonic():  # rarely read the clock
                return lane
        keys = self._keys.of(topic)
        return Lane(self._idle.setdefault(topic, []), keys)


def maker_of(id: str) -> str | None:
    """Return the lane that made an id, if the id looks generated."""
    generated = _GENERATED.fullmatch(id)
    return generated[1] if generated else None
