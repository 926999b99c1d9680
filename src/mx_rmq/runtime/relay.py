"""The relay: passes the messages of a topic on to all its subscriptions.

Every worker that has a subscription of a topic runs it for that topic. Several relays may run at
once: `fan_out` moves each message once, to all subscriptions in one step. A relay that dies has
either moved a message or not.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mx_rmq.core.handler import MAX_CRASHES
from mx_rmq.core.partition import number_of, subscribed, topic_of
from mx_rmq.runtime.loop import TRY_AGAIN, FailureLog, Loop, spawn
from mx_rmq.store.subscription_calls import has_partitions

if TYPE_CHECKING:
    from collections.abc import Callable

    from mx_rmq.store import Store

BATCH: Final = 250  # messages moved per call, of each priority


@dataclass(frozen=True, slots=True)
class RelayedTopic:
    """The options of a topic with subscriptions, which has no handler."""

    ttl_ms: int | None  # its default time to live
    max_crashes: int = MAX_CRASHES
    ordered: bool = False

    @property
    def ttl(self) -> float | None:
        return None if self.ttl_ms is None else self.ttl_ms / 1000


class Relay:
    """Fans out the topics and partitions of one site."""

    def __init__(self, store: Store, *, on_moved: Callable[[str], None]) -> None:
        self.loop = Loop("relay", self.step)
        self.names: dict[str, tuple[str, ...]] = {}
        """By topic or partition, its subscriptions, as the server last answered."""
        self._failures = FailureLog("relay")
        self._store = store
        self._on_moved = on_moved
        self._woken: dict[str, None] = {}

    def add(self, topic: str) -> None:
        """Serve a topic or partition."""
        self.names[topic] = ()
        self.wake(topic)

    def wake(self, topic: str) -> None:
        """Fan out a topic now: it may have pending messages."""
        self._woken[topic] = None
        self.loop.wake()

    async def step(self) -> float | None:
        """Fan out a batch of each topic that was woken."""
        woken, self._woken = self._woken, {}
        done = await asyncio.gather(*(spawn("relay", self._try_to_fan_out, one) for one in woken))
        return None if all(done) else TRY_AGAIN

    async def _try_to_fan_out(self, topic: str) -> bool:
        """Fan out a topic; False: that failed, and it stays woken. It does not stop the others."""
        try:
            await self._fan_out(topic)
        except Exception as error:  # noqa: BLE001 - logged, and tried again
            self._failures.log(error)
            self._woken[topic] = None
            return False
        return True

    async def _fan_out(self, topic: str) -> None:
        if not self.names[topic]:
            await self._learn(topic, tuple(await self._store.subscriptions(topic)))
        answer = await self._store.fan_out(topic, self.names[topic], count=BATCH)
        while answer.names != self.names[topic]:
            await self._learn(topic, answer.names)
            answer = await self._store.fan_out(topic, answer.names, count=BATCH)
        if answer.moved:  # tell ours at once: the doorbell, which rings for all workers, is slower
            for name in answer.names:
                self._on_moved(subscribed(topic, name))
            if answer.left:
                self.wake(topic)

    async def _learn(self, topic: str, names: tuple[str, ...]) -> None:
        """Note the subscriptions of a topic or partition.

        Their workers must know of the partition before it gives them messages.
        """
        await has_partitions(self._store, topic_of(topic), names, number_of(topic) + 1)
        self.names[topic] = names
