"""The tables: the SQL in the docs, the rights that are needed, and names of your own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Engine, MetaData, create_engine, inspect, text
from sqlalchemy.exc import ProgrammingError

from mx_rmq import outbox
from tests.outbox.databases import rows
from tests.outbox.test_once import delivery
from tests.tour.pages import DOCS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mx_rmq import MessageQueue
    from tests.lab.postgres import Postgres


@pytest.fixture
def empty(postgres: Postgres) -> Iterator[Engine]:
    """A database without tables."""
    engine = create_engine(postgres.new_database().replace("postgresql", "postgresql+psycopg"))
    yield engine
    engine.dispose()


def described(engine: Engine) -> dict[str, Any]:
    """Return what each table is made of."""
    found = inspect(engine)
    return {
        table: (
            [(one["name"], str(one["type"]), one["nullable"]) for one in found.get_columns(table)],
            found.get_pk_constraint(table)["constrained_columns"],
            sorted(str((one["name"], one["column_names"])) for one in found.get_indexes(table)),
        )
        for table in sorted(found.get_table_names())
    }


def test_the_sql_in_the_docs_makes_the_same_tables(empty: Engine) -> None:
    (sql,) = re.findall(r"```sql\n(.*?)```", (DOCS / "outbox.md").read_text(), re.DOTALL)
    with empty.begin() as connection:
        connection.exec_driver_sql(sql)
    by_hand = described(empty)
    with empty.begin() as connection:
        outbox.metadata.drop_all(connection)
        outbox.metadata.create_all(connection)
    assert by_hand == described(empty)


async def test_the_rights_in_the_docs_are_enough(mq: MessageQueue, empty: Engine) -> None:
    with empty.begin() as connection:
        outbox.metadata.create_all(connection)
        for statement in (
            "DROP ROLE IF EXISTS app",
            "DROP ROLE IF EXISTS relay",
            "CREATE ROLE app LOGIN",
            "CREATE ROLE relay LOGIN",
            "GRANT INSERT ON mx_rmq_outbox TO app",
            "GRANT USAGE ON SEQUENCE mx_rmq_outbox_seq_seq TO app",
            "GRANT SELECT, INSERT ON mx_rmq_inbox TO app",
            "GRANT SELECT, UPDATE, DELETE ON mx_rmq_outbox TO relay",
            "GRANT SELECT, DELETE ON mx_rmq_inbox TO relay",
        ):
            connection.execute(text(statement))
    app, relays = (create_engine(empty.url.set(username=name)) for name in ("app", "relay"))
    with app.connect() as connection, delivery().once(connection):
        outbox.produce(connection, "order", 1)
    with app.connect() as connection, pytest.raises(ProgrammingError, match="permission denied"):
        connection.execute(text("SELECT * FROM mx_rmq_outbox"))
    relay = outbox.relay(mq, relays)
    await relay.drain()
    await relay.__aexit__()
    assert rows(empty) == []
    app.dispose()
    relays.dispose()
    with empty.begin() as connection:
        connection.execute(text("DROP OWNED BY app, relay"))
        connection.execute(text("DROP ROLE app, relay"))


@pytest.mark.parametrize(
    ("schema", "table"), [("shop", "order"), ("s" * 40, "t" * 40)], ids=["short", "long"]
)
async def test_tables_may_have_any_names_and_a_schema(
    mq: MessageQueue, empty: Engine, schema: str, table: str
) -> None:
    metadata = MetaData()
    mine = outbox.Outbox(table=f"{schema}.{table}", inbox=f"{schema}.user", metadata=metadata)
    with empty.begin() as connection:
        connection.execute(text(f"CREATE SCHEMA {schema}"))
        metadata.create_all(connection)
        mine.produce(connection, "order", 1)
    with empty.connect() as connection, mine.once(delivery(), connection):
        mine.produce(connection, "order", 2)
    async with mine.relay(mq, empty) as relay:
        await relay.drain()
    with empty.begin() as connection:
        assert mine.waiting(connection).waiting == 0
