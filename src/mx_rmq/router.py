"""Router: declares handlers, crons and typed topics, for a queue that includes it.

A MessageQueue is a router, too: its workers run what it declares and what it includes.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

from mx_rmq.core.cron import Cron
from mx_rmq.core.errors import InvalidInput, NotOpen
from mx_rmq.core.handler import CronOptions, Handler, HandlerOptions
from mx_rmq.core.names import ONE_OR_MANY, check_options, check_topic
from mx_rmq.core.partition import base_topic
from mx_rmq.core.text import shown
from mx_rmq.topic import Topic

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import tzinfo

    from mx_rmq.core.cron import Missed
    from mx_rmq.queue import MessageQueue

F = TypeVar("F", bound="Callable[..., Any]")
P = TypeVar("P")
R = TypeVar("R")


class Router:
    """Handlers, crons and typed topics of a module. `mq.include(router)` adds them to a queue."""

    def __init__(self) -> None:
        self.handlers: dict[str, Handler] = {}
        self.crons: dict[str, Cron] = {}
        self._included_in: list[MessageQueue] = []

    def handler(self, topic: str, **options: Unpack[HandlerOptions]) -> Callable[[F], F]:
        """Declare a function as the handler of a topic. Options: see `HandlerOptions`.

        With `subscription`, it handles the copies that this subscription of the topic gets. A topic
        has one handler without it, or any number of subscriptions.

        With `partitions` and concurrency=1, all workers together handle the messages of a
        partition one at a time and in order.
        """
        if callable(topic):
            raise InvalidInput('@mq.handler needs a topic: @mq.handler("order.created")')
        # the handler's annotations may name local classes
        return self._decorator(topic, options, sys._getframe(1).f_locals)

    def cron(
        self,
        expression: str,
        *,
        tz: str | tzinfo = "UTC",
        missed: Missed | Literal["skip", "once"] = "skip",
        topic: str | None = None,
        concurrency: int = 1,
        **options: Unpack[CronOptions],
    ) -> Callable[[F], F]:
        """Declare a function that runs at every tick, once across all workers."""
        if callable(expression):
            raise InvalidInput('@mq.cron needs a schedule: @mq.cron("*/5 * * * *")')
        for name in options.keys() & {"batch", "linger"}:
            given = f"{name}={shown(options.get(name))}"
            raise InvalidInput(f"@mq.cron({expression!r:.80}): {given}: every tick is one call")
        check_options("cron", options, CronOptions, "tz", "missed", "topic", "concurrency")
        cron = Cron.of(topic or "cron", expression, tz, missed)
        names = sys._getframe(1).f_locals

        def declare(function: F) -> F:
            name = topic or f"cron.{getattr(function, '__name__', 'function')}"
            handler = Handler.of(
                name, function, names=names, cron=True, concurrency=concurrency, **options
            )
            self._declare(handler, replace(cron, topic=name))
            return function

        return declare

    @overload
    def topic(self, name: str, payload: type[P], *, result: type[R]) -> Topic[P, R]: ...

    @overload
    def topic(self, name: str, payload: type[P]) -> Topic[P, Any]: ...

    @overload
    def topic(self, name: str, payload: Any, *, result: Any = Any) -> Topic[Any, Any]: ...

    def topic(self, name: str, payload: Any, *, result: Any = Any) -> Topic[Any, Any]:
        """Return a topic whose payload and result have these types.

        Type checkers infer classes and generics such as list[int]. They need an annotation for
        others: `sizes: Topic[int | None, Any] = mq.topic("size", int | None)`.
        """
        return Topic(self, name, payload, result)

    @property
    def _queue(self) -> MessageQueue:
        """The queue that includes this router; if there are several, the latest one."""
        if not self._included_in:
            raise NotOpen("no queue includes this router: call mq.include(router) first")
        return self._included_in[-1]

    def _decorator(
        self, topic: str, options: HandlerOptions, names: Mapping[str, Any], **more: Any
    ) -> Callable[[F], F]:
        """Return a decorator that declares a handler. `more`: see `Handler.of`."""
        check_topic(topic)
        check_options("handler", options, HandlerOptions)

        def declare(function: F) -> F:
            self._declare(Handler.of(topic, function, names=names, **more, **options))
            return function

        return declare

    def _declare(self, handler: Handler, cron: Cron | None = None) -> None:
        """Add a handler to this router and to every queue that includes it."""
        routers = (self, *self._included_in)
        for router in routers:
            router._refuse_second(handler)
        for router in routers:
            router.handlers[handler.topic] = handler
            if cron is not None:
                router.crons[handler.topic] = cron

    def _refuse_second(self, handler: Handler) -> None:
        known = self.handlers.get(handler.topic)
        if known is None:
            self._refuse_mixed(handler)
            return
        what = "topic" if handler.subscription is None else "subscription"
        if known.function is handler.function:
            why = "it was declared or included twice"
        else:
            why = f"{handler.place} needs a different {what}"
        raise InvalidInput(f"{what} {handler.topic!r} already has the handler {known.place}; {why}")

    def _refuse_mixed(self, handler: Handler) -> None:
        """Refuse a handler without a subscription beside one that has one."""
        topic = base_topic(handler.topic)
        if handler.subscription is not None:
            other = self.handlers.get(topic)
        else:
            others = (one for name, one in self.handlers.items() if name.startswith(f"{topic}@"))
            other = next(others, None)
        if other is not None:
            raise InvalidInput(
                f"{handler.place} cannot handle {handler.topic!r}, because {other.place} handles "
                f"{other.topic!r}: {ONE_OR_MANY}"
            )
