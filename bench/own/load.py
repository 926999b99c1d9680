"""The messages that are measured."""

from __future__ import annotations

import random
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mx_rmq.core.message import Message
from mx_rmq.store.results import Claim

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mx_rmq.store import Store

TOPIC: Final = "order.created"
PAYLOAD_BYTES: Final = 200

WORKER: Final = "shop-7f9c6d5b8-x2x9q-31337-0190a7c2e4b87d3fa1c95e62d07b48aa"
"""A realistic worker name: host, process and a random part. See docs/performance.md."""

BATCH: Final = 100
BULK: Final = 1_000
LEASE: Final = 600_000
"""Milliseconds: longer than any measurement."""


class Trouble(Exception):
    """A measurement failed."""


def payload(size: int = PAYLOAD_BYTES, /, **fields: Any) -> dict[str, Any]:
    """Return a payload of `size` bytes with these fields."""
    found = {**fields, "text": ""}
    found["text"] = "x" * (size - len(msgspec.json.encode(found)))
    return found


PAYLOAD: Final = payload(order=42)


def topics(count: int) -> list[str]:
    """Return `count` topics."""
    return [TOPIC] if count == 1 else [f"{TOPIC}.{number}" for number in range(count)]


def batched(numbers: Iterable[int], size: int) -> Iterator[list[int]]:
    """Yield `size` of them at a time."""
    left = iter(numbers)
    while some := list(islice(left, size)):
        yield some


class Cycle:
    """A worker's calls without a worker: the store's own calls, in batches."""

    def __init__(
        self,
        store: Store,
        *,
        topic: str = TOPIC,
        payload: dict[str, Any] = PAYLOAD,
        keys: int = 0,
        limits: str = "",
    ) -> None:
        self._store = store
        self._topic = topic
        self._keys = keys  # how many different keys messages have; 0: they have none
        self._limits = limits
        self._payload = msgspec.Raw(msgspec.json.encode(payload))
        self._drafts = [Message.new(self._payload)] * BULK

    async def produce(self, count: int, *, batch: int = BULK) -> None:
        """Produce messages, this many per call."""
        for start in range(0, count, batch):
            drafts = self._drafts[: min(batch, count - start)]
            if self._keys:
                drafts = [self._with_key(random.randrange(self._keys)) for _ in drafts]
            await self._store.produce_normal_message(self._topic, drafts)

    async def produce_each(self, numbers: Iterable[int]) -> None:
        """Produce one message for each of these keys."""
        for some in batched(numbers, BULK):
            drafts = [self._with_key(number) for number in some]
            await self._store.produce_normal_message(self._topic, drafts)

    def _with_key(self, number: int) -> Message:
        return Message.new(self._payload, key=f"tenant-{number:07d}")

    async def dispatch(self, count: int = BATCH) -> list[Claim]:
        """Lease messages; there must be enough."""
        if self._keys:
            taken = await self._store.dispatch_in_turn(
                self._topic, WORKER, count=count, lease=LEASE, limits=self._limits
            )
        else:
            taken = await self._store.dispatch_message(
                self._topic, WORKER, count=count, lease=LEASE
            )
        if len(taken.messages) != count:
            raise Trouble(f"{len(taken.messages)} messages were dispatched, not {count}")
        return [Claim(one.id, one.token) for one in taken.messages]

    async def complete(self, claims: list[Claim]) -> None:
        """Complete what was leased."""
        if not all(await self._store.complete_message(self._topic, WORKER, claims)):
            raise Trouble("a lease was lost")
