"""Parts of a worker that end without being told to: they are restarted, or the worker fails."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import Delivery, Middleware, Worker, WorkerBroken
from mx_rmq.core import events
from mx_rmq.doctor.finding import Severity
from mx_rmq.doctor.queue import check_queue
from mx_rmq.runtime import watchdog
from mx_rmq.runtime.watchdog import MAX_RESTARTS, Watchdog
from mx_rmq.store.store import Store
from tests.runtime.stage import Seen, on_a_server, queue, until, until_so

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from redis.asyncio import Redis

    from mx_rmq.core.middleware import Handle
    from tests.lab.servers import Server

pytestmark = on_a_server

LOOPS = (
    "abort listener",
    "doorbell listener",
    "survey",
    "scheduler",
    "monitor",
    "crons",
    "janitor",
    "registry",
)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watchdog that looks often and restarts soon."""
    monkeypatch.setattr(watchdog, "CHECK_EVERY", 0.02)
    monkeypatch.setattr(watchdog, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(watchdog, "LONGEST_PAUSE", 0.02)


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Let no thread start, as at a limit of processes, until told otherwise."""
    start = threading.Thread.start
    refused = True

    def refuse(self: threading.Thread) -> None:
        if refused and self.name.startswith("mx-rmq"):
            raise RuntimeError("can't start new thread")
        start(self)

    def set_refused(now: bool) -> None:
        nonlocal refused
        refused = now

    monkeypatch.setattr(threading.Thread, "start", refuse)
    return set_refused


@pytest.fixture
def broken_logging() -> Iterator[None]:
    """A filter of the application that raises at every record."""

    def refuse(record: logging.LogRecord) -> bool:
        raise asyncio.CancelledError

    handler = logging.StreamHandler()
    handler.addFilter(refuse)
    logger = logging.getLogger("mx_rmq")
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)


def tasks_of(name: str) -> list[asyncio.Task[Any]]:
    """Return the living tasks of a part."""
    return [task for task in asyncio.all_tasks() if task.get_name() == f"mx-rmq {name}"]


def cancel_all_tasks() -> None:
    """Do as applications do that shut down by cancelling whatever there is."""
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


@pytest.mark.parametrize("name", LOOPS)
async def test_a_loop_that_was_cancelled_is_restarted(
    name: str, raw: Redis, server: Server, quick: None
) -> None:
    async with queue(server.url) as mq:
        seen = Seen(mq.events)
        mq.cron("0 0 1 1 *", topic="t")(lambda: None)
        async with Worker(mq) as worker:
            await until(lambda: tasks_of(name))
            tasks_of(name)[0].cancel()
            died = await seen.one(events.PartDied, part=name)
            assert died.error == "it was cancelled"
            await seen.one(events.PartRestarted, part=name)
            await until(lambda: tasks_of(name))
            assert worker.trouble == ""
            await mq.produce("t", None)
            await seen.wait(events.Completed)


async def test_every_part_is_watched_under_its_name(raw: Redis, server: Server) -> None:
    async with queue(server.url) as mq:
        mq.cron("0 0 1 1 *", topic="t")(lambda: None)
        async with Worker(mq) as worker:
            assert worker._engine is not None
            watched = worker._engine.watchdog._parts
            assert sorted(part.name for part in watched) == sorted(events.PARTS)


async def test_a_worker_survives_that_all_tasks_are_cancelled(
    raw: Redis, server: Server, quick: None
) -> None:
    async with queue(server.url, lease=1.0) as mq:
        seen = Seen(mq.events)
        done: set[int] = set()

        @mq.handler("t", retry=0.01, max_attempts=50)
        async def handle(payload: int) -> None:
            await asyncio.sleep(0.01)
            done.add(payload)

        async with Worker(mq, concurrency=5):
            for first in range(0, 300, 50):
                await mq.produce_many("t", range(first, first + 50))
                await until(lambda: max(done, default=0) > first)  # noqa: B023 - of this round
                cancel_all_tasks()
                await asyncio.sleep(0.1)
            await until(lambda: len(done) == 300)
        assert {event.part for event in seen.of(events.PartDied)} >= {"doorbell listener", "survey"}


async def test_consumers_that_are_cancelled_before_they_begin_are_replaced(
    raw: Redis, server: Server, quick: None
) -> None:
    async with queue(server.url) as mq:
        seen = Seen(mq.events)
        mq.handler("t")(lambda payload: None)
        async with Worker(mq) as worker:
            assert worker._engine is not None
            consumer = worker._engine.consumer
            for _ in range(10):  # more often than consumers are woken at once
                consumer._start_consumer()
                consumer._woken += 1
                for task in list(consumer._starting):
                    task.cancel()
                await until(lambda: not consumer._starting)
            assert consumer._woken == 0
            await mq.produce("t", 1)
            await seen.wait(events.Completed)


async def test_a_part_that_keeps_dying_lets_the_worker_fail(
    raw: Redis, server: Server, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with queue(server.url) as mq:
        seen = Seen(mq.events)
        mq.handler("t")(lambda payload: None)

        async def die(self: Store, topics: list[str]) -> Any:
            raise asyncio.CancelledError

        worker = Worker(mq, name="w1")
        running = asyncio.create_task(worker.run())
        await seen.one(events.WorkerStarted)
        with monkeypatch.context() as patch:
            patch.setattr(Store, "survey_topics", die)
            worker._engine._sites[0].check_now()  # type: ignore[union-attr]
            await until(lambda: "the survey is down" in worker.trouble)
            failed = await seen.one(events.WorkerFailed)
            with pytest.raises(WorkerBroken, match="the survey was restarted 10 times"):
                await running
        assert failed.worker == "w1"
        assert len(seen.of(events.PartDied, part="survey")) <= MAX_RESTARTS + 1
        assert "the worker has failed" in worker.trouble
        assert await mq.admin.workers() == []


async def test_a_part_that_lived_long_gets_all_its_restarts_again(
    quick: None, monkeypatch: pytest.MonkeyPatch, raw: Redis, server: Server
) -> None:
    monkeypatch.setattr(watchdog, "LONG_LIFE", 0.0)
    failed: list[str] = []

    class Mortal:
        name = "mortal"
        alive = True

        def down(self) -> str:
            return "" if self.alive else "dead"

        def start(self) -> None:
            self.alive = True

    async with queue(server.url) as mq:
        part = Mortal()
        dog = Watchdog(
            "w", mq.events, on_check=lambda: None, on_change=lambda: None, on_failed=failed.append
        )
        dog.watch(part)
        for _ in range(3 * MAX_RESTARTS):
            part.alive = False
            dog.check()
            assert dog.down() == {"mortal": "dead"}
            dog.check()
            dog.check()
            assert not dog._records
    assert failed == []


async def test_nothing_is_restarted_when_the_loop_ends(raw: Redis, server: Server) -> None:
    before = threading.active_count()

    def lose_worker() -> list[str]:
        loop_ended: list[str] = []

        async def main() -> None:
            async with queue(server.url, audit=False) as mq:
                mq.handler("t")(lambda payload: time.sleep(60))
                mq.events.subscribe(lambda event: loop_ended.append(event.part), events.PartDied)
                await mq.produce("t", 1)
                worker = Worker(mq)
                await worker.start()
                await until(lambda: worker.running)
                mq.on_close.clear()  # so that nobody stops it
                worker._engine._lease_keeper._thread.must_end = True  # type: ignore[union-attr]

        asyncio.run(main())
        return loop_ended

    began = time.monotonic()
    assert await asyncio.to_thread(lose_worker) == []
    assert time.monotonic() - began < 20
    assert threading.active_count() <= before + 4


# the lease keeper


async def test_a_keeper_that_cannot_begin_lets_the_worker_not_start(
    raw: Redis, server: Server, no_threads: Callable[[bool], None]
) -> None:
    async with queue(server.url) as mq:
        mq.handler("t")(lambda payload: None)
        with pytest.raises(WorkerBroken, match=r"lease keeper could not start.*start new thread"):
            await Worker(mq).start()


async def test_a_keeper_without_a_file_descriptor_lets_the_worker_not_start(
    raw: Redis, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = asyncio.new_event_loop

    def refuse() -> asyncio.AbstractEventLoop:
        if threading.current_thread().name == "mx-rmq-keeper":
            raise OSError(24, "Too many open files")
        return new()

    async with queue(server.url) as mq:
        mq.handler("t")(lambda payload: None)
        monkeypatch.setattr(asyncio.events, "new_event_loop", refuse)
        with pytest.raises(WorkerBroken, match="Too many open files"):
            await Worker(mq).start()


async def test_a_keeper_that_dies_is_restarted_and_costs_nobody_a_lease(
    raw: Redis, server: Server, quick: None
) -> None:
    async with queue(server.url, lease=1.0) as mq:
        seen, runs = Seen(mq.events), []

        @mq.handler("t")
        async def handle(payload: int) -> None:
            runs.append(payload)
            await asyncio.sleep(2.5)

        await mq.produce("t", 1)
        async with Worker(mq) as worker, Worker(mq):
            await until(lambda: runs)
            for mine in (worker,):
                thread = mine._engine._lease_keeper._thread  # type: ignore[union-attr]
                assert thread is not None
                assert thread.loop is not None
                thread.loop.call_soon_threadsafe(thread.loop.stop)
            await seen.one(events.PartRestarted, part="lease keeper")
            await seen.wait(events.Completed)
        assert runs == [1]
        assert seen.of(events.TakenOver) == []


async def test_while_no_keeper_can_be_had_leases_are_kept_and_nothing_more_is_taken(
    raw: Redis, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "CHECK_EVERY", 0.02)
    monkeypatch.setattr(watchdog, "FIRST_PAUSE", 30.0)
    monkeypatch.setattr(watchdog, "LONGEST_PAUSE", 30.0)
    async with queue(server.url, lease=1.0) as mq:
        seen, runs = Seen(mq.events), Counter[int]()

        @mq.handler("t")
        async def handle(payload: int) -> None:
            runs[payload] += 1
            await asyncio.sleep(2.2 if payload == 1 else 0)

        async with Worker(mq) as worker:
            await mq.produce("t", 1)
            await until(lambda: runs)
            assert worker._engine is not None
            keeper = worker._engine._lease_keeper
            start = keeper.start

            def refuse() -> None:
                raise RuntimeError("can't start new thread")

            monkeypatch.setattr(keeper, "start", refuse)
            assert keeper._thread is not None
            assert keeper._thread.loop is not None
            keeper._thread.loop.call_soon_threadsafe(keeper._thread.loop.stop)
            await until(lambda: "lease keeper is down: RuntimeError" in worker.trouble)
            assert list(worker.down) == ["lease keeper"]

            async def is_told() -> bool:
                (view,) = await mq.admin.workers()
                return list(view.down) == ["lease keeper"]

            await until_so(is_told)
            found = await check_queue(mq.admin, audit=False)
            bad = [one.what for one in found if one.severity is Severity.BAD]
            assert any("its lease keeper is down: RuntimeError" in what for what in bad)
            await mq.produce("t", 2)
            await seen.wait(events.Completed)  # of the first, whose lease somebody kept
            assert runs == {1: 1}
            assert seen.of(events.LeaseLost) == []
            start()
            await until(lambda: not worker.trouble)
            await seen.wait(events.Completed, 2)
        assert runs == {1: 1, 2: 1}


async def test_a_log_call_that_raises_ends_neither_keeper_nor_loops(
    raw: Redis, server: Server, broken_logging: None
) -> None:
    async with queue(server.url, lease=0.6) as mq:
        seen, runs = Seen(mq.events), []

        @mq.handler("t", retry=0.01)
        async def handle(payload: int) -> None:
            runs.append(payload)
            if payload == 1 and len(runs) == 1:
                raise ValueError
            time.sleep(1.6)

        async with Worker(mq):
            await mq.produce("t", 1)
            await seen.one(events.LoopBlocked)
            await seen.wait(events.Completed)
        assert runs == [1, 1]
        assert seen.of(events.PartDied) == []


# handler threads


async def test_without_a_thread_messages_are_handed_back_uncounted_and_run_later(
    raw: Redis,
    server: Server,
    no_threads: Callable[[bool], None],
    quick: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watchdog, "LONGEST_PAUSE", 60.0)
    monkeypatch.setattr(watchdog, "FIRST_PAUSE", 60.0)
    async with queue(server.url) as mq:
        seen, attempts = Seen(mq.events), []

        @mq.handler("t", max_attempts=1)
        def handle(payload: int, delivery: Delivery) -> None:
            attempts.append(delivery.attempt)

        no_threads(False)
        async with Worker(mq, concurrency=4) as worker:
            no_threads(True)
            await mq.produce_many("t", range(20))
            await seen.wait(events.Released, 5)
            await until(lambda: "thread pool is down: RuntimeError: can't start" in worker.trouble)
            assert len(seen.of(events.Released)) < 200  # it does not spin
            no_threads(False)
            await seen.wait(events.Completed, 20)
            await until(lambda: not worker.trouble)
        assert attempts == [1] * 20
        assert seen.of(events.Retried) + seen.of(events.Died) == []


async def test_if_fewer_threads_can_be_had_than_slots_those_do_all_the_work(
    raw: Redis, server: Server, no_threads: Callable[[bool], None]
) -> None:
    async with queue(server.url) as mq:
        seen, names = Seen(mq.events), set()

        @mq.handler("t", timeout=0.5, max_attempts=1)
        def handle(payload: int) -> None:
            names.add(threading.current_thread().name)
            time.sleep(0.02)

        no_threads(False)
        async with Worker(mq, concurrency=20):
            await mq.produce("t", 0)
            await seen.wait(events.Completed)
            no_threads(True)
            await mq.produce_many("t", range(60))
            await seen.wait(events.Completed, 61)
        assert len(names) == 1
        assert seen.of(events.Died) == []


class Impatient(Middleware):
    """Gives every handler a moment."""

    async def handle(self, delivery: Delivery, call_next: Handle) -> Any:
        async with asyncio.timeout(0.1):
            return await call_next(delivery)


async def test_a_plain_handler_that_middleware_gives_up_has_left_before_its_slot_is_free(
    raw: Redis, server: Server
) -> None:
    async with queue(server.url, middleware=[Impatient()]) as mq:
        seen, inside, most, quick = Seen(mq.events), 0, 0, Counter[int]()

        @mq.handler("t", max_attempts=1, concurrency=2)
        def handle(payload: int) -> None:
            nonlocal inside, most
            inside += 1
            most = max(most, inside)
            try:
                time.sleep(0.3 if payload < 4 else 0)
                quick[payload] += 1
            finally:
                inside -= 1

        async with Worker(mq, concurrency=2):
            await mq.produce_many("t", range(24))
            await seen.wait(events.Completed, 20)
            await seen.wait(events.Died, 4)
        assert most == 2
        assert quick == Counter(range(4, 24))


# eager tasks


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
async def test_an_eager_task_factory_loses_no_slot(raw: Redis, server: Server) -> None:
    asyncio.get_running_loop().set_task_factory(
        asyncio.eager_task_factory  # type: ignore[attr-defined, unused-ignore]
    )
    async with queue(server.url) as mq:
        seen, gate = Seen(mq.events), asyncio.Event()

        @mq.handler("t")
        async def handle(payload: int) -> None:
            await gate.wait()

        async with Worker(mq, concurrency=400) as worker:
            await mq.produce_many("t", range(400))
            await until(lambda: worker.running == 400)
            gate.set()
            await seen.wait(events.Completed, 400)
            await until(lambda: worker.running == 0)
            await mq.produce_many("t", range(400))
            await seen.wait(events.Completed, 800)


@pytest.mark.parametrize("kinds", [(events.Completed,), (events.TakenOver, events.Retried)])
async def test_a_subscriber_that_raises_cancelled_error_loses_no_slot(
    kinds: tuple[type, ...], raw: Redis, server: Server
) -> None:
    async with queue(server.url, lease=0.5) as mq:
        seen = Seen(mq.events)

        def fail(event: Any) -> None:
            raise asyncio.CancelledError

        mq.events.subscribe(fail, *kinds)
        mq.handler("t", retry=0.01)(lambda payload: None)
        await mq.produce_many("t", range(5))
        await mq.store.dispatch_message("t", "gone", count=5, lease=50)
        async with Worker(mq, concurrency=2):
            await mq.produce_many("t", range(20))
            await seen.wait(events.Completed, 25)
        assert seen.of(events.PartDied) == []
