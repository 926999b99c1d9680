"""Router: declares handlers and crons. A MessageQueue is a router whose workers run them."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack

from mx_rmq.core.cron import Cron
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.handler import CronOptions, Handler, HandlerOptions
from mx_rmq.core.names import check_options, check_topic

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import tzinfo

    from mx_rmq.core.cron import Missed

F = TypeVar("F", bound="Callable[..., Any]")


class Router:
    """Handlers and crons, by topic."""

    def __init__(self) -> None:
        self.handlers: dict[str, Handler] = {}
        self.crons: dict[str, Cron] = {}

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
        missed: Missed | Literal["skip", "once"] = "skip",
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
