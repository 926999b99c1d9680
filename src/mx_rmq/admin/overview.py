"""One look at all topics, several at a time. A topic that cannot be reached hides no other."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from mx_rmq.admin.fanout import AT_ONCE
from mx_rmq.core.errors import MxRmqError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence

T = TypeVar("T")

MOST: Final = 1000
"""Topics that dashboard and metrics look at."""


@dataclass(frozen=True, slots=True)
class Overview(Generic[T]):
    """What was asked of every topic."""

    topics: dict[str, T]
    away: dict[str, MxRmqError | TimeoutError]
    """Topics that could not be reached, and why."""
    known: int
    """How many topics there are, including those that were left out."""

    @property
    def left_out(self) -> int:
        """How many topics were not asked, because there are too many."""
        return self.known - len(self.topics) - len(self.away)


async def ask_topics(
    every: Sequence[str],
    ask: Callable[[str], Awaitable[T]],
    *,
    most: int | None = MOST,
    first: Collection[str] = (),
    each: float | None = None,
    within: float | None = None,
) -> Overview[T]:
    """Ask every topic; those that do not answer in time are away.

    If there are more than `most`, those in `first` are asked, then the first ones by name. One
    answer may take `each` seconds, all together `within`.
    """
    chosen = sorted(every, key=lambda topic: topic not in first)[:most]
    found: dict[str, T] = {}
    away: dict[str, MxRmqError | TimeoutError] = {}
    free = asyncio.Semaphore(AT_ONCE)

    async def one(topic: str) -> None:
        async with free:
            try:
                async with asyncio.timeout(each):
                    found[topic] = await ask(topic)
            except (MxRmqError, TimeoutError) as error:
                away[topic] = error

    with suppress(TimeoutError):
        async with asyncio.timeout(within):
            await asyncio.gather(*map(one, chosen))
    return Overview(
        {topic: found[topic] for topic in sorted(found)},
        {topic: away.get(topic, TimeoutError()) for topic in sorted(chosen) if topic not in found},
        len(every),
    )
