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

from mx_rmq.core.errors import MxRmqError, ServerFull
from mx_rmq.core.partition import partitions
from mx_rmq.core.text import brief
from mx_rmq.runtime.loop import AWAY

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mx_rmq.core.handler import Handler
    from mx_rmq.runtime.consumer import Consumer
    from mx_rmq.runtime.slots import HeldMessage, Slots
    from mx_rmq.store import Store

BEAT: Final = 15.0  # seconds between two reports
NOTE_WITHIN: Final = 2.0  # seconds for notes about results, so that a start does not hang
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
        self._noted: set[str] = set()  # partitions that say for how long results are kept
        self.is_listed = False  # the server has answered the first report

    async def register_topics(self) -> None:
        """List the topics of this worker, and learn how many partitions they have."""
        known = self._store.partitions
        try:
            if not self.is_listed:
                await self._store.claim_layout()
            for topic, handler in self._handlers.items():
                if (handler.partitions or 1) > known.get(topic, 1):
                    await self._store.grow(topic, handler.partitions or 1)
            await self._store.register_topics(  # every time: the registry may have been lost
                {topic: known.get(topic, 1) for topic in self._handlers},
                {topic: handler.ttl_ms or 0 for topic, handler in self._handlers.items()},
            )
            await self._note_result_ttls()
        except ServerFull:  # new topics are listed when there is memory again
            for topic in self._handlers:
                known[topic] = max(
                    known.get(topic, 1), await self._store.views.partitions(topic) or 1
                )
        except AWAY:  # try again later; the list of workers may be on another server
            if not self.is_listed:
                raise

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


def _doing(running: Iterable[HeldMessage]) -> list[dict[str, Any]]:
    """Return the running handlers, longest first."""
    now = time.monotonic()
    begun = [
        (held.started_at, held.message, held.topic.handler)
        for held in running
        if held.started_at is not None and held.message is not None
    ]
    return [
        {
            "topic": message.topic,
            "id": message.id,
            "handler": handler.name[:NAME],
            "attempt": message.attempts + 1,
            "seconds": round(now - at, 3),
        }
        for at, message, handler in nsmallest(SHOWN, begun, key=lambda one: one[0])
    ]
