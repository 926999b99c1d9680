"""Loops that repeat a step, tasks, and the backoff after errors.

A `step()` does what is due and returns the seconds until the next call, or None to wait until it is
woken. The loop owns the rest: starting, stopping, and going on after an error.
"""

from __future__ import annotations

import asyncio
import importlib
import random
import time
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from mx_rmq.core.errors import OutcomeUnknown, ServerUnavailable
from mx_rmq.core.text import named
from mx_rmq.safe_log import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable

T = TypeVar("T")
P = ParamSpec("P")

logger = get_logger(__name__)

FIRST_PAUSE: Final = 0.05  # seconds, as all of these
LONGEST_PAUSE: Final = 2.0
LOG_EVERY: Final = 60.0
CANCEL_AGAIN: Final = 0.5  # libraries may swallow a cancellation
TRY_AGAIN: Final = 2.0  # for a topic that failed

AWAY: Final = (ServerUnavailable, OutcomeUnknown)
"""The server is away. That is logged once, elsewhere."""


class Backoff:
    """How long to wait after each failure in a row, with jitter."""

    def __init__(self) -> None:
        self._pause = FIRST_PAUSE

    def next(self) -> float:
        pause, self._pause = self._pause, min(self._pause * 2, LONGEST_PAUSE)
        return pause * random.uniform(0.5, 1.0)  # noqa: S311 - jitter

    def reset(self) -> None:
        self._pause = FIRST_PAUSE


class FailureLog:
    """Logs the failures of a part: the first one, then one per minute."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._next = float("-inf")

    def log(self, error: Exception) -> None:
        if not isinstance(error, AWAY) and time.monotonic() >= self._next:
            self._next = time.monotonic() + LOG_EVERY
            logger.error("the %s failed; it continues", self._name, exc_info=error)


async def each(
    topics: Iterable[T], duty: Callable[[T], Awaitable[object]], failures: FailureLog
) -> list[T]:
    """Do a duty for every topic or message; return those for which it failed.

    One that is broken must not stop the others. A server that is away stops all of them.
    """
    failed = []
    for topic in topics:
        try:
            await duty(topic)
        except AWAY:
            raise
        except Exception as error:  # noqa: BLE001 - logged, and tried again
            failures.log(error)
            failed.append(topic)
    return failed


class Loop:
    """Runs a step until it is stopped."""

    def __init__(self, name: str, step: Callable[[], Awaitable[float | None]]) -> None:
        self.name = name
        self._step = step
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = spawn(self.name, self._run)

    def down(self) -> str:
        """Return why it does not run; empty: it does, was stopped, or has not been started."""
        return how_it_ended(self._task) if self._task is not None and self._task.done() else ""

    def wake(self) -> None:
        """Run the next step now."""
        self._wake.set()

    async def stop(self) -> None:
        """Cancel it and wait until it has ended. Does nothing if it does not run."""
        task, self._task = self._task, None
        while task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=CANCEL_AGAIN)

    async def _run(self) -> None:
        backoff, failures = None, FailureLog(self.name)
        while True:
            self._wake.clear()
            try:
                pause = await self._step()
                backoff = None
            except Exception as error:  # noqa: BLE001 - a loop never ends because of an error
                failures.log(error)
                backoff = backoff or Backoff()
                await asyncio.sleep(backoff.next())
                continue
            try:
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            except TimeoutError:
                pass


def spawn(
    name: str, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
) -> asyncio.Task[T]:
    """Start a task that does not run before its creator awaits, whatever the task factory is.

    An eager factory would run it at once, inside its creator, which has not updated its state yet.
    Consumers that start each other would recurse, once per slot.
    """
    loop = asyncio.get_running_loop()
    if loop.get_task_factory() is None:
        return loop.create_task(function(*args, **kwargs), name=f"mx-rmq {name}")

    async def later() -> T:
        await asyncio.sleep(0)
        return await function(*args, **kwargs)

    return loop.create_task(later(), name=f"mx-rmq {name}")


def how_it_ended(task: asyncio.Task[Any]) -> str:
    """Return how a task ended that should not have ended."""
    if task.cancelled():
        return "it was cancelled"
    error = task.exception()
    return "it returned" if error is None else named(error)


def all_are_cancelled() -> bool:
    """Whether every task of this event loop is being cancelled, as when `asyncio.run` ends."""
    return all(task.cancelling() for task in asyncio.all_tasks())


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes event loops in our own processes: uvloop if installed, else None."""
    try:
        factory: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module(
            "uvloop"
        ).new_event_loop
    except ImportError:
        return None
    return factory
