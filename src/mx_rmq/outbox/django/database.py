"""How statements run on a connection of Django."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from django.db import connections

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

_NAME: Final = re.compile(r":([a-z]+)")
NOT_OURS: Final = ("isolation_level", "pool")
"""Options of the application that its relay does without: it relies on READ COMMITTED, and a
connection that listens must not go back to a pool."""


@cache
def _for_django(sql: str) -> str:
    """Write `:name` as Django does."""
    return _NAME.sub(r"%(\1)s", sql)


def execute(
    connection: BaseDatabaseWrapper, sql: str, values: dict[str, Any]
) -> list[dict[str, Any]]:
    """Execute a statement; return its rows."""
    with connection.cursor() as cursor:
        cursor.execute(_for_django(sql), values)
        if cursor.description is None:
            return []
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


class DjangoConnection:
    """A connection beside those of the threads, for `ThreadedConnection`."""

    def __init__(self, using: str) -> None:
        self._connection = connections.create_connection(using)
        settings = self._connection.settings_dict
        options = {one: value for one, value in settings["OPTIONS"].items() if one not in NOT_OURS}
        self._connection.settings_dict = {**settings, "OPTIONS": options}
        self._connection.inc_thread_sharing()
        self._connection.set_autocommit(False)

    def execute(self, sql: str, values: dict[str, Any]) -> list[dict[str, Any]]:
        return execute(self._connection, sql, values)

    def commit(self) -> None:
        self._connection.commit()

    def close(self) -> None:
        self._connection.close()

    def without_transactions(self) -> Any:
        self._connection.set_autocommit(True)
        return self._connection.connection
