"""Where a cluster puts partitions: by a hash of their names, so unevenly. Values without I/O."""

from __future__ import annotations

import statistics
from binascii import crc_hqx
from functools import cache
from typing import TYPE_CHECKING, Final

from mx_rmq.core.partition import partitions

if TYPE_CHECKING:
    from collections.abc import Iterable

SLOTS: Final = 16_384
SAMPLES: Final = 100
"""Sets of made-up topic names; the median counts."""
NAMES: Final = 200_000
"""About how many made-up names in total: many topics need fewer sets."""


def slot_of(name: str) -> int:
    """Return the slot of a topic or a partition: CRC-16 of its hash tag, as servers compute it."""
    return crc_hqx(name.encode(), 0) % SLOTS


def shard_of(name: str, shards: int) -> int:
    """Return the shard that has it, if each has an equal, contiguous range of slots."""
    return slot_of(name) * shards // SLOTS


def counts(names: Iterable[str], shards: int) -> list[int]:
    """Return how many of these topics and partitions each shard has."""
    found = [0] * shards
    for name in names:
        found[shard_of(name, shards)] += 1
    return found


def busiest(topics: Iterable[str], parts: int, shards: int) -> int:
    """Return how many partitions of these topics the fullest shard has."""
    names = (name for topic in topics for name in partitions(topic, parts))
    return max(counts(names, shards))


@cache
def usual_busiest(topics: int, parts: int, shards: int) -> float:
    """Return the same for topics with unknown names: the median of many tries."""
    if shards == 1:
        return topics * parts
    samples = max(3, min(SAMPLES, NAMES // (topics * parts)))
    return statistics.median(
        busiest((f"topic{number}.{sample}" for number in range(topics)), parts, shards)
        for sample in range(samples)
    )
