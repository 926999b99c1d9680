"""`delivery.once`: the work of a message is committed once, however often it is delivered."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from mx_rmq import AlreadyDone, Batch, Delivery, InvalidInput, StaleDelivery, Worker, outbox
from mx_rmq.outbox import outbox_relay
from tests.outbox.databases import new_engine, rows, url_of

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    from mx_rmq import MessageQueue
    from tests.lab.postgres import Postgres

INSERT = text("INSERT INTO orders VALUES (:number)")


def delivery(id: str = "m1", *, fence: int = 1, **more: Any) -> Delivery:
    return Delivery(
        id=id,
        topic="order",
        payload=None,
        attempt=1,
        fence=fence,
        headers={},
        created_at=0.0,
        deadline=None,
        extend=lambda _: None,
        **more,
    )


def numbers(engine: Engine) -> list[int]:
    return [row.number for row in rows(engine, "SELECT number FROM orders ORDER BY number")]


def test_the_work_is_committed_once(engine: Engine) -> None:
    with Session(engine) as session:
        with delivery().once(session):
            session.execute(INSERT, {"number": 1})
        with (
            pytest.raises(AlreadyDone, match="the work of message m1"),
            delivery(fence=2).once(session),
        ):
            session.execute(INSERT, {"number": 2})
        with delivery("m2").once(session):
            session.execute(INSERT, {"number": 3})
    assert numbers(engine) == [1, 3]


def test_a_block_that_fails_is_not_recorded(engine: Engine) -> None:
    with Session(engine) as session:
        with pytest.raises(ValueError, match="wrong"), delivery().once(session):  # noqa: PT012 - the block under test
            session.execute(INSERT, {"number": 1})
            raise ValueError("wrong")
        assert numbers(engine) == []
        with delivery(fence=2).once(session):
            session.execute(INSERT, {"number": 2})
    assert numbers(engine) == [2]


async def test_the_same_with_an_async_session(async_engine: AsyncEngine) -> None:
    async with AsyncSession(async_engine) as session:
        async with delivery().once(session):
            await session.execute(INSERT, {"number": 1})
        with pytest.raises(AlreadyDone):
            async with delivery(fence=2).once(session):
                await session.execute(INSERT, {"number": 2})
        with pytest.raises(ValueError, match="wrong"):  # noqa: PT012 - the block under test
            async with delivery("m2").once(session):
                await session.execute(INSERT, {"number": 3})
                raise ValueError("wrong")
        found = (await session.execute(text("SELECT number FROM orders"))).scalars().all()
    assert found == [1]


def test_a_connection_is_accepted(engine: Engine) -> None:
    with engine.connect() as connection:
        with delivery().once(connection):
            connection.execute(INSERT, {"number": 1})
        with pytest.raises(AlreadyDone), delivery(fence=2).once(connection):
            pass
    assert numbers(engine) == [1]


def test_a_stale_worker_is_refused(engine: Engine) -> None:
    """It was frozen; meanwhile a newer delivery has done the work."""
    with Session(engine) as session:
        with delivery(fence=8).once(session):
            session.execute(INSERT, {"number": 8})
        with (
            pytest.raises(StaleDelivery, match="a newer delivery"),
            delivery(fence=7).once(session),
        ):
            session.execute(INSERT, {"number": 7})
    assert numbers(engine) == [8]


def test_of_two_that_run_at_the_same_time_one_commits(engine: Engine) -> None:
    """The second one waits for the first, and learns what became of it."""

    def work(fence: int) -> str:
        with Session(engine) as session:
            try:
                with delivery(fence=fence).once(session):
                    session.execute(INSERT, {"number": fence})
                    if fence == 1:
                        raise ValueError("wrong")
                return "done"
            except (AlreadyDone, ValueError) as error:
                return type(error).__name__

    with ThreadPoolExecutor(8) as threads:
        became = [*threads.map(work, [1, 2, 3, 4, 5, 6, 7, 8])]
    assert became.count("done") == 1
    assert len(numbers(engine)) == 1
    assert became[numbers(engine)[0] - 1] == "done"
    assert {*became[1:]} <= {"done", "AlreadyDone", "StaleDelivery"}


def test_each_subscription_has_its_own_work(engine: Engine) -> None:
    with Session(engine) as session:
        for subscription in ("billing", "search", None):
            with delivery(subscription=subscription).once(session):
                session.execute(INSERT, {"number": 1})
    assert numbers(engine) == [1, 1, 1]


def test_a_second_block_in_one_delivery_is_refused(engine: Engine) -> None:
    """It would never run, and its work would be lost."""
    one = delivery()
    with Session(engine) as session:
        with one.once(session):
            pass
        with (
            pytest.raises(InvalidInput, match="put all of its work into one block"),
            one.once(session),
        ):
            pass
    for inner in (Session(engine), session):  # another would wait for the outer one, for ever
        two = delivery("m2")
        with (
            inner,
            pytest.raises(InvalidInput, match="put all of its work into one block"),
            two.once(session),
            two.once(inner),
        ):
            pass
    with two.once(session):
        session.execute(INSERT, {"number": 2})
    session.close()
    assert numbers(engine) == [2]


@pytest.mark.parametrize("end", ["commit", "rollback", "close"])
def test_a_transaction_that_ends_in_the_block_is_an_error(engine: Engine, end: str) -> None:
    """What follows in the block would not be committed together with the record."""
    with (  # noqa: PT012 - the block under test
        Session(engine) as session,
        pytest.raises(InvalidInput, match="call neither commit nor rollback"),
        delivery().once(session),
    ):
        getattr(session, end)()
        session.execute(INSERT, {"number": 1})
    assert numbers(engine) == []


async def test_the_same_with_an_async_connection(async_engine: AsyncEngine) -> None:
    async with async_engine.connect() as connection:
        with pytest.raises(InvalidInput, match="call neither commit nor rollback"):  # noqa: PT012 - the block under test
            async with delivery().once(connection):
                await connection.commit()
                await connection.execute(INSERT, {"number": 1})
        found = (await connection.execute(text("SELECT number FROM orders"))).scalars().all()
    assert found == []


def test_a_savepoint_in_the_block_is_rolled_back_alone(engine: Engine) -> None:
    with Session(engine) as session, delivery().once(session):
        session.execute(INSERT, {"number": 1})
        with suppress(ValueError), session.begin_nested():
            session.execute(INSERT, {"number": 2})
            outbox.produce(session, "mail", 2)
            raise ValueError
        outbox.produce(session, "mail", 1)
    assert numbers(engine) == [1]
    assert [row.payload for row in rows(engine)] == ["1"]


def test_a_connection_without_transactions_is_refused(engine: Engine) -> None:
    """The record would be committed at once, and the work might fail."""
    alone = engine.execution_options(isolation_level="AUTOCOMMIT")
    with alone.connect() as connection, Session(alone) as session:
        for one in (connection, session):
            with pytest.raises(InvalidInput, match="AUTOCOMMIT"), delivery().once(one):
                pass
    with Session(engine) as session, delivery(fence=2).once(session):
        session.execute(INSERT, {"number": 1})
    assert numbers(engine) == [1]


async def test_an_async_connection_without_transactions_is_refused(
    async_engine: AsyncEngine,
) -> None:
    alone = async_engine.execution_options(isolation_level="AUTOCOMMIT")
    async with AsyncSession(alone) as session:
        with pytest.raises(InvalidInput, match="AUTOCOMMIT"):
            async with delivery().once(session):
                pass
    async with AsyncSession(async_engine) as session, delivery().once(session):
        pass


def test_sqlite_with_its_own_begin_will_do(tmp_path: Path) -> None:
    """As SQLAlchemy's page about SQLite advises: the driver begins nothing, an event does."""
    engine = new_engine(f"sqlite:///{tmp_path}/shop.db")
    event.listen(engine, "connect", lambda driver, _: setattr(driver, "isolation_level", None))
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    engine.dispose()
    with engine.connect() as connection, delivery().once(connection):
        connection.execute(INSERT, {"number": 1})
    assert numbers(engine) == [1]
    engine.dispose()


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
def test_with_a_higher_isolation_work_is_committed_once(
    postgres: Postgres, tmp_path: Path, isolation: str
) -> None:
    """A snapshot from before the record is refused by PostgreSQL; the next attempt learns why."""
    engine = new_engine(url_of("postgresql+psycopg", postgres, tmp_path))
    strict = engine.execution_options(isolation_level=isolation)
    with Session(strict) as session:
        session.execute(text("SELECT 1 FROM orders"))
        with Session(strict) as other, delivery(fence=2).once(other):
            other.execute(INSERT, {"number": 2})
        with pytest.raises(OperationalError, match="could not serialize"), delivery().once(session):
            pass
        with pytest.raises(StaleDelivery), delivery().once(session):
            pass
    assert numbers(engine) == [2]
    engine.dispose()


async def test_the_wrong_with_and_the_wrong_session_are_refused(engine: Engine) -> None:
    one = delivery()
    with pytest.raises(InvalidInput, match="takes a session of SQLAlchemy, or using="):
        one.once()
    with pytest.raises(InvalidInput, match="3 is not a session"):
        one.once(3)
    with (
        Session(engine) as session,
        pytest.raises(InvalidInput, match="None is not a delivery"),
        outbox.once(None, session),  # type: ignore[arg-type]
    ):
        pass
    with Session(engine) as session, pytest.raises(InvalidInput, match="is sync: write `with"):
        async with one.once(session):
            pass


async def test_a_repeat_completes_without_running_again(mq: MessageQueue, engine: Engine) -> None:
    """A plain handler whose worker died after the commit, before the message was completed."""
    began = 0

    @mq.handler("order", retry=0.01, result_ttl=60)
    def handle(payload: int, delivery: Delivery) -> str:
        nonlocal began
        began += 1
        with Session(engine) as session, delivery.once(session):
            session.execute(INSERT, {"number": payload})
            outbox.produce(session, "mail", payload)
        if delivery.attempt == 1:
            raise ValueError("after the commit")
        return "never"

    id = await mq.produce("order", 7)
    done = await Worker(mq).drain(delayed=True)
    assert (done.completed, done.retried, began) == (1, 1, 2)
    assert numbers(engine) == [7]
    assert len(rows(engine)) == 1
    assert await mq.result("order", id) is None


async def test_steps_after_the_block_run_if_the_repeat_is_caught(
    mq: MessageQueue, engine: Engine
) -> None:
    steps: list[str] = []

    @mq.handler("order")
    async def handle(payload: int, delivery: Delivery) -> None:
        with Session(engine) as session, suppress(AlreadyDone), delivery.once(session):
            session.execute(INSERT, {"number": payload})
        await delivery.sleep("a little", 0.01)
        await delivery.step("mail", steps.append, "sent")

    await mq.produce("order", 7)
    assert (await Worker(mq).drain(delayed=True)).completed == 1
    assert (numbers(engine), steps) == ([7], ["sent"])


async def test_the_relay_cleans_up_the_inbox(
    mq: MessageQueue, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Session(engine) as session:
        for number in range(3):
            with delivery(f"m{number}").once(session):
                pass
        session.execute(text("UPDATE mx_rmq_inbox SET done_at = done_at - 120 WHERE id <> 'm1'"))
        session.commit()
    relay = outbox.relay(mq, engine, keep=100)
    await relay.step()
    assert [row.id for row in rows(engine, "SELECT id FROM mx_rmq_inbox")] == ["m1"]
    assert outbox_relay.KEEP == 7 * 24 * 3600
    await relay.__aexit__()


async def test_rows_do_not_wait_for_the_clean_up(
    mq: MessageQueue, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_relay, "BATCH", 1)
    with engine.begin() as connection:
        relay = outbox.relay(mq, engine, keep=100)
        monkeypatch.setattr(relay._sql, "clean", relay._sql.clean.replace("LIMIT 1000", "LIMIT 1"))
        for number in range(3):
            insert = text("INSERT INTO mx_rmq_inbox VALUES ('order', :id, 1, 0)")
            connection.execute(insert, {"id": str(number)})
        outbox.produce(connection, "order", 1)
    assert await relay.step() == 0
    assert (len(rows(engine)), len(rows(engine, "SELECT id FROM mx_rmq_inbox"))) == (0, 2)
    await relay.drain()
    assert rows(engine, "SELECT id FROM mx_rmq_inbox") == []
    await relay.__aexit__()


async def test_a_worker_that_died_in_the_block_leaves_nothing_behind(
    mq: MessageQueue, async_engine: AsyncEngine
) -> None:
    """It is cancelled, as when it stops, inside its transaction."""
    started = asyncio.Event()
    attempts = 0

    @mq.handler("order")
    async def handle(payload: int, delivery: Delivery) -> None:
        nonlocal attempts
        attempts += 1
        async with AsyncSession(async_engine) as session, delivery.once(session):
            await session.execute(INSERT, {"number": payload})
            if attempts == 1:
                started.set()
                await asyncio.sleep(60)

    await mq.produce("order", 7)
    async with Worker(mq, grace=0):
        await started.wait()
    await Worker(mq).drain()
    async with async_engine.connect() as connection:
        found = (await connection.execute(text("SELECT number FROM orders"))).scalars().all()
    assert (attempts, found) == (2, [7])


async def test_in_a_batch_each_message_is_done_once(mq: MessageQueue, engine: Engine) -> None:
    @mq.handler("order", batch=10, retry=0.01)
    def handle(payloads: list[int], batch: Batch) -> None:
        with Session(engine) as session:
            for payload, one in zip(payloads, batch, strict=True):
                with suppress(AlreadyDone), one.once(session):
                    session.execute(INSERT, {"number": payload})
        if batch.deliveries[0].attempt == 1:
            raise ValueError("after the commits")

    await mq.produce_many("order", [1, 2, 3])
    done = await Worker(mq).drain(delayed=True)
    assert (done.completed, done.retried) == (3, 3)
    assert numbers(engine) == [1, 2, 3]


async def test_a_repeat_that_a_batch_handler_does_not_catch_completes_no_other_message(
    mq: MessageQueue, engine: Engine
) -> None:
    @mq.handler("order", batch=10, retry=0.01, max_attempts=2)
    def handle(payloads: list[int], batch: Batch) -> None:
        with Session(engine) as session:
            for payload, one in zip(payloads, batch, strict=True):
                with one.once(session):
                    session.execute(INSERT, {"number": payload})

    with Session(engine) as session, delivery("a").once(session):
        session.execute(INSERT, {"number": 1})
    await mq.produce_many("order", [1, 2], ids=["a", "b"])
    await Worker(mq).drain(delayed=True)
    stats = await mq.admin.stats("order")
    assert (stats.totals.completed, stats.dead) == (0, 2)
    assert numbers(engine) == [1]
