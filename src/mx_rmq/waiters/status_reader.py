"""Reads where messages are. Callers that ask during a read share the next one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from mx_rmq.core.errors import MxRmqError, ServerUnavailable
from mx_rmq.runtime.loop import how_it_ended, spawn
from mx_rmq.safe_log import get_logger
from mx_rmq.store.waiter_calls import MAX_IDS, RawStatus

if TYPE_CHECKING:
    from mx_rmq.store import Store

logger = get_logger(__name__)

UNREAD: Final = "read_status: the task that reads for all waiters was cancelled"

Answer = asyncio.Future[RawStatus | None]
_Asked = dict[str, list[Answer]]  # by id


class StatusReader:
    """Reads the messages of one partition.

    `live`: also the records of live messages. `with_progress`: also their progress.
    """

    def __init__(
        self, store: Store, part: str, *, live: bool = False, with_progress: bool = False
    ) -> None:
        self._store = store
        self._part = part
        self._live = live
        self._with_progress = with_progress
        self._asked: _Asked = {}
        self._task: asyncio.Task[None] | None = None

    def read(self, id: str) -> Answer:
        """Return what will be where the message is; None: nothing is known of it."""
        answer: Answer = asyncio.get_running_loop().create_future()
        self._asked.setdefault(id, []).append(answer)
        if self._task is None or self._task.done():
            self._task = spawn("waiters", self._read_all)
            self._task.add_done_callback(self._has_read)
        return answer

    async def _read_all(self) -> None:
        while self._asked:
            asked = dict(list(self._asked.items())[:MAX_IDS])
            for id in asked:
                del self._asked[id]
            await self._read(asked)

    def _has_read(self, task: asyncio.Task[None]) -> None:
        """Tell those whose turn never came: some code cancels all tasks."""
        if not task.cancelled() and task.exception() is not None:
            logger.error("reading for waiters: %s", how_it_ended(task))
        if task is self._task:
            asked, self._asked = self._asked, {}
            _fail(asked, ServerUnavailable(UNREAD))

    async def _read(self, asked: _Asked) -> None:
        ids = list(asked)
        try:
            found = await self._store.read_status(
                self._part, ids, live=self._live, with_progress=self._with_progress
            )
        except MxRmqError as error:
            _fail(asked, error)
            return
        except BaseException:
            _fail(asked, ServerUnavailable(UNREAD))
            raise
        for id, one in zip(ids, found, strict=True):
            for answer in asked[id]:
                if not answer.done():
                    answer.set_result(one)


def _fail(asked: _Asked, error: MxRmqError) -> None:
    for answer in (answer for answers in asked.values() for answer in answers):
        if not answer.done():
            answer.set_exception(error)
