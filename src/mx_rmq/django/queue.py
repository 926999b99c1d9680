"""The queue of a Django project, made from `settings.MX_RMQ`.

A Django process has many threads and event loops that come and go: under WSGI, an async view gets a
new loop for each request. So the queue is not opened in them. A call, from any thread or loop, runs
in the one background loop of `mq.sync`. The first call opens the queue there, a forked child opens
it again, and it is closed when the process ends. Only a worker opens it in its own loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from contextlib import asynccontextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from mx_rmq.core.errors import InvalidInput, NotOpen
from mx_rmq.django.connections import FreshConnections, fresh_connections
from mx_rmq.queue import MessageQueue
from mx_rmq.settings import QueueOptions, WorkerSettings

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

OPTIONS: Final = ("url", *QueueOptions.__annotations__, "middleware", "lifespan")


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

    def flow(self) -> AbstractAsyncContextManager[Flow]:  # type: ignore[override]
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


def queue_from(given: Any, **overrides: Any) -> DjangoQueue:
    """Return a queue made from settings.MX_RMQ. Overrides that are None are ignored."""
    if not isinstance(given, Mapping):  # not shown: it may be a URL with a password
        raise ImproperlyConfigured(
            f"settings.MX_RMQ is of type {type(given).__name__}, not a dict of the options of "
            'MessageQueue, such as {"url": "redis://localhost:6379/0"}'
        )
    for name in given:
        _check_name(name)
    options = {**given, **{name: one for name, one in overrides.items() if one is not None}}
    given_middleware = options.pop("middleware", ())
    if isinstance(given_middleware, str) or not isinstance(given_middleware, list | tuple):
        raise ImproperlyConfigured(
            f'settings.MX_RMQ["middleware"]={given_middleware!r:.80} is not a list of classes'
        )
    middleware = [_made(_imported("middleware", one)) for one in given_middleware]
    lifespan = _imported("lifespan", options.pop("lifespan", None))
    try:
        mq = DjangoQueue(middleware=[FreshConnections(), *middleware], lifespan=lifespan, **options)
    except InvalidInput as error:
        raise ImproperlyConfigured(f"settings.MX_RMQ: {error}") from error
    mq.thread_scope = fresh_connections
    return mq


def _check_name(name: Any) -> None:
    if name in OPTIONS:
        return
    if name in {one.name for one in fields(WorkerSettings)}:
        why = (
            f"{name!r} is a setting of workers: pass it to `manage.py mx_rmq worker`, or set "
            f"MX_RMQ_{name.upper()} in the environment"
        )
    elif isinstance(name, str) and name.lower() in OPTIONS:
        why = f"{name!r} is not an option; did you mean {name.lower()!r}?"
    else:
        why = f"{name!r:.80} is not an option; the options are {', '.join(OPTIONS)}"
    raise ImproperlyConfigured(f"settings.MX_RMQ: {why}")


def _imported(option: str, value: Any) -> Any:
    """Import a dotted path; return anything else as it is."""
    if not isinstance(value, str):
        return value
    try:
        return import_string(value)
    except ImportError as error:
        raise ImproperlyConfigured(f'settings.MX_RMQ["{option}"]: {error}') from error


def _made(middleware: Any) -> Any:
    return middleware() if isinstance(middleware, type) else middleware


class _Shared:
    """The one queue of this process."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._mq: DjangoQueue | None = None

    def get(self) -> DjangoQueue:
        if self._mq is None:  # else no lock: a process may fork while another thread has it
            with self._lock:
                if self._mq is None:
                    mq = queue_from(getattr(settings, "MX_RMQ", {}))
                    _ = mq.sync  # made once, before any thread asks for it
                    self._mq = mq
        return self._mq


shared_queue = _Shared().get
