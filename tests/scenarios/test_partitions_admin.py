"""In a cluster, too, an operator sees the partitions of a topic as one, wherever they live."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from mx_rmq import MessageQueue, Reject, Worker, testing
from mx_rmq.core.errors import OutcomeUnknown, ServerUnavailable
from mx_rmq.core.message import State
from mx_rmq.core.partition import partition, partitions
from mx_rmq.runtime import producer, registry, site
from tests.cli.calls import run, run_json
from tests.lab.cluster import Cluster
from tests.lab.nodes import until_true

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

TOPIC = "orders"
COUNT = 6


@pytest.fixture
async def cluster(short_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(short_path) as cluster:
        yield cluster


@pytest.fixture
async def mq(cluster: Cluster) -> AsyncIterator[MessageQueue]:
    """An open queue; afterwards the audit must be clean."""
    async with MessageQueue(cluster.url) as mq:
        await mq.store.register_topics({TOPIC: COUNT})
        yield mq
        for topic in await mq.admin.topics():
            assert await mq.admin.audit(topic) == []


async def test_an_operator_sees_all_nodes_as_one_topic(cluster: Cluster, mq: MessageQueue) -> None:
    homes = {(await cluster.primary_of(part)).port for part in partitions(TOPIC, COUNT)}
    assert len(homes) == 3
    admin = mq.admin
    ids = await mq.produce_many(TOPIC, range(100))
    later = await mq.produce_many(TOPIC, range(10), delay=1000, ids=[f"l-{n}" for n in range(10)])
    stats = await admin.stats(TOPIC)
    assert (stats.pending, stats.delayed, stats.partitions) == (100, 10, COUNT)
    assert stats.oldest_pending is not None
    assert stats.oldest_pending < 60

    listed: list[str] = []
    cursor = None
    while True:
        page = await admin.list(TOPIC, State.PENDING, limit=7, cursor=cursor)
        listed += [one.id for one in page.messages]
        cursor = page.cursor
        if cursor is None:
            break
    assert sorted(listed) == sorted(ids)
    due = [one.due for one in (await admin.list(TOPIC, State.DELAYED)).messages]
    assert len(due) == 10
    assert due == sorted(due, key=lambda at: at or 0)

    for id in (ids[0], ids[-1], later[0], later[-1]):
        view = await admin.get(TOPIC, id)
        assert view is not None
        assert view.topic == TOPIC
        assert await admin.cancel(TOPIC, id)
    assert await admin.get(TOPIC, ids[0]) is None
    assert (await admin.pause(TOPIC), await admin.pause(TOPIC)) == (True, False)
    assert (await admin.stats(TOPIC)).paused
    assert await admin.resume(TOPIC)


async def test_archives_of_all_nodes_are_requeued_and_discarded(
    cluster: Cluster, mq: MessageQueue
) -> None:
    @mq.handler(TOPIC, partitions=COUNT)
    async def refuse(number: int) -> None:
        raise Reject("no")

    ids = await mq.produce_many(TOPIC, range(600))
    await Worker(mq).drain()
    admin = mq.admin
    assert (await admin.stats(TOPIC)).dead == 600
    newest = (await admin.list(TOPIC, State.DEAD, limit=1000)).messages
    assert [one.archived_at for one in newest] == sorted(
        (one.archived_at or 0 for one in newest), reverse=True
    )
    assert {one.partition for one in newest} == set(range(COUNT))
    for id in ids[:2]:
        assert await admin.requeue(TOPIC, id)
    for id in ids[2:4]:
        assert await admin.discard(TOPIC, id, state="dead")
    assert await admin.requeue_all(TOPIC, State.DEAD, limit=120) == 120
    assert await admin.discard_all(TOPIC, State.DEAD) == 476
    stats = await admin.stats(TOPIC)
    assert (stats.pending, stats.total) == (122, 122)


async def test_a_topic_grows_while_producers_and_workers_run(
    mq: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "BEAT", 0.2)
    monkeypatch.setattr(producer, "REFRESH_EVERY", 0.2)

    @mq.handler(TOPIC)
    async def handle(number: int) -> None:
        pass

    async def all_done() -> bool:
        return (await mq.admin.stats(TOPIC)).total == 0

    new = {f".{number}" for number in range(COUNT, 12)}
    produced: list[str] = []
    async with asyncio.timeout(30), Worker(mq):
        assert await mq.admin.grow(TOPIC, 12) == 12
        while not new <= {id[id.rindex(".") :] for id in produced if "." in id}:
            produced.append(await mq.produce(TOPIC, 1))
            await asyncio.sleep(0.01)
        await until_true(all_done, "all are handled", 20)


async def test_the_commands_work_on_a_cluster(cluster: Cluster, mq: MessageQueue) -> None:
    url = cluster.url
    (id,) = (await run_json(url, "produce", TOPIC, "1", "--key", "ann"))["ids"]
    await mq.produce_many(TOPIC, range(50))
    (stats,) = (await run_json(url, "stats"))["topics"]
    assert (stats["pending"], stats["partitions"]) == (51, COUNT)
    listed = await run_json(url, "list", TOPIC, "--state", "pending", "--limit", "1000")
    assert len(listed["messages"]) == 51
    assert (await run_json(url, "show", TOPIC, id))["payload"] == 1
    assert (await run(url, "cancel", TOPIC, id, "--yes")).stdout == f"{id}: cancelled\n"
    assert (await run(url, "pause", TOPIC)).exit_code == 0
    assert (await run(url, "resume", TOPIC)).exit_code == 0
    assert (await run(url, "grow", TOPIC, "8")).stdout == f"{TOPIC}: 8 partitions\n"
    assert (await run(url, "requeue", TOPIC, "x")).exit_code == 1
    assert (await run(url, "discard", TOPIC, "--all", "--state", "dead", "--yes")).exit_code == 0
    assert (await run(url, "audit")).stdout == "1 topic, 50 messages, 0 violations\n"

    @mq.handler(TOPIC)
    async def handle(number: int) -> None:
        pass

    async with Worker(mq, name="w1"):
        assert "w1" in (await run(url, "workers")).stdout
        told = await run(url, "doctor")
        assert told.exit_code == 1, told.stdout  # the nodes of this lab keep nothing on a disk
        for node in cluster.nodes:
            assert f"node {node.address}: the server is a primary" in told.stdout
            assert f"bad  node {node.address}: the server keeps no append-only file" in told.stdout


async def test_a_node_that_is_away_is_told_of_and_nothing_is_made_up(
    cluster: Cluster, mq: MessageQueue
) -> None:
    await mq.produce_many(TOPIC, range(10))
    registry = await cluster.primary_of(mq.store.keys.topics)
    gone = next(node for node in cluster.nodes if node is not registry)
    async with MessageQueue(cluster.url, patience=1) as other, asyncio.timeout(30):
        gone.freeze()
        with pytest.raises((ServerUnavailable, OutcomeUnknown)):
            await other.admin.stats(TOPIC)
        gone.thaw()
    await cluster.until_agreed()
    assert (await mq.admin.stats(TOPIC)).pending == 10


async def test_queues_in_test_use_may_have_partitions_on_a_cluster(cluster: Cluster) -> None:
    mq = MessageQueue("redis://nowhere", password="secret", confirm="replicated")
    seen: list[int] = []

    @mq.handler(TOPIC, partitions=4)
    async def handle(number: int) -> None:
        seen.append(number)

    async with testing.use(mq, cluster.url):
        await mq.produce_many(TOPIC, range(20), confirm="fsynced")
        await mq.produce(TOPIC, 20, key="ann")
        assert (await mq.admin.stats(TOPIC)).partitions == 4
        await Worker(mq).drain()
        testing.assert_produced(mq, TOPIC, 20, key="ann")
        testing.assert_produced(mq, TOPIC, 0, confirm="fsynced")
    assert sorted(seen) == list(range(21))
    for node in cluster.nodes:
        assert await node.ask("DBSIZE") == 0


async def test_what_is_wrong_on_any_node_fails_a_test(cluster: Cluster) -> None:
    mq = MessageQueue("redis://nowhere")
    part = partition(TOPIC, 3)

    async def break_it() -> None:
        async with testing.use(mq, cluster.url):
            await mq.store.register_topics({TOPIC: 4})
            node = await cluster.primary_of(part)
            await node.ask("HSET", mq.store.keys.of(part).payload, "stray", "?")

    with pytest.raises(AssertionError, match=f"audit: {part}: stray: a record without a state"):
        await break_it()


async def test_a_login_is_taken_from_the_settings_and_never_shown(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Cluster(short_path, password="pass @word") as cluster:
        url = cluster.url.replace(":pass%20%40word@", "")
        assert "pass" not in url
        monkeypatch.setenv("MX_RMQ_PASSWORD", "pass @word")
        assert (await run(url, "produce", TOPIC, "1")).exit_code == 0
        (stats,) = (await run_json(url, "stats"))["topics"]
        assert stats["pending"] == 1
        monkeypatch.delenv("MX_RMQ_PASSWORD")
        (short_path / "secret").write_text("pass @word\n")
        monkeypatch.setenv("MX_RMQ_PASSWORD_FILE", str(short_path / "secret"))
        told = await run(url, "doctor")
        assert (told.exit_code, "pass" in told.output) == (1, False)
        assert "no live worker serves the topic" in told.output
        monkeypatch.delenv("MX_RMQ_PASSWORD_FILE")
        monkeypatch.setenv("MX_RMQ_PASSWORD", "wrong")
        failed = await run(url, "stats")
        assert failed.exit_code == 2
        assert "wrong" not in failed.output


async def test_ids_and_topics_with_every_allowed_character_work_in_a_cluster(
    mq: MessageQueue,
) -> None:
    topic, ids = "shop:orders", [f"tenant:{n}/order+1=~a@b.c-{n}.3" for n in range(30)]
    await mq.store.register_topics({topic: COUNT})
    assert await mq.produce_many(topic, range(30), ids=ids) == ids
    seen = []

    @mq.handler(topic)
    async def handle(number: int) -> None:
        seen.append(number)

    for id in ids:
        view = await mq.admin.get(topic, id)
        assert view is not None
        assert view.id == id
    assert (await Worker(mq).drain()).completed == 30
    assert sorted(seen) == [*range(30)]


async def test_a_default_ttl_is_declared_and_kept_in_a_cluster(
    cluster: Cluster, mq: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "SURVEY_EVERY", 0.2)
    old = [await mq.produce(TOPIC, number) for number in range(20)]
    await mq.admin.pause(TOPIC)

    @mq.handler(TOPIC, ttl=1)
    async def handle(number: int) -> None:
        raise AssertionError("an expired message was handled")

    async with Worker(mq), MessageQueue(cluster.url) as other:
        new = [await other.produce(TOPIC, number) for number in range(20)]
        assert other.store.ttls == {TOPIC: 1000}

        async def all_expired() -> bool:
            return (await mq.admin.stats(TOPIC)).dead == len(old) + len(new)

        await until_true(all_expired, "every message expires")
