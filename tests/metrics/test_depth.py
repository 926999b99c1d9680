"""The depth of a queue: asked for once, however many scrape, and never an old number for new."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest
from redis.crc import key_slot

from mx_rmq import MessageQueue, Retry, Worker
from mx_rmq.metrics import Depth, depth
from mx_rmq.store.keys import Keys
from tests.lab.cluster import Cluster, slot_of
from tests.metrics.asking import rendered
from tests.runtime.stage import commands, on_a_server, queue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from redis.asyncio import Redis

    from tests.lab.servers import Kind, Server

pytestmark = on_a_server


@pytest.fixture
async def mq(raw: Redis, server: Server) -> AsyncIterator[MessageQueue]:
    async with queue(server.url) as mq:
        yield mq


async def test_every_topic_and_state_is_counted(mq: MessageQueue) -> None:
    await mq.produce_many("a", range(3))
    await mq.produce("a", 1, delay=60)
    await mq.produce("b", 1)
    found = Depth(lambda: mq.admin)
    assert rendered(found.registry) == {}
    await found.refresh()
    shown = rendered(found.registry)
    assert (shown["mx_rmq_topics"], shown["mx_rmq_depth_up"]) == (2, 1)
    assert shown["mx_rmq_topics_not_shown"] == 0
    assert shown["mx_rmq_depth{state=pending,topic=a}"] == 3
    assert shown["mx_rmq_depth{state=delayed,topic=a}"] == 1
    assert shown["mx_rmq_depth{state=pending,topic=b}"] == 1
    assert shown["mx_rmq_depth{state=quarantined,topic=b}"] == 0
    assert shown["mx_rmq_workers{state=alive}"] == 0
    assert shown["mx_rmq_dropped_total{topic=a}"] == 0
    assert shown["mx_rmq_archive_bytes{state=dead,topic=a}"] == 0
    assert shown["mx_rmq_archive_budget_bytes{state=quarantined,topic=a}"] == 64 * 1_048_576


async def test_the_lag_of_a_subscription_counts_its_topic_too(mq: MessageQueue) -> None:
    @mq.handler("order", subscription="billing")
    async def bill(_: int) -> None:
        raise Retry(3600)

    async with Worker(mq):
        pass
    await mq.produce("order", 1)
    assert (await Worker(mq).drain()).retried == 1  # it waits in the subscription
    await mq.produce("order", 2)  # and this one in its topic
    found = Depth(lambda: mq.admin)
    await found.refresh()
    shown = rendered(found.registry)
    assert shown["mx_rmq_subscription_lag{subscription=billing,topic=order}"] == 2


async def test_it_tells_for_how_long_something_is_overdue(mq: MessageQueue) -> None:
    await mq.produce("a", 1, at=time.time() - 100)
    await mq.produce("b", 1)
    await mq.store.dispatch_message("b", "w", count=1, lease=1)
    await asyncio.sleep(0.01)
    found = Depth(lambda: mq.admin)
    await found.refresh()
    shown = rendered(found.registry)
    assert 99 < shown["mx_rmq_delayed_overdue_seconds{topic=a}"] < 160
    assert 0 < shown["mx_rmq_lease_overdue_seconds{topic=b}"] < 60
    assert shown["mx_rmq_delayed_overdue_seconds{topic=b}"] == 0
    assert shown["mx_rmq_lease_overdue_seconds{topic=a}"] == 0


async def test_many_askers_cost_one_look_and_a_later_one_looks_again(
    mq: MessageQueue, raw: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    await mq.produce("a", 1)
    found = Depth(lambda: mq.admin)
    before = await commands(raw)
    await asyncio.gather(*(found.refresh() for _ in range(50)))
    after = await commands(raw)
    assert after["hkeys"] - before.get("hkeys", 0) == 1
    await mq.produce("a", 1)
    await found.refresh()
    assert rendered(found.registry)["mx_rmq_depth{state=pending,topic=a}"] == 1
    monkeypatch.setattr(found, "_fresh_until", 0.0)
    await found.refresh()
    assert rendered(found.registry)["mx_rmq_depth{state=pending,topic=a}"] == 2


async def test_more_topics_than_are_looked_at_are_still_counted(
    mq: MessageQueue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(depth, "MOST", 2)
    for topic in "abc":
        await mq.produce(topic, 1)
    found = Depth(lambda: mq.admin)
    await found.refresh()
    shown = rendered(found.registry)
    assert (shown["mx_rmq_topics"], shown["mx_rmq_topics_not_shown"]) == (3, 1)
    assert "mx_rmq_depth{state=pending,topic=b}" in shown
    assert "mx_rmq_depth{state=pending,topic=c}" not in shown
    assert "metrics and dashboard show at most 2, leaving 1 unmonitored" in caplog.text


async def test_of_very_many_topics_those_that_are_named_are_not_left_out(
    mq: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(depth, "MOST", 2)
    for topic in "abc":
        await mq.produce(topic, 1)
    found = Depth(lambda: mq.admin, ["c", "new"])
    await found.refresh()
    shown = rendered(found.registry)
    told = [topic for topic in "abc" if f"mx_rmq_topic_up{{topic={topic}}}" in shown]
    assert told == ["a", "c"]
    assert "mx_rmq_topic_up{topic=new}" not in shown


async def test_living_workers_are_counted_for_each_topic_that_they_serve(mq: MessageQueue) -> None:
    await mq.produce("unserved", 1)
    await mq.store.beat_worker("w1", b'{"topics": ["a", "b"]}')
    await mq.store.beat_worker("w2", b'{"topics": ["a", "a"]}')
    for topic in "ab":
        await mq.produce(topic, 1)
    found = Depth(lambda: mq.admin)
    await found.refresh()
    shown = rendered(found.registry)
    assert shown["mx_rmq_workers{state=alive}"] == 2
    assert {
        topic: shown[f"mx_rmq_topic_workers{{topic={topic}}}"] for topic in ("a", "b", "unserved")
    } == {"a": 2, "b": 1, "unserved": 0}


async def test_workers_that_cannot_be_counted_are_told_of_once(
    mq: MessageQueue, raw: Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await mq.produce("a", 1)
    await raw.set(mq.store.keys.workers, "not a hash")
    found = Depth(lambda: mq.admin)
    for _ in range(3):
        monkeypatch.setattr(found, "_fresh_until", 0.0)
        await found.refresh()
    shown = rendered(found.registry)
    assert shown["mx_rmq_depth_up"] == 1
    assert not [name for name in shown if "workers" in name]
    assert caplog.text.count("cannot count the workers: ") == 1
    await raw.delete(mq.store.keys.workers)
    monkeypatch.setattr(found, "_fresh_until", 0.0)
    await found.refresh()
    assert rendered(found.registry)["mx_rmq_workers{state=alive}"] == 0
    await raw.set(mq.store.keys.workers, "not a hash")
    monkeypatch.setattr(found, "_fresh_until", 0.0)
    await found.refresh()
    assert caplog.text.count("cannot count the workers: ") == 2
    await raw.delete(mq.store.keys.workers)


async def test_the_server_tells_of_its_memory_and_its_disk(
    mq: MessageQueue, raw: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    await mq.produce("a", 1)
    found = Depth(lambda: mq.admin)

    async def told() -> dict[str, float]:
        monkeypatch.setattr(found, "_fresh_until", 0.0)
        await found.refresh()
        shown = rendered(found.registry)
        (server,) = {
            label[label.index("server=") :].rstrip("}").split(",")[0]
            for label in shown
            if label.startswith("mx_rmq_server_")
        }
        names = [name for name in shown if server in name]
        return {
            name.removeprefix("mx_rmq_server_").replace(server, "s"): shown[name] for name in names
        }

    before = await told()
    assert before["memory_bytes{s}"] > 100_000
    assert (before["memory_limit_bytes{s}"], before["aof_enabled{s}"]) == (0, 0)
    for what in ("aof_write", "aof_rewrite", "snapshot"):
        assert before[f"disk_ok{{s,what={what}}}"] == 1
    for nothing in ("delayed_fsyncs_total", "evicted_keys_total", "replicas"):
        assert before[f"{nothing}{{s}}"] == 0
    assert before["replica_behind_bytes{s}"] == 0
    await raw.config_set("maxmemory", 500_000_000)
    await raw.config_set("appendonly", "yes")
    try:
        after = await told()
        assert (after["memory_limit_bytes{s}"], after["aof_enabled{s}"]) == (500_000_000, 1)
    finally:
        await raw.config_set("maxmemory", 0)
        await raw.config_set("appendonly", "no")


async def test_without_the_right_to_ask_the_server_the_topics_are_told_of(
    mq: MessageQueue, raw: Redis, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    await mq.produce("a", 1)
    await raw.acl_setuser(
        "blind",
        enabled=True,
        passwords=["+x"],
        keys=["*"],
        categories=["+@all"],
        commands=["-info"],
    )
    async with queue(server.url.replace("://", "://blind:x@")) as blind:
        found = Depth(lambda: blind.admin)
        await found.refresh()
    await raw.acl_deluser("blind")
    shown = rendered(found.registry)
    assert shown["mx_rmq_depth{state=pending,topic=a}"] == 1
    assert not [name for name in shown if name.startswith("mx_rmq_server_")]
    assert caplog.text.count("cannot read the state of the server: ") == 1


async def test_a_failure_shows_no_old_numbers(
    mq: MessageQueue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await mq.produce("a", 1)
    found = Depth(lambda: mq.admin)
    await found.refresh()
    monkeypatch.setattr(found, "_fresh_until", 0.0)
    monkeypatch.setattr(found, "_admin", lambda: MessageQueue("redis://localhost").admin)
    await found.refresh()
    shown = rendered(found.registry)
    assert shown.pop("mx_rmq_depth_scrape_seconds") >= 0
    assert shown == {"mx_rmq_depth_up": 0}
    assert "cannot read the depth of the queue: the queue is not open" in caplog.text


async def test_a_node_that_is_away_hides_no_topic_of_the_others(
    kind: Kind,
    short_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(depth, "EACH", 1.5)
    topics = [f"t{number}" for number in range(9)]
    async with (
        Cluster(
            short_path, "--cluster-require-full-coverage", "no", kind=kind, node_timeout=30
        ) as cluster,
        MessageQueue(cluster.url) as mq,
    ):
        for topic in topics:
            await mq.produce(topic, 1)
        knows = cluster.node_of(key_slot(Keys().topics.encode()))  # which topics there are
        away = next(node for topic in topics if (node := cluster.node_of(slot_of(topic))) != knows)
        cluster.nodes[away].freeze()
        found = Depth(lambda: mq.admin)
        await found.refresh()
    shown = rendered(found.registry)
    assert (shown["mx_rmq_depth_up"], shown["mx_rmq_topics"]) == (1, len(topics))
    there = {topic: cluster.node_of(slot_of(topic)) != away for topic in topics}
    assert {topic: shown[f"mx_rmq_topic_up{{topic={topic}}}"] for topic in topics} == there
    for topic in topics:
        assert (f"mx_rmq_depth{{state=pending,topic={topic}}}" in shown) is there[topic]
    first = min(topic for topic in topics if not there[topic])
    assert f"topic {first}: its server is unreachable" in caplog.text


async def test_a_server_that_does_not_answer_is_not_waited_for_long(
    mq: MessageQueue, raw: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    await mq.produce("a", 1)
    monkeypatch.setattr(depth, "WITHIN", 0.1)
    found = Depth(lambda: mq.admin)
    await raw.client_pause(1000)
    await found.refresh()
    assert rendered(found.registry)["mx_rmq_depth_up"] == 0


async def test_it_counts_keys_and_says_what_limits_hold_back(mq: MessageQueue) -> None:
    await mq.produce_many("a", [1, 2, 3], keys=["x", "x", "y"])
    await mq.produce("b", 1)
    await mq.admin.limit("a", running=4)
    await mq.admin.pause("a", "x")
    await mq.store.dispatch_in_turn("a", "w", count=10, lease=60_000)
    await mq.admin.limit("b", running=0)
    await mq.store.dispatch_in_turn("b", "w", count=10, lease=60_000)
    found = Depth(lambda: mq.admin)
    await found.refresh()
    shown = rendered(found.registry)
    assert shown["mx_rmq_depth{state=pending,topic=a}"] == 2
    assert shown["mx_rmq_keys_waiting{topic=a}"] == 1
    assert shown["mx_rmq_keys_blocked{topic=a}"] == 1
    assert shown["mx_rmq_held_back{topic=a}"] == 0
    assert shown["mx_rmq_held_back{topic=b}"] == 1
    assert shown["mx_rmq_running_limit{topic=a}"] == 4
    assert shown["mx_rmq_running_limit{topic=b}"] == 0
    assert not [name for name in shown if name.startswith("mx_rmq_key_")]
    await mq.admin.limit("a", running=None)
    after = Depth(lambda: mq.admin)
    await after.refresh()
    assert "mx_rmq_running_limit{topic=a}" not in rendered(after.registry)


async def test_it_names_a_bounded_number_of_keys_if_asked(mq: MessageQueue, raw: Redis) -> None:
    for number in range(30):
        await mq.produce_many("a", [1] * (number + 1), keys=[f"key-{number}"] * (number + 1))
    await mq.produce_many("a", [1] * 50)
    await mq.produce("b", 1)
    found = Depth(lambda: mq.admin, top_keys=10)
    await found.refresh()
    shown = rendered(found.registry)
    named = {name: value for name, value in shown.items() if "mx_rmq_key_waiting" in name}
    assert len(named) == 10
    assert named["mx_rmq_key_waiting{key=key-29,topic=a}"] == 30
    assert 0 <= shown["mx_rmq_key_oldest_seconds{key=key-29,topic=a}"] < 60


async def test_a_key_of_any_bytes_can_be_rendered(server: Server, raw: Redis) -> None:
    async with queue(server.url, audit=False) as mq:
        await mq.produce("a", 1, key="x")
        keys = Keys().of("a")
        await raw.zadd(keys.lines, {b'\xff"\n\t21 1 id': 0})
        await raw.zadd(keys.ring, {b'\xff"\n': 0})
        found = Depth(lambda: mq.admin, top_keys=10)
        await found.refresh()
        assert sum("mx_rmq_key_waiting" in name for name in rendered(found.registry)) == 2
