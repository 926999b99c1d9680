"""Closes old database connections around handlers, as Django does around requests.

A connection belongs to a thread, and a worker's threads live long. So the next handler must not get
one that is older than CONN_MAX_AGE, or that the database has closed.
"""

from __future__ import annotations

import math
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from asgiref.sync import sync_to_async
from django.db import connections

from mx_rmq.core.middleware import Middleware
from mx_rmq.runtime.threads import Interrupted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from mx_rmq.core.batch import Batch
    from mx_rmq.core.delivery import Delivery
    from mx_rmq.core.middleware import Handle, HandleBatch

CHECK_EVERY: Final = 1.0  # seconds, for the connections that async handlers share


def close_old_connections() -> None:
    """Close this thread's connections that are broken or too old, unless in a transaction.

    Django's function of this name closes those, too. But in a TestCase, a handler runs in the
    transaction of the test.
    """
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


def drop_connections(*, only_in_transactions: bool = False) -> None:
    """Drop the connections of this thread: what later messages write would not be committed.

    A handler left a transaction open, or it was interrupted, and Django may not know that there is
    a transaction.
    """
    for connection in connections.all(initialized_only=True):
        if connection.in_atomic_block or not only_in_transactions:
            if connection.connection is not None:
                with suppress(Exception):  # it may be broken
                    connection.connection.rollback()  # a cursor may keep SQLite's from closing
            connection.close()
            del connections[connection.alias]


def close_broken_connections() -> None:
    """Close the connections of this thread that the database has closed, however old they are."""
    for connection in connections.all(initialized_only=True):
        if connection.errors_occurred and not connection.in_atomic_block:
            if connection.is_usable():
                connection.errors_occurred = False
            else:
                connection.close()


@contextmanager
def fresh_connections() -> Iterator[None]:
    """Close old connections of this thread before and after a plain handler."""
    close_old_connections()
    try:
        yield
    except Interrupted:
        drop_connections()
        raise
    finally:
        drop_connections(only_in_transactions=True)
        close_old_connections()


class FreshConnections(Middleware):
    """Closes old connections of the thread in which all async handlers use the ORM.

    It checks them at most once per second, and after every failed handler, so that its retry gets a
    new one if the connection was lost. While other handlers run, which may be reading rows, it
    closes only broken connections.
    """

    def __init__(self) -> None:
        self._checked = 0.0
        self._running = 0

    async def handle(self, delivery: Delivery, call_next: Handle) -> Any:
        return await self._around(lambda: call_next(delivery))

    async def handle_batch(self, batch: Batch, call_next: HandleBatch) -> Any:
        return await self._around(lambda: call_next(batch))

    async def _around(self, handle: Callable[[], Awaitable[Any]]) -> Any:
        self._running += 1
        try:
            if time.monotonic() - self._checked >= CHECK_EVERY:
                self._checked = math.inf  # the thread may be busy for long: only one waits for it
                try:
                    await self._close()
                finally:
                    self._checked = time.monotonic()
            try:
                return await handle()
            except Exception as raised:  # noqa: BLE001 - it is raised again
                error = raised
            # Not while the error is handled: sync_to_async would add its frames to the traceback.
            await self._close()
            raise error
        finally:
            self._running -= 1

    async def _close(self) -> None:
        others = self._running > 1
        await sync_to_async(close_broken_connections if others else close_old_connections)()
