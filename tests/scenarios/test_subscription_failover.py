"""A primary dies or freezes: every subscription still gets every message, and a tick fires once."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import pytest

from mx_rmq import Delivery, MessageQueue, MxRmqError, Worker
from mx_rmq.core.confirm import Level
from tests.lab.cluster import Cluster, slot_of
from tests.lab.crew import until
from tests.lab.sentinel import Watched

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

pytestmark = pytest.mark.timeout(120)

TOPIC = "order.created"
NAMES = ("billing", "search", "analytics")
MESSAGES = 100  # before the failure, and again after it


class Shop:
    """A queue with three subscriptions and a schedule, and what its handlers got."""

    def __init__(self, url: str) -> None:
        self.mq = MessageQueue(url, lease=2.0, patience=30, confirm_within=0.2)
        self.confirm = Level.REPLICATED
        self.produced: set[int] = set()
        self.got: dict[str, set[int]] = {name: set() for name in NAMES}
        self.ticks: defaultdict[str, set[str]] = defaultdict(set)  # tick -> ids of its messages
        for name in NAMES:
            self.mq.handler(TOPIC, subscription=name, retry=0.1)(self._hear)
        self.mq.handler("tick")(self._tick)

    async def _hear(self, number: int, delivery: Delivery) -> None:
        self.got[str(delivery.subscription)].add(number)

    async def _tick(self, _: None, delivery: Delivery) -> None:
        self.ticks[delivery.headers["cron-tick"]].add(delivery.id)

    async def produce(self) -> None:
        """Produce until cancelled. The custom id makes a repeated call harmless."""
        for number in count():
            await _insist(partial(self._produce, number))
            self.produced.add(number)

    async def _produce(self, number: int) -> None:
        await self.mq.produce(TOPIC, number, id=f"m{number}", confirm=self.confirm)

    async def fail(self, replace_primary: Callable[[], Awaitable[object]]) -> None:
        """Replace the primary under load, and check what was promised."""
        async with self.mq, Worker(self.mq):
            await _insist(partial(self.mq.admin.schedule, "ticks", "tick", "* * * * * *"))
            await until(lambda: len(self.ticks) > 1)
            await until(self._is_declared)
            producing = asyncio.create_task(self.produce())
            await until(lambda: len(self.produced) > MESSAGES)
            await replace_primary()
            self.confirm = Level.STORED  # the new primary has no replica
            ticks, produced = len(self.ticks), len(self.produced)
            await until(lambda: len(self.produced) > produced + MESSAGES)
            await until(lambda: len(self.ticks) > ticks + 1)
            producing.cancel()
            await asyncio.wait([producing])
            await until(lambda: all(self.produced <= got for got in self.got.values()), 60)
            for topic in (TOPIC, *(f"{TOPIC}@{name}" for name in NAMES), "tick"):
                assert await self.mq.admin.audit(topic) == []
        assert {tick: ids for tick, ids in self.ticks.items() if len(ids) > 1} == {}

    async def _is_declared(self) -> bool:
        return {*NAMES} == {*await self.mq.store.subscriptions(TOPIC)}


async def _insist(call: Callable[[], Awaitable[object]]) -> None:
    """Call until it succeeds."""
    while True:
        try:
            await call()
        except MxRmqError:
            await asyncio.sleep(0.05)
        else:
            return


@pytest.mark.parametrize("how", ["kill", "freeze"])
async def test_behind_sentinel(short_path: Path, how: str) -> None:
    async with Watched(short_path, replicas=1) as watched:

        async def replace_primary() -> None:
            victim = await watched.primary()
            getattr(victim, how)()
            await watched.until_promoted(victim)

        await Shop(watched.url).fail(replace_primary)


async def test_in_a_cluster(short_path: Path) -> None:
    async with Cluster(short_path, replicas=1) as cluster:

        async def replace_primary() -> None:
            victim = await cluster.primary_of(slot_of(TOPIC))
            victim.kill()
            await cluster.until_moved(slot_of(TOPIC), victim)

        await Shop(cluster.url).fail(replace_primary)
