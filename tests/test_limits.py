"""Lines by key: they take turns, limits hold over all workers, order is kept through failures."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from contextlib import AsyncExitStack
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import (
    Delivery,
    InvalidInput,
    Limit,
    MessageQueue,
    Rate,
    Reject,
    Retry,
    Router,
    Snooze,
    Worker,
    events,
)
from mx_rmq.core import codec
from mx_rmq.core.partition import partition
from mx_rmq.store import Store, worker_calls
from mx_rmq.testing import drain, use
from tests.runtime.stage import Seen, commands, on_a_server, on_servers, queue, until, until_so

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from tests.lab.servers import Server


@pytest.fixture
async def mq(raw: Redis, server: Server) -> AsyncIterator[MessageQueue]:
    async with queue(server.url) as mq:
        yield mq


class Runs:
    """Notes which messages run, and how many at a time."""

    def __init__(self) -> None:
        self.began: list[tuple[str | None, Any, float]] = []
        self.most: Counter[str | None] = Counter()
        self.most_together = 0
        self._now: Counter[str | None] = Counter()

    async def run(self, delivery: Delivery, seconds: float = 0.0) -> None:
        key = delivery.key
        self.began.append((key, delivery.payload, time.monotonic()))
        self._now[key] += 1
        self.most[key] = max(self.most[key], self._now[key])
        self.most_together = max(self.most_together, self._now.total())
        try:
            await asyncio.sleep(seconds)
        finally:
            self._now[key] -= 1

    def of(self, key: str | None) -> list[Any]:
        """Return the payloads of a key, in the order in which they began."""
        return [payload for one, payload, _ in self.began if one == key]


async def is_empty(mq: MessageQueue, topic: str = "t") -> bool:
    return (await mq.admin.stats(topic)).total == 0


# lines take turns


@on_servers
async def test_a_quiet_tenant_does_not_wait_for_a_noisy_one(mq: MessageQueue) -> None:
    """No configuration is needed, and one message in flight per slot is all it waits for."""
    order: list[str | None] = []

    @mq.handler("t")
    async def handle(_: int, delivery: Delivery) -> None:
        order.append(delivery.key)

    await mq.produce_many("t", list(range(5000)), keys=["noisy"] * 5000)
    await mq.produce("t", 1, key="quiet")
    await Worker(mq, concurrency=10, prefetch=0).drain()
    assert len(order) == 5001
    assert order.index("quiet") < 20


@on_servers
async def test_a_late_message_of_a_quiet_tenant_is_next(mq: MessageQueue) -> None:
    order: list[str | None] = []
    began = asyncio.Event()

    @mq.handler("t")
    async def handle(_: int, delivery: Delivery) -> None:
        order.append(delivery.key)
        began.set()
        await asyncio.sleep(0.005)

    await mq.produce_many("t", list(range(500)), keys=["noisy"] * 500)
    async with Worker(mq, concurrency=2):
        await began.wait()
        await mq.produce("t", 1, key="quiet")
        before = len(order)
        await until(lambda: "quiet" in order)
        assert order.index("quiet") - before <= 20
        await until(lambda: len(order) == 501)


@on_servers
async def test_keys_share_the_slots_evenly_and_messages_without_a_key_are_one_of_them(
    mq: MessageQueue,
) -> None:
    order: list[str | None] = []

    @mq.handler("t")
    async def handle(_: int, delivery: Delivery) -> None:
        order.append(delivery.key)

    keys = ["a"] * 300 + ["b"] * 100 + [None] * 100 + ["c"] * 100
    await mq.produce_many("t", list(range(600)), keys=keys)
    await Worker(mq, concurrency=10, prefetch=0).drain()
    while_all_wait = Counter(order[:200])
    assert while_all_wait.keys() == {"a", "b", "c", None}
    assert all(45 <= count <= 55 for count in while_all_wait.values())


@on_servers
async def test_a_line_is_first_in_first_out_within_a_priority(mq: MessageQueue) -> None:
    runs = Runs()

    @mq.handler("t", per_key=Limit(running=1))
    async def handle(_: int, delivery: Delivery) -> None:
        await runs.run(delivery)

    for number in range(9):
        priority = ("low", "normal", "high")[number % 3]
        await mq.produce("t", number, key="k", priority=priority)  # type: ignore[arg-type]
    await Worker(mq).drain()
    assert runs.of("k") == [2, 5, 8, 1, 4, 7, 0, 3, 6]


@on_servers
async def test_a_message_with_a_delay_joins_its_line_when_it_is_due(mq: MessageQueue) -> None:
    runs = Runs()

    @mq.handler("t", per_key=Limit(running=1))
    async def handle(_: str, delivery: Delivery) -> None:
        await runs.run(delivery)

    await mq.produce("t", "late", key="k", delay=0.05)
    await mq.produce_many("t", ["first", "second"], keys=["k", "k"])
    await Worker(mq).drain(delayed=True)
    assert runs.of("k") == ["first", "second", "late"]


# how many run


@on_servers
async def test_a_key_never_runs_more_than_its_limit_over_two_workers(
    mq: MessageQueue, server: Server
) -> None:
    runs = Runs()

    async def handle(_: int, delivery: Delivery) -> None:
        await runs.run(delivery, 0.002)

    keys = [f"k{number % 5}" for number in range(200)] + [None] * 50
    async with AsyncExitStack() as stack:
        for _ in range(2):
            other = await stack.enter_async_context(queue(server.url, audit=False))
            other.handler("t", per_key=Limit(running=2))(handle)
            await stack.enter_async_context(Worker(other, concurrency=20))
        await mq.produce_many("t", list(range(250)), keys=keys)
        await until(lambda: len(runs.began) == 250)
        await until_so(lambda: is_empty(mq))
    assert {runs.most[key] for key in set(keys) - {None}} == {2}
    assert runs.most[None] > 2


@on_servers
async def test_a_topic_never_runs_more_than_its_limit_over_two_workers(
    mq: MessageQueue, server: Server
) -> None:
    runs = Runs()

    async def handle(_: int, delivery: Delivery) -> None:
        await runs.run(delivery, 0.002)

    async with AsyncExitStack() as stack:
        for _ in range(2):
            other = await stack.enter_async_context(queue(server.url, audit=False))
            other.handler("t", limit=Limit(running=3))(handle)
            await stack.enter_async_context(Worker(other, concurrency=20))
        await mq.produce_many("t", list(range(150)))
        await mq.produce_many("t", list(range(150)), keys=["a", "b", None] * 50)
        await until(lambda: len(runs.began) == 300)
        await until_so(lambda: is_empty(mq))
    assert runs.most_together == 3


@on_servers
async def test_what_may_not_run_is_not_leased_and_burns_no_attempt(mq: MessageQueue) -> None:
    go_on = asyncio.Event()
    attempts: list[int] = []

    @mq.handler("t", per_key=Limit(running=1))
    async def handle(_: int, delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        await go_on.wait()

    await mq.produce_many("t", [1, 2, 3], keys=["k"] * 3)
    async with Worker(mq) as worker:
        await until(lambda: attempts)
        stats = await mq.admin.stats("t")
        assert (stats.processing, stats.pending) == (1, 2)
        assert worker.held == 1
        go_on.set()
        await until_so(lambda: is_empty(mq))
    assert attempts == [1, 1, 1]


@on_servers
async def test_a_blocked_topic_is_not_polled(mq: MessageQueue, raw: Redis) -> None:
    go_on = asyncio.Event()
    began: list[int] = []

    @mq.handler("t", per_key=Limit(running=1), limit=Limit(rate="1000/s"))
    async def handle(number: int) -> None:
        began.append(number)
        await go_on.wait()

    await mq.produce_many("t", list(range(50)), keys=["k"] * 50)
    async with Worker(mq):
        await until(lambda: began)
        await asyncio.sleep(0.2)  # what follows the first dispatch
        before = await commands(raw)
        await asyncio.sleep(1.0)
        after = await commands(raw)
        calls = {
            name: after[name] - before.get(name, 0)
            for name in ("evalsha", "fcall", "eval")
            if name in after
        }
        assert sum(calls.values()) <= 5  # leases are extended; topics are surveyed
        go_on.set()
        await until(lambda: len(began) == 50)


@on_servers
async def test_the_next_message_starts_as_soon_as_a_place_is_free(mq: MessageQueue) -> None:
    ended: list[float] = []
    began: list[float] = []

    @mq.handler("t", per_key=Limit(running=1))
    async def handle(_: int) -> None:
        began.append(time.monotonic())
        await asyncio.sleep(0.02)
        ended.append(time.monotonic())

    await mq.produce_many("t", list(range(30)), keys=["k"] * 30)
    await Worker(mq).drain()
    gaps = sorted(start - end for end, start in zip(ended, began[1:], strict=False))
    assert gaps[0] >= 0
    assert gaps[len(gaps) // 4] < 0.005  # other work on this machine delays some


# how many start


@on_servers
async def test_starts_stay_within_the_bucket_over_two_workers(
    mq: MessageQueue, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[int] = []  # server time, ms
    done: list[int] = []
    dispatch = worker_calls.dispatch_in_turn

    async def noted(*args: Any, **options: Any) -> Any:
        answer = await dispatch(*args, **options)
        starts.extend(answer.now for _ in answer.messages)
        return answer

    async def handle(number: int) -> None:
        done.append(number)

    monkeypatch.setattr(Store, "dispatch_in_turn", noted)
    async with AsyncExitStack() as stack:
        for _ in range(2):
            other = await stack.enter_async_context(queue(server.url, audit=False))
            other.handler("t", limit=Limit(rate=Rate(100, burst=5)))(handle)
            await stack.enter_async_context(Worker(other, concurrency=20))
        await mq.produce_many("t", list(range(105)))
        await until(lambda: len(done) == 105)
        await until_so(lambda: is_empty(mq))
    starts.sort()
    for first, last in combinations(range(105), 2):  # 5 at once, then one every 10 ms
        assert last - first + 1 <= 5 + (starts[last] - starts[first] + 1) / 10
    assert starts[-1] - starts[0] < 10_000


@on_servers
async def test_each_key_has_a_rate_of_its_own_and_nobody_waits_for_another(
    mq: MessageQueue,
) -> None:
    runs = Runs()

    @mq.handler("t", per_key=Limit(rate=Rate(20, burst=1)))
    async def handle(_: int, delivery: Delivery) -> None:
        await runs.run(delivery)

    await mq.produce_many("t", list(range(10)), keys=["slow"] * 10)
    await mq.produce_many("t", list(range(50)))
    await mq.produce_many("t", list(range(30)), keys=[f"k{n}" for n in range(30)])
    await Worker(mq).drain()
    assert runs.of("slow") == list(range(10))
    slow = [at for key, _, at in runs.began if key == "slow"]
    assert slow[-1] - slow[0] > 0.3  # nine times 0.05, but the first may have started late
    others = [at for key, _, at in runs.began if key != "slow"]
    assert len(others) == 80
    assert max(others) < slow[-1]


@on_servers
async def test_a_cost_counts_more_than_once_and_may_leave_a_debt(mq: MessageQueue) -> None:
    runs = Runs()

    @mq.handler("t", limit=Limit(rate=Rate(100, burst=5)))
    async def handle(_: str, delivery: Delivery) -> None:
        await runs.run(delivery)

    await mq.produce("t", "dear", key="k", cost=50)  # more than the burst: starts at once
    await mq.produce("t", "cheap", key="k")
    await mq.produce_many("t", ["two", "three"], cost=2)
    await Worker(mq).drain()
    times = {payload: at for _, payload, at in runs.began}
    assert min(times, key=times.__getitem__) in ("dear", "two")
    assert max(times.values()) - times["dear"] > 0.3  # 50 less 5, at 100 per second: 0.45


@on_servers
async def test_when_the_worker_that_would_ask_again_stops_another_one_does(
    mq: MessageQueue, server: Server
) -> None:
    done: list[int] = []

    async def handle(number: int) -> None:
        done.append(number)

    async with AsyncExitStack() as stack:
        workers = []
        for _ in range(2):
            other = await stack.enter_async_context(queue(server.url, lease=60, audit=False))
            other.handler("t", limit=Limit(rate="1/s"))(handle)
            workers.append(await stack.enter_async_context(Worker(other)))
        await mq.produce_many("t", [1, 2, 3])
        waker = None
        while waker is None:
            await asyncio.sleep(0.01)
            waker = next((one for one in workers if _has_timer(one)), None)
        await waker.stop()
        await until(lambda: len(done) == 3, within=8)  # a survey would come after ten seconds
        await until_so(lambda: is_empty(mq))


def _has_timer(worker: Worker) -> bool:
    assert worker._engine is not None
    return worker._engine._dispatcher.waits(worker._engine.slots.topics["t"]) is not None


# order


@on_servers
@pytest.mark.parametrize("how", ["retry", "error", "snooze"])
async def test_a_line_waits_for_its_head_through_retries_and_snoozes(
    mq: MessageQueue, how: str
) -> None:
    runs = Runs()

    @mq.handler("t", per_key=Limit(running=1), retry=0.05)
    async def handle(number: int, delivery: Delivery) -> None:
        await runs.run(delivery)
        if number == 0 and delivery.key == "k" and runs.of("k").count(0) < 3:
            if how == "retry":
                raise Retry(0.05)
            if how == "snooze":
                raise Snooze(0.05)
            raise ValueError("again")

    await mq.produce_many("t", list(range(5)), keys=["k"] * 5)
    await mq.produce_many("t", list(range(5)), keys=["other"] * 5)
    await Worker(mq).drain(delayed=True)
    assert runs.of("k") == [0, 0, 0, 1, 2, 3, 4]
    assert runs.of("other") == [0, 1, 2, 3, 4]


@on_servers
async def test_only_the_line_of_a_failed_message_waits(mq: MessageQueue) -> None:
    runs = Runs()

    @mq.handler("t", per_key=Limit(running=1), retry=0.3)
    async def handle(_: int, delivery: Delivery) -> None:
        await runs.run(delivery)
        if delivery.key == "bad" and delivery.attempt == 1 and delivery.payload == 0:
            raise ValueError("again")

    await mq.produce_many("t", list(range(3)), keys=["bad"] * 3)
    await mq.produce_many("t", list(range(3)), keys=["good"] * 3)
    await mq.produce_many("t", list(range(3)))
    async with Worker(mq):
        await until(lambda: len(runs.of("good")) == len(runs.of(None)) == 3)
        assert runs.of("bad") == [0]
        await until(lambda: runs.of("bad") == [0, 0, 1, 2])
        await until_so(lambda: is_empty(mq))


@on_servers
async def test_order_is_kept_when_a_worker_is_lost(raw: Redis, server: Server) -> None:
    """The worker that held the head goes silent: the next one runs the head first."""
    runs = Runs()
    async with queue(server.url, lease=0.5) as mq:

        @mq.handler("t", per_key=Limit(running=1))
        async def handle(_: int, delivery: Delivery) -> None:
            await runs.run(delivery)

        await mq.produce_many("t", list(range(4)), keys=["k"] * 4)
        limits = mq.handlers["t"].limits_of(0, 1)
        lost = await mq.store.dispatch_in_turn("t", "lost", count=9, lease=500, limits=limits)
        assert len(lost.messages) == 1
        async with Worker(mq):
            await until(lambda: len(runs.began) == 4)
            await until_so(lambda: is_empty(mq))
    assert runs.of("k") == [0, 1, 2, 3]


@on_servers
async def test_with_overtake_a_line_goes_on_past_a_failed_message(mq: MessageQueue) -> None:
    runs = Runs()

    @mq.handler("t", per_key=Limit(running=1, overtake=True), retry=3600)
    async def handle(number: int, delivery: Delivery) -> None:
        await runs.run(delivery, 0.001)
        if number == 0 and delivery.attempt == 1:
            raise ValueError("again")

    ids = await mq.produce_many("t", list(range(4)), keys=["k"] * 4)
    await Worker(mq).drain()
    assert await mq.reschedule("t", ids[0], delay=0)
    await Worker(mq).drain()
    assert runs.of("k") == [0, 1, 2, 3, 0]
    assert runs.most["k"] == 1


@on_servers
async def test_a_dead_letter_lets_its_line_go_on(mq: MessageQueue) -> None:
    runs = Runs()

    @mq.handler("t", per_key=Limit(running=1))
    async def handle(number: int, delivery: Delivery) -> None:
        await runs.run(delivery)
        if number == 1:
            raise Reject("no such order")

    ids = await mq.produce_many("t", list(range(4)), keys=["k"] * 4)
    drained = await Worker(mq).drain()
    assert (drained.completed, drained.dead) == (3, 1)
    assert runs.of("k") == [0, 1, 2, 3]
    assert await mq.admin.requeue("t", ids[1])
    await Worker(mq).drain()
    assert runs.of("k") == [0, 1, 2, 3, 1]
    assert await mq.admin.discard("t", ids[1])


@on_servers
async def test_a_worker_that_stops_hands_the_head_back_to_its_place(mq: MessageQueue) -> None:
    runs = Runs()

    @mq.handler("t", per_key=Limit(running=1))
    async def handle(_: int, delivery: Delivery) -> None:
        await runs.run(delivery, 0.0 if runs.began else 3600)

    await mq.produce_many("t", list(range(4)), keys=["k"] * 4)
    async with Worker(mq, grace=0):
        await until(lambda: runs.began)
    await Worker(mq).drain()
    assert runs.of("k") == [0, 0, 1, 2, 3]


# holding back a key


@on_servers
async def test_a_snooze_of_the_key_holds_back_all_its_messages_and_no_other(
    mq: MessageQueue,
) -> None:
    runs = Runs()
    seen = Seen(mq.events)

    @mq.handler("t")
    async def handle(number: int, delivery: Delivery) -> None:
        await runs.run(delivery)
        if number == 0 and delivery.key == "limited" and len(runs.of("limited")) == 1:
            raise Snooze(0.4, "429", key=True)

    await mq.produce("t", 0, key="limited")
    async with Worker(mq, concurrency=1):
        await seen.one(events.Snoozed)
        await mq.produce_many("t", [1, 2], keys=["limited"] * 2)
        await mq.produce_many("t", [0, 1], keys=["other", None])
        await until(lambda: len(runs.of("limited")) == 4)
        await until_so(lambda: is_empty(mq))
    assert runs.of("other") == [0]
    assert runs.of(None) == [1]
    assert sorted(runs.of("limited")) == [0, 0, 1, 2]
    assert [key == "limited" for key, *_ in runs.began] == [True, False, False, True, True, True]
    assert runs.began[3][2] - runs.began[0][2] >= 0.4
    assert len(seen.of(events.Snoozed)) == 1


@on_servers
async def test_a_drain_does_not_wait_for_a_key_that_is_held_back(mq: MessageQueue) -> None:
    """What waits behind a delayed message counts as delayed, too."""
    runs = Runs()

    @mq.handler("t", per_key=Limit(running=1), retry=3600)
    async def handle(number: int, delivery: Delivery) -> None:
        await runs.run(delivery)
        if delivery.key == "snoozed":
            raise Snooze(3600, key=True)
        if delivery.key == "failed":
            raise ValueError(number)

    for key in ("snoozed", "failed", "fine"):
        await mq.produce_many("t", [0, 1], keys=[key] * 2)
    drained = await asyncio.wait_for(Worker(mq).drain(), 20)
    assert (drained.completed, drained.retried, drained.snoozed) == (2, 1, 1)
    assert runs.of("fine") == [0, 1]
    stats = await mq.admin.stats("t")
    assert (stats.delayed, stats.pending) == (2, 2)


# producing


@on_servers
async def test_a_key_and_a_cost_are_in_the_record_and_a_handler_sees_the_key(
    mq: MessageQueue, raw: Redis
) -> None:
    keys: list[str | None] = []

    @mq.handler("t")
    async def handle(_: int, delivery: Delivery) -> None:
        keys.append(delivery.key)

    await mq.produce("t", 1, key="Zürich {1}")
    await mq.produce("t", 2, key="Zürich {1}", cost=3, priority="high")
    await mq.produce("t", 3)
    await mq.produce_many("t", [4, 5, 6], keys=["a", None, "b"])
    stored: list[Any] = await raw.hvals("mx-rmq:{t}:payload")
    records = [codec.decode(one) for one in stored]
    assert sorted((str(one.key), one.cost) for one in records) == [
        ("None", 1),
        ("None", 1),
        ("Zürich {1}", 1),
        ("Zürich {1}", 3),
        ("a", 1),
        ("b", 1),
    ]
    await Worker(mq).drain()
    assert Counter(keys) == {"Zürich {1}": 2, None: 2, "a": 1, "b": 1}


@on_a_server
async def test_wrong_keys_and_costs_are_refused_before_anything_is_sent(mq: MessageQueue) -> None:
    for key in ("", "a\tb", "x" * 129, 5):
        with pytest.raises(InvalidInput, match="key="):
            await mq.produce("t", 1, key=key)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="key=") as caught:
            await mq.produce_many("t", [1, 2], keys=["fine", key])  # type: ignore[list-item]
        assert caught.value.__notes__[0].startswith("This is message 1")
    for cost in (0, 1.5, "2"):
        with pytest.raises(InvalidInput, match="cost="):
            await mq.produce("t", 1, cost=cost)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="1 keys for 2 payloads"):
        await mq.produce_many("t", [1, 2], keys=["a"])
    with pytest.raises(InvalidInput, match="keys='ab' is not a list, with one per payload"):
        await mq.produce_many("t", [1, 2], keys="ab")
    with pytest.raises(InvalidInput, match="ids='ab' is not a list, with one per payload"):
        await mq.produce_many("t", [1, 2], ids="ab")
    for keys in ({"a", "b"}, iter(["a", "b"])):  # without an order, or without a length
        with pytest.raises(InvalidInput, match=r"keys=.* is not a list, with one per payload"):
            await mq.produce_many("t", [1, 2], keys=keys)  # type: ignore[arg-type]
    assert await mq.admin.topics() == []


@on_a_server
async def test_mixed_keys_go_out_in_one_call(mq: MessageQueue, raw: Redis) -> None:
    await mq.produce("t", 0)
    before = (await commands(raw)).get("evalsha", 0)
    await mq.produce_many("t", list(range(400)), keys=["a", None] * 200)
    assert (await commands(raw))["evalsha"] - before <= 2


@on_servers
async def test_sync_and_typed_topics_have_keys_and_costs(mq: MessageQueue) -> None:
    keys: list[str | None] = []
    numbers = mq.topic("t", int)

    @numbers.handler(per_key=Limit(running=1), limit=Limit(rate="1000/s"))
    async def handle(_: int, delivery: Delivery) -> None:
        keys.append(delivery.key)

    await numbers.produce(1, key="a", cost=2)
    await numbers.produce_many([2, 3], keys=["b", None], cost=2)

    def without_a_loop() -> None:
        mq.sync.produce("t", 4, key="c", cost=2)
        mq.sync.produce_many("t", [5, 6], keys=[None, "d"])
        numbers.sync.produce(7, key="e")
        mq.sync.close()

    await asyncio.to_thread(without_a_loop)
    await Worker(mq).drain()
    assert sorted(keys, key=str) == [None, None, "a", "b", "c", "d", "e"]


@on_servers
async def test_a_router_and_a_cron_declare_limits(mq: MessageQueue) -> None:
    router = Router()

    @router.handler("t", limit=Limit(running=200, rate="50/s"), per_key=Limit(running=1))
    async def handle(_: int) -> None: ...

    @router.cron("0 0 1 1 *", limit=Limit(running=1))
    async def yearly() -> None: ...

    mq.include(router)
    assert mq.handlers["t"].limit == Limit(running=200, rate=Rate(50))
    assert mq.handlers["cron.yearly"].limit == Limit(running=1)
    await mq.produce("t", 1, key="k")
    assert (await Worker(mq).drain()).completed == 1


# partitions


@on_servers
async def test_a_key_has_its_limit_and_its_order_in_a_topic_of_partitions_that_grows(
    mq: MessageQueue,
) -> None:
    runs = Runs()

    @mq.handler("t", partitions=3, per_key=Limit(running=1), limit=Limit(running=6))
    async def handle(_: int, delivery: Delivery) -> None:
        await runs.run(delivery, 0.001)

    keys = [f"k{number % 10}" for number in range(200)]
    async with Worker(mq, concurrency=20) as worker:
        await mq.produce_many("t", list(range(200)), keys=keys)
        assert worker._engine is not None
        slots = worker._engine.slots.topics
        assert [slots[partition("t", n)].limits.split()[0] for n in range(3)] == ["2"] * 3
        await until(lambda: len(runs.began) == 200)
        await mq.admin.grow("t", 6)
        await worker._engine.beat()
        assert [slots[partition("t", n)].limits.split()[0] for n in range(6)] == ["1"] * 6
        await until_so(lambda: is_empty(mq))
    assert runs.most_together <= 6
    of_key = defaultdict(list)
    for key, payload, _ in runs.began:
        of_key[key].append(payload)
    assert all(before < after for each in of_key.values() for before, after in pairwise(each))
    assert set(runs.most.values()) == {1}


@on_servers
async def test_a_topic_whose_partitions_are_in_order_keeps_it_for_messages_with_keys(
    mq: MessageQueue,
) -> None:
    runs = Runs()

    @mq.handler("t", partitions=2, concurrency=1)
    async def handle(_: int, delivery: Delivery) -> None:
        await runs.run(delivery, 0.001)

    await mq.produce_many("t", list(range(60)), keys=[f"k{number % 6}" for number in range(60)])
    async with Worker(mq, concurrency=10), Worker(mq, concurrency=10):
        await until(lambda: len(runs.began) == 60)
        await until_so(lambda: is_empty(mq))
    for key in (f"k{number}" for number in range(6)):
        assert runs.of(key) == sorted(runs.of(key))
    assert runs.most_together <= 2


# the testing kit


def test_in_test_mode_no_rate_makes_a_test_wait() -> None:
    mq = MessageQueue("redis://nowhere.invalid:1")

    @mq.handler("t", limit=Limit(rate="1/h"), per_key=Limit(running=1, rate="1/h"))
    def handle(_: int) -> None: ...

    with use(mq):
        mq.sync.produce_many("t", [1, 2, 3], keys=["k", "k", None])
        assert drain(mq).completed == 3
        assert mq.handlers["t"].per_key == Limit(running=1)
    with use(mq, instant_rates=False):
        assert mq.handlers["t"].limit == Limit(rate="1/h")
    assert mq.handlers["t"].limit == Limit(rate="1/h")
