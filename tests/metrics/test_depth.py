"""The depth of a queue: asked for once, however many scrape, and never an old number for new."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from mx_rmq import MessageQueue, ServerUnavailable
from mx_rmq.admin import Admin, Stats
from mx_rmq.metrics import Depth, depth
from tests.metrics.asking import rendered
from tests.runtime.stage import commands, on_a_server, queue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from tests.lab.servers import Server

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
    assert shown["mx_rmq_depth{state=pending,topic=a}"] == 3
    assert shown["mx_rmq_depth{state=delayed,topic=a}"] == 1
    assert shown["mx_rmq_depth{state=pending,topic=b}"] == 1
    assert shown["mx_rmq_depth{state=quarantined,topic=b}"] == 0
    assert shown["mx_rmq_workers{state=alive}"] == 0
    assert shown["mx_rmq_dropped_total{topic=a}"] == 0


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
    mq: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(depth, "MOST", 2)
    for topic in "abc":
        await mq.produce(topic, 1)
    found = Depth(lambda: mq.admin)
    await found.refresh()
    shown = rendered(found.registry)
    assert shown["mx_rmq_topics"] == 3
    assert "mx_rmq_depth{state=pending,topic=b}" in shown
    assert "mx_rmq_depth{state=pending,topic=c}" not in shown


async def test_a_topic_that_nobody_has_used_is_left_out(mq: MessageQueue) -> None:
    await mq.produce("a", 1)
    found = Depth(lambda: mq.admin, ["a", "new"])
    await found.refresh()
    shown = rendered(found.registry)
    assert shown["mx_rmq_depth_up"] == 1
    assert "mx_rmq_depth{state=pending,topic=new}" not in shown


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
    assert "the depth of the queue cannot be had: the queue is not open" in caplog.text


@pytest.mark.parametrize("how", ["refuses", "hangs"])
async def test_a_topic_that_cannot_be_reached_hides_no_other(
    mq: MessageQueue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    class OneNodeAway(Admin):
        async def stats(self, topic: str) -> Stats:
            if topic == "away" and how == "refuses":
                raise ServerUnavailable("node 3 is away")
            if topic == "away":
                await asyncio.Event().wait()
            return await super().stats(topic)

    monkeypatch.setattr(depth, "EACH", 0.2)
    for topic in ("away", "here"):
        await mq.produce(topic, 1)
    found = Depth(lambda: OneNodeAway(mq.store))
    await found.refresh()
    shown = rendered(found.registry)
    assert (shown["mx_rmq_depth_up"], shown["mx_rmq_topics"]) == (1, 2)
    assert shown["mx_rmq_topic_up{topic=away}"] == 0
    assert shown["mx_rmq_topic_up{topic=here}"] == 1
    assert shown["mx_rmq_depth{state=pending,topic=here}"] == 1
    assert "mx_rmq_depth{state=pending,topic=away}" not in shown
    assert "the depth of away cannot be had" in caplog.text


async def test_a_server_that_does_not_answer_is_not_waited_for_long(
    mq: MessageQueue, raw: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    await mq.produce("a", 1)
    monkeypatch.setattr(depth, "WITHIN", 0.1)
    found = Depth(lambda: mq.admin)
    await raw.client_pause(1000)
    await found.refresh()
    assert rendered(found.registry)["mx_rmq_depth_up"] == 0
