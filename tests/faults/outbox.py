"""The outbox: its relay, its database, its workers and the server killed, at every point.

Orders are written together with their messages. What counts is what the database and the server's
scripts have written: each order was produced once, and each was shipped once.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from redis.asyncio import Redis
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from mx_rmq import Delivery, MessageQueue, outbox
from mx_rmq.store.keys import Keys
from tests.faults import member
from tests.faults.staff import Staff, serve, settle
from tests.faults.trial import Fault, Trial
from tests.lab.postgres import Postgres
from tests.lab.servers import Kind, Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from mx_rmq import Outgoing

TOPIC: Final = "order.created"
WORKERS: Final = 2
LEASE: Final = 1.0
RETRY: Final = 0.05
FAILING: Final = 7
"""One in this many messages fails once, after their work is committed."""
ORDERS: Final = 30
"""Orders for one fault."""
ROLLED_BACK: Final = 5
"""One in this many transactions is rolled back."""
POINTS: Final = ("produce", "delete", "commit", "next step")
"""What a relay is about to do with the rows that it has taken when it, or its database, dies."""
TOGETHER: Final = 20
HISTORY: Final = 1_000_000
STUCK: Final = 60.0


class Place(NamedTuple):
    """Where the processes meet."""

    url: str
    database: str
    log: Path


def work(place: Place, name: str, point: str = "", database: str = "") -> None:
    """Be a worker with a relay, or only a relay, which kills itself or the database at a point."""
    member.begin(place.log)
    asyncio.run(_relay(place, point, database) if point else _work(place, name))


async def _work(place: Place, name: str) -> None:
    engine = create_async_engine(place.database, pool_size=TOGETHER)
    mq = MessageQueue(
        place.url,
        lease=LEASE,
        patience=30,
        history=HISTORY,
        lifespan=lambda mq: outbox.relay(mq, engine),
    )

    @mq.handler(TOPIC, retry=RETRY, max_attempts=1_000, max_crashes=1_000)
    async def ship(number: int, delivery: Delivery) -> None:
        async with engine.connect() as connection, delivery.once(connection):
            await connection.execute(
                text("INSERT INTO shipped VALUES (:number)"), {"number": number}
            )
        if number % FAILING == 0 and delivery.attempt == 1:
            raise ValueError("as planned")

    await serve(mq, name)


async def _relay(place: Place, point: str, database: str) -> None:
    def kill() -> None:
        if database:
            os.kill(int(database), signal.SIGQUIT)
        else:
            os.kill(os.getpid(), signal.SIGKILL)

    async with MessageQueue(place.url, patience=30, history=HISTORY) as mq:
        relay = outbox.relay(mq, create_async_engine(place.database))
        Killer(mq, relay, point, kill)
        async with relay:
            await asyncio.Event().wait()


class Killer:
    """Goes between a relay, its database and its queue, and kills at a point, once."""

    def __init__(
        self, mq: MessageQueue, relay: outbox.OutboxRelay, point: str, kill: Callable[[], None]
    ) -> None:
        self._point = point
        self._kill = kill
        self._sends = False
        self._produce, self._connect = mq.produce_outgoing, relay._connect
        self._sql = relay._sql
        mq.produce_outgoing = self.produce  # type: ignore[method-assign]
        relay._connect = self.connect

    def reach(self, point: str) -> None:
        """Kill, if rows are being sent and this is the point."""
        if self._sends and point == self._point:
            self._point = ""
            self._kill()

    async def produce(self, outgoing: Sequence[Outgoing]) -> list[str]:
        self._sends = True
        self.reach("produce")
        return await self._produce(outgoing)

    async def connect(self) -> Any:
        connection = await self._connect()
        execute, commit = connection.execute, connection.commit

        async def watched(sql: str, values: dict[str, Any]) -> list[dict[str, Any]]:
            if sql == self._sql.delete:
                self.reach("delete")
            rows: list[dict[str, Any]] = await execute(sql, values)
            if sql == self._sql.delete:
                self.reach("commit")
            return rows

        async def watched_commit(*statements: Any) -> list[dict[str, Any]]:
            rows: list[dict[str, Any]] = await commit(*statements)
            self.reach("next step")
            return rows

        connection.execute, connection.commit = watched, watched_commit  # type: ignore[method-assign]
        return connection


class Shop(Staff):
    """The workers, the database and the orders."""

    def __init__(self, trial: Trial, place: Place, postgres: Postgres, engine: Engine) -> None:
        super().__init__(trial, work, place, lease=LEASE)
        self.postgres = postgres
        self.engine = engine
        self.numbers = iter(range(10**9))

    def order(self) -> None:
        """Write some more orders, each with its message. Some are rolled back."""
        for number in [next(self.numbers) for _ in range(ORDERS)]:
            try:
                with self.engine.begin() as connection:
                    id = outbox.produce(connection, TOPIC, number)
                    connection.execute(
                        text("INSERT INTO orders VALUES (:id, :number)"),
                        {"id": id, "number": number},
                    )
                    if number % ROLLED_BACK == 0:
                        raise KeyError(number)
            except KeyError:
                self.trial.count("orders rolled back")
            except DBAPIError:
                self.trial.count("orders that failed")  # the table knows whether they count

    async def kill_at(self, point: str, *, database: bool) -> None:
        """Let a relay, or the database, die at this point; then it comes back."""
        process = self.postgres._process
        assert process is not None
        before = {*self._workers}
        self.hire(point, str(process.pid) if database else "")
        (mortal,) = {*self._workers} - before
        role = self._workers.pop(mortal)
        rest = cycle(range(3))
        try:
            async with asyncio.timeout(STUCK):
                while (process.poll() is None) if database else mortal.is_alive():
                    if next(rest) == 0:  # the other relays may have sent the rest
                        await asyncio.to_thread(self.order)
                    await asyncio.sleep(0.05)
        except TimeoutError:
            self.trial.violated(f"nothing died for {STUCK:g} s: {role}")
        mortal.kill()
        mortal.join(20)
        if database:
            self.postgres.kill()
            self.postgres.start()
        self.trial.count(f"{'databases' if database else 'relays'} killed before: {point}")


async def run(trial: Trial) -> None:
    """Inject `trial.size` faults, each kind in turn."""
    options = ("--appendonly", "yes", "--appendfsync", "always")
    server = Server(Kind.VALKEY_9_1, trial.directory / "server", *options).start()
    postgres = Postgres("-c", "fsync=off").start()
    url = postgres.new_database()
    engine = create_engine(url.replace("postgresql", "postgresql+psycopg"), pool_pre_ping=True)
    with engine.begin() as connection:
        outbox.metadata.create_all(connection)
        connection.execute(text("CREATE TABLE orders (id text, number integer)"))
        connection.execute(text("CREATE TABLE shipped (number integer)"))
    place = Place(
        server.url, url.replace("postgresql", "postgresql+asyncpg"), trial.directory / "log"
    )
    shop = Shop(trial, place, postgres, engine)
    faults: list[Callable[[], Any]] = [
        *(partial(shop.kill_at, point, database=False) for point in POINTS),
        *(partial(shop.kill_at, point, database=True) for point in POINTS),
        *(partial(shop.fault, number, server) for number in range(4)),
    ]
    try:
        async with MessageQueue(server.url, patience=30, history=HISTORY) as mq:
            for _ in range(WORKERS):
                shop.hire()
            for number in range(trial.size):
                await asyncio.to_thread(shop.order)
                await faults[number % len(faults)]()
                trial.say(f"{number} of {trial.size} faults")
            await all_sent(trial, engine)
            await settle(trial, mq, [TOPIC], STUCK)
            await check_orders(trial, mq, server.url, engine)
    finally:
        shop.end()
        engine.dispose()
        postgres.__exit__()
        server.kill()


async def all_sent(trial: Trial, engine: Engine) -> None:
    """Wait until the outbox is empty."""
    try:
        async with asyncio.timeout(STUCK):
            while _column(engine, "SELECT id FROM mx_rmq_outbox LIMIT 1"):  # noqa: ASYNC110 - not announced
                await asyncio.sleep(0.05)
    except TimeoutError:
        trial.violated(f"rows are left in the outbox after {STUCK:g} s")


async def check_orders(trial: Trial, mq: MessageQueue, url: str, engine: Engine) -> None:
    """Compare the database with the server's history, and audit the server's keys."""
    async with Redis.from_url(url, decode_responses=True) as raw:
        history: Any = await raw.xrange(Keys().of(TOPIC).history)
    entries = [entry for _, entry in history]
    produced, completed = (
        Counter(id for one in entries if one["what"] == what for id in one["ids"].split(" "))
        for what in ("produced", "completed")
    )
    ids = _column(engine, "SELECT id FROM orders")
    numbers = _column(engine, "SELECT number FROM orders")
    shipped = _column(engine, "SELECT number FROM shipped")
    for violation in check(ids, numbers, shipped, produced=produced, completed=completed):
        trial.violated(violation)
    trial.count("orders", len(ids))
    for wrong in await mq.admin.audit(TOPIC):
        trial.violated(f"audit: {wrong}")


def check(
    ids: Iterable[str],
    numbers: Iterable[int],
    shipped: Iterable[int],
    *,
    produced: Counter[str],
    completed: Counter[str],
) -> Iterator[str]:
    """Yield what is wrong: each order is produced, completed and shipped once, and nothing else."""
    orders, sent = Counter(numbers), Counter(shipped)
    yield from (f"never produced: {id}" for id in ids if id not in produced)
    yield from (f"produced {n} times: {id}" for id, n in produced.items() if n > 1)
    yield from (f"produced, but never committed: {id}" for id in produced.keys() - {*ids})
    yield from (f"not completed: {id}" for id in produced if id not in completed)
    yield from (f"not shipped: {number}" for number in orders if number not in sent)
    yield from (f"shipped {n} times: {number}" for number, n in sent.items() if n > 1)
    yield from (f"shipped, but never ordered: {number}" for number in sent if number not in orders)


def _column(engine: Engine, sql: str) -> list[Any]:
    with engine.begin() as connection:
        return [row[0] for row in connection.execute(text(sql))]


FAULT: Final = Fault(
    "outbox",
    "relays and databases of an outbox killed at every point",
    run,
    unit="faults",
    short=8,
    full=400,
)
