"""The outbox for Django: an app, in INSTALLED_APPS as "mx_rmq.outbox.django".

from mx_rmq.outbox import django as outbox

outbox.produce("order.created", {"id": order.id})   # in your transaction
outbox.relay(mq)                                    # in a worker: sends what is committed
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Unpack

try:
    from django.db import connections, transaction
except ImportError as missing:
    from mx_rmq.core.text import how_to_install

    raise ImportError(f"mx_rmq.outbox.django needs Django: {how_to_install('django')}") from missing

from mx_rmq.core.errors import InvalidInput
from mx_rmq.outbox.django.database import DjangoConnection, execute
from mx_rmq.outbox.inbox import already_done, record_of
from mx_rmq.outbox.outbox_relay import DEDUP, KEEP, OutboxRelay
from mx_rmq.outbox.row import MAX_PAYLOAD, new_row
from mx_rmq.outbox.statements import Statements
from mx_rmq.outbox.threaded_connection import connect_in_thread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mx_rmq.core.delivery import Delivery
    from mx_rmq.core.durations import Seconds
    from mx_rmq.core.outgoing import OutboxOptions
    from mx_rmq.queue import MessageQueue

__all__ = ["once", "produce", "relay"]

_statements = cache(Statements)


def produce(
    topic: str,
    payload: Any,
    *,
    id: str | None = None,
    key: str | None = None,
    using: str = "default",
    max_payload: int = MAX_PAYLOAD,
    notify: bool = True,
    **options: Unpack[OutboxOptions],
) -> str:
    """Write a message into the outbox, in the current transaction; return its id.

    It is sent if, and only if, the transaction commits; outside of one, at once. Everything is
    checked first, as in `mq.produce`. `notify`: whether it wakes the relay, on PostgreSQL.
    """
    row = new_row(topic, payload, options, id=id, key=key, max_payload=max_payload)
    sql = _sql(using)
    execute(connections[using], sql.insert_and_notify if notify else sql.insert, row)
    return row["id"]


def relay(
    mq: MessageQueue, *, using: str = "default", dedup: Seconds = DEDUP, keep: Seconds = KEEP
) -> OutboxRelay:
    """Return a relay: while it is open, it sends what is committed. Any number may run.

    `dedup`: how long the queue remembers the ids of what was sent. `keep`: how long the inbox
    remembers messages.
    """
    connect = partial(connect_in_thread, partial(DjangoConnection, using))
    return OutboxRelay(mq, connect, _sql(using), dedup=dedup, keep=keep)


@contextmanager
def once(delivery: Delivery, *, using: str = "default") -> Iterator[None]:
    """Commit the work of a message once: the same as `delivery.once(using=…)`."""
    connection, sql = connections[using], _sql(using)
    if not connection.in_atomic_block and not connection.get_autocommit():
        raise InvalidInput(
            f"database {using!r} does not commit at the end of `atomic` (AUTOCOMMIT is off), so "
            "`once` cannot be used with it"
        )
    record = record_of(delivery)
    try:
        with transaction.atomic(using=using):
            if not execute(connection, sql.record, record):
                del record["fence"]
                raise already_done(delivery, execute(connection, sql.fence, record))
            yield
    except BaseException:
        delivery._once = False
        raise


def _sql(using: str) -> Statements:
    return _statements(connections[using].vendor, "mx_rmq_outbox", "mx_rmq_inbox")
