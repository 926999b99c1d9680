"""Ask many partitions or topics: all of them, or until one has the message."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeVar

from mx_rmq.admin.arguments import check_text
from mx_rmq.core.names import ID
from mx_rmq.core.partition import number_for, number_in
from mx_rmq.store.lanes import maker_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

T = TypeVar("T")

AT_ONCE: Final = 16  # partitions or topics asked at the same time


async def ask_all(
    parts: Sequence[str], ask: Callable[[str], Awaitable[T]], *, at_once: int = AT_ONCE
) -> list[T]:
    """Ask every partition or topic, several at a time; return the answers in their order.

    The first failure stops the rest.
    """
    if len(parts) == 1:
        return [await ask(parts[0])]
    free = asyncio.Semaphore(at_once)

    async def one(part: str) -> T:
        async with free:
            return await ask(part)

    try:
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(one(part), name="mx-rmq admin") for part in parts]
    except ExceptionGroup as failed:
        error = failed.exceptions[0]
        raise error from error.__cause__
    return [task.result() for task in asked]


async def ask_for(
    id: str, parts: Sequence[str], ask: Callable[[str], Awaitable[T | None]]
) -> tuple[str, T] | None:
    """Ask partitions until one has the message; return that partition and its answer.

    Likely ones are asked first, then the others, several at a time.
    """
    likely = _likely(check_text("message id ", id), parts)
    for part in likely:
        if (found := await ask(part)) is not None:
            return part, found
    others = [part for part in parts if part not in likely]
    for start in range(0, len(others), AT_ONCE):
        chunk = others[start : start + AT_ONCE]
        for part, answer in zip(chunk, await ask_all(chunk, ask), strict=True):
            if answer is not None:
                return part, answer
    return None


def _likely(id: str, parts: Sequence[str]) -> list[str]:
    """Return where a message is, unless it was produced with a key or the topic has grown."""
    if len(parts) == 1:
        return [*parts]
    numbers = [number_in(id)] if maker_of(id) else []
    if ID.fullmatch(id):
        numbers.append(number_for(id, len(parts)))
    return [parts[number] for number in dict.fromkeys(numbers) if number < len(parts)]
