"""What an archived message becomes when it is requeued: as it was, or with another payload.

With another payload, even an unreadable record can be requeued. It keeps the fields that can be
read.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mx_rmq.core import codec
from mx_rmq.core.errors import DecodeError, InvalidInput, NewerRecord
from mx_rmq.core.message import VERSION, Failure, Message, State
from mx_rmq.core.partition import topic_of
from mx_rmq.store.quarantine import read

if TYPE_CHECKING:
    from mx_rmq.store.messages import Found
    from mx_rmq.store.quarantine import QuarantineReason

_KEPT: Final = ("created_at", "priority", "max_attempts", "retry", "headers", "errors")
_TYPES: Final = {one.name: one.type for one in msgspec.structs.fields(Message) if one.name in _KEPT}
"""Fields to keep of a record that cannot be read as a whole, each on its own."""


def can_requeue(part: str, found: Found) -> bool:
    """Return whether a worker could read an archived message."""
    try:
        _decode(part, found)
    except DecodeError:
        return False
    return True


def revived(part: str, found: Found) -> Message:
    """Return an archived message ready to be requeued; refuse one that no worker could read."""
    try:
        return _decode(part, found)
    except DecodeError as error:
        raise _refused(found, error) from error


def edited(part: str, found: Found, payload: Any, *, limit: int) -> Message:
    """Return an archived message with another payload; refuse a payload that produce refuses."""
    encoded = codec.encode_payload(payload, limit)
    try:
        message = _decode(part, found)
    except NewerRecord as error:  # the fields that we do not know would be lost
        raise _refused(found, error) from error
    except DecodeError:
        message = _salvaged(topic_of(part), found)
    return msgspec.structs.replace(message, payload=encoded)


def _decode(part: str, found: Found) -> Message:
    return codec.decode_as(split(found)[1], topic_of(part), found.id).revived()


def _refused(found: Found, error: DecodeError) -> InvalidInput:
    requeued = f"message {found.id!r:.80} cannot be requeued"
    if isinstance(error, NewerRecord):
        return InvalidInput(
            f"{requeued} by this release: {error.reason}. Upgrade it, then try again"
        )
    return InvalidInput(
        f"{requeued}, because no worker could read it: {error.reason}. Look at its bytes, then "
        "discard it"
    )


def _salvaged(topic: str, found: Found) -> Message:
    """Return a message with what can be read of its broken record."""
    about, data = split(found)
    fields = _readable_fields(data)
    if about is not None:
        error = Failure(
            type=about.error_type, text=about.error, at=found.archived or 0, worker=about.worker
        )
        fields["errors"] = [*fields.get("errors", []), error]
    fields.setdefault("created_at", found.archived or 0)
    message = Message(v=VERSION, id=found.id, topic=topic, payload=msgspec.Raw(b"null"), **fields)
    codec.encode(message)  # refuses an id that no record can hold
    return message


def _readable_fields(data: bytes) -> dict[str, Any]:
    try:
        record = msgspec.json.decode(data)
    except (ValueError, RecursionError, MemoryError):
        return {}
    fields: dict[str, Any] = {}
    for name, type in _TYPES.items() if isinstance(record, dict) else ():
        with suppress(KeyError, msgspec.ValidationError):
            fields[name] = msgspec.convert(record[name], type)
    return fields


def split(found: Found) -> tuple[QuarantineReason | None, bytes]:
    """Return why a message is quarantined (None if it is not) and its record."""
    if found.state is State.QUARANTINED:
        with suppress(DecodeError):  # then all of it counts as the record
            return read(found.data)
    return None, found.data
