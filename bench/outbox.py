"""How fast an outbox on PostgreSQL is: `python -m bench.outbox [--rows N]`.

PostgreSQL runs with its defaults, so each commit is on disk. Rows are written before the relay
starts; then it sends them all, alone or with two others. The latency is from a commit until the
handler starts, one message at a time.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import click
from sqlalchemy import create_engine, insert, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from bench.own.figure import share
from bench.payload import payload
from mx_rmq import MessageQueue, Worker, outbox
from mx_rmq.outbox.row import MAX_PAYLOAD, new_row
from tests.lab.postgres import Postgres
from tests.lab.servers import Kind, Server

if TYPE_CHECKING:
    from sqlalchemy import Engine

TOPIC = "order.created"
TABLE = outbox.metadata.tables["mx_rmq_outbox"]
TURNS = 3
LATENCIES = 300


def fill(engine: Engine, topic: str, count: int) -> None:
    """Write rows as `produce` does, but many per statement."""
    rows: list[dict[str, Any]] = [
        {**new_row(topic, payload(number), {}, id=None, key=None, max_payload=MAX_PAYLOAD)}
        for number in range(count)
    ]
    with engine.begin() as connection:
        connection.execute(insert(TABLE), [{**row, "created_at": time.time()} for row in rows])


def is_empty(engine: Engine) -> bool:
    with engine.connect() as connection:
        return connection.execute(text("SELECT 1 FROM mx_rmq_outbox LIMIT 1")).first() is None


async def rate(mq: MessageQueue, engine: Engine, relays: list[Any], count: int) -> float:
    """Return the rows per second that these relays send together."""
    topic = f"order-{uuid4().hex}"
    fill(engine, topic, count)
    began = time.perf_counter()
    for relay in relays:
        await relay.__aenter__()
    while not await asyncio.to_thread(is_empty, engine):  # noqa: ASYNC110 - not announced
        await asyncio.sleep(0.005)
    took = time.perf_counter() - began
    for relay in relays:
        await relay.__aexit__()
    assert (await mq.admin.stats(topic)).pending == count
    return count / took


async def latencies(mq: MessageQueue, engine: AsyncEngine) -> list[float]:
    """Return seconds from a commit to the handler."""
    started: asyncio.Queue[float] = asyncio.Queue()

    @mq.handler(TOPIC)
    async def handle(_: Any) -> None:
        started.put_nowait(time.perf_counter())

    found = []
    async with outbox.relay(mq, engine), Worker(mq):
        for number in range(LATENCIES):
            async with engine.connect() as connection:
                await outbox.produce(connection, TOPIC, payload(number))
                await connection.commit()
            committed = time.perf_counter()
            found.append(await started.get() - committed)
    return found[LATENCIES // 10 :]


async def measure(rows: int) -> None:
    with tempfile.TemporaryDirectory() as directory, Postgres() as postgres:
        server = Server(Kind.VALKEY_9_1, Path(directory)).start()
        url = postgres.new_database()
        sync_engine = create_engine(url.replace("postgresql", "postgresql+psycopg"))
        engine = create_async_engine(url.replace("postgresql", "postgresql+asyncpg"))
        outbox.metadata.create_all(sync_engine)
        try:
            async with MessageQueue(server.url) as mq:
                for name, one, count in (
                    ("asyncpg, one relay", engine, 1),
                    ("asyncpg, three relays", engine, 3),
                    ("psycopg in threads, one relay", sync_engine, 1),
                ):
                    rates = []
                    for _ in range(TURNS):
                        relays = [outbox.relay(mq, one) for _ in range(count)]
                        rates.append(await rate(mq, sync_engine, relays, rows))
                    print(f"{name}: {statistics.median(rates):,.0f} rows per second")
                times = await latencies(mq, engine)
                p50, p99 = share(times, 0.5) * 1000, share(times, 0.99) * 1000
                print(f"latency: {p50:.1f} ms (p50), {p99:.1f} ms (p99)")
        finally:
            await engine.dispose()
            sync_engine.dispose()
            server.kill()


@click.command
@click.option("--rows", type=click.IntRange(1), default=20_000, show_default=True)
def main(rows: int) -> None:
    """Measure rows per second, and the latency of one."""
    asyncio.run(measure(rows))


if __name__ == "__main__":
    main()
