"""Closes old database connections around handlers, as Django does around requests.

A connection belongs to a thread, and a worker's threads live long. So the next handler must not get
one that is older than CONN_MAX_AGE, or that the database has closed.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from asgiref.sync import sync_to_async
from django.db import connections

from mx_rmq.core.middleware import Middleware

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator

    from mx_rmq.core.batch import Batch
    from mx_rmq.core.delivery import Delivery
    from mx_rmq.core.middleware import Handle, HandleBatch

EVERY: Final = 1.0  # seconds between two looks at the connections that async handlers share


def close_old_connections() -> None:
    """Close this thread's connections that are broken or too old, unless in a transaction.

    Django's function of this name closes those, too. But in a TestCase, a handler runs in the
    transaction of the test.
    """
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


@contextmanager
def fresh_connections() -> Iterator[None]:
    """Close old connections of this thread before and after a plain handler."""
    close_old_connections()
    try:
        yield
    finally:
        close_old_connections()


class FreshConnections(Middleware):
    """Closes old connections of the thread in which all async handlers use the ORM.

    Once per second, and after every failed handler: so the retry of one that lost its connection
    gets a new one.
    """

    def __init__(self) -> None:
        self._looked = 0.0

    async def handle(self, delivery: Delivery, call_next: Handle) -> Any:
        await self._look()
        return await self._around(call_next(delivery))

    async def handle_batch(self, batch: Batch, call_next: HandleBatch) -> Any:
        await self._look()
        return await self._around(call_next(batch))

    async def _around(self, handling: Awaitable[Any]) -> Any:
        try:
            return await handling
        except Exception as raised:  # noqa: BLE001 - it is raised again
            error = raised
        # Not while the error is handled: sync_to_async would add its frames to the traceback.
        await sync_to_async(close_old_connections)()
        raise error

    async def _look(self) -> None:
        now = time.monotonic()
        if now - self._looked >= EVERY:
            self._looked = now
            await sync_to_async(close_old_connections)()
