"""Producers and a worker that run while servers fail, and what they produced and handled."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from mx_rmq import Delivery, MessageQueue, MxRmqError, NotConfirmed, ProduceUnknown, Worker
from mx_rmq.core.confirm import Level
from mx_rmq.core.events import Completed
from mx_rmq.core.partition import number_in

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

TOPIC: Final = "work"
PARTITIONS: Final = 12
PRODUCERS: Final = 6
LEASE: Final = 3.0


@dataclass
class Traffic:
    """What was produced and handled, each with its time on the monotonic clock."""

    mq: MessageQueue
    produced: dict[str, float] = field(default_factory=dict)
    """Ids that a produce returned, and when."""
    begun: dict[str, float] = field(default_factory=dict)
    """When the produce of each of these, or of an unconfirmed one, was called."""
    unconfirmed: dict[str, float] = field(default_factory=dict)
    """Ids that were stored, but not confirmed by a replica."""
    unknown: set[str] = field(default_factory=set)
    refused: list[MxRmqError] = field(default_factory=list)
    handled: dict[str, float] = field(default_factory=dict)
    """Ids and the end of their first run."""
    fences: dict[str, list[int]] = field(default_factory=dict)
    """The fence of each run of a message, in the order of the runs."""
    completed: list[tuple[str, float]] = field(default_factory=list)
    """Each completion that a server accepted."""
    going: bool = True
    producers: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def again(self) -> int:
        """Extra runs of messages."""
        return sum(map(len, self.fences.values())) - len(self.fences)

    @property
    def lost(self) -> dict[str, float]:
        """Ids that produce returned and no worker has handled."""
        return {id: at for id, at in self.produced.items() if id not in self.handled}

    def handled_since(self, at: float, partitions: set[int]) -> list[float]:
        """Return when messages of some partitions, produced after a time, were handled."""
        return sorted(
            end
            for id, end in self.handled.items()
            if number_in(id) in partitions and self.begun.get(id, 0) > at
        )

    async def until_produced(self, count: int, within: float = 30) -> None:
        """Wait until this many more messages are produced."""
        enough = len(self.produced) + count
        await self._until(lambda: len(self.produced) >= enough, f"{count} more produced", within)

    async def until_handled(self, count: int, within: float = 30) -> None:
        """Wait until this many more messages are handled."""
        enough = len(self.handled) + count
        await self._until(lambda: len(self.handled) >= enough, f"{count} more handled", within)

    async def until_back(self, at: float, partitions: set[int], within: float = 30) -> float:
        """Wait for a message of some partitions, produced after a time; return when it ended."""
        await self._until(lambda: self.handled_since(at, partitions), "handled again", within)
        return self.handled_since(at, partitions)[0]

    async def until_settled(self, within: float = 60) -> None:
        """Stop producing; wait until everything is handled, or nothing is left to handle."""
        self.going = False
        await asyncio.wait(self.producers, timeout=within)
        await self._until_empty(within)

    async def _until_empty(self, within: float) -> None:
        deadline = time.monotonic() + within
        while self.lost:
            stats = await self.mq.admin.stats(TOPIC)
            if not stats.total or time.monotonic() > deadline:
                return
            await asyncio.sleep(0.05)

    async def _until(self, fact: Any, what: str, within: float) -> None:
        deadline = time.monotonic() + within
        while not fact():
            assert time.monotonic() < deadline, f"gave up after {within:g} s: {what}"
            await asyncio.sleep(0.01)

    def note(self, event: Completed) -> None:
        self.completed.append((event.id, time.monotonic()))

    async def produce(self, confirm: Level | None, later: float) -> None:
        number = 0
        while self.going:
            number += 1
            delay = later if later and number % 2 else None
            at = time.monotonic()
            try:
                id = await self.mq.produce(TOPIC, number, confirm=confirm, delay=delay)
                self.produced[id] = time.monotonic()
                self.begun[id] = at
            except NotConfirmed as error:
                self.begun.update(dict.fromkeys(error.ids, at))
                self.unconfirmed.update(dict.fromkeys(error.ids, time.monotonic()))
            except ProduceUnknown as error:
                self.unknown.update(error.ids)
            except MxRmqError as error:
                self.refused.append(error)
            await asyncio.sleep(0.002)


@asynccontextmanager
async def traffic(
    url: str,
    *,
    confirm: str | None = None,
    later: float = 0,
    patience: float = 20,
    **settings: Any,
) -> AsyncIterator[Traffic]:
    """Run producers and a worker; the worker has its own connections.

    Every second message is delayed by `later` seconds.
    """
    settings |= {"lease": LEASE, "patience": patience}
    mq, served = MessageQueue(url, **settings), MessageQueue(url, **settings)
    seen = Traffic(mq)

    @served.handler(TOPIC, partitions=PARTITIONS)
    async def handle(_: int, delivery: Delivery) -> None:
        seen.fences.setdefault(delivery.id, []).append(delivery.fence)
        seen.handled.setdefault(delivery.id, time.monotonic())

    served.events.subscribe(seen.note, Completed)

    async with mq, served, Worker(served):
        mq.store.partitions.pop(TOPIC, None)
        level = None if confirm is None else Level(confirm)
        producing = (seen.produce(level, later) for _ in range(PRODUCERS))
        seen.producers = [asyncio.create_task(one) for one in producing]
        try:
            yield seen
        finally:
            seen.going = False
            for producer in seen.producers:
                producer.cancel()
            await asyncio.gather(*seen.producers, return_exceptions=True)
    for producer in seen.producers:
        if not producer.cancelled():
            producer.result()
