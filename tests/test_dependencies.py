"""Dependencies as users know them: providers, their clean-up, overrides, lifespan, inline."""

import asyncio
import inspect
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any

import pytest
from redis.asyncio import Redis

from mx_rmq import (
    Delivery,
    Depends,
    Drained,
    InvalidInput,
    MessageQueue,
    Middleware,
    Reject,
    Worker,
    WorkerBroken,
    testing,
)
from mx_rmq.core import events
from tests.lab.servers import Server
from tests.runtime.stage import Seen, on_a_server, queue, until

pytestmark = on_a_server

STYLES = ["plain", "async"]
"""Of a handler, or of a provider."""


class Log(list[str]):
    """What happened, in order, and providers that say so."""

    def generator(self, name: str) -> Callable[[], Iterator[str]]:
        def provide() -> Iterator[str]:
            self.append(f"open {name}")
            try:
                yield name
            except BaseException as error:
                self.append(f"{name} sees {type(error).__name__}")
                raise
            finally:
                self.append(f"close {name}")

        return provide

    def async_generator(self, name: str) -> Callable[[], AsyncIterator[str]]:
        async def provide() -> AsyncIterator[str]:
            self.append(f"open {name}")
            try:
                yield name
            except BaseException as error:
                self.append(f"{name} sees {type(error).__name__}")
                raise
            finally:
                await asyncio.sleep(0)
                self.append(f"close {name}")

        return provide


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
async def mq(raw: Redis, server: Server) -> AsyncIterator[MessageQueue]:
    async with queue(server.url) as mq:
        yield mq


def declare(mq: MessageQueue, style: str, function: Callable[..., Any], **options: Any) -> None:
    """Declare a plain function as a handler, or an async one that calls it."""
    if style == "plain":
        mq.handler("t", **options)(function)
        return

    async def handle(*args: Any) -> Any:
        return function(*args)

    handle.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    mq.handler("t", **options)(handle)


async def handled(mq: MessageQueue, payload: Any = 1) -> Drained:
    await mq.produce("t", payload, max_attempts=1)
    return await Worker(mq).drain()


# what a handler gets


@pytest.mark.parametrize("style", STYLES)
async def test_a_handler_gets_payload_delivery_and_what_its_providers_return(
    mq: MessageQueue, style: str
) -> None:
    seen: list[Any] = []

    def settings() -> str:
        return "settings"

    async def client(settings: Annotated[str, Depends(settings)]) -> str:
        return f"client of {settings}"

    class Repository:
        def __init__(self, client: Annotated[str, Depends(client)], delivery: Delivery) -> None:
            self.says = f"{client}, message {delivery.id}"

    def handle(
        client: Annotated[str, Depends(client)],
        payload: int,
        repository: Annotated[Repository, Depends(Repository)],
        delivery: Delivery,
    ) -> None:
        seen.extend([client, payload, repository.says, delivery.attempt])

    declare(mq, style, handle)
    await mq.produce("t", 5, id="five")
    assert await Worker(mq).drain() == Drained(completed=1)
    assert seen == ["client of settings", 5, "client of settings, message five", 1]


@pytest.mark.parametrize("style", STYLES)
async def test_a_provider_is_called_once_per_message_however_often_it_is_asked_for(
    mq: MessageQueue, style: str
) -> None:
    made: list[object] = []

    def session() -> object:
        made.append(object())
        return made[-1]

    def repository(session: Annotated[object, Depends(session)]) -> object:
        return session

    def handle(
        payload: int,
        one: Annotated[object, Depends(session)],
        other: Annotated[object, Depends(session)],
        by: Annotated[object, Depends(repository)],
    ) -> None:
        assert one is other is by

    declare(mq, style, handle)
    await mq.produce("t", 1)
    await mq.produce("t", 2)
    assert await Worker(mq).drain() == Drained(completed=2)
    assert len(made) == 2


async def test_defaults_and_keyword_only_parameters_of_a_handler_may_stand_beside(
    mq: MessageQueue,
) -> None:
    seen: list[Any] = []

    @mq.handler("t")
    async def handle(
        payload: int,
        user: str = "nobody",
        db: Annotated[str, Depends(lambda: "db")] = "",
        *,
        cache: Annotated[str, Depends(lambda: "cache")],
    ) -> None:
        seen.extend([payload, user, db, cache])

    assert (await handled(mq)).completed == 1
    assert seen == [1, "nobody", "db", "cache"]


async def test_a_cron_handler_has_dependencies_too(mq: MessageQueue) -> None:
    done: asyncio.Queue[str] = asyncio.Queue()

    @mq.cron("* * * * * *", topic="tick")
    async def tick(delivery: Delivery, db: Annotated[str, Depends(lambda: "db")]) -> None:
        done.put_nowait(f"{db} {'cron-tick' in delivery.headers}")

    async with Worker(mq):
        assert await asyncio.wait_for(done.get(), 30) == "db True"


async def test_middleware_is_outside_of_the_dependencies(
    raw: Redis, server: Server, log: Log
) -> None:
    class Around(Middleware):
        async def handle(self, delivery: Delivery, call_next: Any) -> Any:
            log.append("middleware")
            try:
                return await call_next(delivery)
            finally:
                log.append("middleware ends")

    async with queue(server.url, middleware=[Around()]) as mq:

        @mq.handler("t")
        def handle(payload: int, a: Annotated[str, Depends(log.generator("a"))]) -> None:
            log.append("handle")

        assert (await handled(mq)).completed == 1
    assert log == ["middleware", "open a", "handle", "close a", "middleware ends"]


# where providers run


async def test_plain_providers_of_a_plain_handler_run_in_its_thread(mq: MessageQueue) -> None:
    threads: list[int] = []

    def note() -> Iterator[None]:
        threads.append(threading.get_ident())
        yield
        threads.append(threading.get_ident())

    async def in_loop() -> int:
        return threading.get_ident()

    @mq.handler("t")
    def handle(
        payload: int, _: Annotated[None, Depends(note)], loop: Annotated[int, Depends(in_loop)]
    ) -> None:
        assert loop == here
        threads.append(threading.get_ident())

    here = threading.get_ident()
    assert (await handled(mq)).completed == 1
    assert len(threads) == 3
    assert len(set(threads)) == 1
    assert here not in threads


async def test_everything_of_an_async_handler_runs_in_the_event_loop(mq: MessageQueue) -> None:
    threads: list[int] = []

    def note() -> Iterator[None]:
        threads.append(threading.get_ident())
        yield
        threads.append(threading.get_ident())

    @mq.handler("t")
    async def handle(payload: int, _: Annotated[None, Depends(note)]) -> None: ...

    assert (await handled(mq)).completed == 1
    assert threads == [threading.get_ident()] * 2


async def test_what_an_async_provider_needs_runs_in_the_event_loop(mq: MessageQueue) -> None:
    def settings() -> int:
        return threading.get_ident()

    async def client(settings: Annotated[int, Depends(settings)]) -> int:
        return settings

    @mq.handler("t")
    def handle(
        payload: int,
        client: Annotated[int, Depends(client)],
        own: Annotated[int, Depends(settings)],
    ) -> None:
        assert client == own == here != threading.get_ident()

    here = threading.get_ident()
    assert (await handled(mq)).completed == 1


async def test_a_plain_handler_sees_the_context_of_its_async_providers(mq: MessageQueue) -> None:
    tenant: ContextVar[str] = ContextVar("tenant", default="nobody")
    seen: list[str] = []

    async def set_tenant(delivery: Delivery) -> None:
        tenant.set(delivery.payload)

    @mq.handler("t")
    def handle(payload: str, _: Annotated[None, Depends(set_tenant)]) -> None:
        seen.append(tenant.get())

    await handled(mq, "ann")
    await handled(mq, "bob")
    assert seen == ["ann", "bob"]
    assert tenant.get() == "nobody"


async def test_an_async_provider_is_opened_and_closed_by_one_task(mq: MessageQueue) -> None:
    async def limited() -> AsyncIterator[None]:
        async with asyncio.timeout(60), asyncio.TaskGroup():  # only their own task may leave them
            yield

    @mq.handler("t")
    def handle(payload: int, _: Annotated[None, Depends(limited)]) -> None: ...

    assert (await handled(mq)).completed == 1


# cleaning up


@pytest.mark.parametrize("style", STYLES)
async def test_clean_up_runs_in_reverse_order_before_the_message_is_settled(
    mq: MessageQueue, log: Log, style: str
) -> None:
    mq.events.subscribe(lambda event: log.append("completed"), events.Completed)

    def handle(
        payload: int,
        a: Annotated[str, Depends(log.async_generator("a"))],
        b: Annotated[str, Depends(log.generator("b"))],
        c: Annotated[str, Depends(log.generator("c"))],
    ) -> None:
        log.append(f"handle {a}{b}{c}")

    declare(mq, style, handle)
    await handled(mq)
    assert log == [
        *("open a", "open b", "open c", "handle abc"),
        *("close c", "close b", "close a", "completed"),
    ]


@pytest.mark.parametrize("style", STYLES)
async def test_a_failure_is_thrown_into_the_generators_and_fails_the_attempt(
    mq: MessageQueue, log: Log, style: str
) -> None:
    def handle(
        payload: int,
        a: Annotated[str, Depends(log.async_generator("a"))],
        b: Annotated[str, Depends(log.generator("b"))],
    ) -> None:
        raise KeyError("no stock")

    declare(mq, style, handle)
    assert (await handled(mq)).dead == 1
    assert log == [
        *("open a", "open b", "b sees KeyError", "close b", "a sees KeyError", "close a"),
    ]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("how", STYLES)
async def test_a_generator_cannot_swallow_the_failure(
    mq: MessageQueue, style: str, how: str
) -> None:
    seen = Seen(mq.events)

    def swallow() -> Iterator[None]:
        with suppress(KeyError):
            yield

    async def swallow_async() -> AsyncIterator[None]:
        with suppress(KeyError):
            yield

    provider: Any = swallow if how == "plain" else swallow_async

    def handle(payload: int, _: Annotated[None, Depends(provider)]) -> None:
        raise KeyError("no stock")

    declare(mq, style, handle)
    assert (await handled(mq)).dead == 1
    assert "KeyError: 'no stock'" in seen.of(events.Died)[0].reason


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    "error", [GeneratorExit, SystemExit, asyncio.CancelledError, StopIteration]
)
@pytest.mark.parametrize("where", ["provider", "handler", "clean-up"])
async def test_clean_up_runs_whatever_is_raised(
    mq: MessageQueue, log: Log, style: str, error: type[BaseException], where: str
) -> None:
    async def broken() -> AsyncIterator[None]:
        if where == "provider":
            raise error
        yield
        if where == "clean-up":
            raise error

    def handle(
        payload: int,
        a: Annotated[str, Depends(log.async_generator("a"))],
        b: Annotated[str, Depends(log.generator("b"))],
        _: Annotated[None, Depends(broken)],
    ) -> None:
        if where == "handler":
            raise error

    declare(mq, style, handle)
    assert (await handled(mq)).dead == 1
    left = [line for line in log if "sees" not in line]
    assert left.count("open a") == left.count("close a") == 1
    assert left.count("open b") == left.count("close b")
    assert left[-1] == "close a"


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("how", STYLES)
@pytest.mark.parametrize("fails", ["before", "after"])
async def test_a_provider_that_raises_fails_the_attempt_and_the_others_are_closed(
    mq: MessageQueue, log: Log, style: str, how: str, fails: str
) -> None:
    seen = Seen(mq.events)

    def plain() -> Iterator[None]:
        if fails == "before":
            raise Reject("not now")
        yield
        raise Reject("not committed")

    async def in_loop() -> AsyncIterator[None]:
        for _ in plain():
            yield

    broken: Any = plain if how == "plain" else in_loop

    def handle(
        payload: int,
        a: Annotated[str, Depends(log.async_generator("a"))],
        _: Annotated[None, Depends(broken)],
    ) -> None:
        log.append("handle")

    declare(mq, style, handle)
    assert (await handled(mq)).dead == 1
    ran = [] if fails == "before" else ["handle"]
    assert log == ["open a", *ran, "a sees Reject", "close a"]
    why = "not now" if fails == "before" else "not committed"
    assert seen.of(events.Died)[0].reason == f"rejected: {why}"


@pytest.mark.parametrize("style", STYLES)
async def test_a_generator_that_does_not_yield_exactly_once_fails_the_attempt(
    mq: MessageQueue, style: str
) -> None:
    seen = Seen(mq.events)

    def none() -> Iterator[None]:
        if False:
            yield

    def twice() -> Iterator[None]:
        yield
        yield

    def nothing() -> None: ...

    def handle(payload: int, wrong: Annotated[None, Depends(nothing)]) -> None: ...

    declare(mq, style, handle)
    for provider, expected in ((none, "didn't yield"), (twice, "didn't stop")):
        mq.dependency_overrides = {nothing: provider}
        assert (await handled(mq)).dead == 1
        assert f"RuntimeError: generator {expected}" in seen.of(events.Died)[-1].reason


async def test_a_plain_provider_that_returns_a_coroutine_fails_the_attempt(
    mq: MessageQueue,
) -> None:
    seen = Seen(mq.events)

    async def session() -> None: ...

    @mq.handler("t")
    def handle(payload: int, db: Annotated[Any, Depends(lambda: session() or 1)]) -> None: ...

    assert (await handled(mq)).dead == 1
    assert "returned a coroutine: declare it with async def" in seen.of(events.Died)[0].reason


@pytest.mark.parametrize("style", STYLES)
async def test_a_session_is_rolled_back_after_a_failure_and_committed_after_a_success(
    mq: MessageQueue, tmp_path: Path, style: str
) -> None:
    path = tmp_path / "shop.db"

    def session() -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(path)) as db, db:  # refuses to be used by another thread
            db.execute("create table if not exists parcel (number)")
            yield db

    def handle(number: int, db: Annotated[sqlite3.Connection, Depends(session)]) -> None:
        db.execute("insert into parcel values (?)", (number,))
        if number == 13:
            raise ValueError("bad luck")

    declare(mq, style, handle, max_attempts=1)
    await mq.produce_many("t", [1, 13, 2])
    done = await Worker(mq, concurrency=1).drain()
    assert done == Drained(completed=2, dead=1)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("select number from parcel").fetchall() == [(1,), (2,)]


# interruptions


@pytest.mark.parametrize("style", STYLES)
async def test_clean_up_runs_after_a_timeout(mq: MessageQueue, log: Log, style: str) -> None:
    a, b = log.async_generator("a"), log.generator("b")
    if style == "plain":

        @mq.handler("t", timeout=0.2)
        def handle(
            payload: int, a: Annotated[str, Depends(a)], b: Annotated[str, Depends(b)]
        ) -> None:
            while True:
                threading.Event().wait(0.01)
    else:

        @mq.handler("t", timeout=0.2)
        async def handle_async(
            payload: int, a: Annotated[str, Depends(a)], b: Annotated[str, Depends(b)]
        ) -> None:
            await asyncio.sleep(60)

    seen = Seen(mq.events)
    assert (await handled(mq)).dead == 1
    name = "Interrupted" if style == "plain" else "CancelledError"
    assert log == [
        *("open a", "open b", f"b sees {name}", "close b", f"a sees {name}", "close a"),
    ]
    assert "HandlerTimeout" in seen.of(events.Died)[0].reason


@pytest.mark.parametrize("style", STYLES)
async def test_clean_up_runs_when_the_worker_stops_and_the_message_is_handed_back(
    mq: MessageQueue, log: Log, style: str
) -> None:
    a, b = log.async_generator("a"), log.generator("b")
    if style == "plain":

        @mq.handler("t")
        def handle(
            payload: int, a: Annotated[str, Depends(a)], b: Annotated[str, Depends(b)]
        ) -> None:
            log.append("runs")
            while True:
                threading.Event().wait(0.01)
    else:

        @mq.handler("t")
        async def handle_async(
            payload: int, a: Annotated[str, Depends(a)], b: Annotated[str, Depends(b)]
        ) -> None:
            log.append("runs")
            await asyncio.sleep(60)

    await mq.produce("t", 1)
    worker = Worker(mq, grace=0)
    await worker.start()
    await until(lambda: "runs" in log)
    assert await worker.stop()
    assert log[-2:] == [log[-2], "close a"]
    assert "close b" in log
    stats = await mq.admin.stats("t")
    assert (stats.pending, stats.processing) == (1, 0)


async def test_a_timeout_does_not_interrupt_the_clean_up_of_a_plain_handler(
    mq: MessageQueue, log: Log
) -> None:
    def commits() -> Iterator[None]:
        yield
        for _ in range(50):
            threading.Event().wait(0.01)
        log.append("committed")

    @mq.handler("t", timeout=0.2)
    def handle(payload: int, _: Annotated[None, Depends(commits)]) -> None: ...

    assert (await handled(mq)).completed == 1
    assert log == ["committed"]


async def test_clean_up_runs_wherever_a_plain_handler_is_interrupted(mq: MessageQueue) -> None:
    reached: set[int] = set()
    closed: set[int] = set()

    def session(delivery: Delivery) -> Iterator[None]:
        try:
            yield
        finally:
            sum(range(1000))
            closed.add(delivery.payload)

    @mq.handler("t", timeout=0.05, max_attempts=1)
    def handle(number: int, _: Annotated[None, Depends(session)]) -> None:
        reached.add(number)
        seconds = 0.045 + 0.0002 * number if number else 60.0
        begun = time.monotonic()
        while time.monotonic() < begun + seconds:
            pass

    await mq.produce_many("t", range(50))
    done = await Worker(mq, concurrency=1).drain()
    assert done.completed + done.dead == 50
    assert done.dead
    assert reached
    assert reached <= closed


async def test_clean_up_runs_after_the_lease_is_lost(raw: Redis, server: Server, log: Log) -> None:
    async with queue(server.url, lease=0.5) as mq:
        running = asyncio.Event()

        @mq.handler("t")
        async def handle(payload: int, a: Annotated[str, Depends(log.generator("a"))]) -> None:
            if not running.is_set():
                running.set()
                await asyncio.sleep(60)

        seen = Seen(mq.events)
        id = await mq.produce("t", 1)
        async with Worker(mq):
            await running.wait()
            lease = await raw.hget("mx-rmq:{t}:processing", id)
            assert lease is not None
            await raw.hset("mx-rmq:{t}:processing", id, "1:somebody")
            await until(lambda: "close a" in log)
            assert "a sees CancelledError" in log
            await seen.wait(events.Completed)


# once per worker


@pytest.mark.parametrize("style", STYLES)
async def test_a_worker_scoped_provider_is_made_before_the_first_message_and_closed_at_the_end(
    mq: MessageQueue, log: Log, style: str
) -> None:
    mq.events.subscribe(lambda event: log.append("started"), events.WorkerStarted)
    mq.events.subscribe(lambda event: log.append("stopped"), events.WorkerStopped)
    settings, engine = log.generator("settings"), log.async_generator("engine")

    def pool(
        settings: Annotated[str, Depends(settings, scope="worker")],
        engine: Annotated[str, Depends(engine, scope="worker")],
    ) -> str:
        log.append("make pool")
        return f"pool of {settings} and {engine}"

    def handle(payload: int, pool: Annotated[str, Depends(pool, scope="worker")]) -> None:
        log.append(pool)

    declare(mq, style, handle)

    @mq.handler("other")
    async def other(payload: int, engine: Annotated[str, Depends(engine, scope="worker")]) -> None:
        log.append(engine)

    await mq.produce("t", 1)
    await mq.produce("other", 1)
    assert await Worker(mq, concurrency=1).drain() == Drained(completed=2)
    assert sorted(log[4:6]) == ["engine", "pool of settings and engine"]
    assert log[:4] + log[6:] == [
        *("open settings", "open engine", "make pool", "started"),
        *("stopped", "close engine", "close settings"),
    ]


async def test_only_what_the_topics_of_a_worker_need_is_made(mq: MessageQueue, log: Log) -> None:
    @mq.handler("a")
    async def a(
        payload: int, a: Annotated[str, Depends(log.generator("a"), scope="worker")]
    ) -> None: ...

    @mq.handler("b")
    async def b(
        payload: int, b: Annotated[str, Depends(log.generator("b"), scope="worker")]
    ) -> None: ...

    await Worker(mq, topics=["b"]).drain()
    assert log == ["open b", "close b"]


async def test_a_worker_does_not_start_if_a_worker_scoped_provider_fails(
    mq: MessageQueue, log: Log
) -> None:
    def broken() -> None:
        raise OSError("no database")

    @mq.handler("t")
    async def handle(
        payload: int,
        a: Annotated[str, Depends(log.generator("a"), scope="worker")],
        db: Annotated[None, Depends(broken, scope="worker")],
    ) -> None: ...

    worker = Worker(mq)
    with pytest.raises(
        WorkerBroken, match=r"cannot start: .* raised OSError: no database"
    ) as error:
        await worker.start()
    assert isinstance(error.value.__cause__, OSError)
    assert log == ["open a", "a sees OSError", "close a"]
    mq.dependency_overrides[broken] = lambda: None
    await worker.drain()


async def test_a_worker_whose_provider_is_cancelled_fails_as_with_any_other_error(
    mq: MessageQueue, log: Log
) -> None:
    async def broken() -> None:
        raise asyncio.CancelledError  # as a connection pool may, when it is closed meanwhile

    @mq.handler("t")
    async def handle(
        payload: int,
        a: Annotated[str, Depends(log.generator("a"), scope="worker")],
        db: Annotated[None, Depends(broken, scope="worker")],
    ) -> None: ...

    worker = Worker(mq)
    with pytest.raises(WorkerBroken, match=r"cannot start: .* a provider was cancelled"):
        await worker.run()
    assert log == ["open a", "a sees CancelledError", "close a"]


async def test_a_cancelled_clean_up_at_the_end_of_a_worker_is_reported(mq: MessageQueue) -> None:
    async def broken() -> AsyncIterator[None]:
        yield
        raise asyncio.CancelledError

    @mq.handler("t")
    async def handle(
        payload: int, db: Annotated[None, Depends(broken, scope="worker")]
    ) -> None: ...

    with pytest.raises(WorkerBroken, match=r"has failed: .* a provider was cancelled"):
        await Worker(mq).drain()


async def test_a_failing_clean_up_at_the_end_of_a_worker_is_reported(
    mq: MessageQueue, log: Log
) -> None:
    def broken() -> Iterator[None]:
        yield
        raise OSError("not flushed")

    @mq.handler("t")
    async def handle(
        payload: int,
        a: Annotated[str, Depends(log.generator("a"), scope="worker")],
        db: Annotated[None, Depends(broken, scope="worker")],
    ) -> None: ...

    with pytest.raises(WorkerBroken, match="OSError: not flushed"):
        await handled(mq)
    assert log[-1] == "close a"


# overrides


async def test_an_override_replaces_a_provider_wherever_it_is_asked_for(mq: MessageQueue) -> None:
    seen: list[str] = []

    def session() -> str:
        return "session"

    def repository(session: Annotated[str, Depends(session)]) -> str:
        return f"repository on {session}"

    @mq.handler("t")
    def handle(
        payload: int,
        repository: Annotated[str, Depends(repository)],
        session: Annotated[str, Depends(session)],
    ) -> None:
        seen.extend([repository, session])

    async def fake() -> AsyncIterator[str]:
        yield "fake"

    mq.dependency_overrides[session] = fake
    assert (await handled(mq)).completed == 1
    assert seen == ["repository on fake", "fake"]


async def test_an_override_may_use_what_it_replaces_and_counts_for_the_next_message(
    mq: MessageQueue,
) -> None:
    seen: list[str] = []
    done = Seen(mq.events)

    def session() -> str:
        return "session"

    @mq.handler("t")
    async def handle(payload: int, session: Annotated[str, Depends(session)]) -> None:
        seen.append(session)

    def traced(session: Annotated[str, Depends(session)]) -> str:
        return f"traced {session}"

    async with Worker(mq):
        await mq.produce("t", 1)
        await done.wait(events.Completed)
        mq.dependency_overrides[session] = traced
        await mq.produce("t", 2)
        await done.wait(events.Completed, 2)
        mq.dependency_overrides.clear()
        await mq.produce("t", 3)
        await done.wait(events.Completed, 3)
    assert seen == ["session", "traced session", "session"]


async def test_a_wrong_override_is_refused_when_the_worker_starts(mq: MessageQueue) -> None:
    def session() -> str:
        return "session"

    @mq.handler("t")
    async def handle(payload: int, session: Annotated[str, Depends(session)]) -> None: ...

    mq.dependency_overrides[session] = "fake"  # type: ignore[assignment]
    with pytest.raises(InvalidInput, match="'fake' is not callable"):
        await Worker(mq).drain()


async def test_a_worker_scoped_provider_cannot_be_replaced_while_the_worker_runs(
    mq: MessageQueue,
) -> None:
    def engine() -> str:
        return "engine"

    @mq.handler("t", max_attempts=1)
    async def handle(payload: int, e: Annotated[str, Depends(engine, scope="worker")]) -> None: ...

    seen = Seen(mq.events)
    async with Worker(mq):
        mq.dependency_overrides[engine] = lambda: "fake"
        await mq.produce("t", 1)
        died = await seen.one(events.Died)
    assert "set dependency_overrides before that" in died.reason
    assert (await handled(mq)).completed == 1


def test_test_mode_restores_the_overrides(server: Server) -> None:
    mq = MessageQueue(server.url)
    with testing.use(mq, server.url):
        mq.dependency_overrides[len] = len
    assert mq.dependency_overrides == {}


# lifespan


async def test_the_lifespan_surrounds_everything_of_a_worker(
    raw: Redis, server: Server, log: Log
) -> None:
    @asynccontextmanager
    async def lifespan(mq: MessageQueue) -> AsyncIterator[None]:
        async with asyncio.TaskGroup():  # only its own task may leave it
            log.append(f"begin {mq.is_open}")
            await mq.produce("t", 1)
            yield
            log.append(f"end {mq.is_open}")

    async with queue(server.url, lifespan=lifespan) as mq:
        mq.events.subscribe(lambda event: log.append("started"), events.WorkerStarted)
        mq.events.subscribe(lambda event: log.append("stopped"), events.WorkerStopped)

        @mq.handler("t")
        def handle(
            payload: int, a: Annotated[str, Depends(log.generator("a"), scope="worker")]
        ) -> None:
            log.append("handle")

        await Worker(mq).drain()
    assert log == [
        *("begin True", "open a", "started", "handle", "stopped", "close a", "end True"),
    ]


async def test_every_worker_has_its_own_lifespan(raw: Redis, server: Server, log: Log) -> None:
    @asynccontextmanager
    async def lifespan(mq: MessageQueue) -> AsyncIterator[None]:
        log.append("begin")
        yield
        log.append("end")

    async with queue(server.url, lifespan=lifespan) as mq:

        @mq.handler("t")
        async def handle(payload: int) -> None: ...

        async with Worker(mq), Worker(mq):
            assert log == ["begin", "begin"]
    assert log == ["begin", "begin", "end", "end"]


async def test_a_worker_without_handlers_that_need_them_starts_no_lifespan_task(
    mq: MessageQueue,
) -> None:
    @mq.handler("t")
    async def handle(payload: int) -> None: ...

    async with Worker(mq):
        assert "mx-rmq lifespan" not in {task.get_name() for task in asyncio.all_tasks()}


async def test_a_worker_does_not_start_if_its_lifespan_fails(raw: Redis, server: Server) -> None:
    @asynccontextmanager
    async def lifespan(mq: MessageQueue) -> AsyncIterator[None]:
        raise OSError("no database")
        yield

    mq = MessageQueue(server.url, lifespan=lifespan)

    @mq.handler("t")
    async def handle(payload: int) -> None: ...

    with pytest.raises(WorkerBroken, match="raised OSError: no database"):
        await Worker(mq).run()
    assert not mq.is_open


async def test_a_worker_fails_if_its_lifespan_ends_by_itself(
    raw: Redis, server: Server, log: Log
) -> None:
    @asynccontextmanager
    async def lifespan(mq: MessageQueue) -> AsyncIterator[None]:
        async def background() -> None:
            await asyncio.sleep(0.1)
            raise OSError("the connection is gone")

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(background())
            yield

    mq = MessageQueue(server.url, lifespan=lifespan)

    @mq.handler("t")
    async def handle(payload: int) -> None: ...

    with pytest.raises(WorkerBroken, match=r"its lifespan has ended: .*ExceptionGroup"):
        await Worker(mq).run()


async def test_a_worker_that_is_stopped_while_its_lifespan_starts_leaves_it(
    raw: Redis, server: Server, log: Log
) -> None:
    entering = asyncio.Event()

    @asynccontextmanager
    async def lifespan(mq: MessageQueue) -> AsyncIterator[None]:
        try:
            entering.set()
            await asyncio.sleep(60)
            yield
        finally:
            log.append("end")

    mq = MessageQueue(server.url, lifespan=lifespan)

    @mq.handler("t")
    async def handle(payload: int) -> None: ...

    running = asyncio.create_task(Worker(mq).run())
    await entering.wait()
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
    assert log == ["end"]
    assert not mq.is_open


async def test_a_worker_whose_start_is_cancelled_does_not_pretend_to_have_run(
    raw: Redis, server: Server
) -> None:
    @asynccontextmanager
    async def lifespan(mq: MessageQueue) -> AsyncIterator[None]:
        for task in asyncio.all_tasks():  # as code does that cancels all tasks
            if task.get_name() == "mx-rmq start":
                task.cancel()
        await asyncio.sleep(60)
        yield

    mq = MessageQueue(server.url, lifespan=lifespan)

    @mq.handler("t")
    async def handle(payload: int) -> None: ...

    with pytest.raises(WorkerBroken, match="some code has cancelled its start"):
        await Worker(mq).run()
    assert not mq.is_open


async def test_a_lifespan_that_does_not_end_can_be_cancelled(
    raw: Redis, server: Server, log: Log
) -> None:
    @asynccontextmanager
    async def lifespan(mq: MessageQueue) -> AsyncIterator[None]:
        yield
        log.append("ending")
        await asyncio.sleep(60)

    async with queue(server.url, lifespan=lifespan) as mq:

        @mq.handler("t")
        async def handle(payload: int) -> None: ...

        worker = Worker(mq)
        await worker.start()
        stopping = asyncio.create_task(worker.stop())
        await until(lambda: "ending" in log)
        worker.cancel()
        assert await stopping


async def unfinished(mq: MessageQueue) -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize("lifespan", [5, unfinished])
def test_a_lifespan_that_is_not_a_context_manager_is_refused(server: Server, lifespan: Any) -> None:
    with pytest.raises(InvalidInput, match=r"decorate it with contextlib\.asynccontextmanager"):
        MessageQueue(server.url, lifespan=lifespan)


# inline


async def test_the_scope_of_a_thread_is_around_a_plain_handler_and_its_providers(
    mq: MessageQueue,
) -> None:
    happened: list[tuple[str, int]] = []

    def note(what: str) -> None:
        happened.append((what, threading.get_ident()))

    @contextmanager
    def scope() -> Iterator[None]:
        note("begin")
        try:
            yield
        finally:
            note("end")

    def provider() -> Iterator[None]:
        note("provided")
        yield

    @mq.handler("t", retry=[0], max_attempts=1)
    def handle(payload: int, _: Annotated[None, Depends(provider)]) -> None:
        note("handled")
        raise ValueError

    mq.thread_scope = scope
    await mq.produce("t", 1)
    assert (await Worker(mq).drain()).dead == 1
    assert [what for what, _ in happened] == ["begin", "provided", "handled", "end"]
    assert len({thread for _, thread in happened}) == 1
    assert threading.get_ident() not in happened[0]


async def test_an_inline_drain_runs_plain_handlers_in_this_thread(mq: MessageQueue) -> None:
    uncommitted = sqlite3.connect(":memory:")  # refuses to be used by another thread
    uncommitted.execute("create table parcel (number)")

    def session() -> Iterator[sqlite3.Connection]:
        yield uncommitted

    @mq.handler("t")
    def handle(number: int, db: Annotated[sqlite3.Connection, Depends(session)]) -> None:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()  # Django refuses to work in an event loop
        db.execute("insert into parcel values (?)", (number,))

    await mq.produce_many("t", [1, 2])
    assert await Worker(mq).drain(inline=True) == Drained(completed=2)
    assert len(uncommitted.execute("select * from parcel").fetchall()) == 2
    uncommitted.close()


async def test_an_inline_handler_that_fails_is_retried_as_usual(mq: MessageQueue) -> None:
    attempts: list[int] = []

    @mq.handler("t", retry=[0], max_attempts=2)
    def handle(number: int, delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        if delivery.attempt == 1:
            raise StopIteration

    await mq.produce("t", 1)
    assert await Worker(mq).drain(inline=True) == Drained(completed=1, retried=1)
    assert attempts == [1, 2]


def test_a_sync_test_drains_inline_in_its_own_thread(raw: Redis, server: Server) -> None:
    mq = MessageQueue(server.url)
    threads: list[int] = []
    with testing.use(mq, server.url):

        @mq.handler("t")
        def handle(payload: int) -> None:
            threads.append(threading.get_ident())

        mq.sync.produce("t", 1)
        assert testing.drain(mq, inline=True) == Drained(completed=1)
    assert threads == [threading.get_ident()]
