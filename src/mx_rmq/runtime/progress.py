"""Sends the progress of handlers to the server.

A handler may report progress for every row it reads. Only its latest report is sent, up to four
times a second, in one call with those of other handlers of its topic.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Final

import msgspec

from mx_rmq.core.status import ProgressNote
from mx_rmq.runtime.loop import FailureLog, Loop, each
from mx_rmq.store.arguments import MAX_BATCH

if TYPE_CHECKING:
    from mx_rmq.runtime.held import HeldMessage
    from mx_rmq.store import Store

EVERY: Final = 0.25  # seconds between two calls
KEEP: Final = 600.0  # seconds for which the server keeps it
SEND_AGAIN: Final = 200.0  # seconds after which it is sent again while its handler runs


class ProgressSender:
    """The latest report of each running handler of one worker."""

    def __init__(self, store: Store, *, worker: str) -> None:
        self._store = store
        self._worker = worker
        self._lock = threading.Lock()
        self._latest: dict[HeldMessage, ProgressNote] = {}
        self._unsent: dict[HeldMessage, None] = {}
        self._again_at = time.monotonic() + SEND_AGAIN
        self._failures = FailureLog("progress")
        self._running_loop = asyncio.get_running_loop()
        self._started = False
        self._stopped = False
        self.loop = Loop("progress", self.step)

    def report(self, held: HeldMessage, report: ProgressNote) -> None:
        """Take a report. May be called in any thread."""
        with self._lock:
            if report.share is None and (before := self._latest.get(held)) is not None:
                report = ProgressNote(before.share, report.note)
            self._latest[held] = report
            is_first = not self._unsent
            self._unsent[held] = None
        if is_first:
            self._running_loop.call_soon_threadsafe(self._wake)

    async def stop(self) -> None:
        """Send nothing more, even if a handler that outlives its worker says something."""
        self._stopped = True
        await self.loop.stop()

    def _wake(self) -> None:
        if self._stopped:
            return
        if not self._started:  # a worker whose handlers report nothing needs no loop
            self._started = True
            self.loop.start()
        self.loop.wake()

    async def step(self) -> float | None:
        """Send what was reported since the last step."""
        with self._lock:
            for held in [held for held in self._latest if held.ended_at is not None]:
                del self._latest[held]
                self._unsent.pop(held, None)
            if time.monotonic() >= self._again_at:
                self._again_at = time.monotonic() + SEND_AGAIN
                self._unsent.update(dict.fromkeys(self._latest))
            unsent, self._unsent = self._unsent, {}
            reports = {held: self._latest[held] for held in unsent}
        topics: dict[str, list[HeldMessage]] = {}
        for held in reports:
            topics.setdefault(held.topic.name, []).append(held)

        async def send(topic: str) -> None:
            for first in range(0, len(topics[topic]), MAX_BATCH):
                some = topics[topic][first : first + MAX_BATCH]
                batch = [(one.leased, msgspec.json.encode(reports[one])) for one in some]
                await self._store.note_progress(topic, self._worker, batch, keep=round(KEEP * 1000))

        try:
            await each(topics, send, self._failures)
        except BaseException:  # the server is away: send it once it is back
            with self._lock:
                self._unsent = {**unsent, **self._unsent}
            raise
        await asyncio.sleep(EVERY)
        with self._lock:
            return 0.0 if self._unsent else SEND_AGAIN if self._latest else None
