"""The relay: committed rows become messages, each once and in order, whatever breaks."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.ext.asyncio import create_async_engine

from mx_rmq import InvalidInput, MessageQueue, Middleware, State, Worker, outbox
from mx_rmq.core.events import OutboxMeasured
from mx_rmq.outbox import outbox_relay
from mx_rmq.store.keys import Keys
from tests.outbox.databases import new_async_engine, new_engine, rows, url_of
from tests.runtime.stage import until, until_so

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from redis.asyncio import Redis
    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    from mx_rmq import Outgoing
    from mx_rmq.core.middleware import Produce
    from tests.lab.postgres import Postgres
    from tests.lab.servers import Server


def write(engine: Engine, *payloads: Any, topic: str = "order", **options: Any) -> list[str]:
    with engine.begin() as connection:
        return [outbox.produce(connection, topic, one, **options) for one in payloads]


async def payloads(mq: MessageQueue, topic: str = "order", state: str = "pending") -> list[Any]:
    """Return what was produced to a topic, in order."""
    page = await mq.admin.list(topic, state, limit=1000)
    return [one.payload for one in page.messages]


async def queued(raw: Redis, topic: str = "order") -> list[str]:
    """Return the ids that wait in a topic, in the order in which they will be taken."""
    ids: list[Any] = await raw.lrange(Keys().of(topic).pending, 0, -1)
    return [bytes(id).decode() for id in reversed(ids)]


async def test_rows_become_messages_in_order_and_are_deleted(
    mq: MessageQueue, raw: Redis, engine: Engine
) -> None:
    relay = outbox.relay(mq, engine)
    ids = write(engine, *range(2100))
    await relay.drain()
    assert rows(engine) == []
    assert await queued(raw) == ids
    await relay.__aexit__()


async def test_each_driver_sends_and_is_woken_by_a_commit(
    mq: MessageQueue, async_engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the database notifies, the relay does not poll."""
    if async_engine.dialect.name == "postgresql":
        monkeypatch.setattr(outbox_relay, "POLL", 3600)
    async with outbox.relay(mq, async_engine) as relay:
        await until(lambda: relay._listening or async_engine.dialect.name == "sqlite")
        for number in range(3):
            async with async_engine.begin() as connection:
                await outbox.produce(connection, "order", number)
            await until_so(lambda: _has(mq, number + 1))  # noqa: B023
    assert await payloads(mq) == [0, 1, 2]


async def test_a_sync_driver_is_woken_by_a_commit(
    mq: MessageQueue, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine.dialect.name == "postgresql":
        monkeypatch.setattr(outbox_relay, "POLL", 3600)
    async with outbox.relay(mq, engine) as relay:
        await until(lambda: relay._listening or engine.dialect.name == "sqlite")
        for number in range(3):
            write(engine, number)
            await until_so(lambda: _has(mq, number + 1))  # noqa: B023


async def _has(mq: MessageQueue, count: int) -> bool:
    with suppress(InvalidInput):  # the topic does not exist yet
        return (await mq.admin.stats("order")).pending == count
    return False


async def test_options_arrive_with_the_message(mq: MessageQueue, engine: Engine) -> None:
    write(
        engine,
        {"ä": 1.5},
        id="mine",
        key="tenant",
        delay=3600,
        priority="high",
        ttl=7200,
        headers={"a": "b"},
        max_attempts=9,
        retry=[1, 2],
        cost=3,
    )
    relay = outbox.relay(mq, engine)
    await relay.drain()
    message = await mq.admin.get("order", "mine")
    assert message is not None
    assert (message.state, message.payload) == (State.DELAYED, {"ä": 1.5})
    assert (message.key, message.priority, message.cost) == ("tenant", "high", 3)
    assert (message.headers, message.max_attempts) == ({"a": "b"}, 9)
    await relay.__aexit__()


async def test_a_row_that_is_sent_again_makes_no_second_message(
    mq: MessageQueue, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The relay dies before it deletes the rows, and the messages are handled before the next."""
    handled: list[int] = []

    @mq.handler("order")
    async def handle(payload: int) -> None:
        handled.append(payload)

    write(engine, 1, 2, 3)
    dying = outbox.relay(mq, engine)
    monkeypatch.setattr(dying._sql, "delete", "DELETE FROM no_such_table")
    with pytest.raises(Exception, match="no_such_table"):
        await dying.step()
    monkeypatch.undo()
    assert len(rows(engine)) == 3
    await Worker(mq).drain()
    next_one = outbox.relay(mq, engine)
    await next_one.drain()
    await Worker(mq).drain()
    assert rows(engine) == []
    assert sorted(handled) == [1, 2, 3]
    await next_one.__aexit__()


async def test_several_relays_send_each_row_once_and_in_order(
    mq: MessageQueue, raw: Redis, engine: Engine
) -> None:
    ids: list[str] = []
    async with AsyncExitStack() as stack:
        for _ in range(3):
            await stack.enter_async_context(outbox.relay(mq, engine))
        for start in range(0, 600, 50):
            ids += write(engine, *range(start, start + 50))
            await asyncio.sleep(0)
        await until(lambda: not rows(engine))
    assert await queued(raw) == ids


async def test_on_postgres_one_relay_sends_at_a_time(
    mq: MessageQueue, postgres: Postgres, tmp_path: Path
) -> None:
    engine = new_engine(url_of("postgresql+psycopg", postgres, tmp_path))
    relay = outbox.relay(mq, engine)
    write(engine, 1)
    with engine.connect() as other:
        other.execute(text(relay._sql.lock), {"idle": "0"})
        assert await relay.step() == outbox_relay.POLL
        assert len(rows(engine)) == 1
        other.rollback()
    await relay.drain()
    assert rows(engine) == []
    await relay.__aexit__()
    engine.dispose()


@pytest.mark.parametrize("isolation", ["AUTOCOMMIT", "SERIALIZABLE"])
async def test_a_relay_has_its_own_isolation(
    postgres: Postgres, tmp_path: Path, mq: MessageQueue, isolation: str
) -> None:
    """With that of the engine its lock would end at once, or its transactions would fail."""
    url = url_of("postgresql+psycopg", postgres, tmp_path)
    new_engine(url).dispose()
    engine = create_engine(url, isolation_level=isolation)
    async_engine = create_async_engine(url, isolation_level=isolation)
    for each in (engine, async_engine):
        relay = outbox.relay(mq, each)
        one, two = await relay._connect(), await relay._connect()
        for connection, gets_it in ((one, True), (two, False)):
            (lock,) = await connection.execute(relay._sql.lock, {"idle": "0"})
            assert lock["locked"] is gets_it
        assert await one.execute("SHOW transaction_isolation", {}) == [
            {"transaction_isolation": "read committed"}
        ]
        await one.close()
        await two.close()
    engine.dispose()
    await async_engine.dispose()


async def test_a_relay_that_cannot_delete_rows_does_not_send_them(
    mq: MessageQueue, engine: Engine, tmp_path: Path
) -> None:
    """They would be sent again and again, and twice when the queue has forgotten their ids."""
    write(engine, 1)
    if engine.dialect.name == "sqlite":
        readonly = create_engine(f"sqlite:///file:{tmp_path}/shop.db?mode=ro&uri=true")
    else:
        readonly = create_engine(
            engine.url, connect_args={"options": "-c default_transaction_read_only=on"}
        )
    relay = outbox.relay(mq, readonly)
    with pytest.raises(DBAPIError, match=r"read-only|readonly"):
        await relay.step()
    assert await mq.admin.topics() == []
    await relay.__aexit__()
    readonly.dispose()


async def test_a_relay_whose_machine_is_gone_loses_its_turn(
    mq: MessageQueue, postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL gets no word of that, and would keep its transaction for hours."""
    monkeypatch.setattr(outbox_relay, "GONE_AFTER", 0.1 - mq.settings.patience)
    url = url_of("postgresql+psycopg", postgres, tmp_path)
    engine, other = new_engine(url), create_engine(url)
    write(engine, 1)
    gone, relay = outbox.relay(mq, engine), outbox.relay(mq, other)
    connection = await gone._connect()
    (lock,) = await connection.execute(gone._sql.lock, {"idle": "100"})
    assert lock["locked"]
    async with relay:
        await until(lambda: not rows(other))
    with pytest.raises(Exception, match="idle-in-transaction timeout"):
        await connection.execute(gone._sql.take, {"held": "[]"})
    await connection.close()
    engine.dispose()
    other.dispose()


async def test_a_row_that_cannot_be_sent_is_parked_and_blocks_no_other(
    server: Server, raw: Redis, engine: Engine
) -> None:
    async with MessageQueue(server.url, max_payload=20) as mq:
        seen: list[OutboxMeasured] = []
        mq.events.subscribe(seen.append, OutboxMeasured)
        write(engine, 1, "a payload that is larger than this queue takes", 2)
        (other,) = write(engine, 3, topic="mail")
        with engine.begin() as connection:
            connection.execute(text("UPDATE mx_rmq_outbox SET options='{' WHERE topic='mail'"))
        relay = outbox.relay(mq, engine)
        await relay.drain()
        assert await payloads(mq) == [1, 2]
        with engine.begin() as connection:
            large, broken = outbox.Outbox().parked(connection)
            counts = outbox.Outbox().waiting(connection)
        assert "PayloadTooLarge: the payload is 48 bytes; the limit is 20" in large.error
        assert (broken.id, broken.topic, broken.payload) == (other, "mail", "3")
        assert "options of row" in broken.error
        assert (counts.waiting, counts.parked) == (0, 2)
        assert [(one.waiting, one.parked) for one in seen] == [(0, 2)]
        await relay.__aexit__()


async def test_parked_rows_can_be_tried_again_or_discarded(
    mq: MessageQueue, engine: Engine
) -> None:
    first, second, third = write(engine, 1, 2, 3)
    mine = outbox.Outbox()
    with engine.begin() as connection:
        connection.execute(text("UPDATE mx_rmq_outbox SET error='why'"))
        assert mine.retry(connection, "none") == mine.retry(connection, "") == 0
        assert mine.discard(connection, "") == 0  # a variable that is empty is not all rows
        assert mine.retry(connection, second) == 1
        assert mine.discard(connection, first) == 1
        assert [one.id for one in mine.parked(connection)] == [third]
    relay = outbox.relay(mq, engine)
    await relay.drain()
    assert await payloads(mq) == [2]
    with engine.begin() as connection:
        assert mine.retry(connection) == 1
    await relay.drain()
    assert await payloads(mq) == [2, 3]
    await relay.__aexit__()


async def test_a_full_topic_waits_and_others_go_on(
    server: Server, raw: Redis, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_relay, "TRY_AGAIN", 0.05)
    async with MessageQueue(server.url, max_pending=2) as mq:
        write(engine, 1, 2)
        relay = outbox.relay(mq, engine)
        await relay.drain()
        write(engine, *range(3, 6))
        write(engine, 9, topic="mail")
        await relay.drain()
        assert await payloads(mq) == [1, 2]
        assert await payloads(mq, "mail") == [9]
        assert relay._held.keys() == {"order"}
        await mq.admin.cancel("order", (await mq.admin.list("order", "pending")).messages[0].id)
        async with MessageQueue(server.url, max_pending=100) as roomy:
            await relay.__aexit__()
            relay = outbox.relay(roomy, engine)
            await relay.drain()
        assert await payloads(mq) == [2, 3, 4, 5]
        await relay.__aexit__()


async def test_a_topic_that_fills_up_on_the_way_takes_the_rest_later(
    server: Server, raw: Redis, engine: Engine
) -> None:
    async with MessageQueue(server.url, max_pending=600) as mq:
        relay = outbox.relay(mq, engine)
        ids = write(engine, *range(700))
        await relay.drain()
        assert await queued(raw) == ids[:600]
        assert [row.id for row in rows(engine)] == ids[600:]
        await relay.__aexit__()


@pytest.mark.parametrize("room", [1, 3, 6])
async def test_a_topic_with_less_room_than_there_are_rows_takes_some(
    server: Server, raw: Redis, engine: Engine, room: int
) -> None:
    """Rows must not wait for room that there will never be."""
    async with MessageQueue(server.url, max_pending=room) as mq:
        handled: list[int] = []

        @mq.handler("order")
        async def handle(payload: int) -> None:
            handled.append(payload)

        relay = outbox.relay(mq, engine)
        ids = write(engine, *range(7))
        await relay.drain()
        assert await queued(raw) == ids[:room]
        while rows(engine):
            await Worker(mq).drain()
            relay._held.clear()  # as after two seconds
            assert await relay.step() == 0
        await Worker(mq).drain()
        assert handled == [*range(7)]
        await relay.__aexit__()


async def test_a_row_that_was_stored_but_not_confirmed_is_sent(
    server: Server, raw: Redis, engine: Engine
) -> None:
    """To send it again would not make it safer, and the topic could never go on."""
    async with MessageQueue(server.url, confirm="replicated", confirm_within=0.01) as mq:
        relay = outbox.relay(mq, engine)
        ids = write(engine, 1, 2)
        await relay.drain()
        assert await queued(raw) == ids
        assert rows(engine) == []
        await relay.__aexit__()


class Moody(Middleware):
    """Fails as often as it is told, and sees every message."""

    def __init__(self, failures: int) -> None:
        self.failures = failures

    async def produce(self, messages: Sequence[Outgoing], call_next: Produce) -> list[str]:
        if self.failures:
            self.failures -= 1
            raise ValueError("in a bad mood")
        return await call_next(messages)


async def test_a_row_waits_while_middleware_fails(
    server: Server, raw: Redis, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_relay, "TRY_AGAIN", 0.01)
    monkeypatch.setattr(outbox_relay, "POLL", 0.01)
    async with MessageQueue(server.url, middleware=[Moody(2)]) as mq:
        write(engine, 1)
        async with outbox.relay(mq, engine):
            await until(lambda: not rows(engine))
        assert await payloads(mq) == [1]


async def test_rows_wait_while_the_server_is_away(
    engine: Engine, server: Server, raw: Redis
) -> None:
    async with MessageQueue(server.url, patience=0.2) as mq:
        relay = outbox.relay(mq, engine)
        write(engine, 1)
        server.kill()
        try:
            assert await relay.step() == outbox_relay.POLL
            assert len(rows(engine)) == 1
            assert not relay._held  # it is tried again soon
        finally:
            server.start()
        await relay.drain()
        assert await payloads(mq) == [1]
        await relay.__aexit__()


async def test_it_goes_on_after_its_connections_were_cut(
    mq: MessageQueue, postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that sends and the one that listens."""
    monkeypatch.setattr(outbox_relay, "POLL", 3600)
    url = url_of("postgresql+psycopg", postgres, tmp_path)
    engine = new_engine(url)
    async with new_async_engine(url.replace("psycopg", "asyncpg")) as cut:
        async with outbox.relay(mq, cut) as relay, outbox.relay(mq, engine) as other:
            await until(lambda: relay._listening and other._listening)
            before = relay._listening, other._listening
            with engine.connect() as connection:
                cutting = (
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
                connection.execute(text(cutting))
            await until(
                lambda: (
                    relay._listening not in (None, before[0])
                    and other._listening not in (None, before[1])
                )
            )
            writer = new_engine(url)
            write(writer, 1)
            await until(lambda: not rows(writer))
            writer.dispose()
        assert await payloads(mq) == [1]
    engine.dispose()


async def test_a_stop_waits_for_the_rows_that_are_being_sent(
    mq: MessageQueue, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()
    produce = mq.produce_outgoing

    async def slowly(messages: Sequence[Outgoing]) -> list[str]:
        began.set()
        await go_on.wait()
        return await produce(messages)

    monkeypatch.setattr(mq, "produce_outgoing", slowly)
    write(engine, 1)
    async with outbox.relay(mq, engine):
        await began.wait()
        asyncio.get_running_loop().call_later(0.05, go_on.set)
    assert rows(engine) == []
    assert await payloads(mq) == [1]


async def test_a_database_without_the_tables_is_an_error_that_is_logged(
    mq: MessageQueue, tmp_path: Path
) -> None:
    relay = outbox.relay(mq, create_engine(f"sqlite:///{tmp_path}/empty.db"))
    with pytest.raises(OperationalError, match="no such table"):
        await relay.step()
    await relay.__aexit__()


async def test_rows_are_sent_although_the_inbox_cannot_be_cleaned(
    mq: MessageQueue, tmp_path: Path
) -> None:
    engine = new_engine(f"sqlite:///{tmp_path}/shop.db")
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE mx_rmq_inbox"))
    relay = outbox.relay(mq, engine)
    with pytest.raises(OperationalError, match="no such table: mx_rmq_inbox"):
        await relay.step()
    write(engine, 1)
    await relay.drain()
    assert rows(engine) == []
    await relay.__aexit__()
    engine.dispose()


async def test_a_worker_runs_a_relay_in_its_lifespan(
    server: Server, raw: Redis, engine: Engine
) -> None:
    mq = MessageQueue(server.url, lifespan=lambda mq: outbox.relay(mq, engine))
    handled = asyncio.Event()

    @mq.handler("order")
    async def handle(payload: int) -> None:
        handled.set()

    async with mq, Worker(mq):
        write(engine, 1)
        await handled.wait()


async def test_a_blocked_event_loop_does_not_block_its_own_relay(
    mq: MessageQueue, tmp_path: Path
) -> None:
    """Application code may write to SQLite in the event loop, while a relay deletes rows."""
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db", connect_args={"timeout": 2})
    outbox.metadata.create_all(engine)
    async with outbox.relay(mq, engine):
        for number in range(100):
            write(engine, number)
            await asyncio.sleep(0.001)
        await until(lambda: not rows(engine))
    engine.dispose()
