"""The waiters of one partition: who waits for which message, and what they are told."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Final

from mx_rmq.core.errors import MxRmqError
from mx_rmq.runtime.loop import AWAY, FailureLog
from mx_rmq.store.waiter_calls import RawStatus, read_news
from mx_rmq.waiters.status_reader import StatusReader

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mx_rmq.net.subscription import Subscription
    from mx_rmq.store import Store
    from mx_rmq.waiters.status_reader import Answer

READ_EVERY: Final = 30.0  # seconds, in case a topic does not count what ends
MAX_FRESH: Final = 10_000  # messages of a partition that have no waiter yet


class PartitionWaiters:
    def __init__(self, store: Store, subscription: Subscription, name: str) -> None:
        self.name = name
        self.channel = store.channel_of(name)
        self.waiting: dict[str, list[Answer]] = {}
        self.watched: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self.brief = StatusReader(store, name)
        self.light = StatusReader(store, name, with_progress=True)
        self.full = StatusReader(store, name, live=True, with_progress=True)
        self.fresh: dict[str, bool] = {}
        """Ids that have no waiter yet: True if their end is still to come and will be heard."""
        self._store = store
        self._subscription = subscription
        self._loop = asyncio.get_running_loop()
        self._ended: list[bytes | None] | None = None  # the counts when all last read
        self._all_read_at = 0.0
        self._failures = FailureLog("check for results")
        self._used_at = time.monotonic()

    @property
    def is_heard(self) -> bool:
        """Whether the server tells us what ends."""
        return self._subscription.hears(self.channel)

    async def listen(self) -> None:
        """Let the server tell us what ends, if it can be reached."""
        await self._subscription.add(self.channel)

    # waiting

    async def wait(self, id: str, live: set[str]) -> RawStatus | None:
        """Return a message once it has ended; None: it is not there.

        If it is live, this partition is added to `live`.
        """
        end = self._await_end(id)
        try:
            if not self.is_heard:
                await self.listen()
            if not end.done():
                try:
                    found = await self.brief.read(id)
                except MxRmqError:
                    if not end.done():
                        raise
                    return await end
                if found is not None and not found.state.is_archive:
                    live.add(self.name)
                elif not end.done():
                    return found
            return await end
        finally:
            self._forget(id, end)

    async def wait_until_told(self, id: str, within: float | None) -> RawStatus | None:
        """Return a message once we are told that it has ended; None: it is not there.

        This is what most calls wait for, so it costs less than `wait` in `asyncio.timeout`.
        """
        self._ended = None  # the next check reads it, in case its end was missed
        end = self._await_end(id)
        timer = None if within is None else self._loop.call_later(within, _time_out, end)
        try:
            return await end
        finally:
            if timer is not None:
                timer.cancel()
            self._forget(id, end)

    def _await_end(self, id: str) -> Answer:
        end: Answer = self._loop.create_future()
        self.waiting.setdefault(id, []).append(end)
        return end

    def _forget(self, id: str, end: Answer) -> None:
        waiting = self.waiting[id]
        waiting.remove(end)
        if not waiting:
            del self.waiting[id]

    # messages that are produced here

    def take_fresh(self, id: str) -> bool:
        """Return whether the end of a message is still to come and will be heard; forget it."""
        return self.is_heard and self.fresh.pop(id, False)

    def note_fresh(self, id: str, *, to_come: bool) -> None:
        """Note that the end of a message is still to come, or that it came without a waiter.

        The end may be heard before its produce is answered: then it is not to come any more.
        """
        if to_come and id in self.fresh:
            return
        if len(self.fresh) >= MAX_FRESH:
            self.fresh.clear()  # their waiters read
        self.fresh[id] = to_come

    def fail(self, error: Exception) -> None:
        """Fail the calls that wait, and wake those that watch."""
        for waiting in self.waiting.values():
            for end in waiting:
                if not end.done():
                    end.set_exception(error)
        self._wake_watching()

    # what the server tells

    def on_message(self, data: bytes) -> None:
        """Tell waiters what was published."""
        try:
            for state, id, kept in read_news(data):
                for changed in self.watched.get(id, ()):
                    changed.set()
                if state is None:
                    continue
                if id not in self.waiting:
                    self.note_fresh(id, to_come=False)
                elif kept is not None:
                    self._tell(id, RawStatus(state, b"", b"", kept))
                else:
                    self._read_again([id])
        except ValueError:  # not from us
            self.on_gap()

    def on_gap(self) -> None:
        """Read everything: news may have been missed."""
        self.fresh.clear()
        self._read_again(self.waiting)
        self._wake_watching()

    async def check(self) -> None:
        """Read everything again if a message of the topic has ended since the last time.

        Also if that cannot be known: totals may have a wrong type, or a field that is no number.
        """
        self.fresh.clear()
        if not self.waiting:
            self._ended = None
            return
        try:
            ended = await self._store.ended_so_far(self.name)
        except MxRmqError as error:
            self._failures.log(error)
            if isinstance(error, AWAY):
                return
            ended = None
        now = time.monotonic()
        if ended is None or ended != self._ended or now - self._all_read_at >= READ_EVERY:
            self._ended, self._all_read_at = ended, now
            self._read_again(self.waiting)

    def is_unused_for(self, seconds: float) -> bool:
        now = time.monotonic()
        if self.waiting or self.watched:
            self._used_at = now
        return now - self._used_at > seconds

    def _tell(self, id: str, found: RawStatus | None) -> None:
        """Tell the waiters of a message that it has ended."""
        for end in self.waiting.get(id, ()):
            if not end.done():
                end.set_result(found)

    def _wake_watching(self) -> None:
        for watching in self.watched.values():
            for changed in watching:
                changed.set()

    def _read_again(self, ids: Iterable[str]) -> None:
        """Find out whether messages have ended."""
        for id in ids:
            self.brief.read(id).add_done_callback(partial(self._has_read, id))

    def _has_read(self, id: str, answer: Answer) -> None:
        error = answer.exception()
        if isinstance(error, Exception):
            self._ended = None  # the next check reads everything again
            self._failures.log(error)
        elif (found := answer.result()) is None or found.state.is_archive:
            self._tell(id, found)


def _time_out(end: Answer) -> None:
    if not end.done():
        end.set_exception(TimeoutError())
