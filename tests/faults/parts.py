"""Parts of a worker are killed under load: each in turn, again and again, or all at once.

A life is a real queue and worker with its own event loop and thread. Its loops and tasks are
cancelled, exceptions are raised in its threads, no thread can start for a while, every log call and
a subscriber raise, or all tasks of the loop are cancelled. The same worker must restart what died,
handle every message and end holding none. In some lives one part is killed again and again: that
worker must fail, and another one handles what it left.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import random
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from mx_rmq import MessageQueue, Worker, WorkerBroken
from mx_rmq.core import events
from mx_rmq.core.message import State
from tests.faults.trial import Fault
from tests.lab.servers import Kind, Server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.faults.trial import Trial

LOOPS: Final = (
    "abort listener",
    "doorbell listener",
    "survey",
    "scheduler",
    "monitor",
    "crons",
    "janitor",
    "registry",
)
TASKS: Final = ("dispatch", "lifecycle", "consumer")
OTHERS: Final = ("keeper's task", "keeper's thread", "handler thread", "no threads", "all tasks")
KINDS: Final = (*LOOPS, *TASKS, *OTHERS)

LEASE: Final = 1.0
EACH: Final = 40
"""Kills in one life."""
ALL_AT_ONCE: Final = 3
"""At most how often all tasks are cancelled in one life: more would make the worker fail."""
MOMENTS: Final = 500
"""Turns of the loop to wait for a task of the kind."""
SIDE_BY_SIDE: Final = 4
BACKLOG: Final = 100
"""About how many messages wait."""
DOOMED: Final = 10
"""In one in this many lives a part is killed whenever it runs."""
WITHIN: Final = 120.0
"""Seconds in which a worker must have handled everything."""
PATIENCE: Final = 60.0
"""Seconds for which a call is repeated: on a busy machine the server may not answer."""


class Struck(BaseException):
    """Raised in threads from outside."""


class Life:
    """A worker whose parts are killed."""

    def __init__(self, trial: Trial, url: str, number: int, kills: int) -> None:
        self._trial = trial
        self._random = random.Random(f"{trial.seed} {number}")
        self._url = url
        self._name = f"life {number}"
        self._prefix = f"p{number}"
        self._kills = kills
        self._doomed = number % DOOMED == DOOMED - 1
        self._left: set[int] = set()
        self._inside: set[int] = set()
        self._numbers = iter(range(1_000_000))
        self._feeding = True
        self.counts: Counter[str] = Counter()
        self.violations: list[str] = []

    async def live(self) -> None:
        """Live, lose parts, and finish everything anyway."""
        async with self._queue() as mq:
            worker = Worker(mq, name=self._prefix, concurrency=8, grace=5)
            mq.events.subscribe(self._on_event)
            running = asyncio.create_task(worker.run())
            while worker._engine is None:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.01)
            feeding = asyncio.create_task(self._feed(mq))
            protected = {running, feeding, asyncio.current_task()}
            try:
                if self._doomed:
                    await self._doom(worker, running)
                else:
                    for _ in range(self._kills):
                        await self._kill(worker, protected)
                        await asyncio.sleep(self._random.uniform(0, 0.04))
            finally:
                self._feeding = False
                await feeding
            if self._doomed:
                await self._expect_failure(running)
                await self._settle(Worker(mq, name=f"{self._prefix}-next", concurrency=8))
            else:
                await self._settle(worker, running)
            for violation in await mq.admin.audit("work") + await mq.admin.audit("plain"):
                self._violated(f"audit: {violation}")
            for topic in ("work", "plain"):
                for state in (State.DEAD, State.QUARANTINED):
                    if (await mq.admin.list(topic, state)).messages:
                        self._violated(f"{topic} has {state} messages")

    # killing

    async def _kill(self, worker: Worker, protected: set[Any]) -> None:
        """Kill one running part."""
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            kind = self._random.choice(KINDS)
            if kind == "all tasks" and self.counts[kind] == ALL_AT_ONCE:
                continue
            for _ in range(MOMENTS if kind in TASKS else 1):  # they run only for a moment
                if self._strike(worker, kind, protected):
                    self.counts[kind] += 1
                    return
                await asyncio.sleep(0)
            await asyncio.sleep(0.005)
        self._violated(f"no part lived for five seconds: {worker.trouble}")

    def _strike(self, worker: Worker, kind: str, protected: set[Any]) -> bool:
        engine = worker._engine
        if engine is None:
            return False
        if kind in LOOPS or kind in TASKS:
            tasks = [one for one in asyncio.all_tasks() if one.get_name() == f"mx-rmq {kind}"]
            return bool(tasks) and self._random.choice(tasks).cancel()
        if kind == "all tasks":
            for task in asyncio.all_tasks() - protected:
                if task.get_name() != "mx-rmq signal":  # run's own: it would only start again
                    task.cancel()
            return True
        thread = engine._lease_keeper._thread
        if kind == "keeper's task":
            if thread is None or thread.ended or thread.loop is None or not thread.turns:
                return False
            with suppress(RuntimeError):  # closed a moment ago
                thread.loop.call_soon_threadsafe(_cancel_all)
            return True
        if kind == "no threads":
            return self._refuse_threads(engine)
        name = "mx-rmq-keeper" if kind == "keeper's thread" else "mx-rmq-handler"
        part = engine._lease_keeper if kind == "keeper's thread" else engine._threads
        threads = [
            thread
            for thread in threading.enumerate()
            if thread.name.startswith(name) and _owner(thread) is part
        ]
        if not threads or threads[0].ident is None:
            return False
        _raise_in(self._random.choice(threads).ident or 0, Struck)
        return True

    def _refuse_threads(self, engine: Any) -> bool:
        """Let no thread start for a moment, and kill the running ones."""
        REFUSED.update((engine._lease_keeper, engine._threads))
        for thread in threading.enumerate():
            if _owner(thread) is engine._threads and thread.ident is not None:
                _raise_in(thread.ident, Struck)

        def allow() -> None:
            REFUSED.difference_update((engine._lease_keeper, engine._threads))

        asyncio.get_running_loop().call_later(self._random.uniform(0.05, 0.5), allow)
        return True

    async def _doom(self, worker: Worker, running: asyncio.Task[bool]) -> None:
        """Kill one loop whenever it runs."""
        kind = self._random.choice(LOOPS)
        deadline = time.monotonic() + WITHIN
        while worker._engine is not None and not worker._engine.failed.done():
            if self._strike(worker, kind, set()):
                self.counts[kind] += 1
            await asyncio.sleep(0.05)
            if time.monotonic() > deadline:
                running.cancel()
                return

    async def _expect_failure(self, running: asyncio.Task[bool]) -> None:
        try:
            await asyncio.wait_for(running, WITHIN)
        except WorkerBroken:
            self.counts["workers that failed, as they should"] += 1
        except (TimeoutError, asyncio.CancelledError):
            self._violated("a worker whose part was always killed did not fail")
        else:
            self._violated("a worker whose part was always killed stopped as if nothing were wrong")

    # the work

    def _queue(self) -> MessageQueue:
        mq = MessageQueue(self._url, prefix=self._prefix, lease=LEASE, patience=PATIENCE)

        @mq.handler("work", retry=0.02, max_attempts=1000, max_crashes=1000)
        async def work(number: int) -> None:
            with self._noted(number):
                await asyncio.sleep(_seconds(number))

        @mq.handler("plain", retry=0.02, max_attempts=1000, max_crashes=1000, timeout=30)
        def plain(number: int) -> None:
            with self._noted(number):
                time.sleep(_seconds(number))

        @mq.cron("0 0 1 1 *")
        async def yearly() -> None: ...

        return mq

    @contextmanager
    def _noted(self, number: int) -> Iterator[None]:
        """Note a finished run of a message, and whether it was the only one."""
        self.counts["runs"] += 1
        if number in self._inside:
            self.counts["runs of a message side by side"] += 1
        self._inside.add(number)
        try:
            yield
            self._left.discard(number)
        finally:
            self._inside.discard(number)

    def _on_event(self, event: events.Event) -> None:
        if isinstance(event, events.PartRestarted):
            self.counts["restarts seen"] += 1
        raise asyncio.CancelledError  # as `future.result()` would

    async def _feed(self, mq: MessageQueue) -> None:
        while self._feeding:
            for topic in ("work", "plain"):
                numbers = [next(self._numbers) for _ in range(8)]
                self._left.update(numbers)
                self.counts["messages"] += len(numbers)
                delay = self._random.choice((None, None, 0.1))
                await mq.produce_many(topic, numbers, delay=delay)
            while self._feeding and len(self._left) > BACKLOG:  # noqa: ASYNC110 - a moment
                await asyncio.sleep(0.02)
            await asyncio.sleep(0.02)

    async def _settle(self, worker: Worker, running: asyncio.Task[bool] | None = None) -> None:
        """Let a worker handle the rest; then it must hold nothing."""
        if running is None:
            running = asyncio.create_task(worker.run())
        began = time.monotonic()
        while (self._left or worker.held or worker.trouble) and not running.done():
            if time.monotonic() - began > WITHIN:
                break
            await asyncio.sleep(0.01)
        took = time.monotonic() - began
        self.counts["longest until everything was done, ms"] = round(took * 1000)
        if running.done():
            self._violated(f"the worker ended: {running.exception()!r}")
            return
        engine = worker._engine
        assert engine is not None
        if self._left:
            self._violated(f"{len(self._left)} messages were not handled within {WITHIN:g} s")
        if engine.slots.held or engine.slots.running or engine.consumer.running:
            self._violated(f"{worker.held} messages are held, {worker.running} run")
        if worker.trouble:
            self._violated(f"the worker is in trouble: {worker.trouble}")
        clean = await worker.stop()
        if not clean:
            self._violated("the worker did not stop cleanly")
        running.cancel()
        await asyncio.wait([running])

    def _violated(self, what: str) -> None:
        self.violations.append(f"{self._name}: {what}")


def _seconds(number: int) -> float:
    """Return how long a handler takes: mostly very short, now and then longer than the lease."""
    return 1.3 * LEASE if number % 64 == 0 else (0, 0, 0.005, 0.02)[number % 4]


REFUSED: Final[set[object]] = set()
"""The parts whose threads cannot start now."""


def _owner(thread: threading.Thread) -> object:
    return getattr(getattr(thread, "_target", None), "__self__", None) or OWNERS.get(thread)


OWNERS: Final[dict[threading.Thread, object]] = {}
"""The owner of each thread: a running one forgets its target."""


def _cancel_all() -> None:
    for task in asyncio.all_tasks():
        task.cancel()


def _raise_in(thread: int, kind: type[BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind))


@contextmanager
def _scarce_threads() -> Iterator[None]:
    """Refuse to start the threads of some parts."""
    start = threading.Thread.start

    def begin(self: threading.Thread) -> None:
        owner = _owner(self)
        if owner in REFUSED:
            raise RuntimeError("can't start new thread")
        if self.name.startswith("mx-rmq"):
            OWNERS[self] = owner
        start(self)

    threading.Thread.start = begin  # type: ignore[method-assign]
    try:
        yield
    finally:
        threading.Thread.start = start  # type: ignore[method-assign]
        OWNERS.clear()
        REFUSED.clear()


class Raising(logging.Handler):
    """A log handler of the application that always raises."""

    def handle(self, record: logging.LogRecord) -> bool:
        raise asyncio.CancelledError


@contextmanager
def _broken_logging() -> Iterator[None]:
    logger = logging.getLogger("mx_rmq")
    before = logger.level, logger.propagate, list(logger.handlers)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    logger.handlers = [Raising()]
    try:
        yield
    finally:
        logger.level, logger.propagate, logger.handlers = before
        logger.setLevel(before[0])


async def run(trial: Trial) -> None:
    """Kill as many parts as the size says."""
    trial.count("runs of a message side by side", 0)
    free = asyncio.Semaphore(SIDE_BY_SIDE)
    struck: Counter[str] = Counter()

    async def live(number: int, kills: int, url: str) -> None:
        async with free:
            life = Life(trial, url, number, kills)
            try:
                await asyncio.to_thread(asyncio.run, life.live())
            except Exception as error:  # noqa: BLE001 - any error is a violation
                trial.violated(f"life {number}: {type(error).__name__}: {error}")
        for violation in life.violations:
            trial.violated(violation)
        slowest = int(trial.figures.get("longest until everything was done, ms", 0))
        took = life.counts.pop("longest until everything was done, ms", 0)
        trial.figures["longest until everything was done, ms"] = max(slowest, took)
        for what, count in life.counts.items():
            if what in KINDS:
                struck[what] += count
                trial.count("kills", count)
            else:
                trial.count(what, count)
        trial.say(f"{trial.figures.get('kills', 0)} of {trial.size} kills")

    with (
        Server(Kind.VALKEY_9_1, trial.directory / "v") as server,
        _scarce_threads(),
        _broken_logging(),
    ):
        lives = 0
        while (left := trial.size - int(trial.figures.get("kills", 0))) > 0:
            count = max(1, -(-left // EACH))
            kills = min(EACH, left)
            async with asyncio.TaskGroup() as group:
                for number in range(lives, lives + count):
                    group.create_task(live(number, kills, server.url))
            lives += count
    trial.figures["lives"] = lives
    trial.tables["kills by part"] = [["part", "kills"], *([one, str(struck[one])] for one in KINDS)]
    if trial.size >= FAULT.full:
        for kind in KINDS:
            trial.expect(struck[kind], f"never killed: {kind}")


FAULT: Final = Fault(
    name="parts",
    title="parts of a worker are killed: its loops, tasks and threads, each in turn or all at once",
    run=run,
    unit="kills",
    short=80,
    full=2000,
)
