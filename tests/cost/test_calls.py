"""What a message costs, in counts: they do not depend on the machine's mood.

The counts of functions are those of Python 3.11; newer ones make fewer, since a comprehension is
no call there.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

import pytest

from bench.own.load import BATCH, PAYLOAD, Cycle, topics
from mx_rmq.runtime import producer
from tests.cost.meter import Cost, Handlers, Stopwatch, cost_of
from tests.runtime.stage import commands, on_a_server, on_servers, queue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from mx_rmq import MessageQueue
    from mx_rmq.store.store import Store
    from tests.lab.servers import Server

# A message may cost so much: at most a fifth more than was measured. In the commands is what the
# history takes: for each step of messages an HINCRBY a call, and an XADD for every 25 of them. How
# many calls a round trip takes depends on the moment: it may take three times as many.
LIMITS: Final = {
    #                             script calls  commands inside  functions
    "produce, one caller":   Cost(1,            12,              117),
    "produce, 100 callers":  Cost(0.012,        0.18,            50),
    "produce_many":          Cost(0.0024,       0.088,           27),
    "drain":                 Cost(0.02,         0.38,            46),
    "drain, 200 topics":     Cost(0.62,         8.6,             260),
    "delayed":               Cost(0.026,        1.7,             80),
    "produce_many, keys":    Cost(0.0024,       0.1,             30),
    "drain, 100 keys":       Cost(0.02,         1.15,            50),
    "round trip":            Cost(0.12,         2.4,             176),
}  # fmt: skip

GROWTH: Final = 1.1
"""The most that a message may cost with 20,000 pending, against 2,000."""


def assert_within(what: str, cost: Cost) -> None:
    """Hold a cost against its limits."""
    over = [
        f"{name} {found:.4g}, the limit is {limit:g}"
        for name, found, limit in zip(Cost._fields, cost, LIMITS[what], strict=True)
        if found > limit
    ]
    assert not over, (
        f"{what}: a message costs more than it may: {'; '.join(over)}. "
        "If the change is meant, move the limit in LIMITS in the same commit and say why."
    )


@pytest.fixture
async def mq(
    raw: Redis, server: Server, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[MessageQueue]:
    monkeypatch.setattr(producer, "REFRESH_EVERY", 3600.0)
    async with queue(server.url, lease=600) as mq:  # or it would look around that often
        yield mq


@pytest.fixture
async def handlers(mq: MessageQueue, monkeypatch: pytest.MonkeyPatch) -> Handlers:
    """Handlers whose worker has run once: the scripts are loaded."""
    handlers = Handlers(mq, Stopwatch(monkeypatch))
    handlers.declare("warm")
    await mq.produce_many("warm", [PAYLOAD] * 10)
    await mq.produce("warm", PAYLOAD, at=time.time() - 60)
    await handlers.handle(11, ["warm"])
    return handlers


async def produce(mq: MessageQueue, count: int) -> None:
    for _ in range(count):
        await mq.produce("t", PAYLOAD)


# produce


@on_servers
async def test_a_lone_caller_makes_one_script_call_a_message(mq: MessageQueue, raw: Redis) -> None:
    await produce(mq, 2)
    cost = await cost_of(raw, 300, produce(mq, 300))
    assert_within("produce, one caller", cost)
    assert cost.calls == 1


@on_servers
async def test_a_hundred_callers_share_script_calls(mq: MessageQueue, raw: Redis) -> None:
    await produce(mq, 2)
    callers = asyncio.gather(*(produce(mq, 50) for _ in range(100)))
    assert_within("produce, 100 callers", await cost_of(raw, 5_000, callers))


@on_servers
async def test_produce_many_makes_a_call_for_500(mq: MessageQueue, raw: Redis) -> None:
    await produce(mq, 2)
    many = mq.produce_many("t", [PAYLOAD] * 5_000)
    assert_within("produce_many", await cost_of(raw, 5_000, many))


# drain


@on_servers
async def test_a_worker_dispatches_and_completes_in_batches(
    mq: MessageQueue, raw: Redis, handlers: Handlers
) -> None:
    handlers.declare("t")
    await mq.produce_many("t", [PAYLOAD] * 5_000)
    assert_within("drain", await cost_of(raw, 5_000, handlers.handle(5_000, ["t"])))


@on_servers
async def test_a_worker_of_many_topics_works_in_batches_too(
    mq: MessageQueue, raw: Redis, handlers: Handlers
) -> None:
    names = topics(200)
    handlers.declare(*names)
    for topic in names:
        await mq.produce_many(topic, [PAYLOAD] * 20)
    assert_within("drain, 200 topics", await cost_of(raw, 4_000, handlers.handle(4_000, names)))


@on_servers
async def test_delayed_messages_are_moved_in_batches(
    mq: MessageQueue, raw: Redis, handlers: Handlers
) -> None:
    async def delay_and_handle() -> None:
        await mq.produce_many("t", [PAYLOAD] * 5_000, at=time.time() - 60)
        await handlers.handle(5_000, ["t"])

    handlers.declare("t")
    assert_within("delayed", await cost_of(raw, 5_000, delay_and_handle()))


# keys


@on_servers
async def test_messages_with_keys_are_produced_in_calls_for_500(
    mq: MessageQueue, raw: Redis
) -> None:
    await produce(mq, 2)
    many = mq.produce_many("t", [PAYLOAD] * 5_000, keys=keys(5_000, 1_000))
    assert_within("produce_many, keys", await cost_of(raw, 5_000, many))


@on_servers
async def test_messages_with_keys_are_dispatched_and_completed_in_batches(
    mq: MessageQueue, raw: Redis, handlers: Handlers
) -> None:
    handlers.declare("t")
    await mq.produce_many("t", [PAYLOAD] * 5_000, keys=keys(5_000, 100))
    assert_within("drain, 100 keys", await cost_of(raw, 5_000, handlers.handle(5_000, ["t"])))


@on_servers
async def test_the_server_runs_hardly_more_commands_however_many_keys_wait(
    store: Store, raw: Redis
) -> None:
    spent = []
    for level in (10, 10_000):
        cycle = Cycle(store, topic=f"t{level}", keys=level)
        await cycle.produce_each(number % level for number in range(10_000))
        await cycle.complete(await cycle.dispatch())  # the scripts are loaded
        before = await commands(raw)
        for _ in range(5):
            await cycle.produce(BATCH)
            await cycle.complete(await cycle.dispatch())
        after = await commands(raw)
        spent.append(sum(after[name] - before.get(name, 0) for name in after if name != "info"))
    few, many = spent
    assert many <= few * GROWTH, f"{many} commands with 10,000 keys, {few} with 10"


@on_servers
async def test_a_topic_without_keys_pays_one_cheap_read_per_call(store: Store, raw: Redis) -> None:
    cycle = Cycle(store)
    await cycle.produce(BATCH * 2)
    await cycle.complete(await cycle.dispatch())
    before = await commands(raw)
    await cycle.produce(BATCH)
    await cycle.complete(await cycle.dispatch())
    after = await commands(raw)
    spent = {name: count - before.get(name, 0) for name, count in after.items()}
    assert spent.get("exists") == 2, "one read of a dispatch, one of a complete"
    for name in ("zmscore", "zlexcount", "zrangebylex", "zrange"):
        assert not spent.get(name), f"{name} is for keys"


def keys(messages: int, over: int) -> list[str | None]:
    return [f"tenant-{number % over}" for number in range(messages)]


# results


@on_servers
async def test_the_result_of_a_message_that_was_produced_here_needs_no_call(
    mq: MessageQueue, raw: Redis, handlers: Handlers
) -> None:
    @mq.handler("t", result_ttl=60)
    async def answer(payload: Any) -> int:
        return 1

    async def trips(count: int) -> None:
        for _ in range(count):
            assert await mq.result("t", await mq.produce("t", PAYLOAD), timeout=60) == 1

    async with handlers.serve(raw, ["t"]):
        await trips(1)  # from now on the channel is heard
        callers = asyncio.gather(*(trips(20) for _ in range(100)))
        assert_within("round trip", await cost_of(raw, 2_000, callers))


# growth


@on_servers
async def test_a_drain_costs_the_same_however_much_is_pending(
    mq: MessageQueue, raw: Redis, handlers: Handlers
) -> None:
    costs = []
    for pending in (2_000, 20_000):
        topic = f"t{pending}"
        handlers.declare(topic)
        await mq.produce_many(topic, [PAYLOAD] * pending)
        costs.append(await cost_of(raw, pending, handlers.handle(pending, [topic])))
    few, many = costs
    for name, with_few, with_many in zip(Cost._fields, few, many, strict=True):
        assert with_many <= with_few * GROWTH, (
            f"with 20,000 pending a message costs {with_many:.4g} {name}, with 2,000 "
            f"{with_few:.4g}: it shall not grow with what is pending"
        )


@on_servers
async def test_the_server_runs_the_same_commands_however_much_is_pending(
    store: Store, raw: Redis
) -> None:
    cycle = Cycle(store)
    found = []
    for more in (2_000, 18_000):
        await cycle.produce(more)
        await cycle.complete(await cycle.dispatch())  # the scripts are loaded
        before = await commands(raw)
        for _ in range(5):
            await cycle.produce(BATCH)
            await cycle.complete(await cycle.dispatch())
        after = await commands(raw)
        spent = {name: count - before.get(name, 0) for name, count in after.items()}
        found.append({name: count for name, count in spent.items() if count and name != "info"})
    assert found[0] == found[1], "the commands of a batch depend on how much is pending"


# topics


@on_a_server
async def test_a_ring_costs_about_the_same_however_many_topics_a_worker_serves(
    mq: MessageQueue, raw: Redis, handlers: Handlers
) -> None:
    costs, received = {}, {}
    for level in (10, 1_000):
        names = topics(level)
        handlers.declare(*(name for name in names if name not in mq.handlers))
        await mq.store.register_topics(dict.fromkeys(names, 1))
        rung = names[-5:] * 20
        async with handlers.serve(raw, names):
            await handlers.one_by_one(rung)  # the scripts and connections are there
            before = (await raw.info("stats"))["total_net_input_bytes"]
            costs[level] = await cost_of(raw, len(rung), handlers.one_by_one(rung))
            received[level] = (await raw.info("stats"))["total_net_input_bytes"] - before
    few, many = costs.values()
    assert (many.calls, many.commands) == (few.calls, few.commands)
    assert many.functions <= few.functions * 1.4
    # A wait names the doorbells that it hears: two keys of 64 topics at the most.
    assert received[1_000] - received[10] <= len(rung) * 64 * 2 * 60
