"""The producer: concurrent produce calls share script calls.

While a call to a topic is under way, what else is produced to it waits and goes out together with
the next one. A lone caller waits for nobody.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

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


_Waiting = tuple["Draft", "asyncio.Future[Produced]"]


class _Line:
    """What waits to be produced to one topic, by one script."""

    __slots__ = ("busy", "waiting")

    def __init__(self) -> None:
        self.busy = False
        """A call is under way, or about to be made."""
        self.waiting: deque[_Waiting] = deque()


class Producer:
    """Produces to the topics of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lines: dict[tuple[str, bool], _Line] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._quiet = asyncio.Event()

    async def produce(self, topic: str, draft: Draft) -> Produced:
        """Produce one message, together with those that others produce at this moment."""
        line = self._lines.get((topic, is_delayed(draft)))
        if line is None:
            self._store.keys.of(topic)  # refuses a bad name
            line = self._lines[topic, is_delayed(draft)] = _Line()
        if line.busy:
            done: asyncio.Future[Produced] = asyncio.get_running_loop().create_future()
            line.waiting.append((draft, done))
            return await done
        line.busy = True
        try:
            (produced,) = await self.send(topic, [draft])
        finally:
            self._go_on(topic, line)
        return produced

    async def send(self, topic: str, drafts: Sequence[Draft]) -> list[Produced]:
        """Produce messages of one kind by one call: see `chunks`."""
        if is_delayed(drafts[0]):
            return await self._store.produce_delay_message(topic, drafts)
        return await self._store.produce_normal_message(topic, drafts)

    async def close(self) -> None:
        """Wait until nothing waits any more."""
        while any(line.busy for line in self._lines.values()):
            self._quiet.clear()
            await self._quiet.wait()

    def _go_on(self, topic: str, line: _Line) -> None:
        """A caller has his answer: send what has come meanwhile."""
        if not line.waiting:
            line.busy = False
            self._quiet.set()
            return
        task = asyncio.create_task(self._send(topic, line), name="mx-rmq producer")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, topic: str, line: _Line) -> None:
        try:
            while line.waiting:
                batch = [line.waiting.popleft()]
                size = _size(batch[0][0])
                while line.waiting and len(batch) < MAX_BATCH:
                    size += _size(line.waiting[0][0])
                    if size > BYTES:
                        break
                    batch.append(line.waiting.popleft())
                await self._send_batch(topic, batch)
                await asyncio.sleep(0)  # those who have their answers may come again, together
        finally:
            line.busy = False
            self._quiet.set()
            while line.waiting:  # only if the event loop ends
                line.waiting.popleft()[1].cancel()

    async def _send_batch(self, topic: str, batch: list[_Waiting]) -> None:
        try:
            produced = await self.send(topic, [draft for draft, _ in batch])
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
            for (_, done), answer in zip(batch, produced, strict=True):
                if not done.done():
                    done.set_result(answer)


def is_delayed(draft: Draft) -> bool:
    """Say which script a draft is for."""
    return bool(draft.delay) or draft.at is not None


def chunks(drafts: Sequence[Draft]) -> Iterator[list[Draft]]:
    """Cut a sequence of drafts into parts that one call may carry, in order."""
    chunk: list[Draft] = []
    size = 0
    delayed = bool(drafts) and is_delayed(drafts[0])
    for draft in drafts:
        own = _size(draft)
        size += own
        full = len(chunk) == MAX_BATCH or size > BYTES
        if chunk and (full or is_delayed(draft) != delayed):
            yield chunk
            chunk, size, delayed = [], own, is_delayed(draft)
        chunk.append(draft)
    if chunk:
        yield chunk


def _size(draft: Draft) -> int:
    return len(draft.payload) + ENVELOPE


def _fail(one: _Waiting, error: BaseException) -> None:
    _, done = one
    if not done.done():
        done.set_exception(error)
