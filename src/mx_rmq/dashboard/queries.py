"""Everything the dashboard asks `mq.admin`. No other file here talks to it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mx_rmq.admin import Filter
from mx_rmq.admin.fanout import ask_all
from mx_rmq.admin.stats import MOST, ask_topics
from mx_rmq.core.errors import InvalidInput, MxRmqError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mx_rmq.admin import (
        Admin,
        Cancelled,
        Happening,
        MessageView,
        Overview,
        Page,
        Progress,
        Stats,
        WorkerView,
    )
    from mx_rmq.core.message import State
    from mx_rmq.dashboard.search import Search
    from mx_rmq.queue import MessageQueue

T = TypeVar("T")

FIND_WITHIN: Final = 4.0
"""Seconds for finding an id."""
ANSWERS_WITHIN: Final = 2.0
"""Seconds in which the server must say something, or it counts as away."""
AT_ONCE: Final = 8
"""Topics that are asked at the same time."""

LOOK: Final = 5000
"""Messages that one page reads for a search, in all topics together."""


class NoSuchTopic(Exception):
    """No message was ever produced to it."""


class TookTooLong(Exception):
    """The server is up, but the request took too long."""


class Queries:
    """Everything the dashboard asks of a queue."""

    def __init__(self, mq: MessageQueue) -> None:
        self._mq = mq
        self._asking: asyncio.Task[bool] | None = None

    @property
    def prefix(self) -> str:
        """The prefix of the queue's keys."""
        return self._mq.settings.prefix

    def _admin(self, who: str = "") -> Admin:
        return self._mq.admin.as_operator(who) if who else self._mq.admin

    @staticmethod
    def ever(stats: Stats) -> tuple[int, int, int]:
        """Return how many messages of a topic were ever produced, completed, and failed."""
        totals = stats.totals
        return totals.produced, totals.completed, totals.failed

    # look

    async def topics(self) -> list[str]:
        """Return every topic."""
        return await self._admin().topics()

    async def check_topic(self, topic: str) -> None:
        """Refuse a topic that was never produced to."""
        try:
            await self._admin().check_topic(topic)
        except InvalidInput as error:
            raise NoSuchTopic(str(error)) from error

    async def now(self) -> float:
        """Return the server's time."""
        return await self._admin().now()

    async def stats(self, topic: str) -> Stats:
        """Return how a topic is doing."""
        return await self._admin().stats(topic)

    async def overview(self) -> Overview[Stats]:
        """Return how all topics are doing."""
        return _reached(await self._admin().overview(most=MOST))

    async def counts(self, state: State) -> Overview[int]:
        """Return how many messages of a state each topic has: cheaper than all stats."""
        admin = self._admin()
        return _reached(
            await ask_topics(
                await admin.topics(), lambda topic: admin.count(topic, state), most=MOST
            )
        )

    async def pages(
        self, topics: Sequence[str], state: State, search: Search, *, limit: int, look: int
    ) -> dict[str, Page]:
        """Return the first messages of a state that fit a search, of each of these topics."""

        def ask(topic: str) -> Awaitable[Page]:
            return self.page(topic, state, search, limit=limit, look=look)

        return dict(zip(topics, await ask_all(topics, ask, at_once=AT_ONCE), strict=True))

    async def page(
        self,
        topic: str,
        state: State,
        search: Search,
        *,
        limit: int,
        cursor: str | None = None,
        look: int = LOOK,
    ) -> Page:
        """Return messages of a state that match a search, after reading at most `look`."""
        return await self._admin().list(
            topic, state, filter=_filter(search), limit=limit, cursor=cursor, look=look
        )

    async def message(self, topic: str, id: str) -> MessageView | None:
        """Return one message. None: it is finished or was never there."""
        return await self._admin().get(topic, id)

    async def history(self, topic: str, id: str) -> Sequence[Happening]:
        """Return the history of a message, oldest first, as far as it is kept."""
        return await self._admin().history(topic, id)

    async def find(self, id: str) -> tuple[list[str], bool]:
        """Return the topics that have a message with this id, else those with one in their history;
        and whether all of them could be searched in time."""
        found: list[str] = []

        async def ask(topic: str) -> None:
            if await self.history(topic, id):
                found.append(topic)

        try:
            async with asyncio.timeout(FIND_WITHIN):
                found += [one.topic for one in await self._admin().find(id)]
                if not found:  # to look through the histories takes a hundred times as long
                    await ask_all(await self.topics(), ask, at_once=AT_ONCE)
        except TimeoutError:
            return sorted(found), False
        return sorted(found), True

    async def answers(self) -> bool:
        """Return whether the server answers; concurrent callers share one question."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._answers(), name="mx-rmq dashboard health")
        return await asyncio.shield(self._asking)

    async def _answers(self) -> bool:
        try:
            async with asyncio.timeout(ANSWERS_WITHIN):
                await self.now()
        except (MxRmqError, TimeoutError):
            return False
        return True

    async def workers(self) -> list[WorkerView]:
        """Return the workers, silent ones last."""
        return sorted(await self._admin().workers(), key=lambda one: (not one.alive, one.name))

    # act

    # `seen` is when the message was archived that the operator saw; another one is left alone

    async def requeue(
        self, who: str, topic: str, id: str, state: State | None, seen: float | None
    ) -> bool:
        """Requeue a dead or quarantined message."""
        return await self._admin(who).requeue(topic, id, state=state, archived_at=seen)

    async def edit(
        self, who: str, topic: str, id: str, payload: Any, state: State | None, seen: float | None
    ) -> bool:
        """Requeue a dead or quarantined message with another payload."""
        return await self._admin(who).edit(topic, id, payload, state=state, archived_at=seen)

    async def discard(
        self, who: str, topic: str, id: str, state: State | None, seen: float | None
    ) -> bool:
        """Delete a dead or quarantined message."""
        return await self._admin(who).discard(topic, id, state=state, archived_at=seen)

    async def cancel(self, who: str, topic: str, id: str) -> Cancelled:
        """Cancel a message that no worker has taken."""
        return await self._admin(who).cancel(topic, id)

    async def pause(self, who: str, topic: str) -> bool:
        """Pause a topic; return whether that changed anything."""
        return await self._admin(who).pause(topic)

    async def resume(self, who: str, topic: str) -> bool:
        """Resume a topic; return whether that changed anything."""
        return await self._admin(who).resume(topic)

    async def bulk(
        self,
        who: str,
        act: str,
        topic: str,
        state: State,
        search: Search,
        *,
        limit: int | None = None,
        rate: float | None = None,
        dry_run: bool = False,
        progress: Callable[[Progress], None] | None = None,
    ) -> int:
        """Requeue, discard or cancel the messages of a state that match; return how many."""
        admin = self._admin(who)
        acts = {
            "requeue": admin.requeue_all,
            "discard": admin.discard_all,
            "cancel": admin.cancel_all,
        }
        return await acts[act](
            topic,
            state,
            filter=_filter(search),
            limit=limit,
            rate=rate,
            dry_run=dry_run,
            progress=progress,
        )


def _reached(overview: Overview[T]) -> Overview[T]:
    """Return an overview; fail if no topic could be reached."""
    if overview.away and not overview.topics:
        raise next(iter(overview.away.values()))
    return overview


def _filter(search: Search) -> Filter | None:
    if not search:
        return None
    return Filter(
        error=search.error or None,
        since=search.since,
        until=search.until,
        text=search.text or None,
        as_of=search.as_of,
    )
