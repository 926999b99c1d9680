"""What a worker says of itself at each beat, for those who look at the list of workers."""

from __future__ import annotations

import os
import socket
import time
from functools import cache
from heapq import nsmallest
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mx_rmq.core.text import brief

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mx_rmq.runtime.slots import Held, Slots

SHOWN: Final = 20
"""Running handlers that a worker tells of: those that have run the longest."""

NAME: Final = 200
"""Characters of a handler's name. The list of workers shall stay short, whatever they run."""


def about_worker(
    topics: Iterable[str],
    slots: Slots,
    running: Iterable[Held],
    *,
    started: float,
    down: Mapping[str, str],
) -> bytes:
    """Return one line of JSON."""
    return msgspec.json.encode(
        {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "version": _version(),
            "started": started,
            "topics": list(topics),
            "concurrency": slots.concurrency,
            "running": slots.running,
            "held": len(slots.held),
            "doing": _doing(running),
            "down": {part: brief(why) for part, why in down.items()},
        }
    )


@cache
def _version() -> str:
    return version("mx-rmq")


def _doing(running: Iterable[Held]) -> list[dict[str, Any]]:
    """Tell what runs, the longest first."""
    now = time.monotonic()
    begun = [
        (held.started_at, held.message, held.topic.handler)
        for held in running
        if held.started_at is not None and held.message is not None
    ]
    return [
        {
            "topic": message.topic,
            "id": message.id,
            "handler": handler.name[:NAME],
            "attempt": message.attempts + 1,
            "seconds": round(now - at, 3),
        }
        for at, message, handler in nsmallest(SHOWN, begun, key=lambda one: one[0])
    ]
