"""A row of the outbox: a message as the database keeps it until a relay sends it. No I/O."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import msgspec

from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.names import check_options, check_topic
from mx_rmq.core.outgoing import OutboxOptions, Outgoing
from mx_rmq.core.retry import from_dict

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_PAYLOAD: Final = 1_048_576
"""The default of the queue's setting max_payload."""


class StoredOptions(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The options of a message, as the column `options` keeps them."""

    key: str | None = None
    delay: float | None = None
    at: float | None = None
    priority: str = "normal"
    ttl: float | None = None
    headers: dict[str, str] = {}
    max_attempts: int | None = None
    retry: dict[str, Any] | None = None
    cost: int = 1


def new_row(
    topic: str,
    payload: Any,
    options: OutboxOptions,
    *,
    id: str | None,
    key: str | None,
    max_payload: int,
) -> dict[str, str]:
    """Check a message as `mq.produce` does, and return its row. A random id makes it unique."""
    check_options("produce", options, OutboxOptions, "id", "key")
    check_topic(topic)
    outgoing = Outgoing.of(topic, payload, options, id=id or uuid4().hex, key=key)
    message = outgoing.message(max_payload)
    stored = StoredOptions(
        key=key,
        delay=outgoing.delay,
        at=outgoing.at,
        priority=str(message.priority),
        ttl=outgoing.ttl,
        headers=message.headers,
        max_attempts=message.max_attempts,
        retry=message.retry,
        cost=message.cost,
    )
    text = bytes(message.payload).decode()
    return {"id": message.id, "topic": topic, "payload": text, "options": _json(stored)}


def outgoing_of(row: Mapping[str, Any], dedup: float) -> Outgoing:
    """Return the message of a row, `age` seconds after it was written; refuse an invalid row.

    What was a duration then is shorter by now.
    """
    try:
        stored = msgspec.json.decode(row["options"], type=StoredOptions)
    except msgspec.MsgspecError as error:
        raise InvalidInput(f"the options of row {row['id']} cannot be read: {error}") from error
    age = max(0.0, row["age"])
    outgoing = Outgoing(
        topic=row["topic"],
        payload=msgspec.Raw(row["payload"].encode()),
        id=row["id"],
        dedup=dedup,
        **msgspec.structs.asdict(stored),
    )
    delay = None if stored.delay is None else max(0.0, round(stored.delay - age, 3))
    return replace(
        outgoing,
        delay=delay,
        ttl=None if stored.ttl is None else max(round(stored.ttl - age, 3), (delay or 0) + 0.001),
        retry=None if stored.retry is None else from_dict(stored.retry),
    )


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
