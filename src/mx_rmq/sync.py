"""mq.sync: the queue for code without an event loop. A thin wrapper, not a second implementation.

One background thread per process runs an event loop with an open copy of the queue. Calls from any
thread run there, and the caller waits for the result.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack

from mx_rmq.core.errors import NotOpen
from mx_rmq.in_thread import in_thread
from mx_rmq.safe_log import get_logger

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        Awaitable,
        Callable,
        Coroutine,
        Iterable,
        Iterator,
        Sequence,
    )
    from datetime import datetime, tzinfo

    from mx_rmq.admin.schedules import ScheduleView
    from mx_rmq.core.cron import Missed
    from mx_rmq.core.durations import Seconds
    from mx_rmq.core.outgoing import ProduceOptions
    from mx_rmq.core.schedule import ScheduleOptions
    from mx_rmq.core.status import Status
    from mx_rmq.queue import MessageQueue

T = TypeVar("T")

logger = get_logger(__name__)

FINISH_WITHIN: Final = 1.0  # seconds that running calls get to finish when the queue is closed


class SyncQueue:
    """Calls a MessageQueue from synchronous code. The first call opens it."""

    def __init__(self, mq: MessageQueue) -> None:
        self._original = mq
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._mq: MessageQueue | None = None

    def produce(
        self,
        topic: str,
        payload: Any,
        *,
        id: str | None = None,
        key: str | None = None,
        **options: Unpack[ProduceOptions],
    ) -> str:
        """Produce a message and return its id. Same options as `mq.produce`."""
        return self.call(lambda mq: mq.produce(topic, payload, id=id, key=key, **options))

    def produce_many(
        self,
        topic: str,
        payloads: Iterable[Any],
        *,
        ids: Sequence[str] | None = None,
        keys: Sequence[str | None] | None = None,
        **options: Unpack[ProduceOptions],
    ) -> list[str]:
        """Produce many messages, return their ids. Same options as `mq.produce_many`."""
        return self.call(lambda mq: mq.produce_many(topic, payloads, ids=ids, keys=keys, **options))

    def reschedule(
        self,
        topic: str,
        id: str,
        *,
        delay: Seconds | None = None,
        at: datetime | float | None = None,
    ) -> bool:
        """Give a pending or delayed message another due time. Same as `mq.reschedule`."""
        return self.call(lambda mq: mq.reschedule(topic, id, delay=delay, at=at))

    def abort(self, topic: str, id: str, reason: str = "") -> bool:
        """Stop a message for good; return whether it had not ended. Same as `mq.admin.abort`."""
        return self.call(lambda mq: mq.admin.abort(topic, id, reason))

    def signal(self, topic: str, id: str, name: str, value: Any = None) -> bool:
        """Send a signal to a message; False: there is no such message. Same as `mq.signal`."""
        return self.call(lambda mq: mq.signal(topic, id, name, value))

    def schedule(
        self,
        name: str,
        topic: str,
        expression: str,
        payload: Any = None,
        *,
        tz: str | tzinfo = "UTC",
        missed: Missed | str = "skip",
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleView:
        """Produce this payload at every tick. Same as `mq.admin.schedule`."""
        return self.call(
            lambda mq: mq.admin.schedule(
                name, topic, expression, payload, tz=tz, missed=missed, **options
            )
        )

    def unschedule(self, name: str) -> bool:
        """Remove a schedule; return whether there was one. Same as `mq.admin.unschedule`."""
        return self.call(lambda mq: mq.admin.unschedule(name))

    def schedules(self) -> list[ScheduleView]:
        """Return every schedule, by name. Same as `mq.admin.schedules`."""
        return self.call(lambda mq: mq.admin.schedules())

    def pause_schedule(self, name: str, reason: str = "") -> bool:
        """Stop a schedule from firing. Same as `mq.admin.pause_schedule`."""
        return self.call(lambda mq: mq.admin.pause_schedule(name, reason))

    def resume_schedule(self, name: str) -> bool:
        """Let a schedule fire again. Same as `mq.admin.resume_schedule`."""
        return self.call(lambda mq: mq.admin.resume_schedule(name))

    def run_schedule(self, name: str) -> str:
        """Produce the message of a schedule now; return its id. Same as `mq.admin.run_schedule`."""
        return self.call(lambda mq: mq.admin.run_schedule(name))

    def result(
        self, topic: str, id: str, *, timeout: Seconds | None = None, type: Any = Any
    ) -> Any:
        """Wait until a message has completed; return its result. See `mq.result`."""
        return self.call(lambda mq: mq.result(topic, id, timeout=timeout, type=type))

    def status(self, topic: str, id: str) -> Status | None:
        """Return where a message is; None: nothing is known of it."""
        return self.call(lambda mq: mq.status(topic, id))

    def watch(self, topic: str, id: str) -> Iterator[Status]:
        """Yield where a message is, now and after every change, until it has ended."""
        watching: AsyncGenerator[Status, None] | None = None

        async def next_one(mq: MessageQueue) -> Status | None:
            nonlocal watching
            watching = watching or mq.watch(topic, id)
            return await anext(watching, None)

        try:
            while (status := self.call(next_one)) is not None:
                yield status
        finally:
            if watching is not None and self._loop is not None:
                self.call(lambda _: watching.aclose())

    def call(self, function: Callable[[MessageQueue], Awaitable[T]]) -> T:
        """Run anything that needs the queue: `mq.sync.call(lambda mq: mq.admin.topics())`."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise NotOpen("mq.sync would block this event loop: await the same method of mq")
        loop, mq = self._opened()

        async def run() -> T:
            return await function(mq)

        return _wait(run(), loop)

    async def acall(self, function: Callable[[MessageQueue], Awaitable[T]]) -> T:
        """Run anything that needs the queue, and await it in an event loop that comes and goes.

        For code whose loop cannot own the queue, because nothing closes it there.
        """
        if not self._is_open:
            await in_thread(self._opened)  # it may wait for the server
        loop, mq = self._opened()

        async def run() -> T:
            return await function(mq)

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(run(), loop))

    def close(self) -> None:
        """Disconnect and end the thread. The next call opens again."""
        atexit.unregister(self.close)
        if self._pid != os.getpid():
            self._after_fork()
        with self._lock:
            loop, thread, mq = self._loop, self._thread, self._mq
            self._loop = self._thread = self._mq = None
            if loop is None or thread is None or mq is None:
                return
            try:
                _wait(_close(mq), loop)
            finally:
                loop.call_soon_threadsafe(loop.stop)
                thread.join()

    @property
    def _is_open(self) -> bool:
        alive = self._thread is not None and self._thread.is_alive()
        return alive and self._mq is not None and self._pid == os.getpid()

    def _opened(self) -> tuple[asyncio.AbstractEventLoop, MessageQueue]:
        if self._pid != os.getpid():
            self._after_fork()
        with self._lock:
            alive = self._thread is not None and self._thread.is_alive()
            if self._loop is None or self._mq is None or not alive:
                atexit.unregister(self.close)
                loop = asyncio.new_event_loop()
                thread = threading.Thread(
                    target=_run, args=(loop,), name="mx-rmq-sync", daemon=True
                )
                thread.start()
                mq = self._original.another()
                try:
                    _wait(mq.open(), loop)
                except BaseException:
                    loop.call_soon_threadsafe(loop.stop)
                    thread.join()
                    raise
                self._loop, self._thread, self._mq = loop, thread, mq
                atexit.register(self.close)
            return self._loop, self._mq

    def _after_fork(self) -> None:
        """Start over in a child process: the thread and the connections are the parent's."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._loop = self._thread = self._mq = None


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop until it is stopped.

    A task that raises SystemExit or KeyboardInterrupt ends `run_forever`. Run it again: the caller
    gets the exception, and the other calls get their results.
    """
    stopped = False
    while not stopped:
        try:
            loop.run_forever()
            stopped = True
        except BaseException as error:  # noqa: BLE001 - for its caller, not for this thread
            logger.warning("a call through mq.sync raised %r; its event loop keeps running", error)
    loop.close()


async def _close(mq: MessageQueue) -> None:
    """Finish pending produces; end all other calls."""
    await mq.close()
    if others := asyncio.all_tasks() - {asyncio.current_task()}:
        _, late = await asyncio.wait(others, timeout=FINISH_WITHIN)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=FINISH_WITHIN)


def _wait(work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> T:
    future = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        return future.result()
    except CancelledError:
        raise NotOpen("mq.sync was closed during this call") from None
    except BaseException:
        future.cancel()
        raise
