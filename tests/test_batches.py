"""Batch handlers: one call, many messages, each of which is settled on its own."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import pytest

from mx_rmq import (
    Batch,
    Delivery,
    Depends,
    InvalidInput,
    ItemFailed,
    Limit,
    MessageDied,
    MessageQueue,
    Middleware,
    Reject,
    Retry,
    Router,
    Snooze,
    Worker,
    events,
    testing,
)
from mx_rmq.core.message import State
from mx_rmq.logs import FailedPayloads, about
from tests.runtime.stage import Seen, on_a_server, on_servers, queue, slots_of, until, until_so

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from redis.asyncio import Redis

    from mx_rmq.core.middleware import HandleBatch
    from tests.lab.servers import Server


@pytest.fixture
async def mq(raw: Redis, server: Server) -> AsyncIterator[MessageQueue]:
    async with queue(server.url) as mq:
        yield mq


async def is_empty(mq: MessageQueue, topic: str = "t") -> bool:
    return (await mq.admin.stats(topic)).total == 0


async def dead(mq: MessageQueue, topic: str = "t") -> dict[Any, str]:
    """Return payload -> reason of the dead letters."""
    found = (await mq.admin.list(topic, State.DEAD)).messages
    return {int(one.content): one.reason or "" for one in found if one.content is not None}


# one call


@on_servers
async def test_one_call_gets_many_messages_in_the_order_of_their_produce(mq: MessageQueue) -> None:
    calls: list[list[int]] = []

    @mq.handler("t", batch=100, linger=30)
    async def handle(events: list[int]) -> None:
        calls.append(events)

    await mq.produce_many("t", list(range(250)))
    done = await Worker(mq).drain()
    assert done.completed == 250
    assert [len(one) for one in calls] == [100, 100, 50]
    assert sorted(one for call in calls for one in call) == list(range(250))
    assert all(one == sorted(one) for one in calls)


@on_a_server
async def test_a_plain_function_gets_its_batch_in_a_thread(mq: MessageQueue) -> None:
    calls: list[tuple[int, bool]] = []

    @mq.handler("t", batch=10)
    def handle(batch: Batch, events: list[int]) -> None:
        assert len(batch) == len(events)
        calls.append((len(events), threading.current_thread() is threading.main_thread()))

    await mq.produce_many("t", list(range(10)))
    await Worker(mq).drain()
    assert calls == [(10, False)]
    await mq.produce_many("t", list(range(10)))
    await Worker(mq).drain(inline=True)
    assert calls[1:] == [(10, True)]


@on_a_server
async def test_a_batch_says_what_each_message_is(mq: MessageQueue) -> None:
    seen: list[Delivery] = []

    @mq.handler("t", batch=10, timeout=30)
    async def handle(events: list[int], batch: Batch) -> None:
        seen.extend(batch)
        assert batch.topic == "t"
        assert batch.payloads == events
        assert batch.deadline is not None
        assert batch.lost == frozenset()
        assert "Batch of 2 from t" in repr(batch)
        assert about()["batch_size"] == 2

    ids = await mq.produce_many("t", [1, 2], keys=["a", None], headers={"x": "y"})
    await Worker(mq).drain()
    assert sorted(one.id for one in seen) == sorted(ids)
    assert {one.key for one in seen} == {"a", None}
    assert {(one.attempt, one.headers["x"], one.payload) for one in seen} == {
        (1, "y", 1),
        (1, "y", 2),
    }
    assert seen[0].fence != seen[1].fence
    assert all(abs(one.created_at - time.time()) < 60 for one in seen)


# when it starts


@on_a_server
async def test_a_full_batch_does_not_linger(mq: MessageQueue) -> None:
    calls: list[int] = []

    @mq.handler("t", batch=10, linger=3600)
    async def handle(events: list[int]) -> None:
        calls.append(len(events))

    async with Worker(mq):
        await mq.produce_many("t", list(range(25)))
        await until(lambda: calls == [10, 10])
        await mq.produce_many("t", list(range(5)))
        await until(lambda: calls == [10, 10, 10])
        await until_so(lambda: is_empty(mq))


@on_a_server
async def test_linger_counts_from_the_first_message(mq: MessageQueue) -> None:
    calls: list[tuple[float, list[int]]] = []

    @mq.handler("t", batch=100, linger=0.4)
    async def handle(events: list[int]) -> None:
        calls.append((time.monotonic(), events))

    async with Worker(mq):
        began = time.monotonic()
        for number in range(8):
            await mq.produce("t", number)
            await asyncio.sleep(0.02)
        await until(lambda: calls)
        at, first = calls[0]
        assert at - began >= 0.4
        assert first == list(range(8))
        await until_so(lambda: is_empty(mq))


@on_a_server
async def test_without_linger_a_batch_is_what_is_there(mq: MessageQueue) -> None:
    calls: list[int] = []

    @mq.handler("t", batch=100)
    async def handle(events: list[int]) -> None:
        calls.append(len(events))

    async with Worker(mq):
        await mq.produce("t", 1)
        await until(lambda: calls == [1])


@on_a_server
async def test_a_lingering_batch_keeps_its_leases(mq: MessageQueue, server: Server) -> None:
    calls: list[int] = []
    async with queue(server.url, lease=1.0, prefix="short") as other:

        @other.handler("t", batch=100, linger=3600)
        async def handle(events: list[int]) -> None:
            calls.append(len(events))

        seen = Seen(other.events)
        async with Worker(other) as worker:
            await other.produce_many("t", [1, 2, 3])
            await until(lambda: slots_of(worker).lingering)
            (held, *_) = slots_of(worker).held
            before = held.extended_at
            await until(lambda: held.extended_at > before + 1.0)  # more than a lease
            assert not calls
        assert not seen.of(events.LeaseLost)
        assert not calls
        assert (await other.admin.stats("t")).pending == 3  # handed back by the stop
        assert (await other.admin.list("t", State.PENDING)).messages[0].attempts == 0


@on_a_server
async def test_a_batch_takes_one_slot(mq: MessageQueue) -> None:
    running = most = 0
    release = asyncio.Event()

    @mq.handler("t", batch=50, linger=0.05, concurrency=2)
    async def handle(events: list[int]) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await release.wait()
        running -= 1

    async with Worker(mq, concurrency=3) as worker:
        await mq.produce_many("t", list(range(500)))
        await until(lambda: running == 2)
        assert worker.running == 2
        assert worker.held >= 100
        release.set()
        await until_so(lambda: is_empty(mq))
    assert most == 2


@on_a_server
async def test_a_lingering_batch_takes_no_slot_from_others(mq: MessageQueue) -> None:
    done = 0

    @mq.handler("lingers", batch=50, linger=3600)
    async def linger(events: list[int]) -> None: ...

    @mq.handler("t")
    async def handle(number: int) -> None:
        nonlocal done
        done += 1

    async with Worker(mq, concurrency=1) as worker:
        await mq.produce("lingers", 1)
        await until(lambda: slots_of(worker).lingering)
        await mq.produce_many("t", list(range(100)))
        await until(lambda: done == 100)
        await mq.produce_many("lingers", list(range(49)))
        await until_so(lambda: is_empty(mq, "lingers"))


@on_a_server
async def test_a_batch_for_which_no_slot_is_free_goes_to_another_worker(mq: MessageQueue) -> None:
    calls: list[str] = []
    release = asyncio.Event()

    @mq.handler("busy")
    async def busy(number: int) -> None:
        await release.wait()

    @mq.handler("t", batch=5, linger=0.1)
    async def handle(events: list[int]) -> None:
        calls.append("there")

    async with Worker(mq, concurrency=1, topics=["busy", "t"]) as worker:
        await mq.produce("busy", 1)
        await until(lambda: worker.running)
        await mq.produce_many("t", list(range(5)))
        await until(lambda: worker.held == 6)
        async with Worker(mq, topics=["t"]):
            await until(lambda: calls == ["there"])
            release.set()
            await until_so(lambda: is_empty(mq))


# each message on its own


@on_servers
async def test_a_failed_message_is_settled_apart(mq: MessageQueue) -> None:
    calls: list[dict[int, int]] = []

    @mq.handler("t", batch=10, retry=0.01, max_attempts=2)
    async def handle(events: list[int], batch: Batch) -> None:
        calls.append({one: each.attempt for one, each in zip(events, batch, strict=True)})
        errors: dict[int, BaseException | str] = {
            1: "a text",
            2: Reject("no such account"),
            3: Retry(0.0),
            4: ValueError("broken"),
        }
        for index, number in enumerate(events):
            if number in errors:
                batch.fail(index, errors[number])

    await mq.produce_many("t", list(range(6)))
    done = await Worker(mq).drain(delayed=True)
    assert calls[0] == dict.fromkeys(range(6), 1)
    assert {one: attempt for call in calls[1:] for one, attempt in call.items()} == {
        1: 2,
        3: 2,
        4: 2,
    }
    assert done.completed == 2
    found = await dead(mq)
    assert found[2] == "rejected: no such account"
    assert found[1] == "exhausted: failed 2 times, last by ItemFailed: a text"
    assert "ValueError: broken" in found[4]
    assert found.keys() == {1, 2, 3, 4}


@on_a_server
async def test_a_snoozed_message_counts_no_attempt(mq: MessageQueue) -> None:
    attempts: list[int] = []

    @mq.handler("t", batch=10)
    async def handle(events: list[int], batch: Batch) -> None:
        attempts.extend(one.attempt for one in batch)
        if len(attempts) <= 2:
            batch.fail(0, Snooze(0.01))

    await mq.produce_many("t", [1, 2])
    done = await Worker(mq).drain(delayed=True)
    assert attempts == [1, 1, 1]
    assert (done.completed, done.snoozed) == (2, 1)


@on_a_server
async def test_a_raise_fails_all_but_those_that_were_failed_apart(mq: MessageQueue) -> None:
    @mq.handler("t", batch=10, max_attempts=1)
    async def handle(events: list[int], batch: Batch) -> None:
        batch.fail(1, Reject("mine"))
        raise ValueError("all")

    await mq.produce_many("t", [0, 1, 2])
    done = await Worker(mq).drain()
    assert done.dead == 3
    found = await dead(mq)
    assert found[1] == "rejected: mine"
    assert all("ValueError: all" in found[one] for one in (0, 2))


@on_a_server
async def test_errors_that_cannot_be_hashed_or_are_false_count(mq: MessageQueue) -> None:
    @dataclass
    class Odd(Exception):
        number: int

        def __bool__(self) -> bool:
            return False

    @mq.handler("t", batch=10, max_attempts=1)
    async def handle(events: list[int], batch: Batch) -> None:
        batch.fail(0, Odd(1))
        raise Odd(2)

    await mq.produce_many("t", [0, 1])
    assert (await Worker(mq).drain()).dead == 2
    assert all("failed once, last by Odd" in reason for reason in (await dead(mq)).values())


@on_servers
async def test_what_cannot_be_read_is_quarantined_and_not_in_the_list(
    mq: MessageQueue, raw: Redis
) -> None:
    calls: list[list[int]] = []

    @mq.handler("t", batch=10)
    async def handle(events: list[int]) -> None:
        calls.append(events)

    ids = await mq.produce_many("t", [0, "no number", 2, 3])
    await raw.hset(mq.store.keys.of("t").payload, ids[3], b"no record")
    done = await Worker(mq).drain()
    assert calls == [[0, 2]]
    assert (done.completed, done.quarantined) == (2, 2)
    found = (await mq.admin.list("t", State.QUARANTINED)).messages
    assert {one.id for one in found} == {ids[1], ids[3]}


@on_a_server
async def test_nothing_is_called_if_nothing_can_be_read(mq: MessageQueue) -> None:
    @mq.handler("t", batch=10)
    async def handle(events: list[int]) -> None:
        raise AssertionError

    await mq.produce_many("t", ["a", "b"])
    assert (await Worker(mq).drain()).quarantined == 2


@on_a_server
async def test_an_expired_message_is_dead_and_not_in_the_list(mq: MessageQueue) -> None:
    calls: list[list[int]] = []

    @mq.handler("t", batch=10, linger=1.0)
    async def handle(events: list[int]) -> None:
        calls.append(events)

    async with Worker(mq) as worker:
        await mq.produce("t", 1, ttl=0.5)
        await mq.produce("t", 2)
        await until(lambda: slots_of(worker).lingering)
        await until(lambda: calls)
        assert calls == [[2]]
        await until_so(lambda: dead(mq))
    assert (await dead(mq))[1].startswith("expired")


@on_servers
async def test_an_aborted_message_is_not_settled_and_the_others_are(mq: MessageQueue) -> None:
    began, release = asyncio.Event(), asyncio.Event()
    lost: list[frozenset[int]] = []

    @mq.handler("t", batch=10, linger=3600, result_ttl=60)
    async def handle(events: list[int], batch: Batch) -> list[int]:
        began.set()
        await release.wait()
        lost.append(batch.lost)
        return events

    seen = Seen(mq.events)
    async with Worker(mq) as worker:
        ids = await mq.produce_many("t", list(range(10)))
        await began.wait()
        assert await mq.admin.abort("t", ids[3], "not this one")
        await until(lambda: any(one.is_lost for one in slots_of(worker).held))
        release.set()
        await seen.wait(events.Completed, 9)
        await seen.one(events.Aborted, id=ids[3])
        with pytest.raises(MessageDied, match="not this one"):
            await mq.result("t", ids[3])
        assert await mq.result("t", ids[4]) == 4
    assert lost == [frozenset({3})]


@on_a_server
async def test_the_call_is_cancelled_once_all_its_messages_are_lost(mq: MessageQueue) -> None:
    began, cancelled = asyncio.Event(), asyncio.Event()

    @mq.handler("t", batch=2, linger=3600)
    async def handle(events: list[int]) -> None:
        began.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    seen = Seen(mq.events)
    async with Worker(mq) as worker:
        first, second = await mq.produce_many("t", [1, 2])
        await began.wait()
        assert await mq.admin.abort("t", first, "one")
        await until(lambda: any(one.is_lost for one in slots_of(worker).held))
        assert not cancelled.is_set()
        assert await mq.admin.abort("t", second, "two")
        await asyncio.wait_for(cancelled.wait(), 10)
        await seen.wait(events.Aborted, 2)


@on_servers
async def test_a_lost_lease_refuses_only_its_message(mq: MessageQueue, raw: Redis) -> None:
    began, release = asyncio.Event(), asyncio.Event()

    @mq.handler("t", batch=3, linger=3600)
    async def handle(events: list[int]) -> None:
        began.set()
        await release.wait()

    seen = Seen(mq.events)
    async with Worker(mq):
        ids = await mq.produce_many("t", [0, 1, 2])
        await began.wait()
        keys = mq.store.keys.of("t")
        lease = await raw.hget(keys.processing, ids[1])
        assert isinstance(lease, bytes)
        token, _, _ = lease.partition(b":")
        await raw.hset(keys.processing, ids[1], b"%d:another" % (int(token) + 100))
        release.set()
        lost = await seen.one(events.LeaseLost)
        assert lost.id == ids[1]
        await seen.wait(events.Completed, 2)
    await raw.hdel(keys.processing, ids[1])
    await raw.zrem(keys.expire_monitor, ids[1])
    await raw.hdel(keys.payload, ids[1])


@on_a_server
async def test_a_timeout_fails_every_message(mq: MessageQueue) -> None:
    @mq.handler("t", batch=10, timeout=0.05, max_attempts=1)
    async def handle(events: list[int]) -> None:
        await asyncio.sleep(60)

    await mq.produce_many("t", [0, 1, 2])
    assert (await Worker(mq).drain()).dead == 3
    assert all("HandlerTimeout" in reason for reason in (await dead(mq)).values())


@on_a_server
async def test_a_batch_can_be_given_more_time(mq: MessageQueue) -> None:
    @mq.handler("t", batch=10, timeout=0.2, max_attempts=1)
    async def handle(events: list[int], batch: Batch) -> None:
        batch.extend(30)
        await asyncio.sleep(0.5)

    await mq.produce_many("t", [0, 1, 2])
    assert (await Worker(mq).drain()).completed == 3


@on_a_server
async def test_a_plain_function_is_interrupted_by_its_timeout(mq: MessageQueue) -> None:
    @mq.handler("t", batch=10, timeout=0.1, max_attempts=1)
    def handle(events: list[int]) -> None:
        while True:
            time.sleep(0.001)

    await mq.produce_many("t", [0, 1, 2])
    assert (await Worker(mq).drain()).dead == 3


@on_a_server
async def test_a_stopped_worker_hands_back_the_whole_batch(mq: MessageQueue) -> None:
    began = asyncio.Event()

    @mq.handler("t", batch=10)
    async def handle(events: list[int], batch: Batch) -> None:
        if len(events) == 3:
            batch.fail(0, Reject("decided"))
            began.set()
            await asyncio.sleep(60)

    await mq.produce_many("t", [0, 1, 2])
    async with Worker(mq, grace=0.01):
        await began.wait()
    stats = await mq.admin.stats("t")
    assert (stats.pending, stats.dead) == (2, 1)
    assert {one.attempts for one in (await mq.admin.list("t", State.PENDING)).messages} == {0}


@on_a_server
async def test_a_batch_within_the_grace_is_completed(mq: MessageQueue) -> None:
    began = asyncio.Event()

    @mq.handler("t", batch=10)
    async def handle(events: list[int]) -> None:
        began.set()
        await asyncio.sleep(0.2)

    await mq.produce_many("t", [0, 1, 2])
    async with Worker(mq, grace=30):
        await began.wait()
    assert await is_empty(mq)


# results


@on_servers
async def test_a_list_gives_each_message_its_result(mq: MessageQueue) -> None:
    @mq.handler("t", batch=10, result_ttl=60)
    async def handle(events: list[int], batch: Batch) -> list[int]:
        batch.fail(1, Reject("no"))
        return [one * 2 for one in events]

    @mq.handler("none", batch=10, result_ttl=60)
    async def nothing(events: list[int]) -> None: ...

    ids = await mq.produce_many("t", [0, 1, 2])
    (other,) = await mq.produce_many("none", [1])
    await Worker(mq).drain()
    assert await mq.result("t", ids[0]) == 0
    assert await mq.result("t", ids[2]) == 4
    assert await mq.result("none", other) is None
    with pytest.raises(MessageDied):
        await mq.result("t", ids[1])


@on_a_server
@pytest.mark.parametrize(
    ("returned", "why"), [([1], "1 result for"), ("ab", "returned str"), ({"a": 1, "b": 2}, "dict")]
)
async def test_what_is_no_list_of_results_fails_the_attempt(
    mq: MessageQueue, returned: Any, why: str
) -> None:
    @mq.handler("t", batch=10, result_ttl=60, max_attempts=1)
    async def handle(events: list[int]) -> Any:
        return returned

    await mq.produce_many("t", [0, 1])
    assert (await Worker(mq).drain()).dead == 2
    assert all(why in reason for reason in (await dead(mq)).values())


@on_a_server
async def test_a_result_that_cannot_be_kept_fails_only_its_message(mq: MessageQueue) -> None:
    @mq.handler("t", batch=10, result_ttl=60, max_attempts=1)
    async def handle(events: list[int]) -> list[object]:
        return [1, object(), 3]

    await mq.produce_many("t", [0, 1, 2])
    done = await Worker(mq).drain()
    assert (done.completed, done.dead) == (2, 1)
    assert "cannot be kept" in (await dead(mq))[1]


@on_a_server
async def test_a_coroutine_that_was_not_awaited_fails_the_attempt(mq: MessageQueue) -> None:
    @mq.handler("t", batch=10, max_attempts=1)
    async def handle(events: list[int]) -> Any:
        return asyncio.sleep(1)

    await mq.produce_many("t", [0, 1])
    assert (await Worker(mq).drain()).dead == 2


# what it works with


@on_a_server
async def test_dependencies_are_provided_per_call(mq: MessageQueue) -> None:
    log: list[str] = []

    async def session(batch: Batch) -> AsyncIterator[str]:
        log.append(f"open {len(batch)}")
        yield "session"
        log.append("close")

    @mq.handler("t", batch=10)
    async def handle(events: list[int], batch: Batch, db: Annotated[str, Depends(session)]) -> None:
        log.append(f"{db} {events}")

    @mq.handler("plain", batch=10)
    def plain(events: list[int], db: Annotated[str, Depends(lambda: "plain")]) -> None:
        log.append(f"{db} {events}")

    await mq.produce_many("t", [1, 2])
    await Worker(mq, topics=["t"]).drain()
    assert log == ["open 2", "session [1, 2]", "close"]
    await mq.produce_many("plain", [3])
    await Worker(mq, topics=["plain"]).drain()
    assert log[3:] == ["plain [3]"]


@on_a_server
async def test_middleware_is_called_once_per_batch(
    raw: Redis, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    log: list[str] = []

    class Around(Middleware):
        async def handle_batch(self, batch: Batch, call_next: HandleBatch) -> Any:
            log.append("before")
            batch.deliveries[0].payload = 100
            result = await call_next(batch)
            log.append(f"after {sorted(batch.failed)}")
            return result

    class Single(Middleware):
        async def handle(self, delivery: Delivery, call_next: Any) -> Any:
            raise AssertionError

    middleware = [Around(), Single(), FailedPayloads(mask=["x"])]
    async with queue(server.url, middleware=middleware) as mq:

        @mq.handler("t", batch=10, max_attempts=1)
        async def handle(events: list[int], batch: Batch) -> None:
            log.append(f"{events}")
            batch.fail(1, "bad")

        await mq.produce_many("t", [1, 2, 3])
        done = await Worker(mq).drain()
    assert log == ["before", "[100, 2, 3]", "after [1]"]
    assert (done.completed, done.dead) == (2, 1)
    assert "Single has handle, but no handle_batch" in caplog.text
    assert caplog.text.count("the payload that failed: 2") == 1
    assert "the payload that failed: 3" not in caplog.text


@on_a_server
async def test_middleware_that_raises_for_a_follow_up_fails_its_message(
    raw: Redis, server: Server
) -> None:
    class Refuses(Middleware):
        async def produce(self, messages: Any, call_next: Any) -> Any:
            if messages[0].topic == "mail":
                raise PermissionError("no mails today")
            return await call_next(messages)

    async with queue(server.url, middleware=[Refuses()]) as mq:

        @mq.handler("t", batch=10, max_attempts=1)
        async def handle(events: list[int], batch: Batch) -> None:
            batch.deliveries[1].produce("mail", 1)

        await mq.produce_many("t", [1, 2, 3])
        done = await Worker(mq).drain()
        assert (done.completed, done.dead) == (2, 1)
        (dead,) = (await mq.admin.list("t", "dead")).messages
        assert "no mails today" in (dead.reason or "")


@on_a_server
async def test_a_batch_that_fails_logs_one_traceback(
    raw: Redis, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async with queue(server.url) as mq:

        @mq.handler("t", batch=10, max_attempts=1)
        async def handle(events: list[int]) -> None:
            raise ValueError("the database is away")

        await mq.produce_many("t", [1, 2, 3])
        assert (await Worker(mq).drain()).dead == 3
    assert caplog.text.count('raise ValueError("the database is away")') == 1
    assert caplog.text.count("(traceback as above)") == 2


@on_a_server
async def test_middleware_that_does_not_await_fails_the_batch(raw: Redis, server: Server) -> None:
    class Forgets(Middleware):
        async def handle_batch(self, batch: Batch, call_next: HandleBatch) -> Any:
            _ = call_next(batch)

    async with queue(server.url, middleware=[Forgets()]) as mq:

        @mq.handler("t", batch=10, max_attempts=1)
        async def handle(events: list[int]) -> None:
            raise AssertionError

        await mq.produce_many("t", [1, 2])
        assert (await Worker(mq).drain()).dead == 2
        assert all("did not await it" in reason for reason in (await dead(mq)).values())


@dataclass
class Event:
    number: int


@on_a_server
async def test_typed_topics_and_routers_have_batch_handlers(mq: MessageQueue) -> None:
    router = Router()
    topic = router.topic("t", Event, result=int)
    calls: list[list[Event]] = []

    @topic.handler(batch=10, linger=0.05, result_ttl=60)
    async def handle(events: list[Event], batch: Batch) -> list[int]:
        calls.append(events)
        return [one.number for one in events]

    mq.include(router)
    ids = await topic.produce_many([Event(1), Event(2)])
    await Worker(mq).drain()
    assert calls == [[Event(1), Event(2)]]
    assert await topic.result(ids[1]) == 2


@on_servers
async def test_a_key_with_one_running_gives_one_message_per_batch(mq: MessageQueue) -> None:
    calls: list[list[str | None]] = []

    @mq.handler("t", batch=100, linger=0.05, per_key=Limit(running=1))
    async def handle(events: list[int], batch: Batch) -> None:
        calls.append([one.key for one in batch])

    numbers = list(range(30))
    await mq.produce_many("t", numbers, keys=[f"key-{one % 3}" for one in numbers])
    async with asyncio.timeout(60):
        await Worker(mq).drain()
    assert sum(map(len, calls)) == 30
    assert all(len(one) == len(set(one)) for one in calls)


@on_servers
async def test_a_limited_topic_gives_what_may_start_now(mq: MessageQueue) -> None:
    sizes: list[int] = []
    running = most = 0

    @mq.handler("t", batch=50, linger=0.05, limit=Limit(running=20))
    async def handle(events: list[int]) -> None:
        nonlocal running, most
        sizes.append(len(events))
        running += len(events)
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= len(events)

    await mq.produce_many("t", list(range(100)))
    async with asyncio.timeout(60):
        await Worker(mq).drain()
    assert sum(sizes) == 100
    assert most <= 20


@on_a_server
async def test_ordered_partitions_keep_their_order_in_batches(mq: MessageQueue) -> None:
    seen: dict[str | None, list[int]] = {}

    @mq.handler("t", batch=10, linger=3600, partitions=2, concurrency=1)
    async def handle(events: list[int], batch: Batch) -> None:
        for one, each in zip(events, batch, strict=True):
            seen.setdefault(each.key, []).append(one)

    async with Worker(mq):
        await mq.produce_many("t", list(range(100)), keys=[f"k{one % 4}" for one in range(100)])
        await until(lambda: sum(map(len, seen.values())) == 100)
        await until_so(lambda: is_empty(mq))
    assert all(one == sorted(one) for one in seen.values())


@on_a_server
async def test_priorities_come_first(mq: MessageQueue) -> None:
    calls: list[list[str]] = []

    @mq.handler("t", batch=4, concurrency=1)
    async def handle(events: list[str]) -> None:
        calls.append(events)

    await mq.produce_many("t", ["low"] * 4, priority="low")
    await mq.produce_many("t", ["high"] * 4, priority="high")
    await Worker(mq, concurrency=1, prefetch=0).drain()
    assert calls[0].count("high") >= 3


async def test_test_mode_runs_batches_without_waiting() -> None:
    mq = MessageQueue("redis://unused")
    sizes: list[int] = []

    @mq.handler("t", batch=500, linger=60)
    async def handle(events: list[int], batch: Batch) -> None:
        sizes.append(len(events))
        if batch.deliveries[0].attempt == 1:
            batch.fail(0, Retry(60))

    async with asyncio.timeout(30), testing.use(mq):
        await mq.produce_many("t", [1, 2, 3])
        done = await Worker(mq).drain()
    assert sizes == [3, 1]
    assert (done.completed, done.retried) == (3, 1)


# what operators see


@on_a_server
async def test_every_call_is_an_event_and_every_message_has_its_own(mq: MessageQueue) -> None:
    @mq.handler("t", batch=3, max_attempts=1)
    async def handle(events: list[int], batch: Batch) -> None:
        batch.fail(0, ItemFailed("no"))

    seen = Seen(mq.events)
    await mq.produce_many("t", list(range(6)))
    await Worker(mq).drain()
    assert [(one.size, one.failed) for one in seen.of(events.BatchHandled)] == [(3, 1), (3, 1)]
    assert len(seen.of(events.Completed)) == 4
    assert len(seen.of(events.Died)) == 2


@on_a_server
async def test_the_registry_shows_batches(mq: MessageQueue) -> None:
    began, release = asyncio.Event(), asyncio.Event()

    @mq.handler("t", batch=5, linger=3600)
    async def handle(events: list[int]) -> None:
        began.set()
        await release.wait()

    async with Worker(mq) as worker:
        ids = await mq.produce_many("t", list(range(5)))
        await began.wait()
        assert worker._engine is not None
        await worker._engine.beat()
        (seen,) = await mq.admin.workers()
        assert seen.batches == {"t": 5}
        assert [(one.id, one.batch) for one in seen.doing] == [(ids[0], 5)]
        release.set()


# wrong uses


def refused(function: Callable[..., Any], match: str, **options: Any) -> None:
    mq = MessageQueue("redis://unused")
    with pytest.raises(InvalidInput, match=match):
        mq.handler("t", **options)(function)


async def one(event: int) -> None: ...
async def several(events: list[int]) -> None: ...
async def with_batch(events: list[int], batch: Batch) -> None: ...
async def with_delivery(events: list[int], delivery: Delivery) -> None: ...
async def two(events: list[int], batch: Batch, other: Batch) -> None: ...


def needs_delivery(delivery: Delivery) -> int:
    return 1


def needs_batch(batch: Batch) -> int:
    return 1


async def provided(events: list[int], x: Annotated[int, Depends(needs_delivery)]) -> None: ...
async def provided_one(event: int, x: Annotated[int, Depends(needs_batch)]) -> None: ...


def test_wrong_declarations_are_refused() -> None:
    refused(several, r"batch=0 is not a whole number from 1 to 10,000", batch=0)
    refused(several, r"batch=10001 is not", batch=10_001)
    refused(several, r"batch='5' is not", batch="5")
    refused(several, r"batch=True is not", batch=True)
    refused(several, r"linger=-1 is not a number of seconds", batch=5, linger=-1)
    refused(several, r"linger=7200 is not a number of seconds", batch=5, linger=7200)
    refused(several, r"linger=0.5 needs batch=", linger=0.5)
    refused(one, r"event is annotated as int, not as a list", batch=5)
    refused(lambda events: None, r"events is annotated as Any, not as a list", batch=5)
    refused(with_batch, r"batch is a Batch: only a handler with batch= has one")
    refused(with_delivery, r"delivery is a Delivery: a batch handler has a Batch", batch=5)
    refused(two, r"takes 2 parameters annotated Batch", batch=5)
    refused(provided, r"needs_delivery takes delivery, a Delivery, but it is called once", batch=5)
    refused(provided_one, r"needs_batch takes batch, a Batch, but its handler has no batch=")
    mq = MessageQueue("redis://unused")
    with pytest.raises(InvalidInput, match=r"batch=5: every tick is one call"):
        mq.cron("* * * * *", batch=5)  # type: ignore[call-arg]  # that is the fault
    orders = mq.topic("o", Event, result=int)

    async def wrong_result(events: list[Event]) -> list[str]:
        return []

    with pytest.raises(InvalidInput, match="it returns"):
        orders.handler(batch=5)(wrong_result)  # type: ignore[arg-type]  # that is the fault


def test_an_override_cannot_ask_for_a_delivery() -> None:
    mq = MessageQueue("redis://unused")

    async def handle(events: list[int], x: Annotated[int, Depends(needs_batch)]) -> None: ...

    mq.handler("t", batch=5)(handle)
    dependencies = mq.handlers["t"].dependencies
    assert dependencies is not None
    with pytest.raises(InvalidInput, match="takes delivery, a Delivery"):
        dependencies.plan({needs_batch: needs_delivery})


def batch_of(count: int) -> Batch:
    return Batch(
        "t",
        range(count),
        deliver=lambda _: pytest.fail("not asked for"),
        is_lost=lambda _: False,
        deadline=None,
        extend=lambda _: None,
    )


def test_a_batch_refuses_what_cannot_fail() -> None:
    batch = batch_of(3)
    for index in (3, -1, True, "0"):
        with pytest.raises(InvalidInput, match="is not one of this batch"):
            batch.fail(index, "no")  # type: ignore[arg-type]  # that is the fault
    for error in (None, 5, ValueError):
        with pytest.raises(InvalidInput, match="neither an exception nor a text"):
            batch.fail(0, error)  # type: ignore[arg-type]  # that is the fault
    batch.fail(0, "first")
    batch.fail(0, "second")
    assert str(batch.failed[0]) == "second"
    assert {index: str(why) for index, why in batch.errors(ValueError("all")).items()} == {
        0: "second",
        1: "all",
        2: "all",
    }
    batch.ended = True
    with pytest.raises(InvalidInput, match="has already ended"):
        batch.fail(1, "late")
