"""Middleware: what applications put around produce and around handling.

The first in the list is the outermost for both: it sees a message first and its result last.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mx_rmq.core.batch import Batch
    from mx_rmq.core.delivery import Delivery
    from mx_rmq.core.outgoing import Outgoing

Produce = Callable[[Sequence["Outgoing"]], Awaitable[list[str]]]
Handle = Callable[["Delivery"], Awaitable[Any]]
HandleBatch = Callable[["Batch"], Awaitable[Any]]


class Middleware:
    """Override what you need. Call `call_next` exactly once, or not at all to stop there."""

    async def produce(self, messages: Sequence[Outgoing], call_next: Produce) -> list[str]:
        """Around a produce: of one message, or of all of one `produce_many`. Returns the ids."""
        return await call_next(messages)

    async def handle(self, delivery: Delivery, call_next: Handle) -> Any:
        """Around a handler. An exception counts as if the handler had raised it."""
        return await call_next(delivery)

    async def handle_batch(self, batch: Batch, call_next: HandleBatch) -> Any:
        """Around one call of a batch handler; `handle` is not called for its messages.

        An exception fails every message. `batch.failed` has those that the handler failed apart.
        """
        return await call_next(batch)


def around_produce(middleware: Sequence[Middleware], innermost: Produce) -> Produce:
    """Return a produce wrapped in all middleware that overrides `produce`."""
    for one in reversed(middleware):
        if type(one).produce is not Middleware.produce:
            innermost = _produce(one, innermost)
    return innermost


async def as_sent(
    middleware: Sequence[Middleware], messages: Sequence[Outgoing]
) -> Sequence[Outgoing]:
    """Return messages as middleware passes them on, for those that are sent later."""
    sent: list[Outgoing] = []

    async def collect(messages: Sequence[Outgoing]) -> list[str]:
        sent.extend(messages)
        return [one.id or "" for one in messages]

    await around_produce(middleware, collect)(messages)
    return sent


def around_handle(middleware: Sequence[Middleware], innermost: Handle) -> Handle:
    """Return a handler wrapped in all middleware that overrides `handle`."""
    for one in reversed(middleware):
        if type(one).handle is not Middleware.handle:
            innermost = _handle(one, innermost)
    return innermost


def around_handle_batch(middleware: Sequence[Middleware], innermost: HandleBatch) -> HandleBatch:
    """Return a batch handler wrapped in all middleware that overrides `handle_batch`."""
    for one in reversed(middleware):
        if type(one).handle_batch is not Middleware.handle_batch:
            innermost = _handle_batch(one, innermost)
    return innermost


def _produce(one: Middleware, inner: Produce) -> Produce:
    return lambda messages: one.produce(messages, inner)


def _handle(one: Middleware, inner: Handle) -> Handle:
    return lambda delivery: one.handle(delivery, inner)


def _handle_batch(one: Middleware, inner: HandleBatch) -> HandleBatch:
    return lambda batch: one.handle_batch(batch, inner)
