"""Subscriptions: which a topic has, and the copies that they get.

The topic itself has the list, in each of its partitions. A worker that declares a subscription
writes it to the first partition, then reads how many partitions there are. A caller that adds
partitions copies the list of the first one to them, before and after they are registered. So no
partition misses a subscription.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.names import check_subscription, check_topic
from mx_rmq.core.partition import partition, partitions, subscribed, topic_of
from mx_rmq.core.text import brief
from mx_rmq.store.arguments import MAX_BATCH, check_range
from mx_rmq.store.results import FannedOut, Settled, decoded, subscriptions_in
from mx_rmq.store.script import load

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.net.connection import Value
    from mx_rmq.store.store import Store

MOST: Final = 64  # subscriptions of one topic: fan_out copies each message to all of them at once


async def subscriptions(store: Store, part: str) -> dict[str, int]:
    """Return the subscriptions of a topic or partition, and since when each exists, ms."""
    listed = await store.caller.command("HGET", store.keys.of(part).meta, "subscriptions")
    return subscriptions_in(listed or b"")


async def declare_subscription(
    store: Store, topic: str, name: str, *, again: bool = False, by: str = ""
) -> bool:
    """Declare a subscription in all partitions of a topic; return whether the topic has it now.

    `again`: a worker makes sure that it is still there. If it was removed, it stays removed.
    """
    check_topic(topic)
    check_subscription(name)
    first = await _declare(store, topic, name, again=again, by=by)
    if first:
        count = await store.views.partitions(topic) or store.partitions.get(topic, 1)
        for part in partitions(topic, count)[1:]:
            await _declare(store, part, name, again=False, by=by)
    return first


async def _declare(store: Store, part: str, name: str, *, again: bool, by: str) -> bool:
    known = await subscriptions(store, part)
    if name in known:
        return True
    if len(known) >= MOST:
        raise InvalidInput(f"topic {topic_of(part)!r} has {len(known)} subscriptions, the maximum")
    named: dict[str, Value] = {"name": name, "again": int(again), "by": brief(by)}
    answer: bytes = await store.run("declare_subscription", part, named)
    return answer != b"-"


async def remove_subscription(store: Store, part: str, name: str, *, by: str = "") -> Settled:
    """Stop copying the messages of a topic or partition to a subscription."""
    named: dict[str, Value] = {"name": check_subscription(name), "by": brief(by)}
    return Settled((await store.run("remove_subscription", part, named)).decode())


async def copy_subscriptions(store: Store, topic: str, new: Sequence[str]) -> None:
    """Give new partitions of a topic the subscriptions of its first one."""
    for name in await subscriptions(store, topic) if new else ():
        for part in new:
            await _declare(store, part, name, again=False, by="")


async def fan_out(store: Store, part: str, names: Sequence[str], *, count: int) -> FannedOut:
    """Move up to `count` pending messages of each level to these subscriptions.

    If the partition has others, nothing is moved: `FannedOut.names` has the right ones.
    """
    script = load("fan_out")
    copies = [subscribed(part, name) for name in names]
    named: dict[str, Value] = {
        "max_count": check_range("count", count, 1, MAX_BATCH),
        "names": " ".join(names),
    }
    keys = [getattr(store.keys.of(copy), key) for copy in copies for key in script.keys]
    store.active.update(copies)
    found, *counts = await store.run("fan_out", part, named, makers=keys)
    moved, left = counts or (0, 0)
    return FannedOut(tuple(decoded(found).split()), moved, left)


async def has_partitions(store: Store, topic: str, names: Sequence[str], count: int) -> None:
    """Make sure that subscriptions have at least as many partitions as their topic."""
    for name in names:
        copy = partition(f"{topic}@{name}", 0)
        if store.partitions.get(copy, 0) < count:
            await store.grow(copy, count)
