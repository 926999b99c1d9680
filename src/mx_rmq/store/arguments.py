"""Limits and checks of what scripts take. Times are milliseconds."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from mx_rmq.core import names
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.message import Priority
from mx_rmq.core.partition import base_topic

if TYPE_CHECKING:
    from mx_rmq.core.message import Message

MAX_BATCH: Final = 1000  # messages in one call: `unpack` in Lua takes at most 7,999 values
MAX_TOPICS: Final = 1000  # topics in one call

_LEVELS: Final = frozenset(Priority)
_NUMBERS: Final[dict[str, int]] = {Priority.HIGH: 1, Priority.NORMAL: 2, Priority.LOW: 3}


def check_same(message: Message, topic: str, id: str) -> None:
    """Refuse to write one message's record under another's id."""
    if (message.topic, message.id) != (base_topic(topic), id):
        raise InvalidInput(
            f"the record belongs to message {message.id!r} of topic {message.topic!r}, "
            f"not to {id!r} of {topic!r}"
        )


def check_level(priority: str) -> str:
    if priority not in _LEVELS:
        raise InvalidInput(f"priority={priority!r} is not one of {', '.join(Priority)}")
    return priority


def place_of(key: str | None, priority: str, cost: int) -> str:
    """Return the place of a message that has not joined its line yet: see `keyed` in keys.py."""
    if key is None and cost == 1:
        return ""
    return f"{key or ''}\t{_NUMBERS[check_level(priority)]} {cost} "


def too_many(count: int) -> InvalidInput:
    return InvalidInput(f"{count} messages in one call; the limit is {MAX_BATCH}")


@lru_cache(1000, typed=True)
def check_range(what: str, value: int, least: int, most: int = 2**52) -> int:
    """Check a number. Cached: a worker passes the same lease and counts in every call."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidInput(f"{what}={value!r} is not a whole number from {least} to {most}")
    return value


@lru_cache(1000, typed=True)
def check_worker(worker: str) -> str:
    """Check a name. Cached: a worker passes its own in every call."""
    return names.check_worker(worker)
