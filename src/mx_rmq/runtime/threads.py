"""Plain functions, run in threads.

A thread cannot be ended from outside. What can be done is to raise an exception in it, which
strikes at its next step in Python; while it sits in C, a sleep or a read of a socket, it does not.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
from contextlib import suppress
from contextvars import copy_context
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Interrupted(BaseException):
    """Raised in a thread whose handler must stop. Not an Exception, so handlers let it pass."""


class Call:
    """One function call in a thread."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._function = function
        self._arguments = arguments
        self._context = copy_context()
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._interrupted = False
        self._generation = Generation()
        self.done: asyncio.Future[Any] = self._loop.create_future()

    def run(self) -> None:
        """Run the function and tell its loop; called in the thread."""
        result, error = None, None
        try:
            result = self._context.run(self._inside)
        except BaseException as raised:  # noqa: BLE001 - whatever it is, the loop gets it
            error = raised
        self._generation.end_if_forked()
        with suppress(RuntimeError):  # the loop is closed: nobody wants to know any more
            self._loop.call_soon_threadsafe(self._tell, result, error)

    def interrupt(self) -> None:
        """Raise Interrupted in the thread, if it has not left the function."""
        with self._lock:
            self._interrupted = True
            if self._thread is not None:
                _raise_in(self._thread, Interrupted)

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
            self._leave()

    def _leave(self) -> None:
        with self._lock:
            if self._thread is not None and self._interrupted:
                _let_strike(self._thread)  # what has not struck by now, never shall
            self._thread = None

    def _tell(self, result: Any, error: BaseException | None) -> None:
        if self.done.done():
            return
        if error is None:
            self.done.set_result(result)
        else:
            self.done.set_exception(error)


class Threads:
    """The threads of one worker; as many as it has slots, made when they are needed.

    They are daemons: a handler that does not come back must not keep its process alive.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._started = 0
        self._busy = 0

    async def run(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        on_start: Callable[[Callable[[], None]], None],
    ) -> Any:
        """Run a function in a thread, in a copy of the context; `on_start` gets its interrupt.

        Returns only when the thread has left the function: a slot is free when its thread is.
        """
        call = Call(function, arguments)
        on_start(call.interrupt)
        self._busy += 1
        if self._busy > self._started < self._size:
            self._started += 1
            threading.Thread(
                target=self._serve, name=f"mx-rmq-handler-{self._started}", daemon=True
            ).start()
        self._calls.put(call)
        try:
            return await call.done
        finally:
            self._busy -= 1

    def close(self) -> None:
        """Let the threads end; nobody waits for those that still run."""
        for _ in range(self._started):
            self._calls.put(None)

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            call.run()


class Generation:
    """Tells whether this is still the process in which it was made.

    Without asking the system, which takes longer than all else that is done for a message.
    """

    count = 0
    """How often the process was forked on its way here."""

    def __init__(self) -> None:
        self._count = Generation.count

    def end_if_forked(self) -> None:
        """End a child that a handler has forked and let go on: it must not be a second worker."""
        if Generation.count != self._count:
            os._exit(0)


def _forked() -> None:
    Generation.count += 1


os.register_at_fork(after_in_child=_forked)


def _raise_in(thread: int, kind: type[BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind))


def _let_strike(thread: int) -> None:
    """Let Interrupted strike this thread here, in the place of one that may be under way.

    It could be taken back instead. But then Python 3.11 waits for it for ever, in all threads, and
    hangs as soon as a profiler or a debugger looks on.
    """
    with suppress(Interrupted):
        _raise_in(thread, Interrupted)
        while True:
            pass
