"""The messages that are measured."""

from __future__ import annotations

import msgspec

from mx_rmq.core.message import Draft

PAYLOAD_BYTES = 200
_PAYLOAD = msgspec.Raw(b'{"order":42,"text":"' + b"x" * (PAYLOAD_BYTES - 22) + b'"}')
assert len(bytes(_PAYLOAD)) == PAYLOAD_BYTES


def payloads(count: int) -> list[Draft]:
    """Return drafts with a payload of 200 bytes."""
    return [Draft(payload=_PAYLOAD)] * count
