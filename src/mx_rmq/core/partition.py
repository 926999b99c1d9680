"""Partitions: a topic in several parts, each with separate keys, so a cluster can spread them.

The first partition has the topic's own name, the others `topic/1`, `topic/2`, … To the store each
of them is a topic. A topic grows by adding partitions at the end; it never shrinks.

A subscription of a topic is a topic to the store, too: `topic@name`, with the same partitions:
`topic@name/1`, …
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final

from mx_rmq.core.errors import InvalidInput

MAX_PARTITIONS: Final = 1024  # of one topic

_NUMBERED: Final = re.compile(r".+-[0-9]{1,15}\.([0-9]{1,4})", re.ASCII)


def partition(topic: str, number: int) -> str:
    return f"{topic}/{number}" if number else topic


def partitions(topic: str, count: int) -> list[str]:
    return [partition(topic, number) for number in range(count)]


@lru_cache(maxsize=65_536)
def topic_of(name: str) -> str:
    return name.partition("/")[0]


@lru_cache(maxsize=65_536)
def base_topic(name: str) -> str:
    """Return the topic that messages are produced to: `a` of `a`, `a/1`, `a@billing/1`."""
    return topic_of(name).partition("@")[0]


def subscription_of(name: str) -> str | None:
    """Return the subscription in a name: `billing` of `a@billing/1`; None: it is a topic's."""
    return topic_of(name).partition("@")[2] or None


def subscribed(part: str, subscription: str) -> str:
    """Return where a subscription gets the messages of a topic or of one of its partitions."""
    return partition(f"{topic_of(part)}@{subscription}", number_of(part))


def number_of(name: str) -> int:
    return int(name.partition("/")[2] or 0)


def suffix(name: str) -> str:
    """Return the suffix of ids generated for a partition, which leads back to it."""
    number = number_of(name)
    return f".{number}" if number else ""


def number_in(id: str) -> int:
    """Return the partition that an id was generated for."""
    found = _NUMBERED.fullmatch(id)
    return int(found[1]) if found else 0


def number_for(key: str, count: int) -> int:
    """Return the partition of a key by jump consistent hashing, the same in every process.

    When a topic grows from n to m partitions, m - n of m keys move, all of them to new partitions.
    """
    state = int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big")
    number, candidate = 0, 0
    while candidate < count:
        number = candidate
        state = (state * 2862933555777941757 + 1) & 0xFFFF_FFFF_FFFF_FFFF
        candidate = int((number + 1) * ((1 << 31) / ((state >> 33) + 1)))
    return number


def partitions_of(count: bytes) -> int:
    """Return a topic's number of partitions from the registry; 1 if the value is invalid."""
    return min(int(count), MAX_PARTITIONS) if count.isdigit() and int(count) else 1


def check_partitions(count: Any) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_PARTITIONS:
        raise InvalidInput(
            f"partitions={count!r:.80} is not a whole number from 1 to {MAX_PARTITIONS}"
        )
    return count
