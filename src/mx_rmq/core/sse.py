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
        "X-Accel-Buffering": "no",  # else nginx buffers the events
    }
)
"""The headers of a response whose body is `mq.sse(…)`."""

HEARTBEAT: Final = 15.0
"""Seconds of silence after which a comment is sent. Proxies close silent connections, and a WSGI
server learns that its client has gone only when it writes."""

COMMENT: Final = b": still waiting\n\n"

END: Final = b"event: end\ndata: {}\n\n"
"""The last event. At the end of a stream, an EventSource connects again unless it is closed."""


def event_of(status: Status) -> bytes:
    """Return a status as an event without a name, so `onmessage` gets it."""
    return b"data: %b\n\n" % msgspec.json.encode(status)
