"""Sessions and connections of SQLAlchemy, sync and async."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import text

from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.text import shown
from mx_rmq.outbox.notifications import until_lost, wait_and_read
from mx_rmq.outbox.threaded_connection import ThreadedConnection, connect_in_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection, Engine
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

    from mx_rmq.outbox.outbox_relay import Row, Statement


def session_of(session: Any) -> Any:
    """Return a session or connection, the current one of a scoped session; refuse anything else."""
    if hasattr(session, "registry"):
        session = session()
    if hasattr(session, "execute") and (
        hasattr(session, "get_bind") or hasattr(session, "dialect")
    ):
        return session
    raise InvalidInput(
        f"{shown(session)} is not a session or connection of SQLAlchemy; for Django there is "
        "mx_rmq.outbox.django"
    )


def is_async(session: Any) -> bool:
    """Whether a session, a connection or an engine is async.

    No isinstance: importing SQLAlchemy's async classes needs greenlet, which sync code may lack.
    """
    return hasattr(session, "run_sync") or hasattr(session, "sync_engine")


def begin(session: Any) -> object:
    """Begin a transaction, or join that of a sync session or connection; return it."""
    if hasattr(session, "get_bind"):
        connection = session.connection()
    else:
        connection = session
        if not connection.in_transaction():
            connection.begin()
    if _commits_each_statement(connection):
        raise InvalidInput(
            f"{shown(session)} commits each statement by itself (AUTOCOMMIT): `once` needs "
            "transactions"
        )
    return session.get_transaction()


def _commits_each_statement(connection: Connection) -> bool:
    """Whether the driver does, as far as it tells. A transaction has begun."""
    pooled = connection.connection
    if connection.dialect.name != "sqlite":
        return bool(getattr(pooled.dbapi_connection, "autocommit", False))
    driver: Any = pooled.driver_connection
    has_none = getattr(driver, "isolation_level", "") is None
    return (has_none or getattr(driver, "autocommit", None) is True) and not driver.in_transaction


def execute(connection: Any, sql: str, values: dict[str, Any]) -> list[Row]:
    """Execute a statement on a sync session or connection; return its rows."""
    result = connection.execute(text(sql), values)
    return [dict(row) for row in result.mappings()] if result.returns_rows else []


def for_listening(connection: Connection) -> Any:
    """Execute each statement by itself from now on; return the driver's connection."""
    connection.execution_options(isolation_level="AUTOCOMMIT")
    return connection.connection.driver_connection


def _isolation(engine: Engine | AsyncEngine) -> dict[str, Any]:
    """The relay's own isolation, whatever the application needs.

    With AUTOCOMMIT its lock would end at once; a higher one would make transactions fail.
    """
    return {"isolation_level": "READ COMMITTED"} if engine.dialect.name == "postgresql" else {}


class AsyncEngineConnection:
    """A connection of an AsyncEngine."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection
        self._listens = False

    async def execute(self, sql: str, values: dict[str, Any]) -> list[Row]:
        return await self._connection.run_sync(execute, sql, values)

    async def commit(self, *statements: Statement) -> list[Row]:
        rows: list[Row] = []
        for sql, values in statements:
            rows = await self.execute(sql, values)
        await self._connection.commit()
        return rows

    async def listen(self, channel: str, wake: Callable[[], None]) -> None:
        self._listens = True
        driver = await self._connection.run_sync(for_listening)
        if hasattr(driver, "add_listener"):  # asyncpg
            await until_lost(driver, channel, wake)
        else:
            await self.execute(f'LISTEN "{channel}"', {})
            await wait_and_read(driver, wake, lambda: self.execute("SELECT 1", {}))

    async def close(self) -> None:
        with suppress(Exception):
            if self._listens:  # the pool must not give it to others
                await self._connection.invalidate()
            await self._connection.close()


class EngineConnection:
    """A connection of an Engine, for `ThreadedConnection`."""

    def __init__(self, engine: Engine) -> None:
        self._connection = engine.connect().execution_options(**_isolation(engine))
        self._listens = False

    def execute(self, sql: str, values: dict[str, Any]) -> list[Row]:
        return execute(self._connection, sql, values)

    def commit(self) -> None:
        self._connection.commit()

    def close(self) -> None:
        if self._listens:
            self._connection.invalidate()
        self._connection.close()

    def without_transactions(self) -> Any:
        self._listens = True
        return for_listening(self._connection)


async def connect(engine: Engine | AsyncEngine) -> AsyncEngineConnection | ThreadedConnection:
    if is_async(engine):
        connection = await cast("AsyncEngine", engine).connect()
        return AsyncEngineConnection(await connection.execution_options(**_isolation(engine)))
    return await connect_in_thread(partial(EngineConnection, cast("Engine", engine)))
