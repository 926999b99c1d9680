"""Handlers, run by a worker: what they get, and what becomes of what they do."""

from __future__ import annotations

import asyncio
import copy
import functools
import threading
import time
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import Delivery, Drained, Middleware, Reject, Retry, Snooze, Worker
from mx_rmq.core import events
from mx_rmq.core.message import State
from mx_rmq.runtime.lease_keeper import LeaseKeeper
from tests.runtime.stage import Seen, on_a_server, queue, slots_of, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from redis.asyncio import Redis

    from mx_rmq import MessageQueue
    from tests.lab.servers import Server

pytestmark = on_a_server

VARIABLE: ContextVar[str] = ContextVar("variable", default="clean")


@dataclass
class Order:
    number: int
    items: list[str]


@pytest.fixture
async def mq(raw: Redis, server: Server) -> AsyncIterator[MessageQueue]:
    async with queue(server.url) as mq:
        yield mq


# what a handler gets


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_a_handler_gets_its_payload_in_the_type_that_it_asks_for(
    mq: MessageQueue, plain: bool
) -> None:
    got: list[Order] = []

    async def handle(order: Order) -> None:
        got.append(order)

    def handle_plain(order: Order) -> None:
        got.append(order)

    mq.handler("t")(handle_plain if plain else handle)
    await mq.produce("t", {"number": 7, "items": ["a"]})
    assert (await Worker(mq).drain()).completed == 1
    assert got == [Order(7, ["a"])]


@pytest.mark.parametrize(
    "payload", [None, True, 0, -1.5, "", "é\u0000\U0001f600", [], {}, [1, [2, {"a": None}]]]
)
async def test_a_payload_of_plain_json_comes_through_unchanged(
    mq: MessageQueue, payload: Any
) -> None:
    got = []

    @mq.handler("t")
    async def handle(value: Any) -> None:
        got.append(value)

    await mq.produce("t", payload)
    await Worker(mq).drain()
    assert got == [payload]
    assert type(got[0]) is type(payload)


async def test_a_delivery_tells_what_a_handler_may_know(mq: MessageQueue) -> None:
    seen: list[Delivery] = []
    running: list[float | None] = []

    @mq.handler("t", timeout=30, retry=0)
    async def handle(payload: int, delivery: Delivery) -> None:
        seen.append(delivery)
        running.append(delivery.deadline)
        if delivery.attempt == 1:
            raise ValueError

    before = time.time()
    id = await mq.produce("t", 5, headers={"trace": "x"})
    await Worker(mq).drain(delayed=True)
    first, second = seen
    assert (first.id, first.topic, first.payload) == (id, "t", 5)
    assert first.headers == {"trace": "x"}
    assert (first.attempt, second.attempt) == (1, 2)
    assert second.fence > first.fence
    assert before - 1 <= first.created_at <= time.time() + 1
    assert second.created_at == first.created_at
    assert running[0] is not None
    assert before + 29 < running[0] < time.time() + 31


async def test_a_handler_without_a_timeout_has_no_deadline_and_may_extend_it_all_the_same(
    mq: MessageQueue,
) -> None:
    deadlines = []

    @mq.handler("t")
    async def handle(payload: int, delivery: Delivery) -> None:
        delivery.extend(5)
        deadlines.append(delivery.deadline)

    await mq.produce("t", 5)
    assert (await Worker(mq).drain()).completed == 1
    assert deadlines == [None]


async def test_plain_handlers_run_side_by_side_and_do_not_block_the_loop(mq: MessageQueue) -> None:
    meeting = threading.Barrier(4, timeout=10)

    @mq.handler("t")
    def handle(payload: int) -> None:
        meeting.wait()

    await mq.produce_many("t", range(4))
    assert (await Worker(mq, concurrency=4).drain()).completed == 4


async def test_no_more_handlers_run_at_once_than_worker_and_handler_allow(
    mq: MessageQueue,
) -> None:
    running, most = {"a": 0, "b": 0}, {"a": 0, "b": 0}
    both = []

    async def handle(topic: str) -> None:
        running[topic] += 1
        most[topic] = max(most[topic], running[topic])
        both.append(sum(running.values()))
        await asyncio.sleep(0.002)
        running[topic] -= 1

    mq.handler("a", concurrency=2)(handle)
    mq.handler("b")(handle)
    await mq.produce_many("a", ["a"] * 40)
    await mq.produce_many("b", ["b"] * 80)
    assert (await Worker(mq, concurrency=6).drain()).completed == 120
    assert most["a"] == 2
    assert max(both) <= 6


# what a handler raises


async def test_an_error_is_retried_and_noted(mq: MessageQueue) -> None:
    attempts = []

    @mq.handler("t", retry=[0, 0, 0])
    async def handle(payload: int, delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        if delivery.attempt < 3:
            raise KeyError("lost")

    seen = Seen(mq.events)
    await mq.produce("t", 1)
    drained = await Worker(mq).drain(delayed=True)
    assert (drained.completed, drained.retried) == (1, 2)
    assert attempts == [1, 2, 3]
    assert [event.error for event in seen.of(events.Retried)] == ["KeyError: 'lost'"] * 2


async def test_a_message_that_fails_as_often_as_it_may_is_dead_with_its_errors(
    mq: MessageQueue,
) -> None:
    @mq.handler("t", max_attempts=2, retry=0)
    def handle(payload: int) -> None:
        raise ValueError(f"no {payload}")

    id = await mq.produce("t", 1)
    drained = await Worker(mq, name="w1").drain(delayed=True)
    assert (drained.retried, drained.dead) == (1, 1)
    letter = await mq.admin.get("t", id)
    assert letter is not None
    assert letter.state is State.DEAD
    assert letter.reason.startswith("exhausted: failed 2 times")
    assert [(error.type, error.text, error.worker) for error in letter.errors] == [
        ("ValueError", "no 1", "w1")
    ] * 2
    assert "raise ValueError" in letter.errors[0].traceback


async def test_reject_and_retry_say_what_shall_become_of_a_message(mq: MessageQueue) -> None:
    @mq.handler("t")
    async def handle(payload: str, delivery: Delivery) -> None:
        if payload == "reject":
            raise Reject("never")
        if delivery.attempt == 1:
            raise Retry(0)

    seen = Seen(mq.events)
    await mq.produce_many("t", ["reject", "retry"])
    drained = await Worker(mq).drain(delayed=True)
    assert (drained.completed, drained.retried, drained.dead) == (1, 1, 1)
    assert (await seen.one(events.Died)).reason == "rejected: never"


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_a_snoozed_message_comes_back_and_nothing_is_counted(
    mq: MessageQueue, plain: bool
) -> None:
    attempts = []

    def snooze_twice(payload: int, delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        if len(attempts) < 3:
            raise Snooze(0.001, "not yet")

    async def in_loop(payload: int, delivery: Delivery) -> None:
        snooze_twice(payload, delivery)

    mq.handler("t", max_attempts=1)(snooze_twice if plain else in_loop)
    seen = Seen(mq.events)
    id = await mq.produce("t", 1)
    drained = await Worker(mq).drain(delayed=True)
    assert drained == Drained(completed=1, snoozed=2)
    assert attempts == [1, 1, 1]
    for event in seen.of(events.Snoozed):
        assert (event.topic, event.id, event.attempt, event.delay) == ("t", id, 1, 0.001)
        assert event.reason == "not yet"
        assert event.seconds is not None
        assert event.waited is not None
    stats = await mq.admin.stats("t")
    assert (stats.totals.snoozed, stats.totals.failed) == (2, 0)
    told = [one.about for one in await mq.admin.history("t", id) if one.what == "snoozed"]
    assert told == ["for 0.001 s: not yet"] * 2


async def test_a_snoozed_message_waits_and_keeps_no_error(mq: MessageQueue) -> None:
    @mq.handler("t")
    async def handle(payload: int) -> None:
        raise Snooze(60)

    id = await mq.produce("t", 1, priority="high")
    assert await Worker(mq).drain() == Drained(snoozed=1)
    waiting = await mq.admin.get("t", id)
    assert waiting is not None
    assert (waiting.state, waiting.attempts, waiting.errors) == (State.DELAYED, 0, ())
    assert waiting.due is not None
    assert 50 < waiting.due - await mq.admin.now() <= 60
    assert [one.about for one in await mq.admin.history("t", id) if one.what == "snoozed"] == [
        "for 60 s"
    ]


async def test_the_ttl_of_a_snoozed_message_ends_it(mq: MessageQueue) -> None:
    @mq.handler("t")
    async def handle(payload: int) -> None:
        raise Snooze(0.02)

    id = await mq.produce("t", 1, ttl=0.2)
    assert (await Worker(mq).drain(delayed=True)).dead == 1
    letter = await mq.admin.get("t", id)
    assert letter is not None
    assert letter.reason.startswith("expired")


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
@pytest.mark.parametrize("error", [SystemExit(1), asyncio.CancelledError(), MemoryError()])
async def test_what_is_no_ordinary_exception_is_a_failure_too(
    mq: MessageQueue, error: BaseException, plain: bool
) -> None:
    async def handle(payload: int) -> None:
        raise error

    def handle_plain(payload: int) -> None:
        raise error

    mq.handler("t", max_attempts=1)(handle_plain if plain else handle)
    id = await mq.produce("t", 1)
    async with asyncio.timeout(10):
        assert (await Worker(mq).drain()).dead == 1
    letter = await mq.admin.get("t", id)
    assert letter is not None
    assert letter.errors[0].type == type(error).__name__


async def stuck(mq: MessageQueue, seen: Seen) -> str:
    """Run a worker until the message is archived, or for long; say what was seen."""
    asyncio.get_running_loop().set_exception_handler(lambda loop, about: None)
    async with Worker(mq, concurrency=1, grace=0):
        try:
            await until(lambda: seen.of(events.Died) or seen.of(events.Quarantined))
        except TimeoutError:
            return "stuck"
    return "settled"


class Odd(BaseException):
    """As gevent's Timeout is, and others."""


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_an_exception_that_is_only_a_base_exception_is_a_failure_too(
    mq: MessageQueue, plain: bool
) -> None:
    async def handle(payload: int) -> None:
        raise Odd

    def handle_plain(payload: int) -> None:
        raise Odd

    mq.handler("t", max_attempts=1)(handle_plain if plain else handle)
    await mq.produce("t", 1)
    assert await stuck(mq, Seen(mq.events)) == "settled"


@pytest.mark.parametrize(
    "plain",
    [
        pytest.param(False, id="async"),
        pytest.param(
            True,
            id="plain",
        ),
    ],
)
async def test_a_generator_exit_is_a_failure_too(mq: MessageQueue, plain: bool) -> None:
    seen, runs = Seen(mq.events), []

    async def handle(payload: int) -> None:
        runs.append(payload)
        if len(runs) < 3:
            raise GeneratorExit

    def handle_plain(payload: int) -> None:
        runs.append(payload)
        if len(runs) < 3:
            raise GeneratorExit

    mq.handler("t", max_attempts=2, retry=0)(handle_plain if plain else handle)
    await mq.produce("t", 1)
    async with Worker(mq, concurrency=1, grace=0):
        await until(lambda: seen.of(events.Died) or seen.of(events.Completed))
    assert runs == [1, 1]
    assert len(seen.of(events.Died)) == 1


async def test_a_stop_iteration_in_a_plain_handler_is_a_failure(mq: MessageQueue) -> None:
    @mq.handler("t", max_attempts=1)
    def handle(payload: list[int]) -> int:
        return next(number for number in payload if number > 5)

    await mq.produce("t", [1, 2])
    assert await stuck(mq, Seen(mq.events)) == "settled"


async def test_a_handler_that_cancels_itself_has_failed(mq: MessageQueue) -> None:
    @mq.handler("t", max_attempts=1)
    async def handle(payload: int) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    await mq.produce("t", 1)
    assert await stuck(mq, Seen(mq.events)) == "settled"


async def test_a_handler_that_leaves_a_cancellation_behind_hurts_no_other_message(
    mq: MessageQueue,
) -> None:
    handled = []

    @mq.handler("t")
    async def handle(payload: int) -> None:
        await asyncio.sleep(0)
        handled.append(payload)
        if payload % 2:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()

    await mq.produce_many("t", range(20))
    assert (await Worker(mq, concurrency=3).drain()).completed == 20
    assert sorted(handled) == list(range(20))


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


async def test_an_error_whose_text_cannot_be_had_frees_its_slot(mq: MessageQueue) -> None:
    @mq.handler("t", retry=60)
    async def handle(payload: int) -> None:
        raise Mute

    await mq.produce_many("t", range(3))
    async with asyncio.timeout(5):
        drained = await Worker(mq, grace=0).drain()
    assert drained.retried == 3


class Careless(Reject):
    def __init__(self) -> None:
        Exception.__init__(self, "no super().__init__()")


async def test_a_reject_that_was_carelessly_subclassed_settles_its_message(
    mq: MessageQueue,
) -> None:
    @mq.handler("t", max_attempts=1)
    async def handle(payload: int) -> None:
        raise Careless

    await mq.produce("t", 1)
    assert await stuck(mq, Seen(mq.events)) == "settled"


# timeouts


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_a_handler_that_takes_too_long_is_stopped_and_retried(
    mq: MessageQueue, plain: bool
) -> None:
    stopped = []

    async def handle(payload: int, delivery: Delivery) -> None:
        if delivery.attempt == 1:
            try:
                await asyncio.sleep(60)
            finally:
                stopped.append(1)

    def handle_plain(payload: int, delivery: Delivery) -> None:
        try:
            while delivery.attempt == 1:
                time.sleep(0.001)
        finally:
            stopped.append(1)

    mq.handler("t", timeout=0.1, retry=0)(handle_plain if plain else handle)
    seen = Seen(mq.events)
    await mq.produce("t", 1)
    drained = await Worker(mq).drain(delayed=True)
    assert (drained.completed, drained.retried) == (1, 1)
    assert stopped
    assert "HandlerTimeout" in seen.of(events.Retried)[0].error
    assert "took longer than 0.1 s" in seen.of(events.Retried)[0].error


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_a_handler_that_asks_for_more_time_gets_it(mq: MessageQueue, plain: bool) -> None:
    async def handle(payload: int, delivery: Delivery) -> None:
        before = delivery.deadline
        delivery.extend(30)
        assert delivery.deadline is not None
        assert before is not None
        assert delivery.deadline > before + 20
        await asyncio.sleep(0.8)

    def handle_plain(payload: int, delivery: Delivery) -> None:
        delivery.extend(30)
        end = time.monotonic() + 0.8
        while time.monotonic() < end:
            time.sleep(0.001)

    mq.handler("t", timeout=0.5, max_attempts=1)(handle_plain if plain else handle)
    await mq.produce("t", 1)
    assert (await Worker(mq).drain()).completed == 1


async def test_an_extension_is_a_limit_itself(mq: MessageQueue) -> None:
    @mq.handler("t", timeout=60, max_attempts=1)
    async def handle(payload: int, delivery: Delivery) -> None:
        delivery.extend(0.05)
        await asyncio.sleep(60)

    await mq.produce("t", 1)
    assert (await Worker(mq).drain()).dead == 1


async def test_a_handler_that_swallows_its_timeout_and_returns_is_done(mq: MessageQueue) -> None:
    @mq.handler("t", timeout=0.05)
    async def handle(payload: int) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return

    await mq.produce("t", 1)
    assert (await Worker(mq).drain()).completed == 1


async def test_a_coroutine_that_a_plain_handler_returns_is_bound_by_the_timeout(
    mq: MessageQueue,
) -> None:
    async def inner(payload: int) -> None:
        await asyncio.sleep(2)

    mq.handler("t", timeout=0.1, max_attempts=1)(
        functools.partial(lambda inner, p: inner(p), inner)
    )
    await mq.produce("t", 1)
    drained = await Worker(mq).drain()
    assert (drained.completed, drained.dead) == (0, 1)


async def test_middleware_behind_a_plain_handler_is_bound_by_the_timeout(
    raw: Redis, server: Server
) -> None:
    class Slow(Middleware):
        async def handle(self, delivery: Delivery, call_next: Callable[..., Awaitable[Any]]) -> Any:
            await call_next(delivery)
            await asyncio.sleep(2)

    async with queue(server.url, middleware=[Slow()]) as mq:

        @mq.handler("t", timeout=0.1, max_attempts=1)
        def handle(payload: int) -> None: ...

        await mq.produce("t", 1)
        drained = await Worker(mq).drain()
        assert (drained.completed, drained.dead) == (0, 1)


async def test_a_plain_handler_may_return_a_coroutine(mq: MessageQueue) -> None:
    handled = []

    async def inner(payload: int) -> None:
        await asyncio.sleep(0)
        handled.append(payload)

    mq.handler("t")(functools.partial(lambda inner, payload: inner(payload), inner))
    await mq.produce("t", 1)
    assert (await Worker(mq).drain()).completed == 1
    assert handled == [1]


async def work(payload: int) -> None:
    raise AssertionError("nobody awaits it")


async def forgets_to_await(payload: int) -> Any:
    return work(payload)


async def returns_a_future(payload: int) -> Any:
    return asyncio.get_running_loop().create_future()


class Promise:
    def __await__(self) -> Any:
        raise AssertionError("nobody awaits it")
        yield


def returns_an_awaitable(payload: int) -> Any:
    return Promise()


def returns_a_generator(payload: int) -> Any:
    return (number for number in range(payload))


async def returns_an_async_generator(payload: int) -> Any:
    async def steps() -> AsyncIterator[int]:
        yield payload

    return steps()


def returns_what_a_coroutine_returns(payload: int) -> Any:
    return forgets_to_await(payload)


class Drops(Middleware):
    """Waits for the handler, and drops what it returns."""

    async def handle(self, delivery: Delivery, call_next: Any) -> None:
        await call_next(delivery)


@pytest.mark.parametrize("middleware", [[], [Drops()]], ids=["bare", "inside middleware"])
@pytest.mark.parametrize(
    "handler",
    [
        forgets_to_await,
        returns_a_future,
        returns_an_awaitable,
        returns_a_generator,
        returns_an_async_generator,
        returns_what_a_coroutine_returns,
    ],
)
async def test_a_handler_that_returns_work_instead_of_doing_it_fails(
    raw: Redis, server: Server, handler: Callable[..., Any], middleware: list[Middleware]
) -> None:
    async with queue(server.url, middleware=middleware) as mq:
        seen = Seen(mq.events)
        mq.handler("t", max_attempts=2, retry=0)(handler)
        await mq.produce("t", 1)
        drained = await Worker(mq).drain(delayed=True)
        assert (drained.completed, drained.retried, drained.dead) == (0, 1, 1)
        (retried,) = seen.of(events.Retried)
        assert retried.error.startswith(f"NotAwaited: {__name__}.{handler.__name__} ")
        assert "has not run: " in retried.error


class Forgets(Middleware):
    async def handle(self, delivery: Delivery, call_next: Any) -> None:
        call_next(delivery)


class HandsOn(Middleware):
    async def handle(self, delivery: Delivery, call_next: Any) -> Any:
        return call_next(delivery)


class GivesUp(Middleware):
    async def handle(self, delivery: Delivery, call_next: Any) -> None:
        call_next(delivery)
        raise ValueError("before it awaited the handler")


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
@pytest.mark.parametrize("middleware", [Forgets, HandsOn, GivesUp])
async def test_middleware_that_does_not_await_the_handler_fails_the_attempt(
    raw: Redis, server: Server, middleware: type[Middleware], plain: bool
) -> None:
    async with queue(server.url, middleware=[middleware()]) as mq:
        ran = []

        async def handle(payload: int) -> None:
            ran.append(payload)

        def handle_plain(payload: int) -> None:
            ran.append(payload)

        mq.handler("t", max_attempts=1)(handle_plain if plain else handle)
        await mq.produce("t", 1)
        drained = await Worker(mq).drain()
        assert (drained.completed, drained.dead, ran) == (0, 1, [])


# leftovers


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_a_context_variable_does_not_leak_from_one_message_to_the_next(
    mq: MessageQueue, plain: bool
) -> None:
    found = []

    async def handle(payload: int) -> None:
        found.append(VARIABLE.get())
        VARIABLE.set(f"dirty {payload}")

    def handle_plain(payload: int) -> None:
        found.append(VARIABLE.get())
        VARIABLE.set(f"dirty {payload}")

    mq.handler("t")(handle_plain if plain else handle)
    await mq.produce_many("t", range(30))
    assert (await Worker(mq, concurrency=2).drain()).completed == 30
    assert found == ["clean"] * 30


async def test_a_context_variable_that_was_set_before_the_worker_reaches_the_handlers(
    mq: MessageQueue,
) -> None:
    found = []

    @mq.handler("t")
    async def handle(payload: int) -> None:
        found.append(VARIABLE.get())

    VARIABLE.set("from outside")
    await mq.produce("t", 1)
    await Worker(mq).drain()
    assert found == ["from outside"]


# middleware


class Around(Middleware):
    def __init__(self, name: str, notes: list[str], error: Exception | None = None) -> None:
        self.name, self.notes, self.error = name, notes, error

    async def handle(self, delivery: Delivery, call_next: Callable[..., Awaitable[Any]]) -> Any:
        self.notes.append(f"{self.name} in")
        if self.error is not None:
            raise self.error
        result = await call_next(delivery)
        self.notes.append(f"{self.name} out {result}")
        return result


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_the_first_middleware_is_the_outermost(
    raw: Redis, server: Server, plain: bool
) -> None:
    notes: list[str] = []
    async with queue(server.url, middleware=[Around("a", notes), Around("b", notes)]) as mq:

        async def handle(payload: int) -> str:
            notes.append("handler")
            return "result"

        def handle_plain(payload: int) -> str:
            notes.append("handler")
            return "result"

        mq.handler("t")(handle_plain if plain else handle)
        await mq.produce("t", 1)
        await Worker(mq).drain()
    assert notes == ["a in", "b in", "handler", "b out result", "a out result"]


async def test_what_middleware_raises_decides_about_the_message(raw: Redis, server: Server) -> None:
    handled = []
    async with queue(server.url, middleware=[Around("a", [], Reject("not today"))]) as mq:

        @mq.handler("t")
        async def handle(payload: int) -> None:
            handled.append(payload)

        await mq.produce("t", 1)
        assert (await Worker(mq).drain()).dead == 1
    assert handled == []


async def test_middleware_that_does_not_call_the_handler_completes_the_message(
    raw: Redis, server: Server
) -> None:
    class Skip(Middleware):
        async def handle(self, delivery: Delivery, call_next: Callable[..., Awaitable[Any]]) -> Any:
            return None

    handled = []
    async with queue(server.url, middleware=[Skip()]) as mq:

        @mq.handler("t")
        async def handle(payload: int) -> None:
            handled.append(payload)

        await mq.produce("t", 1)
        assert (await Worker(mq).drain()).completed == 1
    assert handled == []


# what no handler sees


async def test_an_expired_message_is_never_handed_to_a_handler(mq: MessageQueue) -> None:
    handled = []

    @mq.handler("t")
    async def handle(payload: int) -> None:
        handled.append(payload)

    old = await mq.produce("t", 1, ttl=0.02)
    fresh = await mq.produce("t", 2, ttl=60)
    await asyncio.sleep(0.05)  # it is time itself that is tested here
    seen = Seen(mq.events)
    drained = await Worker(mq).drain()
    assert (drained.completed, drained.dead) == (1, 1)
    assert handled == [2]
    assert seen.of(events.Died)[0].id == old
    assert seen.of(events.Died)[0].reason.startswith("expired: ")
    assert seen.of(events.Completed)[0].id == fresh


async def test_a_payload_of_a_wrong_type_is_quarantined(mq: MessageQueue) -> None:
    @mq.handler("t")
    async def handle(order: Order) -> None: ...

    id = await mq.produce("t", {"number": "seven", "items": []})
    assert (await Worker(mq).drain()).quarantined == 1
    view = await mq.admin.get("t", id)
    assert view is not None
    assert view.state is State.QUARANTINED
    assert "number" in view.error


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe\x00", b'{"v":1}', b"[]"])
async def test_a_record_that_nobody_can_read_is_quarantined_with_its_exact_bytes(
    mq: MessageQueue, raw: Redis, data: bytes
) -> None:
    handled = []

    @mq.handler("t")
    async def handle(payload: int) -> None:
        handled.append(payload)

    id = await mq.produce("t", 1)
    good = await mq.produce("t", 2)
    await raw.hset(mq.store.keys.of("t").payload, id, data)
    drained = await Worker(mq).drain()
    assert (drained.completed, drained.quarantined) == (1, 1)
    view = await mq.admin.get("t", id)
    assert view is not None
    assert (view.state, view.raw) == (State.QUARANTINED, data)
    assert handled == [2]
    assert await mq.admin.get("t", good) is None


async def test_consumers_that_a_handler_spoiled_are_replaced_while_others_wait(
    mq: MessageQueue,
) -> None:
    gate, running = asyncio.Event(), []

    @mq.handler("t")
    async def handle(payload: int) -> None:
        VARIABLE.set("dirty")
        running.append(payload)
        if payload >= 10:
            await gate.wait()

    async with Worker(mq, concurrency=4):
        await mq.produce_many("t", range(10))
        await mq.produce_many("t", range(10, 14))
        await until(lambda: len(running) == 14)
        gate.set()


async def test_consumers_that_a_handler_spoiled_strand_nothing_beside_free_slots(
    mq: MessageQueue, ten_ahead: None
) -> None:
    """What waited in vain would be handed back after a second."""
    seen, gate, running = Seen(mq.events), asyncio.Event(), []

    @mq.handler("t")
    async def handle(payload: int) -> None:
        VARIABLE.set("dirty")
        running.append(payload)
        await gate.wait()

    for name in ("u", "v"):
        mq.handler(name)(handle)
    await mq.produce_many("t", range(10))
    async with Worker(mq, concurrency=4) as worker:
        await until(lambda: slots_of(worker).waiting == 7)
        gate.set()
        await seen.wait(events.Completed, 10)
    assert sorted(running) == list(range(10))
    assert seen.of(events.Released) == []


async def test_handlers_that_time_out_strand_nothing_beside_free_slots(
    mq: MessageQueue, ten_ahead: None
) -> None:
    seen, running = Seen(mq.events), []

    @mq.handler("t", timeout=0.05, max_attempts=1)
    async def handle(payload: int) -> None:
        running.append(payload)
        await asyncio.sleep(60)

    for name in ("u", "v"):
        mq.handler(name)(handle)
    await mq.produce_many("t", range(10))
    async with Worker(mq, concurrency=4):
        await seen.wait(events.Died, 10)
    assert sorted(running) == list(range(10))
    assert seen.of(events.Released) == []


class Later(Retry):
    """Says when by itself, and does not check it."""

    def __init__(self, delay: Any) -> None:
        super().__init__()
        self.delay = delay


class Bare(Retry):
    def __init__(self) -> None:  # carelessly: without the delay
        pass


@pytest.mark.parametrize(
    "error", [Later(-1), Later(float("nan")), Later(float("inf")), Later("soon"), Bare()], ids=repr
)
async def test_a_retry_without_a_sensible_delay_follows_the_policy(
    mq: MessageQueue, error: Retry
) -> None:
    seen = Seen(mq.events)

    @mq.handler("t", retry=0.01, max_attempts=2)
    async def handle(payload: int, delivery: Delivery) -> None:
        if delivery.attempt == 1:
            raise error if payload == 0 else ValueError

    await mq.produce_many("t", range(5))
    drained = await Worker(mq).drain(delayed=True)
    assert (drained.completed, drained.retried) == (5, 5)
    assert [event.delay for event in seen.of(events.Retried)] == [0.01] * 5


async def test_more_time_asked_for_just_before_the_end_leaves_nothing_behind(
    mq: MessageQueue,
) -> None:
    seen = Seen(mq.events)

    @mq.handler("t", timeout=30)
    async def handle(payload: int, delivery: Delivery) -> None:
        delivery.extend(3600)

    async with Worker(mq) as worker:
        await mq.produce_many("t", range(10))
        await seen.wait(events.Completed, 10)
        assert worker._engine is not None
        assert worker._engine.consumer._timeouts._timers == {}


class Unequal:
    """As an array is: not to be compared."""

    __hash__ = None  # type: ignore[assignment]  # as it is with arrays

    def __eq__(self, other: object) -> bool:
        raise ValueError("the truth value is ambiguous")


async def test_a_context_variable_that_cannot_be_compared_does_no_harm(
    mq: MessageQueue, ten_ahead: None
) -> None:
    """What waited behind a consumer that fell over would be handed back after a second."""
    variable: ContextVar[Unequal] = ContextVar("array")
    variable.set(Unequal())
    seen, gate, ran = Seen(mq.events), asyncio.Event(), []
    troubles: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, about: troubles.append(about))

    @mq.handler("t", concurrency=1)
    async def handle(payload: int) -> None:
        variable.set(Unequal())
        ran.append(payload)
        await gate.wait()

    await mq.produce_many("t", range(10))
    async with Worker(mq) as worker:
        await until(lambda: slots_of(worker).waiting == 9)
        gate.set()
        await seen.wait(events.Completed, 10)
    assert ran == list(range(10))
    assert seen.of(events.Released) == []
    assert troubles == []


async def test_a_consumer_that_is_cancelled_when_it_wakes_costs_no_wake_up(
    raw: Redis, server: Server
) -> None:
    async with queue(server.url) as mq:
        runs: list[int] = []
        tasks: list[asyncio.Task[Any]] = []

        @mq.handler("t")
        async def handle(payload: int) -> None:
            runs.append(payload)
            task = asyncio.current_task()
            assert task is not None
            tasks.append(task)

        async with Worker(mq) as worker:
            await mq.produce("t", 1)
            await until(lambda: runs == [1] and not slots_of(worker).held)
            assert worker._engine is not None
            consumer = worker._engine.consumer
            wake = consumer.start_ready

            def wake_and_cancel() -> None:  # a timer that the handler left behind strikes now
                wake()
                while tasks:
                    tasks.pop().cancel()

            consumer.start_ready = wake_and_cancel  # type: ignore[method-assign]
            await mq.produce("t", 2)
            await mq.produce("t", 3)
            await until(lambda: sorted(runs) == [1, 2, 3], within=5.0)
            assert consumer._woken == 0


async def test_middleware_may_hand_on_a_copy_to_a_plain_function(
    raw: Redis, server: Server
) -> None:
    class Changes(Middleware):
        async def handle(self, delivery: Delivery, call_next: Any) -> Any:
            changed = copy.copy(delivery)
            changed.payload = "changed"
            return await call_next(changed)

    async with queue(server.url, middleware=[Changes()]) as mq:
        got: list[Any] = []

        @mq.handler("t", max_attempts=1)
        def plain(payload: Any) -> None:
            got.append(payload)

        async with Worker(mq):
            await mq.produce("t", 1)
            await until(lambda: got == ["changed"])


# a process that stands still


async def test_what_became_stale_while_the_process_stood_still_is_not_started(
    raw: Redis, server: Server, ten_ahead: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LeaseKeeper, "start", lambda self: None)  # it stands still, too
    async with queue(server.url, lease=0.5) as mq:
        started: list[int] = []
        stale: set[int] = set()

        @mq.handler("t")
        async def handle(payload: int, delivery: Delivery) -> None:
            started.append(delivery.fence)
            if not stale:
                slots = slots_of(worker)
                await until(lambda: slots.waiting)
                stale.update(held.leased.token for held in slots.held if held.started_at is None)
                time.sleep(mq.settings.lease)

        async with Worker(mq, concurrency=1) as worker:
            await mq.produce_many("t", range(5))
            await until(lambda: len(started) > 1)
        assert stale.isdisjoint(started)
