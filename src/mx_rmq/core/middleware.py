"""Middleware: what applications put around produce and around handling.

The first one in the list is the outermost, for both: it sees a message first and its result last.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mx_rmq.core.message import Priority

if TYPE_CHECKING:
    from mx_rmq.core.delivery import Delivery

Produce = Callable[[Sequence["Outgoing"]], Awaitable[list[str]]]
Handle = Callable[["Delivery"], Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A message on its way out, as the caller gave it. `dataclasses.replace` changes it."""

    topic: str
    payload: Any
    id: str | None = None
    delay: float | None = None
    """Seconds."""
    at: float | None = None
    """Seconds since 1970."""
    priority: str = Priority.NORMAL
    ttl: float | None = None
    """Seconds."""
    max_attempts: int | None = None
    retry: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    key: str | None = None
    """Messages of the same key go to the same partition."""
    confirm: str | None = None


class Middleware:
    """Override what you need; call `call_next` exactly once, or not at all to stop there."""

    async def produce(self, messages: Sequence[Outgoing], call_next: Produce) -> list[str]:
        """Around a produce: of one message, or of all of one `produce_many`. Returns the ids."""
        return await call_next(messages)

    async def handle(self, delivery: Delivery, call_next: Handle) -> Any:
        """Around a handler. What is raised decides about the message, as if the handler did."""
        return await call_next(delivery)


def around_produce(middleware: Sequence[Middleware], innermost: Produce) -> Produce:
    """Return a produce with all middleware around it that has something to do there."""
    for one in reversed(middleware):
        if type(one).produce is not Middleware.produce:
            innermost = _produce(one, innermost)
    return innermost


def around_handle(middleware: Sequence[Middleware], innermost: Handle) -> Handle:
    """Return a handler with all middleware around it that has something to do there."""
    for one in reversed(middleware):
        if type(one).handle is not Middleware.handle:
            innermost = _handle(one, innermost)
    return innermost


def _produce(one: Middleware, inner: Produce) -> Produce:
    return lambda messages: one.produce(messages, inner)


def _handle(one: Middleware, inner: Handle) -> Handle:
    return lambda delivery: one.handle(delivery, inner)
