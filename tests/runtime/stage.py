"""What the tests of the runtime have in common: a queue to test on, and facts to wait for."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from mx_rmq import MessageQueue
from mx_rmq.core.handler import Handler
from mx_rmq.net.server_clock import ServerClock
from mx_rmq.runtime.dispatcher import Dispatcher
from mx_rmq.runtime.lifecycle import Lifecycle
from mx_rmq.runtime.recovery import Recovery
from mx_rmq.runtime.slots import Slots
from mx_rmq.store.results import Leased
from tests.lab.servers import Kind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    from redis.asyncio import Redis

    from mx_rmq.runtime.event_bus import Events
    from mx_rmq.runtime.held import HeldMessage
    from mx_rmq.runtime.slots import TopicSlots
    from mx_rmq.store import Store
    from mx_rmq.worker import Worker

T = TypeVar("T")

WITHIN = 45.0
"""Seconds after which a fact that has not come is a fault."""

on_servers = pytest.mark.parametrize("kind", [Kind.VALKEY_9_1, Kind.REDIS_7_0])

on_a_server = pytest.mark.parametrize("kind", [Kind.VALKEY_9_1])
"""For what Python alone decides."""


def slots_of(worker: Worker) -> Slots:
    """Return the local slots of a running worker."""
    assert worker._engine is not None
    return worker._engine.slots


def recovery(store: Store, bus: Events, worker: str, lease: float = 30.0) -> Recovery:
    """What decides about messages that were taken over; its chance is a half."""
    slots = Slots(concurrency=1, prefetch=0)
    dispatcher = Dispatcher(store, slots, worker=worker, lease=30_000)
    lifecycle = Lifecycle(store, slots, dispatcher, bus, worker=worker)
    return Recovery(store, lifecycle, bus, worker=worker, lease=lease, chance=lambda: 0.5)


class Seen:
    """The events of a queue, as they came. Waits for those to come."""

    def __init__(self, events: Events) -> None:
        self.all: list[Any] = []
        self._news = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        events.subscribe(self._on_event)

    def _on_event(self, event: Any) -> None:
        self.all.append(event)  # perhaps in the keeper's thread
        self._loop.call_soon_threadsafe(self._news.set)

    def of(self, kind: type[T], **fields: Any) -> list[T]:
        """Return the events of a kind that have these fields."""
        return [
            event
            for event in self.all.copy()
            if isinstance(event, kind)
            and all(getattr(event, name) == value for name, value in fields.items())
        ]

    async def wait(self, kind: type[T], count: int = 1, **fields: Any) -> list[T]:
        """Wait for so many of them."""
        async with asyncio.timeout(WITHIN):
            while len(self.of(kind, **fields)) < count:
                self._news.clear()
                await self._news.wait()
        return self.of(kind, **fields)

    async def one(self, kind: type[T], **fields: Any) -> T:
        """Wait for the first of them."""
        return (await self.wait(kind, **fields))[0]


async def until(fact: Callable[[], object], within: float = WITHIN) -> None:
    """Wait for a fact that nobody announces."""
    async with asyncio.timeout(within):
        while not fact():  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.002)


async def until_so(fact: Callable[[], Awaitable[object]], within: float = WITHIN) -> None:
    """Wait for a fact that has to be asked for."""
    async with asyncio.timeout(within):
        while not await fact():  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.005)


@asynccontextmanager
async def queue(url: str, *, audit: bool = True, **settings: Any) -> AsyncIterator[MessageQueue]:
    """An open queue; afterwards the audit of every topic must be clean."""
    settings.setdefault("lease", 5.0)
    async with MessageQueue(url, **settings) as mq:
        yield mq
        for topic in await mq.admin.topics() if audit else ():
            assert await mq.admin.audit(topic) == []


async def commands(raw: Redis) -> dict[str, int]:
    """Return how often each command has been called, those inside scripts included."""
    stats = await raw.info("commandstats")
    return {name.removeprefix("cmdstat_"): one["calls"] for name, one in stats.items()}


def handler(topic: str = "t", function: Any = None, **options: Any) -> Handler:
    """A handler of a topic."""

    async def nothing(payload: Any) -> None: ...

    return Handler.of(topic, function or nothing, **options)


def slots_for(handlers: Iterable[Handler], *, concurrency: int, prefetch: int = 0) -> Slots:
    """Slots that serve the topics of these handlers."""
    slots = Slots(concurrency=concurrency, prefetch=prefetch)
    for one in handlers:
        slots.add(one, one.topic, ServerClock())
    return slots


_numbers = iter(range(1, 1_000_000))


def some(count: int) -> list[Leased]:
    """Messages that no server knows."""
    return [Leased(f"m{number}", number, b"{}") for number, _ in zip(_numbers, range(count))]  # noqa: B905 - the first one has no end


def take_in(slots: Slots, topic: TopicSlots, count: int) -> list[HeldMessage]:
    """Ask for messages and get them, without a server."""
    slots.reserve(topic, count)
    slots.receive(topic, count, some(count), time.monotonic())
    return list(topic.waiting)[-count:]
