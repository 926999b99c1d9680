"""MessageQueue: what applications use. Declares handlers and produces messages."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

import msgspec

from mx_rmq.admin import Admin
from mx_rmq.core.codec import encode_payload
from mx_rmq.core.durations import SHORTEST, as_seconds
from mx_rmq.core.errors import InvalidInput, NotOpen
from mx_rmq.core.events import ServerBack, ServerLost
from mx_rmq.core.message import VERSION, Message
from mx_rmq.core.middleware import Middleware, around_produce
from mx_rmq.core.names import check_id, check_key, check_options
from mx_rmq.core.outgoing import (
    Outgoing,
    ProduceOptions,
    check_each,
    check_per_payload,
    payload_list,
)
from mx_rmq.core.sse import HEADERS, HEARTBEAT
from mx_rmq.core.text import shown
from mx_rmq.flow import Flow
from mx_rmq.net.url import check_url
from mx_rmq.router import Router
from mx_rmq.runtime.event_bus import Events
from mx_rmq.runtime.event_log import LOGGED, EventLog
from mx_rmq.runtime.produce_many import produce_many
from mx_rmq.runtime.producer import Producer
from mx_rmq.settings import QueueSettings
from mx_rmq.store import Store
from mx_rmq.sync import SyncQueue
from mx_rmq.waiters import Waiters, server_sent_events

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterator,
        Awaitable,
        Callable,
        Iterable,
        Sequence,
    )
    from contextlib import AbstractAsyncContextManager, AbstractContextManager
    from datetime import datetime

    from mx_rmq.core.dependencies import Overrides
    from mx_rmq.core.duplicates import DuplicatePolicy
    from mx_rmq.core.durations import Seconds
    from mx_rmq.core.status import Status
    from mx_rmq.settings import QueueOptions


class MessageQueue(Router):
    """A queue on one server or a cluster. It connects in `async with mq:`, not when created."""

    sse_headers: Final = HEADERS
    """The headers of a response whose body is `mq.sse(…)`."""

    def __init__(
        self,
        url: str | None = None,
        *,
        middleware: Sequence[Middleware] = (),
        lifespan: Callable[[MessageQueue], AbstractAsyncContextManager[Any]] | None = None,
        **settings: Unpack[QueueOptions],
    ) -> None:
        super().__init__()
        self.settings = QueueSettings.load(url=url, **settings)
        check_url(self.settings.address)
        self._confirm = self.settings.confirmation()
        self.events = Events()
        """Subscribe here to learn what happens to messages and servers."""
        self.on_close: list[Callable[[], Awaitable[object]]] = []
        """Called before the connection closes. Running workers add their `stop` here."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._producer: Producer | None = None
        self._waiters: Waiters | None = None
        self.middleware = tuple(middleware)
        self.lifespan = _check_lifespan(lifespan)
        """Takes the queue, and returns the async context manager around each of its workers."""
        self._in_test_mode = False  # then it stays on the test server
        self.dependency_overrides: Overrides = {}
        """For tests: provider -> the provider that replaces it."""
        self.thread_scope: Callable[[], AbstractContextManager[object]] | None = None
        """Entered around a plain handler and its providers, in their thread; not in `inline`."""
        self.events.subscribe(EventLog().log, *LOGGED)

    # declaring

    def include(self, router: Router) -> None:
        """Add the handlers and crons of a router, and those that it declares later."""
        if not isinstance(router, Router):
            raise InvalidInput(_not_a_router(router))
        for handler in router.handlers.values():
            self._refuse_second(handler)
        if self in router._included_in:
            raise InvalidInput("the queue already includes this router")
        self.handlers.update(router.handlers)
        self.crons.update(router.crons)
        router._included_in.append(self)

    @property
    def _queue(self) -> MessageQueue:
        return self

    # changing and copying

    def move(self, *, url: str | None = None, prefix: str | None = None) -> None:
        """Use a different server or prefix from the next `open` on."""
        if self.is_open:
            raise InvalidInput("the queue is open; close it before you change its URL or prefix")
        settings = self.settings
        moved = replace(settings, url=url or settings.url, prefix=prefix or settings.prefix)
        check_url(moved.address)
        if moved == settings or self._in_test_mode:
            return
        if "sync" in self.__dict__ and self.sync._is_open:
            raise InvalidInput("mq.sync uses the queue: move it before that, or call mq.sync.close")
        self.settings = moved

    def another(self) -> MessageQueue:
        """Return a closed queue with the same settings and middleware, for another event loop."""
        other = copy(self)
        other.__dict__.pop("sync", None)
        other.on_close = []
        other._loop = other._producer = other._waiters = None
        other.middleware = self.middleware
        return other

    @property
    def middleware(self) -> tuple[Middleware, ...]:
        """What wraps produce calls and handlers, the outermost first."""
        return self._middleware

    @middleware.setter
    def middleware(self, middleware: Sequence[Middleware]) -> None:
        self._middleware = tuple(_check_middleware(one) for one in middleware)
        around = around_produce(self._middleware, self._send_each)
        self._via_middleware = None if around == self._send_each else around

    # opening and closing

    async def open(self) -> None:
        """Connect; `close` undoes it."""
        if self.is_open:
            raise InvalidInput("the queue is already open; close it before you open it again")
        self.on_close.clear()  # left over from workers that ended with their event loop
        settings = self.settings
        store = await Store.open(
            settings.address,
            prefix=settings.prefix,
            limits=settings.limits,
            patience=settings.patience,
            load_scripts=settings.load_scripts,
            own_ttl=self._default_ttl,
        )
        store.links.on_lost = lambda error: self.events.emit(ServerLost(error))
        producer = Producer(store, self.handlers)

        def on_back(seconds: float) -> None:
            producer.refresh_partitions()
            self.events.emit(ServerBack(seconds))

        store.links.on_back = on_back
        self._loop, self._producer, self._waiters = asyncio.get_running_loop(), producer, None

    def _default_ttl(self, topic: str) -> int | None:
        handler = self.handlers.get(topic)
        if handler is not None:
            return handler.ttl_ms
        ttl = self.settings.ttl
        return None if ttl is None else round(ttl * 1000)

    async def close(self) -> None:
        """Stop the workers of this queue, finish pending produces, and disconnect."""
        for stop in list(self.on_close):
            await stop()
        waiters, self._waiters = self._waiters, None
        if waiters is not None:
            await waiters.close()
        producer, self._producer, self._loop = self._producer, None, None
        if producer is not None:
            try:
                await producer.close()
            finally:
                await producer.store.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @asynccontextmanager
    async def open_in_app(self, app: object) -> AsyncIterator[None]:
        """Open it while an ASGI application runs: `FastAPI(lifespan=mq.open_in_app)`."""
        async with self:
            yield

    @property
    def is_open(self) -> bool:
        """Whether it is connected."""
        return self._loop is not None and not self._loop.is_closed()

    @property
    def store(self) -> Store:
        """The open store, one layer below: one method per transition."""
        return self._open_producer().store

    def _open_producer(self) -> Producer:
        loop = self._loop
        if self._producer is None or loop is None or loop.is_closed():
            raise NotOpen(
                "the queue is not open: wrap this in `async with mq:`, or pass "
                "lifespan=mq.open_in_app to the web application"
            )
        if asyncio.get_running_loop() is not loop:
            raise NotOpen(
                "the queue was opened in another event loop; from other threads use mq.sync"
            )
        return self._producer

    @property
    def admin(self) -> Admin:
        """The operators' API: counts, lists, requeue, discard, pause, audit."""
        return Admin(self.store)

    @cached_property
    def sync(self) -> SyncQueue:
        """The same queue for code without an event loop: Flask, Django, scripts."""
        return SyncQueue(self)

    # producing

    async def produce(
        self,
        topic: str,
        payload: Any,
        *,
        id: str | None = None,
        key: str | None = None,
        **options: Unpack[ProduceOptions],
    ) -> str:
        """Produce a message and return its id. Once this returns, the message is not lost.

        If a custom `id` is already taken, no second message is stored, and the id is returned;
        `on_duplicate` can change that. Messages with the same `key` stand in one line; lines take
        turns.
        """
        if self._via_middleware is not None:
            outgoing = Outgoing.of(topic, payload, options, id=id, key=key)
            (produced,) = await self._via_middleware([outgoing])
            return produced
        producer, confirm, limit = self._open_producer(), self._confirm, self.settings.max_payload
        policy: DuplicatePolicy | None = None
        if options:
            outgoing = Outgoing.of(topic, payload, options, id=id, key=key)
            message, policy = outgoing.message(limit), outgoing.duplicate_policy()
            confirm = self.settings.confirmation(options.get("confirm"))
        else:
            message = Message(
                v=VERSION,
                topic=topic,
                payload=encode_payload(payload, limit),
                id="" if id is None else check_id(id),
                key=None if key is None else check_key(key),
            )
        heard = self._waiters is not None and id is None and self._waiters.hears(topic)
        made = (await producer.produce(topic, message, confirm=confirm, policy=policy)).id
        if heard and self._waiters is not None:
            self._waiters.produced(topic, made)
        return made

    async def produce_many(
        self,
        topic: str,
        payloads: Iterable[Any],
        *,
        ids: Sequence[str] | None = None,
        keys: Sequence[str | None] | None = None,
        **options: Unpack[ProduceOptions],
    ) -> list[str]:
        """Produce many messages of one topic, in order, and return their ids.

        They are sent in calls of up to 500. Everything is checked before the first call. If a
        later call fails, `PartlyProduced` says which messages are stored.
        """
        check_options("produce_many", options, ProduceOptions, "ids", "keys")
        payloads = payload_list(payloads)
        check_per_payload("ids", ids, len(payloads))
        check_per_payload("keys", keys, len(payloads))
        if not payloads:
            return []
        none = [None] * len(payloads)
        each = zip(payloads, ids or none, keys or none, strict=True)
        template = Outgoing.of(topic, None, options, id=None, key=None)
        if self._via_middleware is not None:
            return await self._via_middleware(
                [replace(template, payload=payload, id=id, key=key) for payload, id, key in each]
            )
        producer, limit = self._open_producer(), self.settings.max_payload
        message = template.message(limit)
        messages = check_each(
            msgspec.structs.replace(
                message,
                payload=encode_payload(payload, limit),
                id="" if id is None else check_id(id),
                key=None if key is None else check_key(key),
            )
            for payload, id, key in each
        )
        confirm = self.settings.confirmation(template.confirm)
        policies: Sequence[DuplicatePolicy | None] = none
        if "on_duplicate" in options or "dedup" in options:
            policies = check_each(replace(template, id=id).duplicate_policy() for id in ids or none)
        return await produce_many(producer, messages, [confirm] * len(messages), policies)

    async def reschedule(
        self,
        topic: str,
        id: str,
        *,
        delay: Seconds | None = None,
        at: datetime | float | None = None,
    ) -> bool:
        """Give a pending or delayed message another due time: `delay` seconds from now, or `at`.

        False: a worker has it, or it is gone. Its ttl does not change.
        """
        return await self.admin.reschedule(topic, id, delay=delay, at=at)

    def flow(self) -> Flow:
        """Start a flow: `async with mq.flow() as flow: flow.produce(…, after=[…])`.

        Its messages are sent together when the block ends, or not at all.
        """
        return Flow(self.store, self.admin, self.middleware)

    async def signal(self, topic: str, id: str, name: str, value: Any = None) -> bool:
        """Send a signal to a message, for its handler's `delivery.wait(name)`.

        Of two signals with one name the first counts. False: there is no such message.
        """
        return await self.admin.signal(topic, id, name, value)

    # waiting

    async def result(
        self,
        topic: str,
        id: str,
        *,
        timeout: Seconds | None = None,  # noqa: ASYNC109 - it raises ResultTimeout
        type: Any = Any,
    ) -> Any:
        """Wait until a message has completed; return what its handler returned, as `type`.

        Its handler needs a `result_ttl`. Raises `MessageDied` if the message is dead or
        quarantined, `ResultTimeout` after `timeout` seconds (at least 0.001), `ResultUnknown` if
        nothing is known of it, and `DecodeError` if the result does not fit `type`. If the server
        goes away meanwhile, it logs that and waits until the server is back.
        """
        return await self._open_waiters().result(topic, id, timeout=timeout, type=type)

    async def status(self, topic: str, id: str) -> Status | None:
        """Return where a message is; None: nothing is known of it."""
        return await self._open_waiters().status(topic, id)

    def watch(self, topic: str, id: str) -> AsyncGenerator[Status, None]:
        """Yield where a message is, now and after every change, until it has ended.

        Progress and the end come at once. Other changes come within half a second; a state that is
        shorter may be skipped. If the server goes away, it logs that and waits until it is back.
        """
        return self._open_waiters().watch(topic, id)

    def sse(
        self, topic: str, id: str, *, heartbeat: Seconds = HEARTBEAT
    ) -> AsyncGenerator[bytes, None]:
        """Yield what `watch` yields as server-sent events, for a response with `mq.sse_headers`.

        The last one is the event `end`, after which a page must close its EventSource. After each
        `heartbeat` seconds of silence a comment is sent.
        """
        every = as_seconds("heartbeat=", heartbeat, SHORTEST)
        return server_sent_events(self.watch(topic, id), every)

    def _open_waiters(self) -> Waiters:
        store = self.store
        if self._waiters is None:
            self._waiters = Waiters(store)
        return self._waiters

    async def _send_each(self, outgoing: Sequence[Outgoing]) -> list[str]:
        """Produce messages that have passed all middleware."""
        producer = self._open_producer()
        limit = self.settings.max_payload
        messages = check_each(one.message(limit) for one in outgoing)
        confirms = check_each(self.settings.confirmation(one.confirm) for one in outgoing)
        policies = check_each(one.duplicate_policy() for one in outgoing)
        if len(outgoing) > 1:
            return await produce_many(producer, messages, confirms, policies)
        (message,), (confirm,), (policy,) = messages, confirms, policies
        produced = await producer.produce(message.topic, message, confirm=confirm, policy=policy)
        return [produced.id]


def _not_a_router(given: Any) -> str:
    """Say what was passed to `include` instead of a router."""
    if not inspect.ismodule(given):
        what = "the class Router" if given is Router else shown(given)
        return f"mq.include takes a Router, such as shop.mail.router, not {what}"
    routers = [name for name, value in vars(given).items() if type(value) is Router]
    hint = f": did you mean {given.__name__}.{routers[0]}?" if routers else ", which has none"
    return f"mq.include takes a Router, not the module {given.__name__}{hint}"


def _check_middleware(one: Any) -> Middleware:
    if isinstance(one, Middleware):
        return one
    raise InvalidInput(
        f"middleware {one!r:.80} is not an instance of a subclass of mx_rmq.Middleware"
    )


def _check_lifespan(lifespan: Any) -> Any:
    """Return a lifespan, or refuse it."""
    if lifespan is None or (callable(lifespan) and not inspect.isasyncgenfunction(lifespan)):
        return lifespan
    raise InvalidInput(
        f"lifespan={lifespan!r:.80} is not a function that takes the queue and returns an async "
        "context manager: decorate it with contextlib.asynccontextmanager"
    )
