"""Gives a topic more partitions, with the pauses and limits of the others.

Any worker or operator may do this, and several at once: all of them write the same.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, NamedTuple

from mx_rmq.core.limits import share_of_rate, share_of_running
from mx_rmq.core.names import check_listed
from mx_rmq.core.partition import check_partitions, number_for, partitions, subscription_of
from mx_rmq.store.line_reads import FOREVER, TOPIC, Bound, SetByOperator
from mx_rmq.store.results import decoded
from mx_rmq.store.subscription_calls import copy_subscriptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.store.store import Store


async def grow(store: Store, topic: str, count: int, *, by: str = "") -> None:
    """Give a topic at least `count` partitions. `by` whom, for the history.

    The new ones get their pauses and limits before they are registered, so before they have
    messages. The old ones give up a part of their limits afterwards: if another worker grows the
    topic at the same time, it must not take what is left for the whole. The subscriptions of the
    topic grow first, and the new partitions have them before they have messages.
    """
    every = partitions(check_listed(topic), check_partitions(count))
    old = every[: await _known(store, topic, count)]
    if len(old) == len(every):
        await store.register_topics({topic: count})
        return
    limits = await _read_limits(store, old)
    while len(old) != (known := await _known(store, topic, count)):  # another process grew it
        old = every[:known]
        limits = await _read_limits(store, old)
    growth = _Growth(store, every, limits, by)
    new = every[len(old) :]
    if subscription_of(topic) is None:
        for name in await store.subscriptions(topic):
            await grow(store, f"{topic}@{name}", count, by=by)
        await copy_subscriptions(store, topic, new)
    await _pause_alike(store, topic, new)
    for part in new:
        await growth.limit(part)
    await growth.limit_keys(old)
    await store.register_topics({topic: count})
    await _pause_alike(store, topic, new)  # a pause or resume just before that did not know them
    if subscription_of(topic) is None:
        await copy_subscriptions(store, topic, new)  # likewise
    for part in old:
        await growth.limit(part)


async def _known(store: Store, topic: str, count: int) -> int:
    """Return how many partitions a topic has, up to `count`; `count`: it is not registered."""
    known = await store.caller.command("HGET", store.keys.topics, topic) or b""
    return min(int(known), count) if known.isdigit() else count


async def _pause_alike(store: Store, topic: str, new: Sequence[str]) -> None:
    """Pause or resume new partitions to match the topic: an earlier grow may have died halfway."""
    paused = await _is_paused(store, topic)
    for name in new:
        if await _is_paused(store, name) != paused:
            await (store.pause_topic(name) if paused else store.resume_topic(name))


async def _is_paused(store: Store, name: str) -> bool:
    return bool(await store.caller.command("HEXISTS", store.keys.of(name).meta, "paused"))


class _Limits(NamedTuple):
    """What operators have set in the old partitions."""

    topic: list[SetByOperator]
    keys: list[dict[bytes, SetByOperator]]


async def _read_limits(store: Store, old: Sequence[str]) -> _Limits:
    topic, keys = [], []
    for part in old:
        found = await store.caller.command("HGETALL", store.keys.of(part).limits)
        sets = {key: SetByOperator.read(text) for key, text in found.items()}
        topic.append(sets.pop(TOPIC, SetByOperator()))
        keys.append(sets)
    return _Limits(topic, keys)


class _Growth:
    """Shares the limits of the old partitions out over all of them."""

    def __init__(self, store: Store, every: Sequence[str], limits: _Limits, by: str) -> None:
        self._store = store
        self._every = every
        self._keys = limits.keys
        self._by = by
        self._bound = Bound.sum(one.bound for one in limits.topic)
        self._pause = max(limits.topic, key=lambda one: one.until or 0)

    async def limit(self, part: str) -> None:
        """Give a partition its share of the topic's limits, and the topic's pause."""
        bound, number, parts = self._bound, self._every.index(part), len(self._every)
        share = Bound()
        if bound.running is not None:
            share = Bound(running=share_of_running(bound.running, number, parts))
        if bound.interval is not None:
            interval, burst = share_of_rate(bound.interval, bound.burst or 1.0, parts)
            share = Bound(running=share.running, interval=interval, burst=burst)
        await self._set(
            part, "", SetByOperator(bound=share, until=self._pause.until, reason=self._pause.reason)
        )

    async def limit_keys(self, old: Sequence[str]) -> None:
        """Give the keys that move to another partition the same limits there."""
        for part, keys in zip(old, self._keys, strict=True):
            for name, one in keys.items():
                key = decoded(name)
                home = self._every[number_for(key, len(self._every))]
                if home != part:
                    await self._set(home, key, one)

    async def _set(self, part: str, key: str, wanted: SetByOperator) -> None:
        """Set the same there, unless it is set already."""
        now = await self._store.views.lines.limits_of(part, key.encode())
        if now == wanted:
            return
        bound = wanted.bound
        pause: float | None = None
        if wanted.until is not None:
            left = wanted.until - (await self._store.views.lines.topic_lines(part)).at
            pause = inf if wanted.until >= FOREVER else left if left > 0 else None
        about = "limits shared out again: the topic has grown"
        if key:
            about = f"key {key}: the same limits as before the topic grew"
        await self._store.limit_key(
            part,
            key,
            running=bound.running,
            interval=None if bound.interval is None else (bound.interval, bound.burst or 1.0),
            weight=wanted.weight,
            pause=pause,
            reason=wanted.reason,
            by=self._by,
            about=about,
        )
