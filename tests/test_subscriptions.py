"""Subscriptions, as a user has them: one event, several services."""

from __future__ import annotations

import asyncio
import inspect
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import (
    Delivery,
    InvalidInput,
    MessageQueue,
    Middleware,
    ResultUnknown,
    Router,
    State,
    Worker,
)
from mx_rmq.core import events
from mx_rmq.doctor.queue import check_queue
from mx_rmq.runtime import registry, site
from mx_rmq.runtime.engine import Engine
from mx_rmq.runtime.relay import Relay
from tests.cli.calls import run, run_json
from tests.runtime.stage import WITHIN, Seen, on_a_server, queue
from tests.test_steps import until_state

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from redis.asyncio import Redis

    from tests.lab.servers import Kind, Server

pytestmark = on_a_server

T = "order.created"
NAMES = ("billing", "search", "analytics")


class Services:
    """Handlers of subscriptions that note what they get."""

    def __init__(self, mq: MessageQueue, *names: str, **options: Any) -> None:
        self.got: defaultdict[str, list[Any]] = defaultdict(list)
        self.broken: set[str] = set()
        for name in names:
            mq.handler(T, subscription=name, retry=0.01, max_attempts=2, **options)(self._handle)

    async def _handle(self, payload: Any, delivery: Delivery) -> str:
        assert delivery.topic == T
        assert delivery.subscription is not None
        if delivery.subscription in self.broken:
            raise ValueError("broken")
        self.got[delivery.subscription].append(payload)
        return f"{delivery.subscription} {payload}"

    def have(self, *payloads: Any, names: tuple[str, ...] = NAMES) -> bool:
        return all(sorted(self.got[name]) == sorted(payloads) for name in names)


@pytest.fixture
async def mq(raw: Redis, server: Server) -> AsyncIterator[MessageQueue]:
    async with queue(server.url) as mq:
        yield mq


@pytest.fixture
async def other(mq: MessageQueue, server: Server) -> AsyncIterator[MessageQueue]:
    """A queue that declares nothing."""
    async with queue(server.url) as other:
        yield other


async def until(fact: Callable[[], Any]) -> Any:
    """Wait for a fact, which may have to be asked for; return it."""
    async with asyncio.timeout(WITHIN):
        while True:
            found = fact()
            found = await found if inspect.isawaitable(found) else found
            if found:
                return found
            await asyncio.sleep(0.005)


# handling


async def test_every_subscription_gets_every_message(mq: MessageQueue, other: MessageQueue) -> None:
    services = Services(mq, *NAMES)
    async with Worker(mq):
        await other.produce(T, 1)
        await other.produce(T, 2, delay=0.05)
        await other.produce(T, 3, key="k", cost=2)
        await other.produce(T, 4, priority="high", ttl=60)
        await other.produce_many(T, [5, 6], keys=["k", None])
        await until(lambda: services.have(1, 2, 3, 4, 5, 6))
    assert (await mq.admin.stats(T)).total == 0


async def test_services_run_in_workers_of_their_own(mq: MessageQueue, server: Server) -> None:
    services = Services(mq, *NAMES)
    workers = [Worker(mq, topics=[f"{T}@{name}"]) for name in NAMES]
    for worker in workers:
        await worker.start()
    await mq.produce_many(T, list(range(100)))
    await until(lambda: services.have(*range(100)))
    for worker in workers:
        await worker.stop()


async def test_a_drain_waits_for_a_relay_that_has_not_begun(
    mq: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = Services(mq, *NAMES)
    async with Worker(mq):
        pass
    await mq.produce(T, 1)
    asked = asyncio.Event()
    ask, step = Engine._is_anything_left, Relay.step

    async def ask_first(engine: Engine, *, delayed: bool) -> bool:
        left = await ask(engine, delayed=delayed)
        asked.set()
        return left

    async def step_later(relay: Relay) -> float | None:
        await asked.wait()
        return await step(relay)

    monkeypatch.setattr(Engine, "_is_anything_left", ask_first)
    monkeypatch.setattr(Relay, "step", step_later)
    assert (await Worker(mq).drain()).completed == 3
    assert services.have(1)


async def test_a_subscription_exists_from_the_start_of_its_worker_on(mq: MessageQueue) -> None:
    services = Services(mq, *NAMES)
    async with Worker(mq):
        pass
    assert [one.name for one in await mq.admin.subscriptions(T)] == sorted(NAMES)
    await mq.produce(T, 1)  # while no worker runs
    assert [one.lag for one in await mq.admin.subscriptions(T)] == [1, 1, 1]
    drained = await Worker(mq).drain()
    assert drained.completed == 3
    assert services.have(1)


async def test_each_has_its_own_retries_and_dead_letters(mq: MessageQueue) -> None:
    services = Services(mq, *NAMES)
    services.broken = {"billing"}
    async with Worker(mq):
        id = await mq.produce(T, 1)
        await until(lambda: services.have(1, names=NAMES[1:]))
        dead = await until(lambda: _dead(mq, f"{T}@billing", id))
        assert dead.topic == f"{T}@billing"
        assert [one.type for one in dead.errors] == ["ValueError", "ValueError"]
        services.broken = set()
        assert await mq.admin.requeue(f"{T}@billing", id)
        await until(lambda: services.have(1))


async def _dead(mq: MessageQueue, topic: str, id: str) -> Any:
    found = await mq.admin.get(topic, id)
    return found if found is not None and found.state is State.DEAD else None


async def test_one_that_is_paused_or_slow_holds_no_other_back(mq: MessageQueue) -> None:
    services = Services(mq, *NAMES)
    async with Worker(mq):
        await mq.admin.pause(f"{T}@search")
        await mq.produce_many(T, [1, 2])
        await until(lambda: services.have(1, 2, names=("billing", "analytics")))
        lags = {one.name: (one.lag, one.paused) for one in await mq.admin.subscriptions(T)}
        assert lags["search"] == (2, True)
        assert lags["billing"][1] is False
        await mq.admin.resume(f"{T}@search")
        await until(lambda: services.have(1, 2))


async def test_a_paused_topic_gives_no_subscription_anything(mq: MessageQueue) -> None:
    services = Services(mq, *NAMES)
    async with Worker(mq):
        await mq.admin.pause(T)
        await mq.produce(T, 1)
        await mq.produce(T, 2, delay=0.01)
        await until(lambda: _pending(mq, T, 2))
        assert services.have()
        await mq.admin.resume(T)
        await until(lambda: services.have(1, 2))


async def _pending(mq: MessageQueue, topic: str, count: int) -> bool:
    return (await mq.admin.stats(topic)).pending == count


async def test_a_message_that_expires_in_the_topic_reaches_no_one(
    mq: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "SURVEY_EVERY", 0.05)
    services = Services(mq, *NAMES)
    async with Worker(mq):
        await mq.admin.pause(T)
        id = await mq.produce(T, 1, ttl=0.05)
        dead = await until(lambda: _dead(mq, T, id))
        assert dead.reason.startswith("expired")
    assert services.have()


async def test_each_subscription_has_its_own_default_ttl(
    mq: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "SURVEY_EVERY", 0.05)
    brief, patient = Services(mq, "brief", ttl=0.05), Services(mq, "patient")
    async with Worker(mq):
        await mq.admin.pause(f"{T}@brief")
        await mq.admin.pause(f"{T}@patient")
        id = await mq.produce(T, 1)
        await until(lambda: _dead(mq, f"{T}@brief", id))
        await mq.admin.resume(f"{T}@patient")
        await until(lambda: patient.have(1, names=("patient",)))
    assert not brief.got


async def test_results_events_and_status_go_by_the_full_name(mq: MessageQueue) -> None:
    Services(mq, "billing", "search", result_ttl=60)
    seen = Seen(mq.events)
    async with Worker(mq):
        id = await mq.produce(T, 1)
        assert await mq.result(f"{T}@billing", id, timeout=20) == "billing 1"
        assert await mq.result(f"{T}@search", id, timeout=20) == "search 1"
        status = await mq.status(f"{T}@billing", id)
        assert status is not None
        assert status.state is State.COMPLETED
        with pytest.raises(ResultUnknown, match=f"ask for that of '{T}@billing'"):
            await mq.result(T, id, timeout=20)
        await seen.wait(events.Completed, 2)
    assert {one.topic for one in seen.of(events.Completed)} == {f"{T}@billing", f"{T}@search"}


async def test_middleware_and_typed_topics_know_the_subscription(
    raw: Redis, server: Server
) -> None:
    heard: list[tuple[str, str | None]] = []

    class Hears(Middleware):
        async def handle(self, delivery: Delivery, call_next: Any) -> Any:
            heard.append((delivery.topic, delivery.subscription))
            return await call_next(delivery)

    async with queue(server.url, middleware=[Hears()]) as mq:
        orders = mq.topic(T, int)
        got: list[tuple[str, int]] = []

        @orders.handler(subscription="billing")
        async def bill(order: int) -> None:
            got.append(("billing", order))

        @orders.handler(subscription="search")
        def index(order: int) -> None:
            got.append(("search", order))

        async with Worker(mq):
            await orders.produce(7)
            await until(lambda: len(got) == 2)
    assert sorted(got) == [("billing", 7), ("search", 7)]
    assert sorted(heard, key=str) == [(T, "billing"), (T, "search")]


async def test_the_same_id_runs_in_two_subscriptions_of_a_worker_at_once(
    mq: MessageQueue,
) -> None:
    both = asyncio.Barrier(2)

    async def handle(payload: int, delivery: Delivery) -> None:
        await both.wait()

    for name in ("a", "b"):
        mq.handler(T, subscription=name)(handle)
    async with Worker(mq):
        for number in range(5):
            await mq.produce(T, number)
        await until(lambda: _completed(mq, 5))


async def _completed(mq: MessageQueue, count: int) -> bool:
    stats = [await mq.admin.stats(f"{T}@{name}") for name in ("a", "b")]
    return all(one.totals.completed == count for one in stats)


async def test_new_partitions_reach_every_subscription(
    mq: MessageQueue, other: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "BEAT", 0.05)
    services = Services(mq, *NAMES)
    async with Worker(mq):
        await other.produce(T, 0)
        await mq.admin.grow(T, 3)
        await other.store.register(T)
        await other.produce_many(T, list(range(1, 60)), keys=[f"k{n}" for n in range(59)])
        await until(lambda: services.have(*range(60)))
        assert (await mq.admin.stats(f"{T}@search")).partitions == 3
    assert [one.partitions for one in [await mq.admin.stats(T)]] == [3]
    with pytest.raises(InvalidInput, match="as many partitions as its topic"):
        await mq.admin.grow(f"{T}@search", 5)


async def test_a_handler_can_ask_for_partitions(mq: MessageQueue) -> None:
    services = Services(mq, *NAMES, partitions=4)
    async with Worker(mq):
        await mq.produce_many(T, list(range(20)), keys=[f"k{n}" for n in range(20)])
        await until(lambda: services.have(*range(20)))
    assert (await mq.admin.stats(T)).partitions == 4


# refusing


def test_a_queue_has_a_plain_handler_or_subscriptions(kind: Kind) -> None:
    def plain(payload: int) -> None: ...

    mq = MessageQueue("redis://localhost")
    mq.handler(T, subscription="billing")(plain)
    with pytest.raises(InvalidInput, match="one handler without a subscription, or any number"):
        mq.handler(T)(plain)
    with pytest.raises(InvalidInput, match=f"subscription '{T}@billing' already has the handler"):
        mq.handler(T, subscription="billing")(plain)
    with pytest.raises(InvalidInput, match="needs a different subscription"):
        mq.handler(T, subscription="billing")(lambda payload: None)
    router = Router()
    router.handler("mail")(plain)
    mq.handler("mail", subscription="archive")(plain)
    with pytest.raises(InvalidInput, match="one handler without a subscription, or any number"):
        mq.include(router)


async def test_a_plain_worker_of_a_topic_with_subscriptions_does_not_start(
    mq: MessageQueue, other: MessageQueue
) -> None:
    Services(mq, *NAMES)
    async with Worker(mq):
        pass
    other.handler(T)(lambda payload: None)
    with pytest.raises(InvalidInput, match=r"has subscriptions \(billing, search, analytics\)"):
        await Worker(other).start()
    assert await mq.admin.workers() == []


async def test_a_subscription_does_not_start_beside_a_plain_worker(
    mq: MessageQueue, other: MessageQueue
) -> None:
    handled: list[int] = []
    other.handler(T)(handled.append)
    Services(mq, "billing")
    async with Worker(other):
        with pytest.raises(
            InvalidInput, match=r"serves topic 'order\.created' with a handler without"
        ):
            await Worker(mq).start()
        await mq.produce(T, 1)
        await until(lambda: handled == [1])
    async with Worker(mq):
        pass


async def test_a_running_plain_worker_takes_nothing_from_subscriptions(
    mq: MessageQueue, other: MessageQueue
) -> None:
    stolen: list[int] = []
    other.handler(T)(stolen.append)
    services = Services(mq, "billing")
    async with Worker(other) as plain:
        await mq.store.forget_worker(plain.name)  # as if both had started at once
        async with Worker(mq):
            await mq.produce_many(T, list(range(50)), keys=["k", None] * 25)
            await until(lambda: services.have(*range(50), names=("billing",)))
            await plain._engine.beat()  # type: ignore[union-attr] # it runs
            found = await check_queue(mq.admin, audit=False)
            assert any("handler without one, which gets nothing" in str(one) for one in found)
    assert stolen == []


async def test_replace_is_refused_with_the_reason(mq: MessageQueue) -> None:
    Services(mq, "billing")
    async with Worker(mq):
        with pytest.raises(InvalidInput, match="on_duplicate='replace' is not possible"):
            await mq.produce(T, 1, id="a", on_duplicate="replace")
        with pytest.raises(InvalidInput, match="is a subscription, not a topic"):
            await mq.produce(f"{T}@billing", 1)


async def test_only_a_copy_gets_signals(mq: MessageQueue) -> None:
    @mq.handler(T, subscription="billing", result_ttl=60)
    async def bill(_: int, delivery: Delivery) -> Any:
        return await delivery.wait("approval")

    async with Worker(mq):
        id = await mq.produce(T, 1)
        with pytest.raises(InvalidInput, match=f"pass '{T}@NAME' to signal one of these"):
            await mq.signal(T, id, "approval", 1)
        await until_state(mq, f"{T}@billing", id, State.WAITING)
        assert await mq.signal(f"{T}@billing", id, "approval", 2)
        assert await mq.result(f"{T}@billing", id, timeout=20) == 2


# ending


async def test_unsubscribing_dead_letters_what_waits(mq: MessageQueue, server: Server) -> None:
    services = Services(mq, "billing", "search")
    async with Worker(mq):
        await mq.admin.pause(f"{T}@billing")
        ids = await mq.produce_many(T, [1, 2, 3], keys=["k", None, None])
        await until(lambda: services.have(1, 2, 3, names=("search",)))
    assert await mq.admin.unsubscribe(T, "billing") == 3
    assert await mq.admin.unsubscribe(T, "billing") == 0
    page = await mq.admin.list(f"{T}@billing", State.DEAD)
    assert {one.id for one in page.messages} == {*ids}
    assert {one.reason for one in page.messages} == {"unsubscribed"}
    await mq.produce(T, 4)
    await Worker(mq, topics=[f"{T}@search"]).drain()
    assert [one.name for one in await mq.admin.subscriptions(T)] == ["search"]
    assert (await mq.admin.stats(f"{T}@billing")).pending == 0


async def test_a_live_worker_does_not_bring_back_what_was_ended(
    mq: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "BEAT", 0.02)
    services = Services(mq, "billing", "search")
    async with Worker(mq) as worker:
        assert await mq.admin.unsubscribe(T, "billing", waiting="drop") == 0
        assert worker._engine is not None
        await worker._engine.beat()
        await mq.produce(T, 1)
        await until(lambda: services.have(1, names=("search",)))
    assert services.got.keys() == {"search"}
    async with Worker(mq):
        assert len(await mq.admin.subscriptions(T)) == 2


async def test_a_worker_declares_again_what_the_server_lost(mq: MessageQueue, raw: Redis) -> None:
    services = Services(mq, "billing")
    async with Worker(mq) as worker:
        await raw.delete(mq.store.keys.of(T).meta)
        assert worker._engine is not None
        await worker._engine.beat()
        await mq.produce(T, 1)
        await until(lambda: services.have(1, names=("billing",)))


@pytest.mark.parametrize("waiting", ["dead", "drop"])
async def test_the_commands(mq: MessageQueue, server: Server, waiting: str) -> None:
    Services(mq, "billing", "search")
    shown = await run(server, "subscriptions", T)
    assert "no topic 'order.created'" in shown.output
    async with Worker(mq):
        await mq.admin.pause(f"{T}@billing")
        await mq.produce(T, 1)
        await until(lambda: _pending(mq, f"{T}@billing", 1))
    shown = await run(server, "subscriptions", T)
    title, first, _ = [line.split() for line in shown.stdout.splitlines()]
    assert title[:2] == ["subscription", "lag"]
    assert (first[:2], first[-1]) == (["billing", "1"], "paused")
    shown = await run(server, "subscriptions")
    assert [line.split()[0] for line in shown.stdout.splitlines()[1:]] == [
        f"{T}@billing",
        f"{T}@search",
    ]
    found = await run_json(server, "subscriptions", T)
    assert [one["name"] for one in found["subscriptions"]] == ["billing", "search"]
    refused = await run(server, "unsubscribe", T, "billing")
    assert refused.exit_code == 2
    assert "pass --yes" in refused.output
    words = ("unsubscribe", T, "billing", "--waiting", waiting, "--yes")
    done = await run_json(server, *words)
    assert done == {"topic": T, "name": "billing", "waiting": waiting, "messages": 1}
    assert (await mq.admin.stats(f"{T}@billing")).dead == (waiting == "dead")
    assert (await run(server, *words)).exit_code == 1
    for name in ("billing", "biling"):
        missing = await run(server, "unsubscribe", T, name, "--yes")
        assert missing.exit_code == 1
        assert missing.stdout == f"{T} has no subscription {name}\n"
    await mq.produce("mail", 1)
    assert (await run(server, "subscriptions", "mail")).stdout == "mail has no subscriptions\n"


async def test_the_doctor_reports_a_subscription_without_a_worker(mq: MessageQueue) -> None:
    Services(mq, "billing", "search")
    async with Worker(mq):
        pass
    await mq.produce(T, 1)
    notes = [one.note for one in await check_queue(mq.admin, audit=True) if one.topic == T]
    assert notes == ["no worker for billing", "no worker for search"]
    async with Worker(mq, topics=[f"{T}@search"]):
        found = [str(one) for one in await check_queue(mq.admin, audit=True)]
    assert sum("subscription billing has no live worker" in one for one in found) == 1
    assert not any("subscription search" in one for one in found)
