"""Plain functions, run in threads.

A thread cannot be ended from outside. We can only raise an exception in it, which takes effect at
the next step in Python, not while the thread is inside C code (a sleep, a read from a socket).
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
from contextlib import suppress
from contextvars import copy_context
from itertools import count
from queue import SimpleQueue
from traceback import clear_frames
from typing import TYPE_CHECKING, Any, Final

from mx_rmq.runtime.loop import Backoff, all_are_cancelled
from mx_rmq.safe_log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

logger = get_logger(__name__)

CHECK_EVERY: Final = 0.2
"""While a cancelled call has not left its thread: seconds between two checks whether the event loop
is ending."""


class Interrupted(BaseException):
    """Raised in a thread whose handler must stop. Not an Exception, so handlers let it pass."""


class NoThread(BaseException):
    """No thread could be started for a call. Not the handler's failure, and not for it to catch."""


class Call:
    """One function call in a thread. It runs at most once, or is withdrawn."""

    scope: Callable[[], AbstractContextManager[object]] | None = None
    """Entered in the thread around the function, and not interrupted; None: nothing is. An
    interrupted function leaves it by Interrupted, whatever it returned or raised."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._function = function
        self._arguments = arguments
        self._context = copy_context()
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._interrupted = False
        self._forks = Forks.count
        self.began = False  # a thread has entered the function
        self.on_wait: Callable[[], None] | None = None  # called if it has to wait for a thread
        self.on_begin: Callable[[], None] | None = None
        """Called in the loop when a thread enters the function."""
        self._withdrawn = False
        self._given_up = False  # the caller is cancelled and only waits for the thread to leave
        self._outcome: tuple[Any, BaseException | None] | None = None
        self._done: asyncio.Future[Any] = self._loop.create_future()

    def run(self) -> None:
        """Run the function and report the result to the loop; called in the thread."""
        with self._lock:
            if self.began or self._withdrawn:
                return
            self.began = True
        if self.on_begin is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self.on_begin)
        result, error = None, None
        try:
            if self.scope is None:
                result = self._context.run(self._inside)
            else:
                result = self._run_in(self.scope())
        except BaseException as raised:  # noqa: BLE001 - the loop gets it
            error = raised
        if Forks.count != self._forks:
            os._exit(0)  # a child that the handler has forked must not go on as a second worker
        self.report(result, error)

    def run_inline(self) -> Any:
        """Run the function in this thread, as if it had no event loop: Django checks that."""
        self.began = True
        asyncio._set_running_loop(None)
        try:
            return self._context.run(self._function, *self._arguments)
        finally:
            asyncio._set_running_loop(self._loop)

    def interrupt(self) -> None:
        """Raise Interrupted in the thread. A call that has not begun never runs."""
        with self._lock:
            self._interrupted = True
            if self._thread is not None:
                _raise_in(self._thread, Interrupted)
            elif not self.began:
                self._withdrawn = True
        if self._withdrawn:
            self.report(None, Interrupted())

    async def finish(self) -> Any:
        """Return what the function returns, or raise what it raises.

        A caller that is cancelled interrupts the call and waits until the thread has left: until
        then, the slot is not free. If the function ended normally after all, that counts.
        """
        try:
            return await self._done
        except asyncio.CancelledError:  # the function's own, or its caller is cancelled
            if self._outcome is None:
                self._given_up = True
                self._done = self._loop.create_future()  # the other was cancelled with the caller
                await self._left()
            if self._outcome is None or self._outcome[1] is not None:
                raise
        return self._outcome[0]

    async def _left(self) -> None:
        """Interrupt the call and wait until the thread has left the function."""
        self.interrupt()
        while self._outcome is None:
            try:
                await asyncio.wait([self._done], timeout=CHECK_EVERY)
            except asyncio.CancelledError:
                self.interrupt()
            if all_are_cancelled():
                return  # the loop ends, and must not wait for the thread

    def report(self, result: Any, error: BaseException | None) -> None:
        """Report to the loop how the call ended. From any thread; the first report counts."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._reported, result, error)

    def _run_in(self, scope: AbstractContextManager[object]) -> Any:
        result, error = None, None
        with suppress(Interrupted), scope:
            try:
                result = self._context.run(self._inside)
            except BaseException as raised:  # noqa: BLE001 - it is raised again
                error = raised
            if self._interrupted:
                if error is not None:
                    clear_frames(error.__traceback__)  # they may keep what the scope must close
                raise Interrupted
            if error is not None:
                raise error
        if error is not None:
            raise error
        return result

    def _inside(self) -> Any:
        with self._lock:
            if self._interrupted:
                raise Interrupted
            self._thread = threading.get_ident()
        try:
            return self._function(*self._arguments)
        except (StopIteration, GeneratorExit) as error:  # a future cannot carry them
            raise RuntimeError(f"the handler raised {type(error).__name__}") from error
        finally:
            self.end_interrupts()

    def end_interrupts(self) -> None:
        """Let the rest of the call run without interruptions; called in the thread."""
        with self._lock:
            if self._thread is not None and self._interrupted:
                _receive_interrupt(self._thread)  # else it could hit a later call
            self._thread = None

    def _reported(self, result: Any, error: BaseException | None) -> None:
        if self._outcome is not None:
            return
        self._outcome = (result, error)
        if self._done.done():
            return
        if error is None or self._given_up:
            self._done.set_result(result)
        else:
            self._done.set_exception(error)


class Threads:
    """The threads of one worker: as many as it has slots, started when they are needed.

    They are daemons: a handler that never returns must not keep its process alive. If `inline`,
    there are none, and functions run in the thread of the event loop.
    """

    name = "thread pool"

    def __init__(
        self,
        size: int,
        *,
        inline: bool = False,
        scope: Callable[[], AbstractContextManager[object]] | None = None,
    ) -> None:
        self._size = size
        self._inline = inline
        self._scope = scope
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._open: set[Call] = set()
        self._started = 0
        self._numbers = count(1)
        self._why = ""
        """Why the last thread could not be started; empty: it could."""
        self._closed = False
        self.backoff = Backoff()  # how long to take no messages that need a thread

    async def run(self, call: Call) -> Any:
        """Run a call in a thread, in a copy of the context. Raises NoThread if there is none.

        Returns only when the thread has left the function: a slot is free when its thread is.
        """
        if self._inline:
            return call.run_inline()
        if len(self._open) >= self._started < self._size:
            try:
                self.start()
            except (RuntimeError, MemoryError) as error:
                if not self._started:
                    raise NoThread(self._why) from error
        if len(self._open) >= self._started and call.on_wait is not None:
            call.on_wait()
        call.scope = self._scope
        self._open.add(call)
        self._calls.put(call)
        try:
            return await call.finish()
        finally:
            self._open.discard(call)

    def down(self) -> str:
        """Return why there is no thread at all; empty: there are some, or none was needed."""
        return "" if self._started or self._closed else self._why

    def start(self) -> None:
        """Start one more thread. The system may refuse it."""
        loop = asyncio.get_running_loop()
        thread = threading.Thread(
            target=self._serve,
            args=(loop,),
            name=f"mx-rmq-handler-{next(self._numbers)}",
            daemon=True,
        )
        try:
            thread.start()
        except (RuntimeError, MemoryError) as error:
            if not self._why:
                logger.error(
                    "cannot start another handler thread, %d are running: %s", self._started, error
                )
            self._why = str(error) or type(error).__name__
            raise
        self._started += 1
        self._why = ""
        self.backoff.reset()

    def close(self) -> None:
        """Let the threads end, without waiting for those that still run."""
        self._closed = True
        for _ in range(self._started):
            self._calls.put(None)

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        call = None
        try:
            while (call := self._calls.get()) is not None:
                call.run()
        except BaseException as error:  # noqa: BLE001 - raised in the thread by application code
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._thread_died, call, error)

    def _thread_died(self, call: Call | None, error: BaseException) -> None:
        """Make up for a thread in which application code raised something: no call may be lost."""
        logger.error("a handler thread died with %s", type(error).__name__)
        self._started -= 1
        if call is not None and call.began:
            call.report(None, error)
        for waiting in self._open:  # it may have taken one of them from the queue
            if not waiting.began:
                self._calls.put(waiting)  # a call runs only once, even if it is queued twice
        if self._open and not self._started and not self._closed:
            with suppress(RuntimeError, MemoryError):  # then the watchdog tries again
                self.start()


class Forks:
    """Counts how often this process and its ancestors were forked.

    If the count has changed, this is a child. Asking the system would take longer than everything
    else that we do for a message.
    """

    count = 0


def _forked() -> None:
    Forks.count += 1


os.register_at_fork(after_in_child=_forked)


def _raise_in(thread: int, kind: type[BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind))


def _receive_interrupt(thread: int) -> None:
    """Receive Interrupted in this thread here, in place of one that may be under way.

    We could withdraw it instead, but then Python 3.11 waits for it forever, in all threads, and
    hangs as soon as a profiler or a debugger is attached.
    """
    with suppress(Interrupted):
        _raise_in(thread, Interrupted)
        while True:
            pass
