"""Check the arguments of scripts and convert their replies.

Ids from the server are decoded so that any bytes survive the round trip. Times are milliseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.message import Priority
from mx_rmq.core.partition import topic_of
from mx_rmq.store.results import Settled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.core.message import Message

MAX_BATCH: Final = 1000
"""Messages in one call: `unpack` in Lua takes at most 7,999 values."""

MAX_TOPICS: Final = 1000
"""Topics in one call."""

SETTLED: Final = {ord(settled): settled for settled in Settled}
"""Results, by the character that the scripts return for each message."""

_LEVELS: Final = frozenset(Priority)


def check_same(message: Message, topic: str, id: str) -> None:
    """Refuse to write one message's record under another's id."""
    if (message.topic, message.id) != (topic_of(topic), id):
        raise InvalidInput(
            f"the record belongs to message {message.id!r} of topic {message.topic!r}, "
            f"not to {id!r} of {topic!r}"
        )


def check_level(priority: str) -> str:
    if priority not in _LEVELS:
        raise InvalidInput(f"priority={priority!r} is not one of {', '.join(Priority)}")
    return priority


def check_batch(items: Sequence[object], width: int = 1) -> bool:
    """Refuse too many messages; return whether there are any. Each takes `width` items."""
    if len(items) > MAX_BATCH * width:
        raise InvalidInput(f"{len(items) // width} messages in one call; the limit is {MAX_BATCH}")
    return bool(items)


def check_range(what: str, value: int, least: int, most: int = 2**52) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidInput(f"{what}={value!r} is not a whole number from {least} to {most}")
    return value


def wait_of(ms: int) -> int | None:
    return None if ms < 0 else ms


def to_ms(seconds: float) -> int:
    return round(seconds * 1000)


def id_of(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
