"""Gives waiting messages the default time to live of their topic.

Producers add it themselves once they have learned it. This is for messages of producers that have
not, because they are older or were faster than the first worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mx_rmq.core import codec
from mx_rmq.core.errors import DecodeError
from mx_rmq.core.partition import topic_of

if TYPE_CHECKING:
    from mx_rmq.store import Store

STEPS: Final = 100
"""Calls per sweep of a topic, so that a sweep sees 100,000 waiting messages: about 50 ms of the
server's time. If all have an expiry time, it is one call."""


async def set_expiry_times(store: Store, name: str, ttl: int) -> int | None:
    """Let waiting messages expire `ttl` ms after they were produced, unless they have their own.

    Return when the first of them expires, in ms; None: all had an expiry time already.
    """
    first: int | None = None
    place, start = 1, 0
    for _ in range(STEPS):
        found = await store.undated_messages(name, place, start)
        times = []
        for id, record in found.messages:
            try:
                message = codec.decode(record, topic_of(name), id).with_default_ttl(ttl)
            except DecodeError:  # who dispatches it decides: quarantine, or a newer release
                continue
            times.append((id, message.created_at + (message.ttl or ttl)))
        if times:
            await store.set_expiry(name, times)
            soonest = min(at for _, at in times)
            first = soonest if first is None else min(first, soonest)
        if found.go_on is None:
            break
        place, start = found.go_on
    return first
