"""The messages that are measured."""

from __future__ import annotations

import msgspec

from mx_rmq.core.message import Draft

PAYLOAD_BYTES = 200
WORKER = "shop-7f9c6d5b8-x2x9q-31337-0190a7c2e4b87d3fa1c95e62d07b48aa"
"""A worker's name as it should be: host, process and a random part. See docs/performance.md."""

_PAYLOAD = msgspec.Raw(b'{"order":42,"text":"' + b"x" * (PAYLOAD_BYTES - 22) + b'"}')
assert len(bytes(_PAYLOAD)) == PAYLOAD_BYTES


def payloads(count: int) -> list[Draft]:
    """Return drafts with a payload of 200 bytes."""
    return [Draft(payload=_PAYLOAD)] * count
