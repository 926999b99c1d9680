"""All SQL of outbox and inbox: one text per statement, for PostgreSQL and for SQLite.

Values are named, as in `:topic`. Table names are checked before they become part of a text. Times
are the database's: seconds since 1970.
"""
# ruff: noqa: S608 - what is put into a text is a checked name or a number

from __future__ import annotations

import re
from typing import Final

from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.text import shown

TABLE: Final = re.compile(r"[a-z_][a-z0-9_]{0,39}(\.[a-z_][a-z0-9_]{0,39})?", re.ASCII)

BATCH: Final = 1_000  # rows that are taken or cleaned up at a time
BATCH_BYTES: Final = 8 * 1_048_576  # of payloads; one row may exceed it
COUNTED: Final = 100_000  # rows that are counted at most
LONGEST_NAME: Final = 63  # bytes that PostgreSQL takes as a name

_NOW: Final = {
    "postgresql": "CAST(extract(epoch FROM clock_timestamp()) AS double precision)",
    "sqlite": "((julianday('now') - 2440587.5) * 86400.0)",
}
_EACH: Final = {  # the values of a list, which is passed as JSON
    "postgresql": "json_array_elements_text(CAST(:{} AS json))",
    "sqlite": "json_each(:{})",
}
_BYTES: Final = {"postgresql": "octet_length(payload)", "sqlite": "length(payload)"}


def check_table(name: str) -> str:
    """Refuse anything but a plain table name."""
    if isinstance(name, str) and TABLE.fullmatch(name):
        return name
    raise InvalidInput(
        f"table {shown(name)} must consist of lowercase letters, digits and _, at most 40 "
        "characters, perhaps after a schema and a dot"
    )


def _quoted(table: str) -> str:
    """Return a table as SQL, even if it is called `order`."""
    return ".".join(f'"{name}"' for name in table.split("."))


class Statements:
    """The statements for one kind of database and these tables."""

    def __init__(self, dialect: str, outbox: str, inbox: str) -> None:
        if dialect not in _NOW:
            raise InvalidInput(f"the outbox works on PostgreSQL and SQLite, not on {dialect}")
        self.dialect = dialect
        self.table = outbox
        self.channel = outbox[:LONGEST_NAME]
        """What PostgreSQL notifies when rows are committed."""
        now, each, size = _NOW[dialect], _EACH[dialect], _BYTES[dialect]
        outbox, inbox = _quoted(outbox), _quoted(inbox)
        self.insert = (
            f"INSERT INTO {outbox} (id, topic, payload, options, created_at)"
            f" VALUES (:id, :topic, :payload, :options, {now})"
        )
        self.insert_and_notify = self.insert
        self.lock = ""
        """Lets one relay send at a time, for `idle` ms at most: PostgreSQL may not notice that its
        machine is gone. Empty: all may send, and the ids make that harmless."""
        if dialect == "postgresql":
            self.insert_and_notify += f" RETURNING pg_notify('{self.channel}', '')"
            self.lock = (
                "SELECT set_config('idle_in_transaction_session_timeout', :idle, true),"
                " pg_try_advisory_xact_lock(hashtextextended("
                f"'mx-rmq ' || current_schema() || ' {self.table}', 0)) AS locked"
            )
        self.take = (
            "SELECT seq, id, topic, payload, options, age FROM ("
            f"SELECT seq, id, topic, payload, options, {now} - created_at AS age, {size} AS size,"
            f" sum({size}) OVER (ORDER BY seq) AS so_far FROM ("
            f"SELECT * FROM {outbox} WHERE error IS NULL"
            f" AND topic NOT IN (SELECT value FROM {each.format('held')})"
            f" ORDER BY seq LIMIT {BATCH}) AS first) AS sized"
            f" WHERE so_far - size < {BATCH_BYTES} ORDER BY seq"
        )
        self.delete = (
            f"DELETE FROM {outbox} WHERE seq IN"
            f" (SELECT CAST(value AS bigint) FROM {each.format('seqs')})"
        )
        self.park = f"UPDATE {outbox} SET error = :error WHERE seq = :seq"
        self.count = (
            f"SELECT count(*) AS waiting, {now} - min(created_at) AS oldest,"
            f" (SELECT count(*) FROM (SELECT 1 FROM {outbox} WHERE error IS NOT NULL"
            f" LIMIT {COUNTED}) AS wrong) AS parked"
            f" FROM (SELECT created_at FROM {outbox} WHERE error IS NULL ORDER BY seq"
            f" LIMIT {COUNTED}) AS ready"
        )
        self.parked = (
            f"SELECT id, topic, payload, error, {now} - created_at AS age FROM {outbox}"
            " WHERE error IS NOT NULL ORDER BY seq LIMIT :most"
        )
        self.retry = (
            f"UPDATE {outbox} SET error = NULL WHERE error IS NOT NULL"
            " AND (id = :id OR CAST(:id AS varchar) IS NULL) RETURNING id"
        )
        self.discard = (
            f"DELETE FROM {outbox} WHERE error IS NOT NULL"
            " AND (id = :id OR CAST(:id AS varchar) IS NULL) RETURNING id"
        )
        self.record = (
            f"INSERT INTO {inbox} (topic, id, fence, done_at)"
            f" VALUES (:topic, :id, :fence, {now})"
            " ON CONFLICT (topic, id) DO NOTHING RETURNING fence"
        )
        """Waits for a transaction that records the same message; returns no row if it commits."""
        self.fence = f"SELECT fence FROM {inbox} WHERE topic = :topic AND id = :id"
        self.clean = (
            f"DELETE FROM {inbox} WHERE (topic, id) IN (SELECT topic, id FROM {inbox}"
            f" WHERE done_at < {now} - :keep ORDER BY done_at LIMIT {BATCH}) RETURNING fence"
        )
