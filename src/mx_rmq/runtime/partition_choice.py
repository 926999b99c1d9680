"""Which partition of its topic a new message goes to."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Final

from mx_rmq.core.errors import MxRmqError
from mx_rmq.core.partition import MAX_PARTITIONS, number_for, number_in, partition
from mx_rmq.store.lanes import maker_of

if TYPE_CHECKING:
    from mx_rmq.store import Store

MAX_REMEMBERED: Final = 10_000  # how many results of `has_made_ids` to remember


class PartitionChoice:
    """Chooses partitions for one producer. Their topics must be registered."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._made_none: set[tuple[str, str]] = set()  # (partition, lane that made no ids for it)
        self._turns: defaultdict[str, count[int]] = defaultdict(_count_from_random)
        self._probes: dict[str, asyncio.Task[None]] = {}

    @property
    def background(self) -> list[asyncio.Task[None]]:
        """Tasks to end with the producer."""
        return [*self._probes.values()]

    def choose(self, topic: str, id: str | None, key: str | None) -> str:
        """Choose a message's partition: by its key, else by its id, else in turn."""
        parts = self._store.partitions[topic]
        if parts == 1:
            return topic
        if key is not None:
            return partition(topic, number_for(key, parts))
        if id is None:
            return self._next_partition(topic, parts)
        made_for = number_in(id) if maker_of(id) else parts
        return partition(topic, made_for if made_for < parts else number_for(id, parts))

    async def for_id(self, topic: str, id: str, key: str | None) -> str:
        """Choose the partition of a message whose caller passed an id.

        After ProduceUnknown, a caller may produce again with the generated id. If the topic has
        grown since, the key may belong to another partition now. The message must still go to its
        first partition, or it could be stored twice.
        """
        name = self.choose(topic, id, key)
        maker, number = maker_of(id), number_in(id)
        if maker is None or (key is not None and number_for(key, number + 1) != number):
            return name  # a custom id, or the key never belonged to the id's partition
        first = partition(topic, number)
        if first == name or (first, maker) in self._made_none:
            return name
        if self._store.partitions[topic] <= number < MAX_PARTITIONS:  # the topic may have grown
            await self._store.register_topics({topic: 1})
            name = self.choose(topic, id, key)
        if number < self._store.partitions[topic] and await self._store.has_made_ids(first, maker):
            return first
        if len(self._made_none) >= MAX_REMEMBERED:
            self._made_none.clear()
        self._made_none.add((first, maker))
        return name

    def _next_partition(self, topic: str, parts: int) -> str:
        """Return the next partition in turn; skip those whose server fails, unless all do."""
        for _ in range(parts):
            name = partition(topic, next(self._turns[topic]) % parts)
            if not self._store.link_of(self._store.site_of(name)).is_failing:
                return name
            self._start_probe(name)
        return name

    def _start_probe(self, name: str) -> None:
        """In the background, check whether the server of a partition is back."""
        if name not in self._probes:
            probe = asyncio.create_task(self._probe(name), name="mx-rmq producer")
            self._probes[name] = probe
            probe.add_done_callback(lambda _: self._probes.pop(name))

    async def _probe(self, name: str) -> None:
        with suppress(MxRmqError):
            # Must be a script: a slot that is being moved refuses those.
            await self._store.get_next_delay_task(name)


def _count_from_random() -> count[int]:
    """Count from a random number, so that producers started together do not move in step."""
    return count(random.randrange(MAX_PARTITIONS))  # noqa: S311 - no secret
