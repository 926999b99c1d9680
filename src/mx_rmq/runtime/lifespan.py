"""The lifespan of a worker: what is entered before it starts and left after it has stopped."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from mx_rmq.runtime.loop import all_are_cancelled, how_it_ended, spawn

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager


class WasCancelled(Exception):
    """It was cancelled, but its worker was not: it may have raised that itself.

    This is not a CancelledError, which would look like a worker that was told to stop.
    """


class Lifespan:
    """Enters and leaves a context manager in one task.

    Task groups and time limits must be left by the task that entered them, and a worker may be
    started and stopped by different ones.
    """

    def __init__(self, around: AbstractAsyncContextManager[None]) -> None:
        self._around = around
        self._leave = asyncio.Event()
        self._entered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None

    async def enter(self) -> None:
        """Enter it; raise what it raises."""
        task = self._task = spawn("lifespan", self._stay)
        try:
            await asyncio.wait([task, self._entered], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            raise
        if not self._entered.done():
            _check(task)

    def when_it_ends(self, callback: Callable[[str], None]) -> None:
        """Call this if it ends on its own, as when a task of its task group has failed."""

        def on_end(task: asyncio.Task[None]) -> None:
            if not self._leave.is_set() and not all_are_cancelled():
                callback(f"its lifespan has ended: {how_it_ended(task)}")

        if self._task is not None:
            self._task.add_done_callback(on_end)

    async def leave(self) -> None:
        """Leave it; raise what it raises. Does nothing if it was not entered."""
        self._leave.set()
        if self._task is not None:
            await asyncio.wait([self._task])
            if not (self._task.cancelled() and self._task.cancelling()):  # by us, or with all
                _check(self._task)

    def cancel(self) -> None:
        """Cancel its clean-up, if that has begun."""
        if self._leave.is_set() and self._task is not None:
            self._task.cancel()

    async def _stay(self) -> None:
        async with self._around:
            self._entered.set_result(None)
            await self._leave.wait()


def _check(task: asyncio.Task[None]) -> None:
    """Raise what a task has raised."""
    try:
        task.result()
    except asyncio.CancelledError as error:
        raise WasCancelled from error
