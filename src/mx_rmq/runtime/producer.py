"""The producer: concurrent produce calls share script calls.

While a call to a topic is under way, what else is produced to it waits and goes out together with
the next one. A lone caller waits for nobody.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from mx_rmq.core.errors import InvalidInput, MxRmqError, ProduceUnknown, QueueFull
from mx_rmq.store.transitions import MAX_BATCH

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from mx_rmq.core.message import Draft
    from mx_rmq.store import Store
    from mx_rmq.store.answers import Produced
    from mx_rmq.store.transitions import Prepared

BYTES: Final = 1_048_576
"""Bytes of payload in one call, or a single message: a call shall not hold up the server."""

CHUNK: Final = 500
"""Messages in one call of `produce_all`: the next one is prepared while the server works on it."""

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
        self._quiet: asyncio.Event | None = None
        """Set when a line falls quiet, if somebody waits for that."""

    async def produce(self, topic: str, draft: Draft) -> Produced:
        """Produce one message, together with those that others produce at this moment."""
        delayed = is_delayed(draft)
        line = self._lines.get((topic, delayed))
        if line is None:
            self._store.keys.of(topic)  # refuses a bad name
            line = self._lines[topic, delayed] = _Line()
        if line.busy:
            done: asyncio.Future[Produced] = asyncio.get_running_loop().create_future()
            line.waiting.append((draft, done))
            return await done
        line.busy = True
        try:
            (produced,) = await self._store.produce(self.prepare(topic, [draft]))
        finally:
            self._go_on(topic, line)
        return produced

    async def produce_all(self, topic: str, drafts: Sequence[Draft]) -> AsyncIterator[list[str]]:
        """Produce messages in order, in as many calls as they need; yield the ids of each call.

        The next call is prepared while the server works on the last one.
        """
        sending: asyncio.Task[list[Produced]] | None = None
        try:
            for chunk in chunks(drafts):
                try:
                    call = self.prepare(topic, chunk)
                except MxRmqError:  # refused; but what is under way may be stored
                    if sending is not None:
                        yield [produced.id for produced in await sending]
                    raise
                if sending is not None:
                    yield [produced.id for produced in await sending]
                sending = asyncio.create_task(self._store.produce(call), name="mx-rmq producer")
                await asyncio.sleep(0)  # so that it is on its way
            if sending is not None:
                yield [produced.id for produced in await sending]
        finally:
            if sending is not None:
                sending.cancel()  # nothing, unless the caller was cancelled

    def prepare(self, topic: str, drafts: Sequence[Draft]) -> Prepared:
        """Get the call of messages of one kind ready: see `chunks`."""
        delayed = is_delayed(drafts[0])
        script = "produce_delay_message" if delayed else "produce_normal_message"
        return self._store.prepare(script, topic, drafts)

    async def close(self) -> None:
        """Wait until nothing waits any more."""
        while any(line.busy for line in self._lines.values()):
            self._quiet = asyncio.Event()
            await self._quiet.wait()

    def _go_on(self, topic: str, line: _Line) -> None:
        """A caller has his answer: send what has come meanwhile."""
        if not line.waiting:
            self._fall_quiet(line)
            return
        task = asyncio.create_task(self._send(topic, line), name="mx-rmq producer")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _fall_quiet(self, line: _Line) -> None:
        line.busy = False
        if self._quiet is not None:
            self._quiet.set()

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
            self._fall_quiet(line)
            while line.waiting:  # only if the event loop ends
                line.waiting.popleft()[1].cancel()

    async def _send_batch(self, topic: str, batch: list[_Waiting]) -> None:
        try:
            call = self.prepare(topic, [draft for draft, _ in batch])
            produced = await self._store.produce(call)
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
    size, delayed = 0, False
    for draft in drafts:
        own = len(draft.payload) + ENVELOPE
        size += own
        waits = bool(draft.delay) or draft.at is not None
        if chunk and (size > BYTES or waits != delayed or len(chunk) == CHUNK):
            yield chunk
            chunk, size = [], own
        delayed = waits
        chunk.append(draft)
    if chunk:
        yield chunk


def _size(draft: Draft) -> int:
    return len(draft.payload) + ENVELOPE


def _fail(one: _Waiting, error: BaseException) -> None:
    _, done = one
    if not done.done():
        done.set_exception(error)
