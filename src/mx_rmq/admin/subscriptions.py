"""The subscriptions of a topic: how far each is behind, and how to end one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mx_rmq.admin.fanout import ask_all
from mx_rmq.core.partition import partitions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mx_rmq.admin.stats import Stats
    from mx_rmq.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionView:
    """A subscription of a topic."""

    name: str
    topic: str
    """The topic of its copies, such as `order.created@billing`. Every call that takes a topic takes
    it, too."""
    since: float  # when it was declared
    lag: int
    """Messages that it has not started: pending or delayed in the subscription, or pending in the
    topic and not copied yet."""
    oldest: float | None  # seconds that its next message has waited; None: none is pending
    processing: int
    dead: int
    quarantined: int
    paused: bool


async def read_subscriptions(
    store: Store, topic: str, ask: Callable[[str], Awaitable[Stats]]
) -> list[SubscriptionView]:
    """Return the subscriptions of a topic, by name."""
    declared = await store.subscriptions(topic)
    names = sorted(declared)
    own, *found = await ask_all([topic, *(f"{topic}@{name}" for name in names)], ask)
    return [
        SubscriptionView(
            name=name,
            topic=stats.topic,
            since=declared[name] / 1000,
            lag=stats.pending + stats.delayed + own.pending,
            oldest=stats.oldest_pending,
            processing=stats.processing,
            dead=stats.dead,
            quarantined=stats.quarantined,
            paused=stats.paused,
        )
        for name, stats in zip(names, found, strict=True)
    ]


async def remove_subscription(store: Store, topic: str, name: str, *, by: str) -> None:
    """Stop copying messages to a subscription, also in partitions that are added meanwhile."""
    done = 0
    while new := partitions(topic, await store.views.partitions(topic))[done:]:
        for part in new:
            await store.remove_subscription(part, name, by=by)
        done += len(new)
