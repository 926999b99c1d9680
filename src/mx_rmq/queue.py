"""MessageQueue: what applications hold. Declares handlers, produces messages."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from mx_rmq.admin import Admin
from mx_rmq.core.config import QueueSettings
from mx_rmq.core.cron import Cron
from mx_rmq.core.errors import InvalidInput, NotOpen
from mx_rmq.core.events import ServerBack, ServerLost
from mx_rmq.core.handler import MAX_CRASHES, Handler
from mx_rmq.core.message import Priority
from mx_rmq.core.middleware import Outgoing, around_produce
from mx_rmq.core.names import check_id, check_topic
from mx_rmq.core.options import all_of, draft_options, timestamp
from mx_rmq.core.partition import check_key
from mx_rmq.runtime.bus import Events
from mx_rmq.runtime.producer import Producer
from mx_rmq.runtime.report import LOGGED, log
from mx_rmq.runtime.runs import Outbound, Run, produce_runs, runs_of
from mx_rmq.store import Store
from mx_rmq.store.connect import check_url
from mx_rmq.sync import SyncQueue

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence
    from datetime import datetime, tzinfo

    from mx_rmq.core.message import Draft
    from mx_rmq.core.middleware import Middleware

F = TypeVar("F", bound="Callable[..., Any]")


class MessageQueue:
    """A queue on one server or a cluster. Making it connects to nothing; `async with mq:` does."""

    def __init__(
        self,
        url: str | None = None,
        *,
        middleware: Sequence[Middleware] = (),
        prefix: str | None = None,
        lease: float | None = None,
        patience: float | None = None,
        username: str | None = None,
        password: str | None = None,
        password_file: str | None = None,
        confirm: str | None = None,
        confirm_replicas: int | None = None,
        confirm_within: float | None = None,
        max_payload: int | None = None,
        max_pending: int | None = None,
        dedup: float | None = None,
        dlq_max: int | None = None,
        dlq_ttl: float | None = None,
        dlq_max_bytes: int | None = None,
        quarantine_max: int | None = None,
        quarantine_ttl: float | None = None,
        quarantine_bytes: int | None = None,
        quarantine_max_bytes: int | None = None,
        history: int | None = None,
        load_scripts: bool | None = None,
    ) -> None:
        self.settings = QueueSettings.load(
            url=url,
            prefix=prefix,
            lease=lease,
            patience=patience,
            username=username,
            password=password,
            password_file=password_file,
            confirm=confirm,
            confirm_replicas=confirm_replicas,
            confirm_within=confirm_within,
            max_payload=max_payload,
            max_pending=max_pending,
            dedup=dedup,
            dlq_max=dlq_max,
            dlq_ttl=dlq_ttl,
            dlq_max_bytes=dlq_max_bytes,
            quarantine_max=quarantine_max,
            quarantine_ttl=quarantine_ttl,
            quarantine_bytes=quarantine_bytes,
            quarantine_max_bytes=quarantine_max_bytes,
            history=history,
            load_scripts=load_scripts,
        )
        check_url(self.settings.address)
        self._confirm = self.settings.confirmation()
        self.events = Events()
        """Whoever wants to know what happens subscribes here."""
        self.handlers: dict[str, Handler] = {}
        self.crons: dict[str, Cron] = {}
        self.on_close: list[Callable[[], Awaitable[object]]] = []
        """What must be done before the connection goes: running workers stop."""
        self._store: Store | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._producer: Producer | None = None
        self.middleware = tuple(middleware)
        self.events.subscribe(log, *LOGGED)

    # declaring

    def handler(
        self,
        topic: str,
        *,
        concurrency: int | None = None,
        timeout: float | None = None,
        max_attempts: int = 5,
        max_crashes: int = MAX_CRASHES,
        retry: Any = None,
        partitions: int | None = None,
    ) -> Callable[[F], F]:
        """Declare the function below as the handler of a topic.

        With `partitions` and concurrency=1, the messages of a partition are handled one at a time
        and in order, over all workers.
        """
        if callable(topic):
            raise InvalidInput('@mq.handler needs a topic: @mq.handler("order.created")')
        check_topic(topic)
        names = sys._getframe(1).f_locals

        def declare(function: F) -> F:
            self._declare(
                Handler.of(
                    topic,
                    function,
                    names=names,
                    concurrency=concurrency,
                    timeout=timeout,
                    max_attempts=max_attempts,
                    max_crashes=max_crashes,
                    retry=retry,
                    partitions=partitions,
                )
            )
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
        timeout: float | None = None,
        max_attempts: int = 5,
        max_crashes: int = MAX_CRASHES,
        retry: Any = None,
    ) -> Callable[[F], F]:
        """Declare the function below to run at every tick, once over all workers."""
        if callable(expression):
            raise InvalidInput('@mq.cron needs a schedule: @mq.cron("*/5 * * * *")')
        Cron.of(topic or "cron", expression, tz, missed)
        names = sys._getframe(1).f_locals

        def declare(function: F) -> F:
            name = topic or f"cron.{getattr(function, '__name__', 'function')}"
            cron = Cron.of(name, expression, tz, missed)
            self._declare(
                Handler.of(
                    name,
                    function,
                    names=names,
                    cron=True,
                    concurrency=concurrency,
                    timeout=timeout,
                    max_attempts=max_attempts,
                    max_crashes=max_crashes,
                    retry=retry,
                )
            )
            self.crons[name] = cron
            return function

        return declare

    def _declare(self, handler: Handler) -> None:
        known = self.handlers.get(handler.topic)
        if known is not None:
            raise InvalidInput(
                f"topic {handler.topic!r} has the handler {known.name} already; "
                f"{handler.name} needs a topic of its own"
            )
        self.handlers[handler.topic] = handler

    def move(self, *, url: str | None = None, prefix: str | None = None) -> None:
        """Use another server or prefix than was set, from the next `open` on."""
        if self.is_open:
            raise InvalidInput("the queue is open; it can be moved only while it is closed")
        settings = self.settings
        moved = replace(settings, url=url or settings.url, prefix=prefix or settings.prefix)
        check_url(moved.address)
        self.settings = moved

    def another(self) -> MessageQueue:
        """Return a queue with the same settings and middleware, not open, for another loop."""
        other = copy(self)
        other.__dict__.pop("sync", None)
        other.on_close = []
        other._store = other._loop = other._producer = None
        other.middleware = self.middleware
        return other

    @property
    def middleware(self) -> tuple[Middleware, ...]:
        """What stands around produce and handling, the outermost first."""
        return self._middleware

    @middleware.setter
    def middleware(self, middleware: Sequence[Middleware]) -> None:
        self._middleware = tuple(middleware)
        around = around_produce(self._middleware, self._send_each)
        self._around = None if around == self._send_each else around
        """What stands around a produce; None: nothing."""

    # opening and closing

    async def open(self) -> None:
        """Connect; `close` undoes it."""
        if self.is_open:
            raise InvalidInput("the queue is open already; close it before it is opened again")
        self.on_close.clear()  # of workers that ended with their event loop
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

        def back(seconds: float) -> None:
            producer.learn_again()
            self.events.emit(ServerBack(seconds))

        store.links.on_back = back
        self._store, self._loop, self._producer = store, asyncio.get_running_loop(), producer

    async def close(self) -> None:
        """Stop the workers that run on it, finish what is being produced, and disconnect."""
        for stop in list(self.on_close):
            await stop()
        store, producer = self._store, self._producer
        self._store = self._producer = self._loop = None
        try:
            if producer is not None:
                await producer.close()
        finally:
            if store is not None:
                await store.close()

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
        """The open store."""
        if self._store is None or not self.is_open:
            raise NotOpen("the queue is not open: put `async with mq:` around this")
        if asyncio.get_running_loop() is not self._loop:
            raise NotOpen(
                "the queue was opened in another event loop; from other threads use mq.sync"
            )
        return self._store

    @property
    def admin(self) -> Admin:
        """What operators need: counts, lists, requeue, discard, pause, audit."""
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
        delay: float | None = None,
        at: datetime | float | None = None,
        priority: str = Priority.NORMAL,
        ttl: float | None = None,
        id: str | None = None,
        headers: dict[str, str] | None = None,
        max_attempts: int | None = None,
        retry: Any = None,
        key: str | None = None,
        confirm: str | None = None,
    ) -> str:
        """Produce a message and return its id. Once this returns, the message is not lost.

        If your own `id` is taken, no second message is made; the id is returned all the same.
        Messages of the same `key` go to the same partition of the topic.
        """
        if self._around is not None:
            outgoing = Outgoing(
                topic=topic,
                payload=payload,
                id=id,
                delay=delay,
                at=timestamp(at),
                priority=priority,
                ttl=ttl,
                max_attempts=max_attempts,
                retry=retry,
                headers=headers or {},
                key=key,
                confirm=confirm,
            )
            (produced,) = await self._around([outgoing])
            return produced
        options = (delay, at, ttl, max_attempts, retry, headers, id)
        if options == _NONE and priority == Priority.NORMAL:
            draft = self.store.draft(payload)
        else:
            given = draft_options(
                delay=delay,
                at=timestamp(at),
                priority=priority,
                ttl=ttl,
                max_attempts=max_attempts,
                retry=retry,
                headers=headers or {},
            )
            draft = self._draft(payload, id, given)
        if key is not None:
            check_key(key)
        far = self._confirm if confirm is None else self.settings.confirmation(confirm)
        return (await self._open_producer().produce(topic, draft, key=key, confirm=far)).id

    async def produce_many(
        self,
        topic: str,
        payloads: Iterable[Any],
        *,
        ids: Sequence[str] | None = None,
        delay: float | None = None,
        at: datetime | float | None = None,
        priority: str = Priority.NORMAL,
        ttl: float | None = None,
        headers: dict[str, str] | None = None,
        max_attempts: int | None = None,
        retry: Any = None,
        keys: Sequence[str] | None = None,
        confirm: str | None = None,
    ) -> list[str]:
        """Produce many messages of one topic, in order, and return their ids.

        They go out in calls of up to 500. Everything is checked before the first call; if a
        later one fails, `PartlyProduced` says which are stored.
        """
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
        due, headers = timestamp(at), headers or {}
        own: Sequence[str | None] = [None] * len(payloads) if ids is None else ids
        if self._around is None:
            given = draft_options(
                delay=delay,
                at=due,
                priority=priority,
                ttl=ttl,
                max_attempts=max_attempts,
                retry=retry,
                headers=headers,
            )
            draft = self.store.draft
            drafts = all_of(
                draft(payload, id=None if id is None else check_id(id), **given)
                for payload, id in zip(payloads, own, strict=True)
            )
            if keys is not None:
                keys = all_of(check_key(key) for key in keys)
            far = self.settings.confirmation(confirm)
            return await produce_runs(self._open_producer(), [Run(topic, drafts, keys, far)])
        outgoing = [
            Outgoing(
                topic=topic,
                payload=payload,
                id=id,
                delay=delay,
                at=due,
                priority=priority,
                ttl=ttl,
                max_attempts=max_attempts,
                retry=retry,
                headers=headers,
                key=None if keys is None else keys[place],
                confirm=confirm,
            )
            for place, (payload, id) in enumerate(zip(payloads, own, strict=True))
        ]
        return await self._around(outgoing)

    async def _send_each(self, messages: Sequence[Outgoing]) -> list[str]:
        """Produce what has come through all middleware."""
        producer = self._open_producer()
        if len(messages) == 1:
            topic, draft, key, confirm = self._outbound(messages[0])
            return [(await producer.produce(topic, draft, key=key, confirm=confirm)).id]
        return await produce_runs(
            producer, runs_of(all_of(self._outbound(one) for one in messages))
        )

    def _outbound(self, one: Outgoing) -> Outbound:
        options = draft_options(
            delay=one.delay,
            at=one.at,
            priority=one.priority,
            ttl=one.ttl,
            max_attempts=one.max_attempts,
            retry=one.retry,
            headers=one.headers,
        )
        return Outbound(
            one.topic,
            self._draft(one.payload, one.id, options),
            None if one.key is None else check_key(one.key),
            self.settings.confirmation(one.confirm),
        )

    def _open_producer(self) -> Producer:
        if self._producer is None:
            raise NotOpen("the queue is being closed")
        return self._producer

    def _draft(self, payload: Any, id: str | None, options: dict[str, Any]) -> Draft:
        if id is not None:
            check_id(id)
        return self.store.draft(payload, id=id, **options)


_NONE: Final = (None,) * 7
