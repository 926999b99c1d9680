"""Produce when the database transaction has committed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import msgspec
from django.db import transaction

from mx_rmq.core.codec import encode_payload
from mx_rmq.core.names import check_topic
from mx_rmq.core.outgoing import Outgoing
from mx_rmq.django.queue import shared_queue

if TYPE_CHECKING:
    from mx_rmq.core.outgoing import ProduceOptions


def produce_on_commit(
    topic: str,
    payload: Any,
    *,
    using: str | None = None,
    robust: bool = False,
    id: str | None = None,
    key: str | None = None,
    **options: Unpack[ProduceOptions],
) -> None:
    """Produce once the transaction of this thread has committed; not at all if it rolls back.

    `using` and `robust` are those of Django's `transaction.on_commit`; the rest is the same as for
    `mq.produce`. It is checked now, and payload and headers are taken as they are now. Without a
    transaction it is produced at once. If the process dies, or Redis is away, between the commit
    and the produce, there is no message: where that must not happen, use an outbox.
    """
    mq = shared_queue()
    outgoing = Outgoing.of(check_topic(topic), payload, options, id=id, key=key)
    outgoing.message(mq.settings.max_payload)
    outgoing.duplicate_policy()
    if "headers" in options:
        options["headers"] = {**outgoing.headers}
    snapshot = msgspec.json.decode(encode_payload(payload, mq.settings.max_payload))

    def produce() -> None:
        mq.sync.produce(topic, snapshot, id=id, key=key, **options)

    transaction.on_commit(produce, using=using, robust=robust)
