"""A queue for code whose event loops come and go.

A Django process has many threads and event loops that come and go: under WSGI, an async view gets a
new loop for each request. So the queue is not opened in them. A call, from any thread or loop, runs
in the one background loop of `mq.sync`. The first call opens the queue there, a forked child opens
it again, and it is closed when the process ends. Only a worker opens it in its own loop.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from mx_rmq.core.errors import NotOpen
from mx_rmq.queue import MessageQueue

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterator,
        Awaitable,
        Callable,
        Iterable,
        Sequence,
    )
    from contextlib import AbstractAsyncContextManager
    from datetime import datetime

    from mx_rmq.core.durations import Seconds
    from mx_rmq.core.outgoing import ProduceOptions
    from mx_rmq.core.status import Status
    from mx_rmq.flow import Flow
    from mx_rmq.runtime.producer import Producer

T = TypeVar("T")


class DjangoQueue(MessageQueue):
    """A MessageQueue whose methods can be awaited in any event loop, without opening it."""

    async def produce(
        self,
        topic: str,
        payload: Any,
        *,
        id: str | None = None,
        key: str | None = None,
        **options: Unpack[ProduceOptions],
    ) -> str:
        """Produce a message and return its id. Once this returns, the message is not lost."""
        return await self._call(
            lambda mq: MessageQueue.produce(mq, topic, payload, id=id, key=key, **options)
        )

    async def produce_many(
        self,
        topic: str,
        payloads: Iterable[Any],
        *,
        ids: Sequence[str] | None = None,
        keys: Sequence[str | None] | None = None,
        **options: Unpack[ProduceOptions],
    ) -> list[str]:
        """Produce many messages of one topic, in order, and return their ids."""
        return await self._call(
            lambda mq: MessageQueue.produce_many(mq, topic, payloads, ids=ids, keys=keys, **options)
        )

    async def reschedule(
        self,
        topic: str,
        id: str,
        *,
        delay: Seconds | None = None,
        at: datetime | float | None = None,
    ) -> bool:
        """Give a pending or delayed message another due time."""
        return await self._call(
            lambda mq: MessageQueue.reschedule(mq, topic, id, delay=delay, at=at)
        )

    def flow(self) -> AbstractAsyncContextManager[Flow]:  # type: ignore[override]  # only to enter
        """Start a flow: `async with mq.flow() as flow:`, or `with mq.sync.flow() as flow:`."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise NotOpen("no event loop runs here: use `with mq.sync.flow() as flow:`") from None
        return super().flow() if self._is_open_here else self._flow_there()

    @asynccontextmanager
    async def _flow_there(self) -> AsyncIterator[Flow]:
        flow = await self.sync.acall(lambda mq: mq.flow().__aenter__())
        try:
            yield flow
        except BaseException as error:
            await flow.__aexit__(type(error))  # sends nothing
            raise
        await self.sync.acall(lambda _: flow.__aexit__(None))

    async def signal(self, topic: str, id: str, name: str, value: Any = None) -> bool:
        """Send a signal to a message, for its handler's `delivery.wait(name)`."""
        return await self._call(lambda mq: MessageQueue.signal(mq, topic, id, name, value))

    async def result(
        self,
        topic: str,
        id: str,
        *,
        timeout: Seconds | None = None,  # noqa: ASYNC109 - it raises ResultTimeout
        type: Any = Any,
    ) -> Any:
        """Wait until a message has completed; return what its handler returned, as `type`."""
        return await self._call(
            lambda mq: MessageQueue.result(mq, topic, id, timeout=timeout, type=type)
        )

    async def status(self, topic: str, id: str) -> Status | None:
        """Return where a message is; None: nothing is known of it."""
        return await self._call(lambda mq: MessageQueue.status(mq, topic, id))

    def watch(self, topic: str, id: str) -> AsyncGenerator[Status, None]:
        """Yield where a message is, now and after every change, until it has ended."""
        return super().watch(topic, id) if self._is_open_here else self._watch_there(topic, id)

    async def _watch_there(self, topic: str, id: str) -> AsyncGenerator[Status, None]:
        watching: AsyncGenerator[Status, None] | None = None

        async def next_one(mq: MessageQueue) -> Status | None:
            nonlocal watching
            watching = watching or mq.watch(topic, id)
            return await anext(watching, None)

        async def leave(_: MessageQueue) -> None:
            if watching is not None:
                await watching.aclose()

        try:
            while (status := await self.sync.acall(next_one)) is not None:
                yield status
        except GeneratorExit:  # a cancelled call has ended it already
            await self.sync.acall(leave)
            raise

    async def _call(self, method: Callable[[MessageQueue], Awaitable[T]]) -> T:
        """Call a method where the queue is open: in this event loop, or in that of mq.sync."""
        return await (method(self) if self._is_open_here else self.sync.acall(method))

    @property
    def _is_open_here(self) -> bool:
        """Whether the running event loop has opened it: that of a worker, or of mq.sync."""
        return self._loop is not None and self._loop is asyncio.get_running_loop()

    def _open_producer(self) -> Producer:
        try:
            return super()._open_producer()
        except (NotOpen, RuntimeError):
            raise NotOpen(
                "a Django project does not open its queue: use "
                "`await mq.sync.acall(lambda mq: mq.admin.topics())`, and mq.sync.call where "
                "nothing can be awaited"
            ) from None
