"""Plain functions, run in threads.

A thread cannot be ended from outside. What can be done is to raise an exception in it, which
strikes at its next step in Python; while it sits in C, a sleep or a read of a socket, it does not.
"""

from __future__ import annotations

import asyncio
import ctypes
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
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
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._interrupted = False

    def run(self) -> Any:
        """Run the function; called in the thread."""
        with self._lock:
            if self._interrupted:
                raise Interrupted
            self._thread = threading.get_ident()
        try:
            return self._function(*self._arguments)
        finally:
            self._leave()

    def interrupt(self) -> None:
        """Raise Interrupted in the thread, if it has not left the function."""
        with self._lock:
            self._interrupted = True
            if self._thread is not None:
                _raise_in(self._thread, Interrupted)

    def _leave(self) -> None:
        with self._lock:
            if self._thread is not None:
                _raise_in(self._thread, None)  # what has not struck by now, never shall
            self._thread = None


class Threads:
    """The threads of one worker; as many as it has slots, made when they are needed."""

    def __init__(self, size: int) -> None:
        self._pool = ThreadPoolExecutor(size, thread_name_prefix="mx-rmq-handler")

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
        context = copy_context()
        on_start(call.interrupt)
        result = await asyncio.get_running_loop().run_in_executor(self._pool, context.run, call.run)
        if asyncio.iscoroutine(result):  # a plain wrapper around an async function
            return await result
        return result

    def close(self) -> None:
        """Let the threads end; nobody waits for those that still run."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _raise_in(thread: int, kind: type[BaseException] | None) -> None:
    target = None if kind is None else ctypes.py_object(kind)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), target)
