"""`outbox.produce`: a row in the caller's transaction, checked before it is written."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import MetaData, create_engine, inspect, text
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from mx_rmq import ByError, InvalidInput, Outgoing, PayloadTooLarge, outbox
from mx_rmq.outbox.row import new_row, outgoing_of
from tests.outbox.databases import rows
from tests.tour.pages import DOCS

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine


def test_a_row_is_written_in_the_transaction_of_a_session(engine: Engine) -> None:
    with Session(engine) as session:
        session.execute(text("INSERT INTO orders VALUES (1)"))
        outbox.produce(session, "order.created", {"number": 1})
        session.rollback()
        assert rows(engine) == rows(engine, "SELECT * FROM orders") == []
        session.execute(text("INSERT INTO orders VALUES (2)"))
        id = outbox.produce(session, "order.created", {"number": 2}, priority="high", key="k")
        session.commit()
    (row,) = rows(engine)
    assert (row.id, row.topic, row.payload, row.error) == (
        id,
        "order.created",
        '{"number":2}',
        None,
    )
    assert row.options == '{"key":"k","priority":"high"}'


async def test_a_row_is_written_in_the_transaction_of_an_async_session(
    async_engine: AsyncEngine,
) -> None:
    async with AsyncSession(async_engine) as session, session.begin():
        id = await outbox.produce(session, "order.created", 1)
    async with async_engine.begin() as connection:
        other = await outbox.produce(connection, "order.created", 2, id="custom")
        found = (await connection.execute(text("SELECT id FROM mx_rmq_outbox ORDER BY seq"))).all()
    assert [row.id for row in found] == [id, "custom"] == [id, other]


def test_connections_and_scoped_sessions_are_accepted(engine: Engine) -> None:
    with engine.begin() as connection:
        outbox.produce(connection, "order.created", 1)
    session = scoped_session(sessionmaker(engine))
    outbox.produce(session, "order.created", 2)
    session.commit()
    session.remove()
    assert [row.payload for row in rows(engine)] == ["1", "2"]


async def test_a_scoped_async_session_is_accepted(async_engine: AsyncEngine) -> None:
    session = async_scoped_session(async_sessionmaker(async_engine), asyncio.current_task)
    await outbox.produce(session, "order.created", 1)
    await session.commit()
    found = (await session.execute(text("SELECT payload FROM mx_rmq_outbox"))).scalars().all()
    await session.remove()
    assert found == ["1"]


def test_without_greenlet_sync_code_works() -> None:
    """SQLAlchemy needs it for async code, and does not install it everywhere."""
    program = (
        "import sys; sys.modules['greenlet'] = None\n"
        "from sqlalchemy import create_engine\n"
        "from mx_rmq import outbox\n"
        "with create_engine('sqlite://').begin() as connection:\n"
        "    outbox.metadata.create_all(connection)\n"
        "    outbox.produce(connection, 'order', 1)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("topic", "payload", "options", "says"),
    [
        ("no topic", 1, {}, "topic 'no topic' must consist of"),
        ("order@billing", 1, {}, "is a subscription, not a topic"),
        ("order", object(), {}, "cannot be encoded as JSON"),
        ("order", float("nan"), {}, "not a JSON number"),
        ("order", 1, {"id": "a b"}, "message id 'a b'"),
        ("order", 1, {"key": ""}, "key=''"),
        ("order", 1, {"delay": -1}, "delay=-1"),
        ("order", 1, {"delay": 1, "at": 1e9}, "either delay=1 or at"),
        ("order", 1, {"at": datetime(2026, 1, 1)}, "has no time zone"),  # noqa: DTZ001
        ("order", 1, {"priority": "urgent"}, "priority='urgent'"),
        ("order", 1, {"max_attempts": 0}, "max_attempts=0"),
        ("order", 1, {"headers": {"a": 1}}, "headers="),
        ("order", 1, {"ttl": 1, "delay": 2}, "expire before its delay"),
        ("order", 1, {"retry": "soon"}, "retry='soon'"),
    ],
)
def test_what_is_invalid_is_refused_before_anything_is_written(
    topic: str, payload: Any, options: dict[str, Any], says: str
) -> None:
    engine = create_engine("sqlite://")  # it has no tables: a write would fail
    with Session(engine) as session, pytest.raises(InvalidInput, match=says):
        outbox.produce(session, topic, payload, **options)


def test_an_unknown_option_a_wrong_session_and_a_wrong_engine_are_refused() -> None:
    with pytest.raises(TypeError, match="no option 'on_duplicate'; its options are id, key, delay"):
        outbox.produce(None, "order", 1, on_duplicate="replace")  # type: ignore[call-overload]
    with pytest.raises(InvalidInput, match="None is not a session or connection of SQLAlchemy"):
        outbox.produce(None, "order", 1)  # type: ignore[call-overload]
    with pytest.raises(InvalidInput, match="'sqlite://' is not an engine of SQLAlchemy"):
        outbox.relay(None, "sqlite://")  # type: ignore[arg-type]


def test_a_payload_over_the_limit_is_refused(engine: Engine) -> None:
    small = outbox.Outbox(max_payload=10)
    with Session(engine) as session:
        small.produce(session, "order", "12345678")
        with pytest.raises(PayloadTooLarge):
            small.produce(session, "order", "123456789")


def test_the_tables_join_the_metadata_of_the_application() -> None:
    metadata = MetaData()
    mine = outbox.Outbox(table="to_send", inbox="done", metadata=metadata)
    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        metadata.create_all(connection)
        mine.produce(connection, "order", 1)
        assert sorted(inspect(connection).get_table_names()) == ["done", "to_send"]
        assert mine.waiting(connection).waiting == 1


@pytest.mark.parametrize("name", ["a b", 'a"b', "a;b", "Outbox", "x" * 41, "a.b.c", ""])
def test_a_table_name_that_is_no_plain_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="must consist of lowercase letters"):
        outbox.Outbox(table=name)


def test_another_kind_of_database_is_refused() -> None:
    engine = create_engine("sqlite://")
    engine.dialect.name = "mysql"
    with Session(engine) as session, pytest.raises(InvalidInput, match="not on mysql"):
        outbox.produce(session, "order", 1)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "delay": st.floats(0, 1e6) | st.timedeltas(timedelta(), timedelta(days=9)),
        "priority": st.sampled_from(["high", "normal", "low"]),
        "headers": st.dictionaries(st.text("abc"), st.text("abc")),
        "max_attempts": st.integers(1, 100),
        "retry": st.sampled_from([5, [1, 2], ByError({ValueError: None})]),
        "cost": st.integers(1, 100),
        "key": st.text("abc", min_size=1),
    },
)


@given(JSON, OPTIONS)
def test_what_is_sent_is_what_was_produced(payload: Any, given_options: dict[str, Any]) -> None:
    """A row that is sent at once makes the same record as `mq.produce` would."""
    options = dict(given_options)
    key = options.pop("key", None)
    row = new_row("t", payload, options, id="i", key=key, max_payload=10**6)  # type: ignore[arg-type]
    sent = outgoing_of({**row, "age": 0.0}, 60)
    assert sent.message(10**6) == Outgoing.of("t", payload, options, id="i", key=key).message(10**6)  # type: ignore[arg-type]


def test_durations_shrink_while_a_row_waits_and_a_time_does_not() -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    row = new_row("t", 1, {"delay": 10, "ttl": 60}, id=None, key=None, max_payload=100)
    late = outgoing_of({**row, "age": 4.0}, 60)
    assert (late.delay, late.ttl) == (6.0, 56.0)
    late = outgoing_of({**row, "age": 100.0}, 60)
    assert (late.delay, late.ttl) == (0.0, 0.001)
    row = new_row("t", 1, {"delay": 5.0004, "ttl": 5.0006}, id=None, key=None, max_payload=100)
    for age in (0.0001, 0.12345, 1.2345, 4.9996, 5.0005):
        outgoing_of({**row, "age": age}, 60).message(100)  # rounded, it is still valid
    row = new_row("t", 1, {"at": at}, id=None, key=None, max_payload=100)
    assert outgoing_of({**row, "age": 4.0}, 60).at == at.timestamp()


def test_the_core_does_not_import_sqlalchemy_or_django() -> None:
    program = (
        "import sys, mx_rmq, mx_rmq.outbox; [getattr(mx_rmq, name) for name in mx_rmq.__all__];"
        "found = {'sqlalchemy', 'django'} & {*sys.modules}; sys.exit(str(found) if found else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_public_name_exists_and_is_in_the_docs() -> None:
    page = (DOCS / "outbox.md").read_text()
    assert outbox.__all__ == sorted({*outbox.__all__})
    assert all(getattr(outbox, name).__doc__ for name in outbox.__all__)
    assert [name for name in outbox.__all__ if name not in page] == []
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        outbox.nothing  # type: ignore[attr-defined]  # noqa: B018 - it raises
