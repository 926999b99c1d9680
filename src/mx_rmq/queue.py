"""MessageQueue: what applications use. Declares handlers and produces messages."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

import msgspec

from mx_rmq.admin import Admin
from mx_rmq.core.codec import encode_payload
from mx_rmq.core.cron import Cron
from mx_rmq.core.errors import InvalidInput, NotOpen
from mx_rmq.core.events import ServerBack, ServerLost
from mx_rmq.core.handler import CronOptions, Handler, HandlerOptions
from mx_rmq.core.message import VERSION, Message
from mx_rmq.core.middleware import around_produce
from mx_rmq.core.names import check_id, check_options, check_topic
from mx_rmq.core.outgoing import Outgoing, ProduceOptions, check_each
from mx_rmq.core.partition import check_key
from mx_rmq.net.url import check_url
from mx_rmq.runtime.event_bus import Events
from mx_rmq.runtime.event_log import LOGGED, EventLog
from mx_rmq.runtime.produce_many import produce_many
from mx_rmq.runtime.producer import Producer
from mx_rmq.settings import QueueSettings
from mx_rmq.store import Store
from mx_rmq.sync import SyncQueue

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence
    from datetime import tzinfo

    from mx_rmq.core.duplicates import Terms
    from mx_rmq.core.middleware import Middleware
    from mx_rmq.settings import QueueOptions

F = TypeVar("F", bound="Callable[..., Any]")


class MessageQueue:
    """A queue on one server or a cluster. It connects in `async with mq:`, not when created."""

    def __init__(
        self,
        url: str | None = None,
        *,
        middleware: Sequence[Middleware] = (),
        **settings: Unpack[QueueOptions],
    ) -> None:
        self.settings = QueueSettings.load(url=url, **settings)
        check_url(self.settings.address)
        self._confirm = self.settings.confirmation()
        self.events = Events()
        """Subscribe here to learn what happens to messages and servers."""
        self.handlers: dict[str, Handler] = {}
        self.crons: dict[str, Cron] = {}
        self.on_close: list[Callable[[], Awaitable[object]]] = []
        """Called before the connection closes. Running workers add their `stop` here."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._producer: Producer | None = None
        self.middleware = tuple(middleware)
        self.events.subscribe(EventLog().log, *LOGGED)

    # declaring

    def handler(self, topic: str, **options: Unpack[HandlerOptions]) -> Callable[[F], F]:
        """Declare a function as the handler of a topic. Options: see `HandlerOptions`.

        With `partitions` and concurrency=1, all workers together handle the messages of a
        partition one at a time and in order.
        """
        if callable(topic):
            raise InvalidInput('@mq.handler needs a topic: @mq.handler("order.created")')
        check_topic(topic)
        check_options("handler", options, HandlerOptions)
        names = sys._getframe(1).f_locals  # the handler's annotations may name local classes

        def declare(function: F) -> F:
            self._declare(Handler.of(topic, function, names=names, **options))
            return function

        return declare

    def cron(
        self,
        expression: str,
        *,
        tz: str | tzinfo = "UTC",
        missed: str = "skip",
        topic: str | None = None,
        concurrency: int = 1,
        **options: Unpack[CronOptions],
    ) -> Callable[[F], F]:
        """Declare a function that runs at every tick, once across all workers."""
        if callable(expression):
            raise InvalidInput('@mq.cron needs a schedule: @mq.cron("*/5 * * * *")')
        check_options("cron", options, CronOptions, "tz", "missed", "topic", "concurrency")
        cron = Cron.of(topic or "cron", expression, tz, missed)
        names = sys._getframe(1).f_locals

        def declare(function: F) -> F:
            name = topic or f"cron.{getattr(function, '__name__', 'function')}"
            handler = Handler.of(
                name, function, names=names, cron=True, concurrency=concurrency, **options
            )
            self._declare(handler)
            self.crons[name] = replace(cron, topic=name)
            return function

        return declare

    def _declare(self, handler: Handler) -> None:
        known = self.handlers.get(handler.topic)
        if known is not None:
            raise InvalidInput(
                f"topic {handler.topic!r} already has the handler {known.name}; "
                f"{handler.name} needs a different topic"
            )
        self.handlers[handler.topic] = handler

    # changing and copying

    def move(self, *, url: str | None = None, prefix: str | None = None) -> None:
        """Use a different server or prefix from the next `open` on."""
        if self.is_open:
            raise InvalidInput("the queue is open; close it before you change its URL or prefix")
        settings = self.settings
        moved = replace(settings, url=url or settings.url, prefix=prefix or settings.prefix)
        check_url(moved.address)
        self.settings = moved

    def another(self) -> MessageQueue:
        """Return a closed queue with the same settings and middleware, for another event loop."""
        other = copy(self)
        other.__dict__.pop("sync", None)
        other.on_close = []
        other._loop = other._producer = None
        other.middleware = self.middleware
        return other

    @property
    def middleware(self) -> tuple[Middleware, ...]:
        """What wraps produce calls and handlers, the outermost first."""
        return self._middleware

    @middleware.setter
    def middleware(self, middleware: Sequence[Middleware]) -> None:
        self._middleware = tuple(middleware)
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
        )
        store.links.on_lost = lambda error: self.events.emit(ServerLost(error))
        producer = Producer(store, self.handlers)

        def on_back(seconds: float) -> None:
            producer.refresh_partitions()
            self.events.emit(ServerBack(seconds))

        store.links.on_back = on_back
        self._loop, self._producer = asyncio.get_running_loop(), producer

    async def close(self) -> None:
        """Stop the workers of this queue, finish pending produces, and disconnect."""
        for stop in list(self.on_close):
            await stop()
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
            raise NotOpen("the queue is not open: wrap this in `async with mq:`")
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
        `on_duplicate` can change that. Messages with the same `key` go to the same partition of the
        topic.
        """
        if self._via_middleware is not None:
            outgoing = Outgoing.of(topic, payload, options, id=id, key=key)
            (produced,) = await self._via_middleware([outgoing])
            return produced
        producer, confirm, limit = self._open_producer(), self._confirm, self.settings.max_payload
        terms: Terms | None = None
        if options:
            outgoing = Outgoing.of(topic, payload, options, id=id, key=key)
            message, terms = outgoing.message(limit), outgoing.terms()
            confirm = self.settings.confirmation(options.get("confirm"))
        else:
            message = Message(
                v=VERSION,
                topic=topic,
                payload=encode_payload(payload, limit),
                id="" if id is None else check_id(id),
            )
        if key is not None:
            check_key(key)
        return (await producer.produce(topic, message, key=key, confirm=confirm, terms=terms)).id

    async def produce_many(
        self,
        topic: str,
        payloads: Iterable[Any],
        *,
        ids: Sequence[str] | None = None,
        keys: Sequence[str] | None = None,
        **options: Unpack[ProduceOptions],
    ) -> list[str]:
        """Produce many messages of one topic, in order, and return their ids.

        They are sent in calls of up to 500. Everything is checked before the first call. If a
        later call fails, `PartlyProduced` says which messages are stored.
        """
        check_options("produce_many", options, ProduceOptions, "ids", "keys")
        if isinstance(payloads, str | bytes | bytearray | Mapping):
            raise InvalidInput(
                f"produce_many takes a list of payloads, not one {type(payloads).__name__}"
            )
        payloads = list(payloads)
        if ids is not None and len(ids) != len(payloads):
            raise InvalidInput(f"{len(ids)} ids for {len(payloads)} payloads")
        if keys is not None and len(keys) != len(payloads):
            raise InvalidInput(f"{len(keys)} keys for {len(payloads)} payloads")
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
            )
            for payload, id, _ in each
        )
        if keys is not None:
            keys = check_each(check_key(key) for key in keys)
        confirm = self.settings.confirmation(template.confirm)
        terms: Sequence[Terms | None] = none
        if "on_duplicate" in options or "dedup" in options:
            terms = check_each(replace(template, id=id).terms() for id in ids or none)
        return await produce_many(
            producer, messages, keys or none, [confirm] * len(messages), terms
        )

    async def _send_each(self, outgoing: Sequence[Outgoing]) -> list[str]:
        """Produce messages that have passed all middleware."""
        producer = self._open_producer()
        messages = check_each(one.message(self.settings.max_payload) for one in outgoing)
        keys = check_each(None if one.key is None else check_key(one.key) for one in outgoing)
        confirms = check_each(self.settings.confirmation(one.confirm) for one in outgoing)
        terms = check_each(one.terms() for one in outgoing)
        if len(outgoing) > 1:
            return await produce_many(producer, messages, keys, confirms, terms)
        (message,), (key,), (confirm,), (own,) = messages, keys, confirms, terms
        produced = await producer.produce(
            message.topic, message, key=key, confirm=confirm, terms=own
        )
        return [produced.id]
