"""Run a blocking call in a new thread.

Not in asyncio's default executor: handlers use it too, and could fill it.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function in a new thread and return its result."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # from now on it cannot be cancelled

    def run() -> None:
        try:
            future.set_result(function(*arguments))
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            future.set_exception(error)

    threading.Thread(target=run, name="mx-rmq-off-loop", daemon=True).start()
    return await asyncio.wrap_future(future)
