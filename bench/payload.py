"""The payload that all queues carry."""

from __future__ import annotations

import json
from typing import Any

Payload = dict[str, Any]


def payload(index: int) -> Payload:
    """Return a payload of 200 bytes of JSON; `i` is its position in the record."""
    return {
        "i": index,
        "order_id": f"ORD-{index:010d}",
        "user_id": 100_000 + index,
        "amount": 99.95,
        "kind": "created",
        "tags": ["a", "b"],
        "note": "x" * 71,
    }


PAYLOAD_BYTES = len(json.dumps(payload(12_345)))
