"""The outbox for SQLAlchemy: `produce` writes a row in your transaction, a relay sends it."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, Unpack, overload

try:
    import sqlalchemy as sa
    from sqlalchemy import MetaData
except ImportError as missing:
    from mx_rmq.core.text import how_to_install

    raise ImportError(
        f"mx_rmq.outbox needs SQLAlchemy: {how_to_install('sqlalchemy')}"
    ) from missing

from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.text import shown
from mx_rmq.outbox.connections import connect, execute, is_async, session_of
from mx_rmq.outbox.once_block import Once
from mx_rmq.outbox.outbox_relay import DEDUP, KEEP, OutboxRelay
from mx_rmq.outbox.parked import OutboxCounts, ParkedRow
from mx_rmq.outbox.row import MAX_PAYLOAD, new_row
from mx_rmq.outbox.statements import Statements, check_table

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from sqlalchemy import Connection, Engine
    from sqlalchemy.ext.asyncio import (
        AsyncConnection,
        AsyncEngine,
        AsyncSession,
        async_scoped_session,
    )
    from sqlalchemy.orm import Session, scoped_session

    from mx_rmq.core.delivery import Delivery
    from mx_rmq.core.durations import Seconds
    from mx_rmq.core.outgoing import OutboxOptions
    from mx_rmq.queue import MessageQueue


class Outbox:
    """Two tables: the rows to send (`table`), and the messages that are done (`inbox`).

    They are added to `metadata`, for `create_all` and for Alembic. `max_payload` is that of the
    queue. `notify`: whether a transaction wakes the relay, on PostgreSQL.
    """

    def __init__(
        self,
        *,
        table: str = "mx_rmq_outbox",
        inbox: str = "mx_rmq_inbox",
        metadata: MetaData | None = None,
        max_payload: int = MAX_PAYLOAD,
        notify: bool = True,
    ) -> None:
        self.table = check_table(table)
        self.inbox = check_table(inbox)
        self.metadata = MetaData() if metadata is None else metadata
        self.max_payload = max_payload
        self._insert = "insert_and_notify" if notify else "insert"
        self._statements = cache(partial(Statements, outbox=table, inbox=inbox))
        _add_tables(self.metadata, table, inbox)

    @overload
    def produce(
        self,
        session: Session | scoped_session[Any] | Connection,
        topic: str,
        payload: Any,
        *,
        id: str | None = None,
        key: str | None = None,
        **options: Unpack[OutboxOptions],
    ) -> str: ...

    @overload
    def produce(
        self,
        session: AsyncSession | async_scoped_session[Any] | AsyncConnection,
        topic: str,
        payload: Any,
        *,
        id: str | None = None,
        key: str | None = None,
        **options: Unpack[OutboxOptions],
    ) -> Awaitable[str]: ...

    def produce(
        self,
        session: Any,
        topic: str,
        payload: Any,
        *,
        id: str | None = None,
        key: str | None = None,
        **options: Unpack[OutboxOptions],
    ) -> str | Awaitable[str]:
        """Write a message into the outbox, in the transaction of `session`; return its id.

        It is sent if, and only if, the transaction commits. Everything is checked first, as in
        `mq.produce`. Await it if the session is async.
        """
        row = new_row(topic, payload, options, id=id, key=key, max_payload=self.max_payload)
        session = session_of(session)
        if is_async(session):
            return self._produce_async(session, row)
        self.run(session, self._insert, row)
        return row["id"]

    async def _produce_async(self, session: Any, row: dict[str, str]) -> str:
        await session.run_sync(self.run, self._insert, row)
        return row["id"]

    def relay(
        self,
        mq: MessageQueue,
        engine: Engine | AsyncEngine,
        *,
        dedup: Seconds = DEDUP,
        keep: Seconds = KEEP,
    ) -> OutboxRelay:
        """Return a relay: while it is open, it sends what is committed. Any number may run.

        `dedup`: how long the queue remembers the ids of what was sent. `keep`: how long the inbox
        remembers messages.
        """
        if not hasattr(engine, "dialect"):
            raise InvalidInput(f"{shown(engine)} is not an engine of SQLAlchemy")
        statements = self._statements(engine.dialect.name)
        return OutboxRelay(mq, lambda: connect(engine), statements, dedup=dedup, keep=keep)

    def once(self, delivery: Delivery, session: Any) -> Once:
        """The same as `delivery.once(session)`, with the tables of this outbox."""
        return Once(delivery, session, self)

    # for operators

    def waiting(self, connection: Session | Connection) -> OutboxCounts:
        """Count the rows that wait, and those that are parked."""
        (row,) = self.run(connection, "count", {})
        return OutboxCounts(row["waiting"], max(0.0, row["oldest"] or 0.0), row["parked"])

    def parked(self, connection: Session | Connection, limit: int = 100) -> list[ParkedRow]:
        """Return rows that cannot be sent, and why, the oldest first."""
        return [ParkedRow(**row) for row in self.run(connection, "parked", {"most": limit})]

    def retry(self, connection: Session | Connection, id: str | None = None) -> int:
        """Let the relay try a parked row again, or all of them; return how many."""
        return len(self.run(connection, "retry", {"id": id}))

    def discard(self, connection: Session | Connection, id: str | None = None) -> int:
        """Delete a parked row, or all of them; return how many."""
        return len(self.run(connection, "discard", {"id": id}))

    def run(self, session: Any, statement: str, values: dict[str, Any]) -> list[dict[str, Any]]:
        """Execute a statement in the transaction of a sync session or connection."""
        dialect = session.get_bind().dialect if hasattr(session, "get_bind") else session.dialect
        return execute(session, getattr(self._statements(dialect.name), statement), values)


def _add_tables(metadata: MetaData, outbox: str, inbox: str) -> None:
    """Describe both tables. docs/outbox.md shows the same in SQL."""
    schema, _, name = outbox.rpartition(".")
    number = sa.BigInteger().with_variant(sa.Integer, "sqlite")  # SQLite counts only these
    table = sa.Table(
        name,
        metadata,
        sa.Column("seq", number, primary_key=True, autoincrement=True),
        sa.Column("id", sa.String(128), nullable=False),
        sa.Column("topic", sa.String(128), nullable=False),
        sa.Column("payload", sa.Text, nullable=False),
        sa.Column("options", sa.Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("error", sa.Text),
        schema=schema or None,
        sqlite_autoincrement=True,
    )
    is_parked = table.c.error.is_not(None)
    sa.Index(f"{name}_parked", table.c.seq, postgresql_where=is_parked, sqlite_where=is_parked)
    schema, _, name = inbox.rpartition(".")
    sa.Table(
        name,
        metadata,
        sa.Column("topic", sa.String(200), primary_key=True),
        sa.Column("id", sa.String(128), primary_key=True),
        sa.Column("fence", sa.BigInteger, nullable=False),
        sa.Column("done_at", sa.Double, nullable=False, index=True),
        schema=schema or None,
    )


DEFAULT: Final = Outbox()

metadata: Final = DEFAULT.metadata
produce: Final = DEFAULT.produce
relay: Final = DEFAULT.relay
once: Final = DEFAULT.once
