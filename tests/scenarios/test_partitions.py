"""Topics of several partitions: order by key, even spread, fair service, growth while they run."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from mx_rmq import Delivery, InvalidInput, MessageQueue, PartlyProduced, Worker
from mx_rmq.core.partition import number_in, partition
from mx_rmq.runtime import producer, registry
from tests.lab.cluster import Cluster
from tests.lab.nodes import until_true
from tests.lab.servers import Kind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from tests.lab.servers import Server

TOPIC = "work"


@pytest.fixture(params=["one server", "cluster"])
async def url(
    request: pytest.FixtureRequest, running: Callable[[Kind], Server], short_path: Path
) -> AsyncIterator[str]:
    if request.param == "one server":
        server = running(Kind.VALKEY_9_1)
        async with MessageQueue(server.url) as mq:
            await mq.store.caller.servers.nodes()[0].client.flushall()
        yield server.url
    else:
        async with Cluster(short_path) as cluster:
            yield cluster.url


async def until(fact: Callable[[], object], within: float = 60) -> None:
    async with asyncio.timeout(within):
        while not fact():  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.005)


async def is_empty(mq: MessageQueue) -> bool:
    return (await mq.admin.stats(TOPIC)).total == 0


async def sizes(mq: MessageQueue, count: int) -> list[int]:
    views = mq.store.views
    return [(await views.counts(partition(TOPIC, number))).pending for number in range(count)]


def declared(url: str, seen: list[tuple[str, int, float, float]], count: int) -> MessageQueue:
    """Return a queue whose handler keeps the order of each key."""
    mq = MessageQueue(url, lease=2)

    @mq.handler(TOPIC, partitions=count, concurrency=1)
    async def handle(payload: list[object]) -> None:
        key, number = payload
        began = time.monotonic()
        await asyncio.sleep(0.001)
        assert isinstance(key, str)
        assert isinstance(number, int)
        seen.append((key, number, began, time.monotonic()))

    return mq


async def test_messages_of_a_key_are_handled_in_order_over_all_workers(url: str) -> None:
    keys, each = [f"customer-{number}" for number in range(20)], 25
    seen: list[tuple[str, int, float, float]] = []
    async with AsyncExitStack() as stack:
        queues = [await stack.enter_async_context(declared(url, seen, 6)) for _ in range(3)]
        for mq in queues[1:]:
            await stack.enter_async_context(Worker(mq))
        mq = queues[0]
        for number in range(each):
            await asyncio.gather(*(mq.produce(TOPIC, [key, number], key=key) for key in keys))
        await mq.produce_many(
            TOPIC,
            [[key, each + number] for number in range(each) for key in keys],
            keys=[key for _ in range(each) for key in keys],
        )
        await until(lambda: len(seen) >= 2 * each * len(keys))
        assert len(seen) == 2 * each * len(keys)
        for key in keys:
            assert [number for one, number, _, _ in seen if one == key] == list(range(2 * each))
        await until_true(lambda: is_empty(mq), "what was handled is done with, too")


async def test_only_one_message_of_a_partition_runs_at_a_time_and_partitions_run_together(
    url: str,
) -> None:
    runs: dict[int, list[tuple[float, float]]] = defaultdict(list)
    running: set[int] = set()
    together = asyncio.Event()
    async with AsyncExitStack() as stack:
        for _ in range(2):
            mq = MessageQueue(url, lease=2)

            @mq.handler(TOPIC, partitions=4, concurrency=1)
            async def handle(_: int, delivery: Delivery) -> None:
                number, began = number_in(delivery.id), time.monotonic()
                running.add(number)
                if len(running) == 4:
                    together.set()
                await together.wait()  # for ever, if the partitions wait for each other
                await asyncio.sleep(0.02)
                running.discard(number)
                runs[number].append((began, time.monotonic()))

            await stack.enter_async_context(mq)
            await stack.enter_async_context(Worker(mq))
        key_of = {_number(str(number)): str(number) for number in range(100)}
        keys = [key_of[number % 4] for number in range(80)]  # else a late server is gone past
        await mq.produce_many(TOPIC, list(range(80)), keys=keys)
        await until(lambda: sum(map(len, runs.values())) == 80)
    for of_one in runs.values():
        ordered = sorted(of_one)
        for (_, ended), (started, _) in pairwise(ordered):
            assert started >= ended
    assert len(runs) == 4


async def test_messages_without_a_key_are_spread_evenly(url: str) -> None:
    async with MessageQueue(url) as mq:
        await mq.store.register_topics({TOPIC: 8})
        for number in range(80):
            await mq.produce(TOPIC, number)
        assert await sizes(mq, 8) == [10] * 8
        ids = await mq.produce_many(TOPIC, list(range(8000)))
        assert await sizes(mq, 8) == [1010] * 8
        assert len(set(ids)) == 8000
        assert Counter(map(number_in, ids)) == dict.fromkeys(range(8), 1000)


async def test_an_own_id_is_one_message_whatever_partition_it_is_in(url: str) -> None:
    async with MessageQueue(url) as mq:
        await mq.store.register_topics({TOPIC: 8})
        for _ in range(3):
            for number in range(50):
                assert await mq.produce(TOPIC, 1, id=f"order-{number}") == f"order-{number}"
            await mq.produce_many(TOPIC, [1] * 50, ids=[f"order-{number}" for number in range(50)])
        assert sum(await sizes(mq, 8)) == 50
        made = [await mq.produce(TOPIC, 1) for _ in range(16)]
        for id in made:  # as after a reply that was lost
            assert await mq.produce(TOPIC, 1, id=id) == id
        assert sum(await sizes(mq, 8)) == 66


async def test_a_topic_grows_while_it_runs(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "BEAT", 0.2)
    monkeypatch.setattr(producer, "REFRESH_EVERY", 0.2)
    done: Counter[str] = Counter()
    old, new = MessageQueue(url, lease=2), MessageQueue(url, lease=2)

    @old.handler(TOPIC)
    async def handle(_: int, delivery: Delivery) -> None:
        done[delivery.id] += 1

    ids: list[str] = []

    async def produce() -> None:
        while True:
            ids.append(await old.produce(TOPIC, 1))
            ids.extend(await old.produce_many(TOPIC, [1] * 20, delay=0.01))
            await asyncio.sleep(0.002)

    async with old, new, Worker(old):
        producing = asyncio.create_task(produce())
        await until(lambda: len(done) > 100)
        await new.store.register_topics({TOPIC: 5})
        await until(lambda: {number_in(id) for id in done} == set(range(5)))
        await new.store.register_topics({TOPIC: 9})
        await new.store.register_topics({TOPIC: 3})  # it does not shrink
        await until(lambda: {number_in(id) for id in done} == set(range(9)))
        producing.cancel()
        await asyncio.gather(producing, return_exceptions=True)
        await until(lambda: set(ids) <= done.keys())
        assert max(done.values()) == 1
        assert new.store.partitions[TOPIC] == 9


async def test_a_busy_partition_does_not_starve_the_others(url: str) -> None:
    done: list[int] = []
    mq = MessageQueue(url, lease=5)

    @mq.handler(TOPIC, partitions=4)
    async def handle(_: int, delivery: Delivery) -> None:
        await asyncio.sleep(0.005)
        done.append(number_in(delivery.id))

    async with mq:
        await mq.produce_many(TOPIC, [1] * 2000, keys=["busy"] * 2000)
        busy = (await sizes(mq, 4)).index(2000)
        quiet = next(key for key in map(str, range(100)) if _number(key) != busy)
        async with Worker(mq, concurrency=10):
            await until(lambda: len(done) > 50)
            before = len(done)
            await mq.produce(TOPIC, 1, key=quiet)
            await until(lambda: any(number != busy for number in done))
            assert len(done) - before < 500


def _number(key: str) -> int:
    from mx_rmq.core.partition import number_for

    return number_for(key, 4)


@pytest.mark.parametrize("count", [0, -1, 1025, 1.5, True, "4"])
def test_a_number_of_partitions_that_is_none_is_refused(count: int) -> None:
    mq = MessageQueue("redis://nowhere")
    with pytest.raises(InvalidInput, match=r"partitions=.* is not a whole number from 1 to 1024"):

        @mq.handler(TOPIC, partitions=count)
        async def handle(_: int) -> None: ...


@pytest.mark.parametrize("topic", ["work/1", "work/0", "work/"])
async def test_partitions_have_no_names_for_callers(
    topic: str, running: Callable[[Kind], Server]
) -> None:
    async with MessageQueue(running(Kind.VALKEY_9_1).url) as mq:
        with pytest.raises(InvalidInput):
            await mq.produce(topic, 1)
        with pytest.raises(InvalidInput):
            await mq.produce_many(topic, [1])
        with pytest.raises(InvalidInput):
            await mq.admin.stats(topic)
        for key in ("", 5):
            with pytest.raises(InvalidInput, match="key="):
                await mq.produce(TOPIC, 1, key=key)  # type: ignore[arg-type] # on purpose


async def test_of_a_produce_many_that_fails_it_is_known_which_messages_are_stored(
    url: str,
) -> None:
    async with MessageQueue(url, max_pending=12) as mq:
        await mq.store.register_topics({TOPIC: 4})
        of_each = {_number(str(number)): str(number) for number in range(100)}
        await mq.produce(TOPIC, "first", key=of_each[3])
        payloads, keys = list(range(12)), [of_each[number % 4] for number in range(12)]
        with pytest.raises(PartlyProduced) as caught:
            await mq.produce_many(TOPIC, payloads, keys=keys)
        assert 0 < len(caught.value.ids) < 12
        for id, place in zip(caught.value.ids, caught.value.places, strict=True):
            view = await mq.admin.get(TOPIC, id)
            assert view is not None
            assert view.payload == payloads[place]
        assert (await mq.admin.stats(TOPIC)).pending == 1 + len(caught.value.ids)


async def test_a_worker_that_stops_leaves_its_ordered_partition_to_the_next(url: str) -> None:
    """The other one asked in vain while the first had a message, and hears no ring any more."""
    started: dict[str, list[int]] = {"one": [], "two": []}
    release, linger = asyncio.Event(), asyncio.Event()
    queues = {name: MessageQueue(url, lease=30) for name in started}

    def declare(name: str) -> None:
        @queues[name].handler(TOPIC, partitions=1, concurrency=1)
        async def handle(number: int) -> None:
            started[name].append(number)
            await release.wait()

        @queues[name].handler("other")
        async def other(_: int) -> None:
            await linger.wait()

    for name in queues:
        declare(name)
    async with AsyncExitStack() as stack:
        for mq in queues.values():
            await stack.enter_async_context(mq)
        one, two = (Worker(mq, name=name) for name, mq in queues.items())
        await one.start()
        await queues["one"].produce("other", 1)
        await queues["one"].produce(TOPIC, 1)
        await until(lambda: started["one"] == [1])
        await two.start()
        await queues["two"].produce(TOPIC, 2)
        await asyncio.sleep(0.3)  # the second one has heard the ring, in vain
        stopping = asyncio.create_task(one.stop())
        await asyncio.sleep(0.1)
        release.set()
        await until(lambda: started["two"] == [2], 3)
        linger.set()
        await stopping
        await two.stop()


async def test_a_paused_topic_stays_so_when_code_declares_more_partitions(url: str) -> None:
    async with MessageQueue(url) as mq:
        await mq.produce(TOPIC, 0)
        await mq.admin.pause(TOPIC)
        done: list[int] = []
        new = MessageQueue(url)

        @new.handler(TOPIC, partitions=4)
        async def handle(number: int) -> None:
            done.append(number)

        async with new, Worker(new):
            for number in range(8):
                await new.produce(TOPIC, number)
            await asyncio.sleep(0.5)
            assert done == []
            await new.admin.resume(TOPIC)
            await until(lambda: len(done) == 9)
