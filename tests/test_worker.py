"""Worker: drain, stop, and what it costs to wait."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import mx_rmq
from mx_rmq import Delivery, Drained, InvalidInput, MessageQueue, ServerUnavailable, Worker
from mx_rmq.core import events
from mx_rmq.core.message import Priority, State
from mx_rmq.runtime import consumer, engine
from mx_rmq.runtime.slots import Slots
from tests.lab.proxy import Proxy
from tests.lab.snapshot import snapshot
from tests.runtime.stage import (
    Seen,
    on_a_server,
    on_servers,
    queue,
    slots_of,
    until,
    until_so,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from tests.lab.servers import Server


@pytest.fixture
async def mq(raw: Redis, server: Server) -> AsyncIterator[MessageQueue]:
    async with queue(server.url) as mq:
        yield mq


def sleeper(mq: MessageQueue, topic: str = "t", **options: Any) -> list[Any]:
    """Declare a handler that sleeps for a minute; return what it was called with."""
    running: list[Any] = []

    @mq.handler(topic, **options)
    async def sleep(payload: Any) -> None:
        running.append(payload)
        await asyncio.sleep(60)

    return running


# drain


@on_a_server
async def test_draining_an_empty_queue_ends_at_once(mq: MessageQueue) -> None:
    @mq.handler("t")
    async def handle(payload: int) -> None: ...

    begun = time.monotonic()
    assert await Worker(mq).drain() == Drained()
    assert time.monotonic() - begun < 3


@on_servers
async def test_draining_handles_everything_that_is_pending_and_counts_it(
    mq: MessageQueue,
) -> None:
    @mq.handler("t", max_attempts=2, retry=0)
    async def handle(payload: int, delivery: Delivery) -> None:
        if payload == 1 or (payload == 2 and delivery.attempt == 1):
            raise ValueError

    @mq.handler("u")
    async def typed(payload: int) -> None: ...

    await mq.produce_many("t", range(100))
    await mq.produce("u", "not a number")
    drained = await Worker(mq).drain(delayed=True)
    assert drained == Drained(completed=99, retried=2, dead=1, quarantined=1)


@on_a_server
async def test_draining_leaves_what_is_delayed_unless_it_shall_wait_for_it(
    mq: MessageQueue,
) -> None:
    handled = []

    @mq.handler("t")
    async def handle(payload: int) -> None:
        handled.append(payload)

    id = await mq.produce("t", 1, delay=3600)
    await mq.produce("t", 2)
    assert await Worker(mq).drain() == Drained(completed=1)
    assert handled == [2]
    assert await mq.admin.cancel("t", id)
    await mq.produce("t", 3, delay=0.8)
    assert await Worker(mq).drain(delayed=True) == Drained(completed=1)
    assert handled == [2, 3]


@on_a_server
async def test_draining_goes_on_to_what_a_handler_produces(mq: MessageQueue) -> None:
    @mq.handler("first")
    async def first(payload: int) -> None:
        await mq.produce("second", payload)

    @mq.handler("second")
    async def second(payload: int) -> None:
        if payload:
            await mq.produce("first", payload - 1)

    await mq.produce("first", 20)
    assert (await Worker(mq).drain()).completed == 42


@on_a_server
async def test_draining_never_overlooks_a_message_that_moves_to_a_topic_counted_before(
    mq: MessageQueue,
) -> None:
    @mq.handler("a")
    async def to_z(payload: int) -> None:
        if payload:
            await mq.produce("z", payload - 1)

    for number in range(40):
        mq.handler(f"between-{number}")(to_z)

    @mq.handler("z")
    async def to_a(payload: int) -> None:
        await mq.produce("a", payload)

    completed = []
    for _ in range(10):
        await mq.produce("z", 20)
        completed.append((await Worker(mq).drain()).completed)
    assert completed == [42] * 10


@on_a_server
async def test_draining_does_not_wait_for_a_paused_topic(mq: MessageQueue) -> None:
    @mq.handler("t")
    async def handle(payload: int) -> None: ...

    await mq.produce("t", 1)
    await mq.admin.pause("t")
    assert await Worker(mq).drain() == Drained()
    await mq.admin.resume("t")
    assert await Worker(mq).drain() == Drained(completed=1)


@on_a_server
async def test_a_worker_opens_and_closes_a_queue_that_is_not_open(
    raw: Redis, server: Server
) -> None:
    mq = MessageQueue(server.url)
    handled = []

    @mq.handler("t")
    async def handle(payload: int) -> None:
        handled.append(payload)

    async with mq:
        await mq.produce("t", 1)
    assert (await Worker(mq).drain()).completed == 1
    assert not mq.is_open
    assert handled == [1]


@on_a_server
async def test_a_worker_runs_while_an_asgi_application_does(raw: Redis, server: Server) -> None:
    mq = MessageQueue(server.url)

    @mq.handler("t", result_ttl=60)
    async def handle(payload: int) -> int:
        return payload + 1

    worker = Worker(mq)
    for number in range(2):
        async with worker.run_in_app(object()):
            id = await mq.produce("t", number)
            assert await mq.result("t", id, timeout=30) == number + 1
        assert not mq.is_open


@on_servers
async def test_thousands_are_handled_once_each_by_two_workers(mq: MessageQueue) -> None:
    handled: list[int] = []

    @mq.handler("t")
    async def handle(payload: int) -> None:
        handled.append(payload)

    await mq.produce_many("t", range(5000))
    first, _ = await asyncio.gather(Worker(mq).drain(), Worker(mq).drain())
    assert sorted(handled) == list(range(5000))
    assert first.completed >= 5000  # both hear the same events


# what is refused


def test_only_a_queue_has_a_worker() -> None:
    wrong: Any = 5
    with pytest.raises(InvalidInput, match=r"^Worker takes a MessageQueue, not 5$"):
        Worker(wrong)


async def test_a_queue_without_handlers_is_refused(tmp_path: Path) -> None:
    mq = MessageQueue(f"unix://{tmp_path}/none.sock")
    with pytest.raises(InvalidInput, match=r"@mq\.handler"):
        await Worker(mq).start()


async def test_a_topic_without_a_handler_is_refused_by_name(tmp_path: Path) -> None:
    mq = MessageQueue(f"unix://{tmp_path}/none.sock")
    sleeper(mq, "known")
    with pytest.raises(InvalidInput, match=r"'unknown'.*known"):
        await Worker(mq, topics=["known", "unknown"]).start()


@pytest.mark.parametrize(
    "options",
    [{"concurrency": 0}, {"grace": -1}, {"prefetch": -1}, {"name": "a b"}, {"topics": []}],
)
async def test_a_bad_setting_is_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Worker(MessageQueue("redis://x"), **options)


@on_a_server
async def test_a_worker_runs_once_at_a_time_and_again_after_it_was_stopped(
    mq: MessageQueue,
) -> None:
    sleeper(mq)
    worker = Worker(mq)
    async with worker:
        with pytest.raises(InvalidInput, match="already running"):
            await worker.start()
        with pytest.raises(InvalidInput, match="already running"):
            await worker.drain()
    async with worker:
        pass


@on_a_server
async def test_of_two_starts_at_once_one_is_refused(mq: MessageQueue) -> None:
    sleeper(mq)
    worker, seen = Worker(mq), Seen(mq.events)
    results = await asyncio.gather(worker.start(), worker.start(), return_exceptions=True)
    await worker.stop()
    left = len(seen.of(events.WorkerStarted)) - len(seen.of(events.WorkerStopped))
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        if task.get_name().startswith("mx-rmq"):
            task.cancel()
    assert left == 0
    assert [type(result) for result in results].count(InvalidInput) == 1


@on_a_server
async def test_a_drain_of_a_running_worker_does_not_stop_it(mq: MessageQueue) -> None:
    @mq.handler("t")
    async def handle(payload: int) -> None: ...

    seen = Seen(mq.events)
    async with Worker(mq) as worker:
        with pytest.raises(InvalidInput):
            await worker.drain()
        assert seen.of(events.WorkerStopping) == []
        await mq.produce("t", 1)
        await seen.wait(events.Completed)


async def test_a_server_that_is_away_at_the_start_is_told(tmp_path: Path) -> None:
    mq = MessageQueue(f"unix://{tmp_path}/none.sock", patience=0.2)
    sleeper(mq)
    worker = Worker(mq)
    for _ in range(2):
        with pytest.raises(ServerUnavailable):
            await worker.start()
    assert await worker.stop()


@on_a_server
async def test_a_worker_works_on_the_topics_that_it_was_given(mq: MessageQueue) -> None:
    handled = []

    async def handle(payload: int) -> None:
        handled.append(payload)

    mq.handler("a")(handle)
    mq.handler("b")(handle)
    await mq.produce("a", 1)
    await mq.produce("b", 2)
    await Worker(mq, topics=["b"]).drain()
    assert handled == [2]


# stopping


@on_a_server
async def test_stopping_lets_handlers_finish_within_the_grace(mq: MessageQueue) -> None:
    seen, running, go = Seen(mq.events), asyncio.Event(), asyncio.Event()

    @mq.handler("t")
    async def handle(payload: int) -> None:
        running.set()
        await go.wait()

    await mq.produce("t", 1)
    worker = Worker(mq, grace=60)
    await worker.start()
    await running.wait()
    stopping = asyncio.create_task(worker.stop())
    await seen.wait(events.WorkerStopping)
    await asyncio.sleep(0.1)
    assert not stopping.done()
    go.set()
    assert await asyncio.wait_for(stopping, 30) is True
    assert len(seen.of(events.Completed)) == 1
    assert seen.of(events.WorkerStopped)[0].clean


@on_servers
async def test_past_the_grace_handlers_are_cancelled_and_handed_back_uncounted(
    mq: MessageQueue,
) -> None:
    running, seen = sleeper(mq), Seen(mq.events)
    ids = await mq.produce_many("t", range(5))
    worker = Worker(mq, grace=0.1)
    await worker.start()
    await until(lambda: len(running) == 5)
    assert await asyncio.wait_for(worker.stop(), 30) is True  # they would sleep for a minute
    assert {event.id for event in seen.of(events.Released)} == set(ids)
    page = await mq.admin.list("t", State.PENDING)
    assert [(view.attempts, view.crashes) for view in page.messages] == [(0, 0)] * 5
    assert [view.id for view in page.messages] == ids


@on_a_server
async def test_what_waits_for_a_slot_is_handed_back_at_once(mq: MessageQueue) -> None:
    running = sleeper(mq)
    await mq.produce_many("t", range(30))
    worker = Worker(mq, concurrency=2, grace=0)
    await worker.start()
    await until(lambda: len(running) == 2)
    assert await worker.stop()
    assert (await mq.admin.stats("t")).pending == 30


@on_a_server
async def test_what_waits_for_a_slot_is_handed_back_to_its_own_level_while_handlers_finish(
    mq: MessageQueue, raw: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Slots, "ahead", lambda self, topic: 10)
    monkeypatch.setattr(consumer, "WAIT_HERE", 60.0)
    seen, runs, go = Seen(mq.events), [], asyncio.Event()

    @mq.handler("t")
    async def handle(payload: str) -> None:
        runs.append(payload)
        await go.wait()

    worker = Worker(mq, concurrency=1, grace=60)
    await worker.start()
    await mq.produce("t", "first")
    await until(lambda: runs)
    ids = [await mq.produce("t", level, priority=level) for level in Priority]
    await until(lambda: slots_of(worker).waiting == len(ids))
    stopping = asyncio.create_task(worker.stop())
    await seen.wait(events.Released, len(ids))
    go.set()
    assert await asyncio.wait_for(stopping, 30) is True
    assert runs == ["first"]
    found = await snapshot(raw, "t")
    assert [found.high, found.normal, found.low] == [[id] for id in ids]


@on_a_server
async def test_a_second_wish_to_stop_does_not_wait_for_the_grace(mq: MessageQueue) -> None:
    running = sleeper(mq)
    await mq.produce("t", 1)
    worker = Worker(mq, grace=60)
    await worker.start()
    await until(lambda: running)
    stopping = asyncio.create_task(worker.stop())
    await asyncio.sleep(0.05)
    assert not stopping.done()
    worker.cancel()
    assert await asyncio.wait_for(stopping, 30)
    assert (await mq.admin.stats("t")).pending == 1


@on_a_server
async def test_stopping_twice_at_once_is_one_stop(mq: MessageQueue) -> None:
    sleeper(mq)
    seen = Seen(mq.events)
    worker = Worker(mq)
    await worker.start()
    assert all(await asyncio.gather(worker.stop(), worker.stop()))
    assert await worker.stop()
    assert len(seen.of(events.WorkerStopped)) == 1


@on_a_server
async def test_a_handler_that_ignores_its_cancellation_is_handed_back_all_the_same(
    mq: MessageQueue,
) -> None:
    running, gate = [], asyncio.Event()

    @mq.handler("t")
    async def stubborn(payload: int) -> None:
        running.append(payload)
        while not gate.is_set():
            with suppress(asyncio.CancelledError):
                await gate.wait()

    await mq.produce("t", 1)
    worker = Worker(mq, grace=0)
    await worker.start()
    await until(lambda: running)
    assert await asyncio.wait_for(worker.stop(), 30)
    assert (await mq.admin.stats("t")).pending == 1
    gate.set()
    await asyncio.sleep(0.05)
    assert (await mq.admin.stats("t")).pending == 1


async def test_a_stop_is_not_clean_if_a_dispatch_was_cancelled_whose_answer_may_be_lost(
    mq: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, asked = Worker(mq), asyncio.Event()

    async def never_answers(*_: Any, **__: Any) -> None:
        asked.set()
        await asyncio.Event().wait()

    mq.handler("t")(lambda payload: None)
    await worker.start()
    monkeypatch.setattr(mq.store, "dispatch_message", never_answers)
    await mq.produce("t", 1)
    await asked.wait()
    for task in asyncio.all_tasks():
        if task.get_name() == "mx-rmq dispatch":
            task.cancel()
    await until(lambda: "mx-rmq dispatch" not in {task.get_name() for task in asyncio.all_tasks()})
    assert not await worker.stop()


@on_a_server
async def test_cancelling_a_stop_hurries_it_and_everything_is_still_handed_back(
    mq: MessageQueue,
) -> None:
    running = sleeper(mq)
    await mq.produce("t", 1)
    worker = Worker(mq, grace=60)
    await worker.start()
    await until(lambda: running)
    stopping = asyncio.create_task(worker.stop())
    await asyncio.sleep(0.05)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(stopping, 30)
    assert (await mq.admin.stats("t")).pending == 1


@on_a_server
async def test_a_stopped_worker_leaves_no_task_no_thread_and_no_name_behind(
    mq: MessageQueue,
) -> None:
    import threading

    @mq.handler("t")
    def handle(payload: int) -> None: ...

    seen, before = Seen(mq.events), set(threading.enumerate())
    async with Worker(mq, name="w1"):
        await mq.produce("t", 1)
        await seen.wait(events.Completed)
        assert [worker.name for worker in await mq.admin.workers()] == ["w1"]
    assert await mq.admin.workers() == []
    assert [task for task in asyncio.all_tasks() if task.get_name().startswith("mx-rmq")] == []

    def ours() -> list[str]:
        started = set(threading.enumerate()) - before
        return [one.name for one in started if one.name.startswith("mx-rmq")]

    await until(lambda: not ours())


@on_servers
async def test_what_a_stopping_worker_swallowed_wakes_another(mq: MessageQueue) -> None:
    seen = Seen(mq.events)

    @mq.handler("t")
    async def handle(payload: int) -> None: ...

    async with Worker(mq, name="stays"):
        for number in range(10):
            async with Worker(mq, name="goes"):
                await mq.produce("t", number)
            begun = time.monotonic()
            await seen.wait(events.Completed, number + 1)
            assert time.monotonic() - begun < 4  # else it was found by a look around


@on_a_server
async def test_a_worker_in_a_with_statement_installs_no_signal_handler(mq: MessageQueue) -> None:
    sleeper(mq)
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    async with Worker(mq):
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    await Worker(mq).drain()
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


@on_servers
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        pytest.param(
            signal.SIGINT,
        ),
    ],
)
async def test_run_works_until_a_signal_and_takes_its_handlers_away(
    mq: MessageQueue, number: signal.Signals
) -> None:
    before, seen = signal.getsignal(number), Seen(mq.events)

    @mq.handler("t")
    async def handle(payload: int) -> None: ...

    running = asyncio.create_task(Worker(mq).run())
    await mq.produce("t", 1)
    await seen.wait(events.Completed)
    os.kill(os.getpid(), number)
    assert await asyncio.wait_for(running, 10) is True
    assert signal.getsignal(number) == before


@on_a_server
async def test_a_second_signal_cancels_the_handlers(mq: MessageQueue) -> None:
    running, seen = sleeper(mq), Seen(mq.events)
    task = asyncio.create_task(Worker(mq, grace=60).run())
    await mq.produce("t", 1)
    await until(lambda: running)
    os.kill(os.getpid(), signal.SIGTERM)
    await seen.wait(events.WorkerStopping)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(task, 10) is True
    assert len(seen.of(events.Released)) == 1


@on_a_server
async def test_cancelling_run_hands_everything_back(mq: MessageQueue) -> None:
    running = sleeper(mq)
    task = asyncio.create_task(Worker(mq, grace=0).run())
    await mq.produce("t", 1)
    await until(lambda: running)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 10)
    assert (await mq.admin.stats("t")).pending == 1


@on_a_server
async def test_a_plain_handler_that_never_returns_does_not_keep_its_process_alive(
    mq: MessageQueue, server: Server
) -> None:
    script = f"""
        import asyncio, time
        from mx_rmq import MessageQueue, Worker
        mq = MessageQueue({server.url!r})

        @mq.handler("t")
        def handle(payload):
            print("runs", flush=True)
            time.sleep(120)

        asyncio.run(Worker(mq, grace=0).run())
    """
    await mq.produce("t", 1)
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == b"runs\n"
        process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(process.wait, 60)
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    assert (await mq.admin.stats("t")).pending == 1


@on_a_server
async def test_a_handler_cannot_stop_its_own_worker(mq: MessageQueue) -> None:
    """It would wait for itself until the grace is over."""
    seen, refused = Seen(mq.events), []
    worker = Worker(mq, grace=1)

    @mq.handler("t")
    async def handle(payload: int) -> None:
        with pytest.raises(InvalidInput, match="its own worker"):
            await worker.stop()
        refused.append(payload)

    async with worker:
        await mq.produce_many("t", [1, 2])
        await seen.wait(events.Completed, 2)
        assert seen.of(events.WorkerStopping) == []
    assert refused == [1, 2]


@on_a_server
async def test_closing_the_queue_stops_its_workers(mq: MessageQueue, server: Server) -> None:
    other = MessageQueue(server.url)
    running, seen = sleeper(other), Seen(other.events)
    await other.open()
    workers = [Worker(other, grace=0, name=name) for name in ("w1", "w2")]
    for worker in workers:
        await worker.start()
    await mq.produce("t", 1)
    await until(lambda: running)
    await other.close()
    assert not other.is_open
    assert len(seen.of(events.WorkerStopped, clean=True)) == 2
    assert other.on_close == []
    assert (await mq.admin.stats("t")).pending == 1
    assert await mq.admin.workers() == []
    assert [await worker.stop() for worker in workers] == [True, True]
    assert [task for task in asyncio.all_tasks() if task.get_name().startswith("mx-rmq")] == []


@on_a_server
async def test_a_handler_cannot_close_the_queue_under_its_own_worker(mq: MessageQueue) -> None:
    seen = Seen(mq.events)

    @mq.handler("t")
    async def handle(payload: int) -> None:
        with pytest.raises(InvalidInput, match="its own worker"):
            await mq.close()

    async with Worker(mq):
        for number in range(2):
            await mq.produce("t", number)
            await seen.wait(events.Completed, number + 1)
        assert mq.is_open


@on_a_server
async def test_a_handler_that_outlives_its_worker_leaves_no_task_behind(
    mq: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "STEP_WITHIN", 0.1)
    monkeypatch.setattr(engine, "CANCEL_AGAIN_WITHIN", 0.1)
    running, go_on, loop = asyncio.Event(), threading.Event(), asyncio.get_running_loop()

    @mq.handler("t")
    def wait(payload: int, delivery: Delivery) -> None:
        loop.call_soon_threadsafe(running.set)
        try:
            go_on.wait()  # an interrupt has no effect before this returns
        finally:
            delivery.progress(0.5)

    before = asyncio.all_tasks()
    async with Worker(mq, grace=0):
        await mq.produce("t", 1)
        await running.wait()
    assert asyncio.all_tasks() > before  # its consumer waits for the thread
    go_on.set()
    await until(lambda: asyncio.all_tasks() == before)


@on_a_server
async def test_a_handler_that_swallows_its_cancellation_is_cancelled_again(
    mq: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "STEP_WITHIN", 0.5)
    running, swallowed = [], []

    @mq.handler("t")
    async def handle(payload: int) -> None:
        running.append(payload)
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        swallowed.append(payload)
        await asyncio.sleep(60)

    await mq.produce("t", 1)
    worker = Worker(mq, grace=0)
    await worker.start()
    await until(lambda: running)
    assert await worker.stop()
    assert swallowed == [1]
    assert [task for task in asyncio.all_tasks() if task.get_name() == "mx-rmq consumer"] == []
    assert (await mq.admin.stats("t")).pending == 1


@on_servers
async def test_children_that_handlers_fork_end_and_each_message_is_handled_once(
    mq: MessageQueue, server: Server
) -> None:
    script = f"""
        import asyncio, os, sys
        from mx_rmq import Delivery, MessageQueue, Worker
        mq = MessageQueue({server.url!r})

        def fork(how):
            child = os.fork()
            if child:
                code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                os.write(1, (how + " " + str(code) + chr(10)).encode())  # whole, from any thread
            elif how == "exit":
                sys.exit(3)
            elif how == "raise":
                raise ValueError

        @mq.handler("async", concurrency=1, max_attempts=1)
        async def handle(payload: str):
            fork(payload)

        @mq.handler("plain", concurrency=1, max_attempts=1)
        def handle_plain(payload: str):
            fork(payload)

        print(asyncio.run(Worker(mq).drain()))
    """
    for topic in ("async", "plain"):
        await mq.produce_many(topic, ["return", "exit", "raise"])
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script)],
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    try:
        output, _ = await asyncio.to_thread(process.communicate, timeout=60)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its children, too
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    *ended, drained = output.splitlines()
    assert sorted(ended) == sorted(["return 0", "exit 0", "raise 0"] * 2)
    assert drained == str(Drained(completed=6))


# idle


@on_a_server
async def test_an_idle_worker_asks_for_almost_nothing(
    raw: Redis, server: Server, tmp_path: Path
) -> None:
    async with (
        Proxy(server.socket, tmp_path / "p.sock") as proxy,
        queue(proxy.url, lease=30) as mq,
    ):
        for number in range(5):
            sleeper(mq, f"t{number}")
        async with Worker(mq):
            requests = -1
            while requests != len(proxy.requests):  # what it asks at its start is over
                requests = len(proxy.requests)
                await asyncio.sleep(0.5)
            await asyncio.sleep(6)
            assert len(proxy.requests) - requests <= 0.5 * 6


@on_servers
async def test_an_idle_worker_wakes_within_a_moment(mq: MessageQueue) -> None:
    handled: list[float] = []

    @mq.handler("t")
    async def handle(payload: int) -> None:
        handled.append(time.monotonic())

    async with Worker(mq):
        await asyncio.sleep(0.3)
        delays = []
        for number in range(20):
            await asyncio.sleep(0.02)
            begun = time.monotonic()
            await mq.produce("t", number)
            await until(lambda number=number: len(handled) == number + 1)  # type: ignore[misc]
            delays.append(handled[-1] - begun)
        assert sorted(delays)[10] < 0.1
        assert max(delays) < 4  # else it was found by a look around


# beside others


@on_a_server
async def test_a_slow_topic_does_not_hold_up_the_others(mq: MessageQueue) -> None:
    running = sleeper(mq, "slow")
    handled = []

    @mq.handler("fast")
    async def handle(payload: int) -> None:
        handled.append(payload)

    await mq.produce_many("slow", range(100))
    async with Worker(mq, concurrency=4, grace=0):
        await until(lambda: len(running) == 3)
        await mq.produce_many("fast", range(50))
        await until(lambda: len(handled) == 50)
        assert len(running) == 3


@on_a_server
async def test_a_topic_of_which_nothing_runs_gets_its_slot_beside_busy_ones(
    mq: MessageQueue,
) -> None:
    """Seven topics on eight slots: two stay free for the five that rest."""
    running: list[str] = []
    gate = asyncio.Event()
    for name in "cdefg":
        sleeper(mq, name)

    async def handle(payload: str) -> None:
        running.append(payload)
        await (gate.wait() if payload == "a0" else asyncio.sleep(60))

    mq.handler("a")(handle)
    mq.handler("b")(handle)
    async with Worker(mq, concurrency=8, grace=0) as worker:
        slots = slots_of(worker)
        for number, payload in enumerate(("a0", "b0", "b1", "b2", "b3", "b4"), 1):
            await mq.produce(payload[0], payload)
            await until(lambda number=number: len(running) == number)  # type: ignore[misc]
        await mq.produce_many("b", ["b5"])
        await mq.produce_many("a", ["a1"])
        gate.set()
        await until(lambda: "b5" in running)
        assert slots.running < 8
        await until(lambda: "a1" in running, within=4)  # else it was found by a look around


@on_servers
async def test_messages_of_a_killed_worker_are_taken_over_by_another(
    mq: MessageQueue, server: Server
) -> None:
    async with MessageQueue(server.url, lease=0.5) as short:
        await short.store.register_topics({"t": 1})
        id = await mq.produce("t", 1)
        await short.store.dispatch_message("t", "killed", count=1, lease=300)
        seen = Seen(short.events)

        @short.handler("t")
        async def handle(payload: int, delivery: Delivery) -> None:
            assert delivery.attempt == 2

        async with Worker(short):
            await seen.wait(events.Completed, id=id)
        assert seen.of(events.TakenOver)[0].lost_by == "killed"


@on_servers
async def test_a_worker_carries_on_after_the_server_was_away(
    raw: Redis, server: Server, tmp_path: Path
) -> None:
    proxy = Proxy(server.socket, tmp_path / "p.sock")
    async with proxy, queue(proxy.url, patience=0.5) as mq:
        seen = Seen(mq.events)

        @mq.handler("t")
        async def handle(payload: int) -> None: ...

        async with Worker(mq), MessageQueue(server.url) as direct:
            await mq.produce("t", 1)
            await seen.wait(events.Completed)
            await proxy.close()
            await seen.wait(events.ServerLost)
            await direct.produce("t", 2)
            await proxy.__aenter__()
            await seen.wait(events.ServerBack)
            await seen.wait(events.Completed, 2)
        assert len(seen.of(events.ServerLost)) == 1


@on_servers
async def test_a_cron_is_fired_and_handled_by_a_worker(mq: MessageQueue) -> None:
    ticks = []

    @mq.cron("* * * * * *")
    async def every_second(delivery: Delivery) -> None:
        ticks.append(delivery.headers["cron-tick"])

    async with Worker(mq), Worker(mq):
        await until(lambda: len(ticks) >= 3)
    assert len(set(ticks)) == len(ticks)
    await Worker(mq).drain()


@on_a_server
async def test_a_topic_is_registered_before_anything_is_produced_to_it(mq: MessageQueue) -> None:
    sleeper(mq, "new")
    async with Worker(mq):

        async def known() -> bool:
            return "new" in await mq.admin.topics()

        await until_so(known)


@on_a_server
async def test_what_waits_for_a_slot_for_a_second_is_run_by_another_worker_uncounted(
    mq: MessageQueue, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = 5
    monkeypatch.setattr(Slots, "ahead", lambda self, topic: ahead)
    seen, gate = Seen(mq.events), asyncio.Event()
    ran: list[tuple[str, int, int]] = []

    @mq.handler("t")
    async def slow(payload: int, delivery: Delivery) -> None:
        ran.append(("slow", payload, delivery.attempt))
        await gate.wait()

    async with MessageQueue(server.url) as other:

        @other.handler("t")
        async def quick(payload: int, delivery: Delivery) -> None:
            ran.append(("quick", payload, delivery.attempt))

        await mq.produce_many("t", range(6))
        async with Worker(mq, concurrency=1, grace=1) as worker:
            await until(lambda: slots_of(worker).waiting == 5)
            ahead = 0
            async with Worker(other):
                await until(lambda: len(ran) == 6)
            gate.set()
            await seen.wait(events.Completed)
        assert sorted(ran) == [*(("quick", number, 1) for number in range(1, 6)), ("slow", 0, 1)]
        assert len(seen.of(events.Released)) == 5


# the beginning and the end, at odd moments


@on_a_server
async def test_stopping_does_not_wait_for_the_default_executor(mq: MessageQueue) -> None:
    release = threading.Event()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))

    @mq.handler("t")
    async def handle(payload: int) -> None: ...

    worker = Worker(mq, grace=0)
    await worker.start()
    blocking = loop.run_in_executor(None, release.wait)
    try:
        async with asyncio.timeout(5):
            assert await worker.stop()
    finally:
        release.set()
        await blocking


def test_nothing_of_ours_runs_in_the_default_executor() -> None:
    allowed = {
        "cli/confirm.py": "an editor, while nothing else runs",
        "testing/use_in_tests.py": "a test's server, before and after the test",
    }
    package = Path(mx_rmq.__file__).parent
    found = {
        str(file.relative_to(package))
        for file in package.rglob("*.py")
        if re.search(r"to_thread\(|run_in_executor\(", file.read_text(encoding="utf-8"))
    }
    assert found == allowed.keys()


@on_a_server
async def test_who_stops_a_worker_that_is_starting_finds_it_stopped(
    mq: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    @mq.handler("t")
    async def handle(payload: int) -> None: ...

    entered, leave = asyncio.Event(), asyncio.Event()
    original = engine.Engine.beat

    async def beat(self: engine.Engine) -> float:
        entered.set()
        await leave.wait()
        return await original(self)

    monkeypatch.setattr(engine.Engine, "beat", beat)
    worker = Worker(mq)
    starting = asyncio.create_task(worker.start())
    await entered.wait()
    stopping = asyncio.create_task(worker.stop())
    await asyncio.sleep(0)
    assert not stopping.done()
    leave.set()
    assert await stopping
    await starting
    assert worker._engine is None
    assert not [one for one in threading.enumerate() if one.name == "mx-rmq-keeper"]


@on_a_server
def test_a_worker_that_ends_with_its_event_loop_leaves_no_thread_and_can_start_again(
    server: Server,
) -> None:
    mq = MessageQueue(server.url, prefix="abandoned")
    done = []

    @mq.handler("t")
    async def handle(payload: int) -> None:
        done.append(payload)

    worker = Worker(mq)
    asyncio.run(worker.start())  # and nobody stops it
    keepers = [one for one in threading.enumerate() if one.name == "mx-rmq-keeper"]
    for keeper in keepers:
        keeper.join(10)
        assert not keeper.is_alive()
    assert not mq.is_open

    async def again(worker: Worker) -> None:
        async with worker:
            await mq.produce("t", len(done))
            await until(lambda: len(done) == before + 1)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # sockets of a loop that is no more
        for one in (Worker(mq), worker):
            before = len(done)
            asyncio.run(again(one))
        gc.collect()
    assert done == [0, 1]
