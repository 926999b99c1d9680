"""Start a task, and say how one ended."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from mx_rmq.core.text import text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")
P = ParamSpec("P")


def spawn(
    name: str, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
) -> asyncio.Task[T]:
    """Start a task that runs after its creator has gone on, whatever the loop's task factory is.

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
    return "it returned" if error is None else f"{type(error).__name__}: {text_of(error)}"


def all_are_cancelled() -> bool:
    """Whether every task of this event loop is being cancelled, as when `asyncio.run` ends."""
    return all(task.cancelling() for task in asyncio.all_tasks())
