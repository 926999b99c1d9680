"""Produce when the database transaction has committed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import msgspec
from django.db import transaction

from mx_rmq.core.codec import encode_payload
from mx_rmq.core.names import check_topic
from mx_rmq.core.outgoing import Outgoing
from mx_rmq.django.project_queue import shared_queue
from mx_rmq.topic import Topic

if TYPE_CHECKING:
    from mx_rmq.core.outgoing import ProduceOptions


def produce_on_commit(
    topic: str | Topic[Any, Any],
    payload: Any,
    *,
    using: str | None = None,
    robust: bool = False,
    id: str | None = None,
    key: str | None = None,
    **options: Unpack[ProduceOptions],
) -> None:
    """Produce when this thread's transaction commits; never if it rolls back.

    `using` and `robust` are those of Django's `transaction.on_commit`, the rest is the same as for
    `mq.produce`. Everything is checked now, with a typed topic also the payload's type; payload and
    headers are copied now. Without a transaction, produce at once. If the process dies or Redis is
    away right after the commit, the message is lost. Where that must not happen, use an outbox.
    """
    mq = shared_queue()
    if isinstance(topic, Topic):
        topic.check(payload)
        topic = topic.name
    name = check_topic(topic)
    outgoing = Outgoing.of(name, payload, options, id=id, key=key)
    outgoing.message(mq.settings.max_payload)
    outgoing.duplicate_policy()
    if "headers" in options:
        options["headers"] = {**outgoing.headers}
    snapshot = msgspec.json.decode(encode_payload(payload, mq.settings.max_payload))

    def produce() -> None:
        mq.sync.produce(name, snapshot, id=id, key=key, **options)

    transaction.on_commit(produce, using=using, robust=robust)
