"""Server-sent events: the status of a message as a browser's EventSource reads it."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mx_rmq.core.status import Status

HEADERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "Content-Type": "text/event-stream; charset=utf-8",
        "Cache-Control": "no-cache",
        "X-Accel-Buffering": "no",  # or nginx would collect the events
    }
)
"""The headers of a response whose body is `mq.sse(…)`."""

HEARTBEAT: Final = 15.0
"""Seconds without an event after which a comment is sent: proxies close silent connections, and a
WSGI server notices only by writing that its client has gone."""

COMMENT: Final = b": still waiting\n\n"

END: Final = b"event: end\ndata: {}\n\n"
"""The last event. Without it an EventSource would connect again when the stream has ended."""


def event_of(status: Status) -> bytes:
    """Return a status as an event without a name, so `onmessage` gets it."""
    return b"data: %b\n\n" % msgspec.json.encode(status)
