"""The producer: concurrent produce calls share script calls.

While a call to a topic is under way, what else is produced to it waits and goes out together with
the next one. A lone caller waits for nobody.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from mx_rmq.core.errors import InvalidInput, ProduceUnknown, QueueFull
from mx_rmq.store.transitions import MAX_BATCH

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mx_rmq.core.message import Draft
    from mx_rmq.store import Store
    from mx_rmq.store.answers import Produced

BYTES: Final = 1_048_576
"""Bytes of payload in one call, or a single message: a call shall not hold up the server."""

ENVELOPE: Final = 300
"""Bytes that a message takes beside its payload, about."""


class _Waiting(NamedTuple):
    draft: Draft
    done: asyncio.Future[Produced]


class _Line:
    """What waits to be produced to one topic, by one script."""

    def __init__(self) -> None:
        self.waiting: deque[_Waiting] = deque()
        self.task: asyncio.Task[None] | None = None


class Producer:
    """Produces to the topics of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lines: dict[tuple[str, bool], _Line] = {}

    async def produce(self, topic: str, draft: Draft) -> Produced:
        """Produce one message, together with those that others produce at this moment."""
        self._store.keys.of(topic)  # refuses a bad name
        line = self._lines.setdefault((topic, is_delayed(draft)), _Line())
        waiting = _Waiting(draft, asyncio.get_running_loop().create_future())
        line.waiting.append(waiting)
        if line.task is None:
            line.task = asyncio.create_task(self._send(topic, line), name="mx-rmq producer")
        return await waiting.done

    async def send(self, topic: str, drafts: Sequence[Draft]) -> list[Produced]:
        """Produce messages of one kind by one call: see `chunks`."""
        if is_delayed(drafts[0]):
            return await self._store.produce_delay_message(topic, drafts)
        return await self._store.produce_normal_message(topic, drafts)

    async def close(self) -> None:
        """Wait until nothing waits any more."""
        while tasks := [line.task for line in self._lines.values() if line.task is not None]:
            await asyncio.wait(tasks)

    async def _send(self, topic: str, line: _Line) -> None:
        try:
            while line.waiting:
                batch = [line.waiting.popleft()]
                size = _size(batch[0].draft)
                while line.waiting and len(batch) < MAX_BATCH:
                    size += _size(line.waiting[0].draft)
                    if size > BYTES:
                        break
                    batch.append(line.waiting.popleft())
                await self._send_batch(topic, batch)
        finally:
            line.task = None
            while line.waiting:  # only if the event loop ends
                line.waiting.popleft().done.cancel()

    async def _send_batch(self, topic: str, batch: list[_Waiting]) -> None:
        try:
            produced = await self.send(topic, [one.draft for one in batch])
        except (QueueFull, InvalidInput) as error:
            if len(batch) == 1:
                _fail(batch[0], error)
                return
            for one in batch:  # it need not be true of all: each caller gets his own answer
                await self._send_batch(topic, [one])
        except ProduceUnknown as error:
            for one, id in zip(batch, error.ids, strict=True):
                _fail(one, ProduceUnknown(str(error), [id]))
        except BaseException as error:
            for one in batch:
                _fail(one, error)
            if not isinstance(error, Exception):
                raise
        else:
            for one, answer in zip(batch, produced, strict=True):
                if not one.done.done():
                    one.done.set_result(answer)


def is_delayed(draft: Draft) -> bool:
    """Say which script a draft is for."""
    return bool(draft.delay) or draft.at is not None


def chunks(drafts: Sequence[Draft]) -> Iterator[list[Draft]]:
    """Cut a sequence of drafts into parts that one call may carry, in order."""
    chunk: list[Draft] = []
    size = 0
    for draft in drafts:
        size += _size(draft)
        full = len(chunk) == MAX_BATCH or size > BYTES
        if chunk and (full or is_delayed(draft) != is_delayed(chunk[0])):
            yield chunk
            chunk, size = [], _size(draft)
        chunk.append(draft)
    if chunk:
        yield chunk


def _size(draft: Draft) -> int:
    return memoryview(draft.payload).nbytes + ENVELOPE


def _fail(one: _Waiting, error: BaseException) -> None:
    if not one.done.done():
        one.done.set_exception(error)
