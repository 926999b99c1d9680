"""What the dashboard asks about all topics at once, and whether the server answers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeVar

from mx_rmq.admin.fanout import ask_all
from mx_rmq.admin.stats import MOST, ask_topics
from mx_rmq.core.errors import InvalidInput, MxRmqError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from mx_rmq.admin import Overview, Page, Stats, WorkerView
    from mx_rmq.core.message import State
    from mx_rmq.dashboard.search import Search
    from mx_rmq.queue import MessageQueue

T = TypeVar("T")

FIND_WITHIN: Final = 4.0  # seconds for finding an id
ANSWERS_WITHIN: Final = 2.0  # seconds in which a server that is up answers
AT_ONCE: Final = 8  # topics that are asked at the same time


class NoSuchTopic(Exception):
    """No message was ever produced to it."""


class TookTooLong(Exception):
    """The server is up, but the request took too long."""


class Queries:
    """Asks about all topics of a queue."""

    def __init__(self, mq: MessageQueue) -> None:
        self._mq = mq
        self._asking: asyncio.Task[bool] | None = None

    async def check_topic(self, topic: str) -> None:
        """Refuse a topic that was never produced to."""
        try:
            await self._mq.admin.check_topic(topic)
        except InvalidInput as error:
            raise NoSuchTopic(str(error)) from error

    async def overview(self) -> Overview[Stats]:
        return _reached(await self._mq.admin.overview(most=MOST))

    async def counts(self, state: State) -> Overview[int]:
        """Return how many messages of a state each topic has: cheaper than all stats."""
        admin = self._mq.admin
        topics = await admin.topics()
        return _reached(
            await ask_topics(topics, lambda topic: admin.count(topic, state), most=MOST)
        )

    async def pages(
        self, topics: Sequence[str], state: State, search: Search, *, limit: int, look: int
    ) -> dict[str, Page]:
        """Return the first messages of each topic that match, after reading at most `look`."""
        admin, matching = self._mq.admin, search.filter()

        def ask(topic: str) -> Awaitable[Page]:
            return admin.list(topic, state, filter=matching, limit=limit, look=look)

        return dict(zip(topics, await ask_all(topics, ask, at_once=AT_ONCE), strict=True))

    async def find(self, id: str) -> tuple[list[str], bool]:
        """Return the topics that have a message with this id, else those with one in their history;
        and whether all of them could be searched in time."""
        admin = self._mq.admin
        found: list[str] = []

        async def ask(topic: str) -> None:
            if await admin.history(topic, id):
                found.append(topic)

        try:
            async with asyncio.timeout(FIND_WITHIN):
                found += [one.topic for one in await admin.find(id)]
                if not found:  # searching the histories takes a hundred times as long
                    await ask_all(await admin.topics(), ask, at_once=AT_ONCE)
        except TimeoutError:
            return sorted(found), False
        return sorted(found), True

    async def answers(self) -> bool:
        """Return whether the server answers; concurrent callers share one request."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._answers(), name="mx-rmq dashboard health")
        return await asyncio.shield(self._asking)

    async def _answers(self) -> bool:
        try:
            async with asyncio.timeout(ANSWERS_WITHIN):
                await self._mq.admin.now()
        except (MxRmqError, TimeoutError):
            return False
        return True

    async def workers(self) -> list[WorkerView]:
        """Return the workers, silent ones last."""
        return sorted(await self._mq.admin.workers(), key=lambda one: (not one.alive, one.name))


def _reached(overview: Overview[T]) -> Overview[T]:
    """Return an overview; fail if no topic could be reached."""
    if overview.away and not overview.topics:
        raise next(iter(overview.away.values()))
    return overview
