"""A sync connection for a relay: each of its calls runs in a thread, one at a time."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from mx_rmq.in_thread import in_thread
from mx_rmq.outbox.notifications import wait_and_read

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mx_rmq.outbox.outbox_relay import Row, Statement

T = TypeVar("T")


class SyncConnection(Protocol):
    """What `ThreadedConnection` needs of a sync connection."""

    def execute(self, sql: str, values: dict[str, Any]) -> list[Row]: ...

    def commit(self) -> None: ...

    def close(self) -> None: ...

    def without_transactions(self) -> Any:
        """Execute each statement by itself from now on; return the driver's connection."""


class ThreadedConnection:
    """The connection of a relay, on top of a sync one."""

    def __init__(self, connection: SyncConnection) -> None:
        self._connection = connection
        self._lock = threading.Lock()  # a call that was cancelled still runs in its thread

    async def execute(self, sql: str, values: dict[str, Any]) -> list[Row]:
        return await self._call(self._connection.execute, sql, values)

    async def commit(self, *statements: Statement) -> list[Row]:
        return await self._call(self._commit, statements)

    def _commit(self, statements: Sequence[Statement]) -> list[Row]:
        """In one call: our event loop may wait for a lock that this transaction holds."""
        rows: list[Row] = []
        for sql, values in statements:
            rows = self._connection.execute(sql, values)
        self._connection.commit()
        return rows

    async def listen(self, channel: str, wake: Callable[[], None]) -> None:
        driver = await self._call(self._connection.without_transactions)
        await self.execute(f'LISTEN "{channel}"', {})
        await wait_and_read(driver, wake, lambda: self.execute("SELECT 1", {}))

    async def close(self) -> None:
        with suppress(Exception):
            await self._call(self._connection.close)

    async def _call(self, function: Callable[..., T], *arguments: Any) -> T:
        def alone() -> T:
            with self._lock:
                return function(*arguments)

        return await in_thread(alone)


async def connect_in_thread(connect: Callable[[], SyncConnection]) -> ThreadedConnection:
    """Connect in a thread. If the caller is cancelled meanwhile, the connection is closed."""
    connecting = asyncio.ensure_future(in_thread(connect))
    try:
        return ThreadedConnection(await asyncio.shield(connecting))
    except asyncio.CancelledError:
        connecting.add_done_callback(_close)
        raise


def _close(connecting: asyncio.Future[SyncConnection]) -> None:
    if not connecting.cancelled() and connecting.exception() is None:
        threading.Thread(target=connecting.result().close, daemon=True).start()
