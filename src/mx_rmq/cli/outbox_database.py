"""Opens the database of an outbox for a command, by its SQLAlchemy URL."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mx_rmq.cli.program import CommandFailed
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.text import how_to_install

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

    from mx_rmq.outbox import Outbox


TABLE: Final = "mx_rmq_outbox"
DRIVERS: Final = {  # the application's URL may leave out the driver, or name an async one
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "postgresql+asyncpg": "postgresql+psycopg",
    "sqlite+aiosqlite": "sqlite",
}


@contextmanager
def open_outbox(url: str, table: str) -> Iterator[tuple[Outbox, Connection]]:
    """Connect to the database; commit at the end."""
    try:
        from sqlalchemy import create_engine
        from sqlalchemy.engine import make_url
        from sqlalchemy.exc import SQLAlchemyError

        from mx_rmq.outbox import Outbox
    except ImportError as error:
        raise CommandFailed(f"this needs SQLAlchemy: {how_to_install('sqlalchemy')}") from error
    try:
        address = make_url(url)
        file = address.database or ""
        is_path = address.get_backend_name() == "sqlite" and not file.startswith((":", "file:"))
        if is_path and file and not Path(file).exists():  # SQLite would create it
            raise CommandFailed(f"the outbox cannot be read: there is no file {file}")
        driver = DRIVERS.get(address.drivername, address.drivername)
        engine = create_engine(address.set(drivername=driver))
        try:
            with engine.begin() as connection:
                yield Outbox(table=table), connection
        finally:
            engine.dispose()
    except InvalidInput as error:
        raise CommandFailed(str(error)) from error
    except (SQLAlchemyError, ImportError) as error:  # ImportError: the driver
        why = str(getattr(error, "orig", None) or error).partition("\n")[0]  # without the SQL
        raise CommandFailed(f"the outbox cannot be read: {why}") from error
