"""Keys that hold the wrong type for a while."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from mx_rmq.core.errors import WrongType
from mx_rmq.store.lanes import Lane
from mx_rmq.store.script import load
from tests.lab.messages import TOPIC
from tests.lab.snapshot import snapshot

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from redis.asyncio import Redis

    from mx_rmq.store.store import Store

TELLING = ("totals", "history", "maker")
"""The keys that a script can do without: what was done, and which lane made an id."""


RESULTS = {"archive": "results", "archive_payload": "results_payload"}
"""The archive of complete_with_result, under the name that all archives share."""


LINES = ("lines", "ring", "blocked", "keyed", "running", "limits", "buckets")
"""The keys that a topic without keyed messages and limits does not have."""

FOR_KEYS = {
    "retry_message": ("doorbell", "meta"),
    **dict.fromkeys(("complete_message", "complete_with_result", "move_to_dlq"), ("doorbell",)),
    **dict.fromkeys(("handle_parse_error", "cancel_message", "abort_message"), ("doorbell",)),
    **dict.fromkeys(("expire_message", "handle_timeout_message"), ("doorbell",)),
}
"""Keys that scripts use only if messages have keys or the topic is limited."""

FOR_WAITS = {
    "retry_message": ("waiting", "awaited"),
    "process_delay_message": ("awaited",),
    "expire_message": ("awaited", "signals"),
    "handle_timeout_message": ("signals",),
}
"""Keys that scripts use only if messages wait for signals or have some."""


def vital(script: str) -> list[str]:
    """Return the keys that a script needs in a topic without keyed messages, by name."""
    unused = (*TELLING, *LINES, *FOR_KEYS.get(script, ()), *FOR_WAITS.get(script, ()))
    return [name for name in load(script).keys if name not in unused]


def for_lines(script: str) -> list[str]:
    """Return the keys that a script needs only if messages have keys or limits, by name."""
    names = (*LINES, *FOR_KEYS.get(script, ()))
    if script == "produce_delay_message":
        names = ("keyed",)  # the lines matter only if there is a cap
    return [name for name in load(script).keys if name in names]


def key_named(store: Store, name: str) -> str:
    """Return a key of the topic by its name in the scripts; `receipt` is that of the next call."""
    keys = store.keys.of(TOPIC)
    if name == "receipt":
        idle = store.lanes._idle.setdefault(TOPIC, [])
        if not idle:
            idle.append(Lane(idle, keys))
        return idle[-1].receipt
    key: str = getattr(keys, RESULTS.get(name, name))
    return key


def wrong_type(key: str) -> str:
    """Return a type that a key of a topic must not have."""
    return "list" if key.endswith(":cancelled") else "set"


@asynccontextmanager
async def broken(raw: Redis, key: str) -> AsyncIterator[None]:
    """Give a key the wrong type, then its old contents back."""
    kept = await raw.exists(key)
    if kept:
        await raw.rename(key, "kept")
    if wrong_type(key) == "set":
        await raw.sadd(key, "nonsense")
    else:
        await raw.rpush(key, "nonsense")
    yield
    assert await raw.type(key) == wrong_type(key).encode()
    await raw.delete(key)
    if kept:
        await raw.rename("kept", key)


async def assert_refused(
    store: Store, raw: Redis, name: str, call: Callable[[], Awaitable[object]]
) -> None:
    """Check that a call names a key of the wrong type, and changes nothing."""
    before = await snapshot(raw, TOPIC)
    key = key_named(store, name)
    async with broken(raw, key):
        with pytest.raises(WrongType) as caught:
            await call()
    assert f"key {key} holds a {wrong_type(key)}, not a " in str(caught.value)
    assert await snapshot(raw, TOPIC) == before
