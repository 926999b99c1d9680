"""Databases with the tables of an outbox, on each kind of driver."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from mx_rmq import outbox

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.lab.postgres import Postgres

SYNC = ("postgresql+psycopg", "sqlite")
ASYNC = ("postgresql+asyncpg", "postgresql+psycopg", "sqlite+aiosqlite")


_made: dict[int, str] = {}
"""The database of each PostgreSQL server: making one takes longer than a test."""


def url_of(driver: str, postgres: Postgres, directory: Path) -> str:
    """Return the URL of a database for one test at a time."""
    if driver.startswith("sqlite"):
        return f"{driver}:///{directory}/shop.db"
    if postgres.port not in _made:
        _made[postgres.port] = postgres.new_database()
    return _made[postgres.port].replace("postgresql", driver, 1)


def make_tables(connection: Connection) -> None:
    """Make the tables of the outbox, and one more; empty them."""
    outbox.metadata.create_all(connection)
    connection.execute(text("CREATE TABLE IF NOT EXISTS orders (number INTEGER)"))
    for table in ("mx_rmq_outbox", "mx_rmq_inbox", "orders"):
        connection.execute(text(f"DELETE FROM {table}"))


def new_engine(url: str) -> Engine:
    """Return an engine of a database with empty tables."""
    engine = create_engine(url)
    with engine.begin() as connection:
        make_tables(connection)
    return engine


@asynccontextmanager
async def new_async_engine(url: str) -> AsyncIterator[AsyncEngine]:
    """The same for async code."""
    engine = create_async_engine(url)
    async with engine.begin() as connection:
        await connection.run_sync(make_tables)
    yield engine
    await engine.dispose()


def rows(engine: Engine, sql: str = "SELECT * FROM mx_rmq_outbox ORDER BY seq") -> list[Any]:
    with engine.begin() as connection:
        return [*connection.execute(text(sql))]
