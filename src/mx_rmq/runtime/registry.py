"""The registry of workers and topics: a worker lists its topics and reports every 15 seconds."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from contextlib import suppress
from functools import cache
from heapq import nsmallest
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mx_rmq.core.errors import InvalidInput, MxRmqError, ServerFull
from mx_rmq.core.names import ONE_OR_MANY, short_worker
from mx_rmq.core.partition import base_topic, partitions, subscription_of
from mx_rmq.core.text import brief
from mx_rmq.runtime.held import HeldBatch
from mx_rmq.runtime.loop import AWAY

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mx_rmq.core.handler import Handler
    from mx_rmq.runtime.consumer import Consumer
    from mx_rmq.runtime.held import HeldMessage
    from mx_rmq.runtime.slots import Slots
    from mx_rmq.store import Store

BEAT: Final = 15.0  # seconds between two reports
NOTE_WITHIN: Final = 2.0
"""Seconds for notes about results, and for a look at each topic, so that a start does not hang."""
ALIVE: Final = 45_000  # milliseconds since its last report for which a worker counts as alive
FORGET: Final = 3_600_000  # milliseconds after which the registry forgets a silent worker
SHOWN: Final = 20  # running handlers in a report: those that have run the longest
NAME: Final = 200  # characters of a handler's name in a report


class Registry:
    """The entries of one worker and of the topics that it serves."""

    def __init__(
        self,
        store: Store,
        handlers: Mapping[str, Handler],
        slots: Slots,
        consumer: Consumer,
        *,
        worker: str,
    ) -> None:
        self._store = store
        self._handlers = handlers
        self._slots = slots
        self._consumer = consumer
        self._worker = worker
        self._started = time.time()
        self._bases = {
            base_topic(topic) for topic in handlers if subscription_of(topic) is not None
        }
        """The topics of our subscriptions."""
        self._noted: set[str] = set()  # partitions that say for how long results are kept
        self.is_listed = False  # the server has answered the first report

    async def register_topics(self) -> None:
        """List the topics of this worker, and learn how many partitions they have."""
        known = self._store.partitions
        try:
            if not self.is_listed:
                await self._store.claim_layout()
                await self._refuse_mixed()
            for topic, handler in self._handlers.items():
                if (handler.partitions or 1) > known.get(base_topic(topic), 1):
                    await self._store.grow(base_topic(topic), handler.partitions or 1)
            ttls = {topic: handler.ttl_ms or 0 for topic, handler in self._handlers.items()}
            bases = {base: self._store.own_ttl(base) or 0 for base in self._bases}
            await self._store.register_topics(  # every time: the registry may have been lost
                {topic: known.get(topic, 1) for topic in (*self._handlers, *bases)},
                {**ttls, **bases},
            )
            await self._declare_subscriptions()
            await self._note_result_ttls()
        except ServerFull:  # new topics are listed when there is memory again
            for topic in (*self._handlers, *self._bases):
                known[topic] = max(
                    known.get(topic, 1), await self._store.views.partitions(topic) or 1
                )
            await self._declare_subscriptions()
        except AWAY:  # try again later; the list of workers may be on another server
            if not self.is_listed:
                raise

    async def _refuse_mixed(self) -> None:
        """Refuse to start if a topic has a handler here and subscriptions elsewhere, or the other
        way round.

        A topic that is broken or away is not checked: the server gives such a handler nothing.
        """
        found: dict[str, dict[str, int]] = {}

        async def look(topic: str) -> None:
            with suppress(MxRmqError):
                found[topic] = await self._store.subscriptions(topic)

        plain = [topic for topic in self._handlers if subscription_of(topic) is None]
        with suppress(TimeoutError):
            async with asyncio.timeout(NOTE_WITHIN):
                await asyncio.gather(*map(look, plain))
        for topic, names in found.items():
            if names:
                raise InvalidInput(
                    f"topic {topic!r} has subscriptions ({', '.join(names)}), so a handler "
                    "without one would get nothing: give it a subscription, or remove these with "
                    f"mx-rmq unsubscribe {topic} NAME"
                )
        for seen in await self._store.views.workers() if self._bases else ():
            topics = seen.info.get("topics")
            mixed = self._bases & set(topics if isinstance(topics, list) else ())
            if mixed and seen.age < ALIVE and seen.name != self._worker:
                raise InvalidInput(
                    f"worker {short_worker(seen.name)} serves topic {min(mixed)!r} with a "
                    f"handler without a subscription; {ONE_OR_MANY}: stop that worker first"
                )

    async def _declare_subscriptions(self) -> None:
        """Declare our subscriptions: when we start, and again if the server has lost them."""
        known = self._store.partitions
        for topic in self._handlers:
            base, name = base_topic(topic), subscription_of(topic)
            if name is not None:
                if known.get(topic, 1) < known.get(base, 1):
                    await self._store.grow(topic, known[base])
                await self._store.declare_subscription(
                    base, name, again=self.is_listed, by=self._worker
                )

    async def _note_result_ttls(self) -> None:
        """Tell those who wait, once per partition, that our handlers keep results.

        A partition that is broken or away stops nothing; it is tried again later.
        """
        ttls = {
            part: handler.result_ttl_ms
            for topic, handler in self._handlers.items()
            if handler.result_ttl_ms is not None
            for part in partitions(topic, self._store.partitions.get(topic, 1))
            if part not in self._noted
        }

        async def note(part: str) -> None:
            with suppress(MxRmqError):
                await self._store.note_result_ttl(part, ttls[part])
                self._noted.add(part)

        with suppress(TimeoutError):
            async with asyncio.timeout(NOTE_WITHIN):
                await asyncio.gather(*map(note, ttls))

    async def beat(self, down: Mapping[str, str]) -> float:
        """Report that this worker is alive; return the seconds until the next report."""
        forget = 0 if self.is_listed else FORGET
        await self._store.beat_worker(self._worker, self._report(down), forget=forget)
        self.is_listed = True
        return BEAT

    async def leave(self) -> None:
        await self._store.forget_worker(self._worker)

    def _report(self, down: Mapping[str, str]) -> bytes:
        """Return what the registry shows about this worker, one line of JSON."""
        return msgspec.json.encode(
            {
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "version": _version(),
                "started": self._started,
                "topics": list(self._handlers),
                "batches": {
                    topic: handler.batch
                    for topic, handler in self._handlers.items()
                    if handler.batch is not None
                },
                "concurrency": self._slots.concurrency,
                "running": self._slots.running,
                "held": len(self._slots.held),
                "doing": _doing(self._consumer.running.values()),
                "down": {part: brief(why) for part, why in down.items()},
            }
        )


@cache
def _version() -> str:
    return version("mx-rmq")


def _doing(running: Iterable[HeldMessage | HeldBatch]) -> list[dict[str, Any]]:
    """Return the running handlers, longest first. The first message of a batch stands for all."""
    now = time.monotonic()
    firsts = [
        (held.items[0], {"batch": len(held.items)}) if isinstance(held, HeldBatch) else (held, {})
        for held in running
        if not isinstance(held, HeldBatch) or held.items
    ]
    begun = [
        (held.started_at, held.message, held.topic.handler, size)
        for held, size in firsts
        if held.started_at is not None and held.message is not None
    ]
    return [
        {
            "topic": handler.topic,
            "id": message.id,
            "handler": handler.name[:NAME],
            "attempt": message.attempts + 1,
            "seconds": round(now - at, 3),
            **size,
        }
        for at, message, handler, size in nsmallest(SHOWN, begun, key=lambda one: one[0])
    ]
