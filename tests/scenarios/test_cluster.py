"""In a cluster a topic lives on one node, whole, and every script finds all its keys there."""

from __future__ import annotations

import asyncio
import time
from itertools import count
from typing import TYPE_CHECKING

import pytest

from bench.own.gauge import Gauge
from mx_rmq import Delivery, InvalidInput, MessageQueue, ServerUnavailable, Worker
from mx_rmq.core.message import State
from mx_rmq.core.schedule import Schedule
from mx_rmq.doctor.server import examine
from mx_rmq.net.caller import Caller
from mx_rmq.net.url import connect
from mx_rmq.store.delete_keys import wipe
from mx_rmq.store.keys import Keys
from mx_rmq.store.preflight import preflight
from mx_rmq.store.script import names
from mx_rmq.store.store import Store
from tests.lab.cases import CASES, Stage
from tests.lab.clock import Clock
from tests.lab.cluster import NODES, Cluster, slot_of
from tests.lab.crew import until
from tests.lab.nodes import Node
from tests.lab.ports import free_ports
from tests.lab.servers import Kind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path
    from typing import Any

    from mx_rmq.net.connection import Check, Value
    from mx_rmq.store.script import Script


class Recorder(Caller):
    """Notes which scripts have run on which keys."""

    scripts: set[str]
    keys: set[str]

    async def run(
        self,
        script: Script,
        keys: Sequence[str],
        args: Sequence[Value],
        check: Check | None = None,
    ) -> Any:
        self.scripts.add(script.name)
        self.keys.update(keys)
        return await super().run(script, keys, args, check)


@pytest.fixture(params=[Kind.VALKEY_9_1, Kind.REDIS_6_2])
async def cluster(request: pytest.FixtureRequest, short_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(short_path, kind=request.param) as cluster:
        yield cluster


def topics_of_each_node(cluster: Cluster) -> list[str]:
    topics: dict[int, str] = {}
    for number in count():
        topic = f"topic-{number}"
        topics.setdefault(cluster.node_of(slot_of(topic)), topic)
        if len(topics) == NODES:
            return list(topics.values())
    raise AssertionError


async def test_a_topic_lives_through_everything_on_each_node_of_a_cluster(
    cluster: Cluster,
) -> None:
    keys = Keys()
    servers = await connect(cluster.url)
    caller = Recorder(servers, patience=10.0)
    caller.scripts, caller.keys = set(), set()
    found = await preflight(caller, keys)
    for topic in topics_of_each_node(cluster):
        caller.keys.clear()
        for case in CASES:
            clock = Clock()
            store = Store(caller, keys, found, clock=clock)
            seeded = await case.seed(Stage(store, clock, topic))
            assert await case.act(store, topic, seeded) == case.done, case
            assert await store.views.topics() == [topic]
            assert (await store.views.counts(topic)).dropped == 0
            await store.get_next_delay_task(topic)
            await store.survey_topics([topic])
            await store.undated_messages(topic, 1, 0)
            await store.read_status(topic, ["a", "b"], live=True, with_progress=True)
            assert await store.views.history.of(topic, "nobody") == []
            ids = await store.views.pages.entries(topic, State.PENDING, (0, 0, 0), 10)
            await store.views.pages.read(topic, State.PENDING, ids)
            assert await store.audit.topic(topic) == []
            # The audit confirms a suspect with every key of the topic at once.
            await caller.command("HSET", keys.of(topic).payload, "stray", "?")
            (violation,) = await store.audit.topic(topic)
            assert violation.id == "stray"
            for node in cluster.nodes:
                await node.ask("FLUSHALL")
        of_topic = [key for key in caller.keys if key not in (keys.topics, keys.workers)]
        assert {servers.site_of(key) for key in of_topic} == {slot_of(topic)}
        await store.beat_worker("w1", b"{}")  # on whichever node its only key is
        await store.tend_topics("w1", turn=1000)  # both keys are on one node
        await store.give_up_turn("w1")
        await store.list_schedule("s", "", "t 1")
        await store.declare_crons(
            {"t": Schedule(name="", topic="t", expression="* * * * *")}, forget=1
        )
    assert caller.scripts | {"weigh_hash"} == set(names())  # that one has a single key
    await servers.close()


async def test_a_worker_serves_topics_of_all_nodes(cluster: Cluster) -> None:
    topics = topics_of_each_node(cluster)
    mq = MessageQueue(cluster.url, lease=2)
    done: list[str] = []

    def declare(topic: str) -> None:
        @mq.handler(topic, retry=0.05)
        async def handle(number: int) -> None:
            if number == 3 and f"{topic} failed" not in done:
                done.append(f"{topic} failed")
                raise ValueError
            done.append(f"{topic} {number}")

    for topic in topics:
        declare(topic)

    @mq.cron("* * * * * *", topic="tick")
    async def tick() -> None:
        done.append("tick")

    async with mq, Worker(mq):
        for topic in topics:
            await mq.produce(topic, 1)
            await mq.produce(topic, 2, delay=0.1)
            await mq.produce(topic, 3)
        wanted = {f"{topic} {what}" for topic in topics for what in (1, 2, 3, "failed")}
        async with asyncio.timeout(20):
            while not {*wanted, "tick"} <= {*done}:  # noqa: ASYNC110 - nobody announces it
                await asyncio.sleep(0.01)
        assert await mq.admin.topics() == sorted([*topics, "tick"])


async def test_a_worker_fires_schedules_on_all_nodes_whatever_it_serves(cluster: Cluster) -> None:
    topics = topics_of_each_node(cluster)
    mq = MessageQueue(cluster.url)
    done: list[str] = []

    @mq.handler(topics[0])
    async def handle(name: str) -> None:
        done.append(name)

    async def fired() -> set[str]:
        waits = {topic for topic in topics[1:] if (await mq.admin.stats(topic)).pending}
        return waits | ({topics[0]} if done else set())

    async with mq, Worker(mq), Worker(mq):
        for topic in topics:
            await mq.admin.schedule(f"to-{topic}", topic, "* * * * * *", topic)
        async with asyncio.timeout(20):
            while await fired() != {*topics}:  # noqa: ASYNC110 - nobody announces it
                await asyncio.sleep(0.05)
        await mq.admin.schedule(f"to-{topics[1]}", topics[2], "0 0 1 1 *")  # it moves
        for topic in topics:
            assert await mq.admin.unschedule(f"to-{topic}")
        counts = [(await mq.admin.stats(topic)).totals.produced for topic in topics]
        await asyncio.sleep(1.5)
        assert [(await mq.admin.stats(topic)).totals.produced for topic in topics] == counts
        for topic in topics[1:]:
            ids = [one.id for one in (await mq.admin.list(topic, "pending")).messages]
            assert len(ids) == len(set(ids))
            assert await mq.admin.audit(topic) == []


async def test_an_abort_reaches_the_worker_from_every_node(cluster: Cluster) -> None:
    mq = MessageQueue(cluster.url)
    running, stopped = dict[str, str](), set[str]()

    def declare(topic: str) -> None:
        @mq.handler(topic)
        async def handle(_: int, delivery: Delivery) -> None:
            running[topic] = delivery.id
            try:
                await asyncio.sleep(60)
            finally:
                stopped.add(topic)

    topics = topics_of_each_node(cluster)
    for topic in topics:
        declare(topic)
    async with mq, Worker(mq):
        waiting = {topic: await mq.produce(topic, 1, delay=60) for topic in topics}
        for topic in topics:
            assert await mq.reschedule(topic, waiting[topic], delay=0)
        await until(lambda: {*running} == {*topics})
        for topic in topics:
            assert await mq.admin.abort(topic, running[topic], "enough")
        await until(lambda: stopped == {*topics}, 2)  # long before a lease is extended
        for topic in topics:
            assert (await mq.admin.stats(topic)).dead == 1
            assert await mq.admin.audit(topic) == []


async def test_the_tools_see_every_node(cluster: Cluster) -> None:
    async with MessageQueue(cluster.url) as mq:
        for topic in topics_of_each_node(cluster):
            await mq.produce(topic, 1)
    async with await Gauge.open(cluster.url) as gauge:
        assert (await gauge.nature()).nodes == NODES
        assert (await gauge.read()).calls > 0
    health = await examine(cluster.url, prefix="mx-rmq", patience=5)
    assert health.usable
    for node in cluster.nodes:
        assert any(f"node {node.address}: " in one.what for one in health.findings)
    await wipe(cluster.url, "mx-rmq")
    for node in cluster.nodes:
        assert await node.ask("DBSIZE") == 0


async def test_a_node_is_not_taken_for_a_server(cluster: Cluster) -> None:
    async def produce() -> None:
        async with MessageQueue(f"redis://{cluster.nodes[0].address}", patience=2) as mq:
            for topic in topics_of_each_node(cluster):
                await mq.produce(topic, 1)

    with pytest.raises(ServerUnavailable, match=r"node of a cluster: use redis\+cluster://"):
        await produce()


async def test_any_node_that_answers_is_enough_to_find_the_others(cluster: Cluster) -> None:
    hosts = f"127.0.0.1:1,{cluster.nodes[2].address}"
    async with MessageQueue(f"redis+cluster://{hosts}") as mq:
        for topic in topics_of_each_node(cluster):
            await mq.produce(topic, 1)


@pytest.mark.parametrize(
    "url",
    [
        "redis+cluster://127.0.0.1:1/1",
        "redis+cluster://127.0.0.1:x",
        "redis+cluster://h?nonsense=1",
        "redis+sentinel://h",
        "redis+sentinel://h/name/x",
        "redis+sentinel://h/name/0/1",
        "redis+Cluster://h",
        "unix+cluster:///s",
        "redis+://h",
        "redis://a,b",
    ],
)
def test_a_url_that_makes_no_sense_is_refused_at_once(url: str) -> None:
    with pytest.raises(InvalidInput, match="URL"):
        MessageQueue(url)


async def test_a_cluster_that_is_not_there_is_given_up_within_the_patience() -> None:
    with pytest.raises(ServerUnavailable, match="cannot use redis"):
        async with MessageQueue("redis+cluster://127.0.0.1:1,127.0.0.1:2", patience=0.3):
            pass


async def test_what_is_wrong_with_the_way_to_a_cluster_is_said_at_once(short_path: Path) -> None:
    async with Cluster(short_path / "c", password="right") as cluster:
        hosts = ",".join(node.address for node in cluster.nodes)
        for login in ("", ":wrong@"):
            began = time.monotonic()
            with pytest.raises(ServerUnavailable, match=r"(?i)password|auth"):
                await Store.open(f"redis+cluster://{login}{hosts}", patience=20)
            assert time.monotonic() - began < 5
    (port,) = free_ports(1)
    with (
        Node(Kind.VALKEY_9_1, short_path / "one", port=port) as node,
        pytest.raises(ServerUnavailable, match=f"cannot use .*:{port} .*a cluster: use redis://"),
    ):
        await Store.open(f"redis+cluster://{node.address}", patience=20)
