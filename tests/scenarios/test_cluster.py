"""In a cluster a topic lives on one node, whole, and every script finds all its keys there."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, cast

import pytest
from redis.asyncio.cluster import RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from mx_rmq.store.call import Caller
from mx_rmq.store.connect import Connection
from mx_rmq.store.keys import Keys
from mx_rmq.store.preflight import preflight
from mx_rmq.store.script import names
from mx_rmq.store.store import Store
from tests.lab.cases import CASES, Stage
from tests.lab.clock import Clock
from tests.lab.cluster import NODES, Cluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path
    from typing import Any

    from redis.asyncio import Redis

    from mx_rmq.store.script import Script, Value


class Recorder(Caller):
    """Notes which scripts have run on which keys."""

    def __init__(self, client: Redis) -> None:
        super().__init__(client, patience=10.0)
        self.scripts: set[str] = set()
        self.keys: set[str] = set()

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[Value]) -> Any:
        self.scripts.add(script.name)
        self.keys.update(keys)
        return await super().run(script, keys, args)


@pytest.fixture
async def cluster(short_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(short_path) as cluster:
        yield cluster


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[RedisCluster]:
    retry = Retry(NoBackoff(), 0)
    async with RedisCluster(host="127.0.0.1", port=cluster.port, retry=retry) as client:
        yield client


async def slot(client: RedisCluster, key: str) -> int:
    return int(await client.execute_command("CLUSTER KEYSLOT", key))


async def topics_of_each_node(cluster: Cluster, client: RedisCluster) -> list[str]:
    topics: dict[int, str] = {}
    for number in count():
        topic = f"topic-{number}"
        topics.setdefault(cluster.node_of(await slot(client, f"{{{topic}}}")), topic)
        if len(topics) == NODES:
            return list(topics.values())
    raise AssertionError


async def test_a_topic_lives_through_everything_on_each_node_of_a_cluster(
    cluster: Cluster, client: RedisCluster
) -> None:
    plain, keys = cast("Redis", client), Keys()
    caller = Recorder(plain)
    found = await preflight(caller, keys)
    for topic in await topics_of_each_node(cluster, client):
        caller.keys.clear()
        for case in CASES:
            clock = Clock()
            store = Store(Connection(plain), caller, keys, found, clock=clock)
            seeded = await case.seed(Stage(store, clock, topic))
            assert await case.act(store, topic, seeded) == case.done, case
            assert await store.views.topics() == [topic]
            assert (await store.views.counts(topic)).dropped == 0
            await store.get_next_delay_task(topic)
            await store.survey_topics([topic])
            assert await store.audit.topic(topic) == []
            # The audit confirms a suspect with every key of the topic at once.
            await client.execute_command("HSET", keys.of(topic).payload, "stray", "?")
            (violation,) = await store.audit.topic(topic)
            assert violation.id == "stray"
            await client.flushall(target_nodes=RedisCluster.PRIMARIES)
        assert len({await slot(client, key) for key in caller.keys}) == 1
        await store.beat_worker("w1", b"{}")  # on whichever node its only key is
    assert caller.scripts == set(names())
