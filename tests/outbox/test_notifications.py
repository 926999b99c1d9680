"""Waiting for notifications, by driver."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from mx_rmq import outbox
from mx_rmq.outbox.connections import connect
from mx_rmq.outbox.notifications import wait_and_read
from tests.runtime.stage import until

if TYPE_CHECKING:
    from tests.lab.postgres import Postgres


async def test_a_notification_that_is_read_with_another_answer_is_not_lost(
    postgres: Postgres,
) -> None:
    """It came after the relay was woken, and the statement that reads has read it, too."""
    told: list[str] = []
    connection = await psycopg.AsyncConnection.connect(postgres.url(), autocommit=True)
    other = await psycopg.AsyncConnection.connect(postgres.url(), autocommit=True)
    async with connection, other:
        await connection.execute("LISTEN rows")

        async def read() -> None:
            await other.execute("NOTIFY rows")
            await connection.execute("SELECT 1")
            told.append("read")

        waiting = asyncio.create_task(wait_and_read(connection, lambda: told.append("woken"), read))
        await until(lambda: told[-1:] == ["woken"] and "read" in told)
        waiting.cancel()
        await asyncio.wait([waiting])


@pytest.mark.parametrize("driver", ["postgresql+asyncpg", "postgresql+psycopg", "sync"])
async def test_a_connection_that_has_listened_does_not_go_back_to_its_pool(
    driver: str, postgres: Postgres
) -> None:
    url = postgres.url()
    sync_engine = create_engine(url.replace("postgresql", "postgresql+psycopg"))
    async_engine = create_async_engine(
        url.replace("postgresql", "postgresql+psycopg" if driver == "sync" else driver)
    )
    connection = await connect(sync_engine if driver == "sync" else async_engine)
    woken = asyncio.Event()
    listening = asyncio.create_task(connection.listen("rows", woken.set))
    await woken.wait()
    listening.cancel()
    await asyncio.wait([listening])
    await connection.close()
    next_one = await connect(sync_engine if driver == "sync" else async_engine)
    assert await next_one.execute("SELECT pg_listening_channels()", {}) == []
    await next_one.close()
    await async_engine.dispose()
    sync_engine.dispose()


async def test_notify_can_be_turned_off(postgres: Postgres) -> None:
    url = postgres.new_database()
    quiet = outbox.Outbox(table="quiet", notify=False)
    engine = create_engine(url.replace("postgresql", "postgresql+psycopg"))
    for metadata in (quiet.metadata, outbox.metadata):
        metadata.create_all(engine)
    with psycopg.connect(url, autocommit=True) as listening:
        listening.execute("LISTEN quiet")
        listening.execute("LISTEN mx_rmq_outbox")
        with engine.begin() as connection:
            quiet.produce(connection, "order", 1)
        with engine.begin() as connection:
            outbox.produce(connection, "order", 1)
        (first,) = listening.notifies(stop_after=1)
    assert first.channel == "mx_rmq_outbox"
    engine.dispose()
