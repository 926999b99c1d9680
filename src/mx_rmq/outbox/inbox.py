"""The inbox: `delivery.once` commits the work of a message once, however often it is delivered.

The message is recorded in the transaction of its work, by a statement that waits for any other
transaction that records the same message. So of two workers only one commits, and a record means
that the work is committed.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from mx_rmq.core.delivery import Delivery
from mx_rmq.core.errors import AlreadyDone, InvalidInput, StaleDelivery
from mx_rmq.core.text import shown


def once(delivery: Delivery, session: Any, *, using: str | None) -> Any:
    """Return the block of `delivery.once`, for SQLAlchemy or for Django."""
    if (session is None) == (using is None):
        raise InvalidInput("delivery.once takes a session of SQLAlchemy, or using=… for Django")
    if using is not None:
        return import_module("mx_rmq.outbox.django").once(delivery, using=using)
    return import_module("mx_rmq.outbox").once(delivery, session)


def record_of(delivery: Delivery) -> dict[str, Any]:
    """Begin the block of a delivery, which may have only one; return the values to record."""
    if not isinstance(delivery, Delivery):
        raise InvalidInput(f"{shown(delivery)} is not a delivery: `once` works inside a handler")
    if delivery._once:
        raise InvalidInput(
            f"message {delivery.id} has used `once` already: put all of its work into one block"
        )
    delivery._once = True  # until the block fails
    subscription = delivery.subscription
    topic = f"{delivery.topic}@{subscription}" if subscription else delivery.topic
    return {"topic": topic, "id": delivery.id, "fence": delivery.fence}


def already_done(delivery: Delivery, fences: list[dict[str, Any]]) -> AlreadyDone:
    """Return the error of a message that is recorded. `fences`: of that record."""
    message = f"message {delivery.id} of topic {delivery.topic!r}"
    if fences and fences[0]["fence"] > delivery.fence:
        return StaleDelivery(f"a newer delivery has committed the work of {message}")
    return AlreadyDone(f"the work of {message} is committed already")
