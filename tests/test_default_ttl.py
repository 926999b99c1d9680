"""A default time to live: of a handler, of a queue, for producers that know of it or not."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import Delivery, InvalidInput, MessageQueue, Snooze, State, Worker
from mx_rmq.runtime import caretaker, producer, site
from tests.lab.messages import draft
from tests.runtime.stage import on_a_server, queue, until_so

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from tests.lab.servers import Server

pytestmark = on_a_server


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "SURVEY_EVERY", 0.1)
    monkeypatch.setattr(caretaker, "ROUND", 0.1)


@pytest.fixture
async def mq(raw: Redis, server: Server) -> AsyncIterator[MessageQueue]:
    async with queue(server.url) as mq:
        yield mq


@pytest.fixture
async def other(mq: MessageQueue, server: Server) -> AsyncIterator[MessageQueue]:
    """A queue that declares nothing."""
    async with MessageQueue(server.url) as other:
        yield other


async def is_dead(mq: MessageQueue, id: str, topic: str = "t") -> bool:
    found = await mq.admin.get(topic, id)
    return found is not None and found.state is State.DEAD and found.reason.startswith("expired")


async def expiries(mq: MessageQueue, raw: Redis, topic: str = "t") -> dict[str, float]:
    found: Any = await raw.zrange(mq.store.keys.of(topic).expiry, 0, -1, withscores=True)
    return {id.decode(): at for id, at in found}


def never_called(payload: Any) -> None:
    raise AssertionError("an expired message was handled")


# producing


async def test_the_ttl_of_a_produce_goes_before_the_handlers_and_that_before_the_queues(
    server: Server, raw: Redis
) -> None:
    async with queue(server.url, ttl=100) as mq:
        mq.handler("t", ttl=50)(never_called)
        asked = [("t", None), ("t", 10), ("u", None), ("u", 10)]
        ids = [await mq.produce(topic, 1, ttl=ttl) for topic, ttl in asked]
        ids += await mq.produce_many("u", [1], ttl=None)
        found = {**await expiries(mq, raw), **await expiries(mq, raw, "u")}
        views = [await mq.admin.get(topic, id) for (topic, _), id in zip(asked, ids, strict=False)]
        lives = [
            found[view.id] / 1000 - view.created_at for view in views if view and view.created_at
        ]
        assert lives == pytest.approx([50, 10, 100, 10])
        assert len(found) == 5


async def test_a_message_that_would_expire_before_it_is_due_is_refused_by_the_default_too(
    server: Server, raw: Redis
) -> None:
    async with queue(server.url, ttl=50) as mq:
        mq.handler("t", ttl=5)(never_called)
        await mq.store.register_topics({"declared": 1}, {"declared": 7000})
        for topic, ttl, source in (
            ("t", 5, "handler tests.test_default_ttl.never_called"),
            ("u", 50, "the queue's settings"),
            ("declared", 7, "a worker's handler"),
        ):
            told = (
                f"delay={ttl}: the message would expire before it is due. "
                f"The default of topic {topic!r} is ttl={ttl}, from {source}; pass a longer ttl"
            )
            for refused in (
                partial(mq.produce, topic, 1, delay=ttl),
                partial(mq.produce_many, topic, [1, 2], delay=ttl),
                partial(mq.produce, topic, 1, id="a", delay=ttl, on_duplicate="replace"),
            ):
                with pytest.raises(InvalidInput) as caught:
                    await refused()
                assert str(caught.value) == told
            assert (await mq.admin.stats(topic)).total == 0
            await mq.produce(topic, 1, delay=ttl - 1)
            await mq.produce(topic, 1, at=time.time() - 1)
            await mq.produce(topic, 1, delay=ttl, ttl=ttl + 1)
            assert (await mq.admin.stats(topic)).total == 3


async def test_a_producer_learns_what_a_worker_declares(
    mq: MessageQueue, other: MessageQueue, raw: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    mq.handler("t", ttl=60)(never_called)
    async with Worker(mq):
        await mq.admin.pause("t")
        assert await raw.hget(mq.store.keys.topics, "!t") == b"60000"
        id = await other.produce("t", 1)
        assert id in await expiries(mq, raw)
    del mq.handlers["t"]
    mq.handler("t")(never_called)
    async with Worker(mq):  # it no longer declares one
        assert await raw.hget(mq.store.keys.topics, "!t") is None
        other._open_producer().refresh_partitions()

        async def forgotten() -> bool:
            return not other.store.ttls

        await until_so(forgotten)
        id = await other.produce("t", 2)
        assert id not in await expiries(mq, raw)


async def test_a_producer_that_knows_a_topic_learns_of_its_ttl_within_ten_seconds(
    mq: MessageQueue, other: MessageQueue, raw: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert producer.REFRESH_EVERY == 10
    await other.produce("t", 1)
    mq.handler("t", ttl=60)(never_called)
    await mq.store.register_topics({"t": 1}, {"t": 60_000})
    other._open_producer()._refresh_at = 0.0
    await other.produce("t", 2)

    async def known() -> bool:
        return other.store.ttls == {"t": 60_000}

    await until_so(known)
    assert await other.produce("t", 3) in await expiries(mq, raw)


# messages of producers that do not know it


async def old(mq: MessageQueue, topic: str = "t", **fields: Any) -> str:
    """Produce as a release does that knows no default ttl."""
    store, new = mq.store, draft(1, **fields)
    call = store.produce_delay_message if new.is_delayed else store.produce_normal_message
    ((id, _),) = await call(topic, [new])
    return id


async def test_the_delay_is_included(mq: MessageQueue) -> None:
    mq.handler("t", ttl=0.2)(never_called)
    id = await old(mq, delay=60_000)
    async with Worker(mq):
        await until_so(lambda: is_dead(mq, id))


async def test_a_handler_does_not_get_a_message_that_is_too_old(mq: MessageQueue) -> None:
    mq.handler("t", ttl=0.001)(never_called)
    id = await old(mq)
    await asyncio.sleep(0.01)
    assert (await Worker(mq).drain()).dead == 1
    assert await is_dead(mq, id)


@pytest.mark.parametrize("fields", [{}, {"delay": 60_000}], ids=["pending", "delayed"])
@pytest.mark.parametrize("parts", [1, 3])
async def test_it_expires_in_a_paused_topic(
    mq: MessageQueue, parts: int, fields: dict[str, Any]
) -> None:
    mq.handler("t", ttl=0.3, partitions=parts)(never_called)
    await mq.store.register("t", parts)
    await mq.admin.pause("t")
    ids = [await old(mq, "t", **fields)]
    if parts > 1:
        ids.append(await old(mq, "t/2", **fields))
    async with Worker(mq):
        for id in ids:
            await until_so(partial(is_dead, mq, id))


async def test_it_counts_from_the_produce_whatever_the_message_waits_for(
    mq: MessageQueue,
) -> None:
    mq.handler("t", ttl=0.3)(never_called)
    hour = 3_600_000
    at = await old(mq, at=round(await mq.admin.now() * 1000) + hour)
    moved = await old(mq, delay=hour)
    assert await mq.reschedule("t", moved, delay=2 * hour)
    async with Worker(mq):
        for id in (at, moved):
            await until_so(partial(is_dead, mq, id))


async def test_it_expires_behind_others_that_never_end(mq: MessageQueue) -> None:
    async def busy(payload: int) -> None:
        await asyncio.Event().wait()

    mq.handler("t", ttl=0.5, concurrency=1)(busy)
    ids = [await old(mq) for _ in range(3)]
    async with Worker(mq, concurrency=1, prefetch=0, grace=0):
        for id in ids[1:]:
            await until_so(partial(is_dead, mq, id))
        assert not await is_dead(mq, ids[0])  # it runs


async def test_it_expires_where_nobody_serves_the_topic(
    mq: MessageQueue, other: MessageQueue
) -> None:
    mq.handler("t", ttl=0.3)(never_called)
    await mq.store.register_topics({"t": 1}, {"t": 300})
    other.handler("else")(never_called)
    id = await old(mq)
    async with Worker(other):
        await until_so(lambda: is_dead(mq, id))


async def test_a_message_with_its_own_ttl_keeps_it(mq: MessageQueue, raw: Redis) -> None:
    mq.handler("t", ttl=0.05)(never_called)
    await mq.store.register("t")
    await mq.admin.pause("t")
    own, other = await old(mq, ttl=60_000), await old(mq)
    async with Worker(mq):
        await until_so(lambda: is_dead(mq, other))
        assert [*await expiries(mq, raw)] == [own]


async def test_a_requeued_message_lives_as_long_again(mq: MessageQueue) -> None:
    seen = []

    @mq.handler("t", ttl=2)
    async def handle(payload: int) -> None:
        seen.append(payload)

    await mq.store.register("t")
    await mq.admin.pause("t")
    id = await old(mq)
    async with Worker(mq):
        await until_so(lambda: is_dead(mq, id))
    await mq.admin.requeue("t", id)
    await mq.admin.resume("t")
    assert (await Worker(mq).drain()).completed == 1
    assert seen == [1]


async def test_a_requeued_message_that_is_rescheduled_lives_no_longer(
    mq: MessageQueue, raw: Redis
) -> None:
    mq.handler("t", ttl=0.2)(never_called)
    id = await old(mq)
    await mq.admin.abort("t", id, "too early")
    await asyncio.sleep(0.3)
    await mq.admin.pause("t")
    await mq.admin.requeue("t", id)
    requeued = await mq.admin.now()
    assert await mq.reschedule("t", id, delay=3600)
    async with Worker(mq):
        await until_so(lambda: is_dead(mq, id))
    found = await mq.admin.get("t", id)
    assert found is not None
    assert found.expires_at == pytest.approx(requeued + 0.2, abs=0.1)


async def test_a_snooze_does_not_prolong_it(mq: MessageQueue) -> None:
    calls = []

    @mq.handler("t", ttl=0.3)
    async def handle(payload: int, delivery: Delivery) -> None:
        calls.append(delivery.attempt)
        raise Snooze(0.05)

    id = await old(mq)
    assert (await Worker(mq).drain(delayed=True)).dead == 1
    assert await is_dead(mq, id)
    assert set(calls) == {1}


async def test_a_topic_without_a_default_ttl_is_not_searched(mq: MessageQueue, raw: Redis) -> None:
    mq.handler("t")(never_called)
    await mq.store.register("t")
    await mq.admin.pause("t")
    await old(mq)
    called: list[Any] = []
    mq.store.undated_messages = lambda *given: called.append(given)  # type: ignore[assignment,method-assign]
    async with Worker(mq):
        await asyncio.sleep(0.3)
    assert called == []
    assert await expiries(mq, raw) == {}
