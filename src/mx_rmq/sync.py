"""mq.sync: the queue for code without an event loop. A thin wrapper, not a second implementation.

One background thread per process runs an event loop with an open copy of the queue. Calls from any
thread run there, and the caller waits for the result.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack

from mx_rmq.core.errors import NotOpen
from mx_rmq.core.sse import HEARTBEAT
from mx_rmq.in_thread import in_thread
from mx_rmq.safe_log import get_logger

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        Awaitable,
        Callable,
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
    from mx_rmq.flow import Flow
    from mx_rmq.queue import MessageQueue

T = TypeVar("T")

logger = get_logger(__name__)

CLOSED: Final = "mq.sync was closed during this call"

FINISH_WITHIN: Final = 1.0  # seconds that running calls get to finish when the queue is closed


class SyncQueue:
    """Calls a MessageQueue from synchronous code. The first call opens it."""

    def __init__(self, mq: MessageQueue) -> None:
        self._original = mq
        self._by_process: dict[int, _Background] = {}

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

    @contextmanager
    def flow(self) -> Iterator[Flow]:
        """Send messages together; some may wait for others. Same as `mq.flow`."""
        flow = self.call(lambda mq: mq.flow().__aenter__())
        try:
            yield flow
        except BaseException as error:
            kind = type(error)
            self.call(lambda _: flow.__aexit__(kind))
            raise
        self.call(lambda _: flow.__aexit__(None))

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

    def get_schedule(self, name: str) -> ScheduleView:
        """Return one schedule. Same as `mq.admin.get_schedule`."""
        return self.call(lambda mq: mq.admin.get_schedule(name))

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
        return self._each(lambda mq: mq.watch(topic, id))

    def sse(self, topic: str, id: str, *, heartbeat: Seconds = HEARTBEAT) -> Iterator[bytes]:
        """Yield the same as server-sent events, until the message has ended. See `mq.sse`."""
        return self._each(lambda mq: mq.sse(topic, id, heartbeat=heartbeat))

    def call(self, function: Callable[[MessageQueue], Awaitable[T]]) -> T:
        """Run anything that needs the queue: `mq.sync.call(lambda mq: mq.admin.topics())`."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise NotOpen(
                "mq.sync would block this event loop: await the same method of mq, or mq.sync.acall"
                " instead of mq.sync.call (module-level code: in the application's lifespan)"
            )
        return _wait(self._opened().start(function))

    def _each(self, start: Callable[[MessageQueue], AsyncGenerator[T, None]]) -> Iterator[T]:
        """Yield what an async generator of the queue yields."""
        used: MessageQueue | None = None
        generator: AsyncGenerator[T, None] | None = None

        async def next_one(mq: MessageQueue) -> T | None:
            nonlocal used, generator
            if generator is None:
                used, generator = mq, start(mq)
            return await anext(generator, None)

        async def end(mq: MessageQueue) -> None:
            if generator is not None and mq is used:
                await generator.aclose()

        try:
            while (item := self.call(next_one)) is not None:
                yield item
        finally:
            opened = self._here.opened
            if opened is not None:
                with suppress(NotOpen):  # then it has ended
                    opened.start(end)  # not waited for: an event loop may collect this generator

    @property
    def _is_open(self) -> bool:
        """Whether it is connected, in this process."""
        return self._here.opened is not None

    async def acall(self, function: Callable[[MessageQueue], Awaitable[T]]) -> T:
        """Run anything that needs the queue, and await it in an event loop that comes and goes.

        For code whose loop cannot own the queue, because nothing closes it there.
        """
        if not self._is_open:
            await in_thread(self._opened)  # it may wait for the server
        future = self._opened().start(function)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if future.cancelled() and caller is not None and not caller.cancelling():
                raise NotOpen(CLOSED) from None
            raise

    def close(self) -> None:
        """Disconnect and end the thread. The next call opens again."""
        atexit.unregister(self.close)
        here = self._here
        with here.lock:
            opened, here.opened = here.opened, None
            if opened is not None:
                opened.close()

    def _opened(self) -> _Opened:
        here = self._here
        with here.lock:
            if here.opened is None or not here.opened.thread.is_alive():
                atexit.unregister(self.close)
                here.opened = _Opened(self._original.another())
                atexit.register(self.close)
            return here.opened

    @property
    def _here(self) -> _Background:
        """What this process has. A child that was forked starts over.

        It keeps what the parent had, because closing that would close the parent's connections.
        The first threads of a child may come here together, so one atomic call decides. No fork
        hook is involved, because uWSGI calls none.
        """
        return self._by_process.setdefault(os.getpid(), _Background())


class _Background:
    """What one process has in the background."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.opened: _Opened | None = None


class _Opened:
    """An event loop in a thread, with an open queue."""

    def __init__(self, mq: MessageQueue) -> None:
        self._mq = mq
        self._loop = asyncio.new_event_loop()
        self._stopping = threading.Lock()
        self._stopped = False
        self.thread = threading.Thread(
            target=_run, args=(self._loop,), name="mx-rmq-sync", daemon=True
        )
        self.thread.start()
        try:
            if self.thread.native_id == threading.get_native_id():
                raise NotOpen(
                    "mq.sync needs a thread, and gevent or eventlet has replaced threads: use real"
                    " ones, such as gunicorn --worker-class gthread"
                )
            _wait(self.start(lambda mq: mq.open()))
        except BaseException:
            self._stop()
            raise

    def start(self, function: Callable[[MessageQueue], Awaitable[T]]) -> Future[T]:
        """Start a call. Every call that starts also ends: the loop cancels those it cannot run."""

        async def run() -> T:
            return await function(self._mq)

        with self._stopping:
            if self._stopped:
                raise NotOpen(CLOSED)
            return asyncio.run_coroutine_threadsafe(run(), self._loop)

    def close(self) -> None:
        try:
            _wait(self.start(_close))
        finally:
            self._stop()

    def _stop(self) -> None:
        with self._stopping:
            self._stopped = True
            self._loop.call_soon_threadsafe(self._loop.stop)
        self.thread.join()


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
    if late := asyncio.all_tasks(loop):  # they started after the queue was closed
        for task in late:
            task.cancel()
        loop.run_until_complete(asyncio.wait(late, timeout=FINISH_WITHIN))
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


def _wait(future: Future[T]) -> T:
    try:
        return future.result()
    except CancelledError:
        raise NotOpen(CLOSED) from None
    except BaseException:
        future.cancel()
        raise
