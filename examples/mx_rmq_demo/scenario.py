"""The scenario: orders come in, two workers work, one is killed, and nothing is lost."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mx_rmq import MessageQueue, State
from mx_rmq_demo import shop
from mx_rmq_demo.screen import REPORTS, Row, View, open_screen
from mx_rmq_demo.tally import Tally
from mx_rmq_demo.workers import WorkerProcesses

if TYPE_CHECKING:
    from mx_rmq import Status
    from mx_rmq_demo.screen import Screen
    from mx_rmq_demo.workers import WorkerProcess

TOPICS: Final = tuple(shop.mq.handlers)
DOOMED: Final = frozenset(("payment-void", "payment-stolen", "order-broken", "report-2"))
"""Messages that no handler can complete."""

PAGES: Final = 10  # of the report that is awaited; the other one is aborted
ORDERS_PER_TICK: Final = 5  # a little less than two workers can handle
BUSY: Final = 10  # messages that a worker must be running when it is killed

# Seconds
TICK: Final = 0.1  # between two batches of orders
KILL_AFTER: Final = 5.0
ORDERS_AFTER_KILL: Final = 2.0
REMIND_AFTER: Final = 3.0
STOP_WITHIN: Final = 5.0
END_WITHIN: Final = 45.0
REFRESH: Final = 0.125

NEXT_STEPS: Final = """
Now you, in three terminals. The shop is {shop}
  {program} server
  {program} worker mx_rmq_demo.shop
  {program} produce --url embedded://./mx-rmq-data orders '{{"number": 1, "item": "tea"}}'
"""

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class DemoFailed(Exception):
    """The demo did not go as planned."""


async def run() -> bool:
    """Run the scenario on its own server; return whether it ended. Raises DemoFailed."""
    stopped = asyncio.Event()
    for number in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    with tempfile.TemporaryDirectory(prefix="mx-rmq-demo-") as directory, open_screen() as screen:
        url = f"embedded://{directory}"
        async with MessageQueue(url) as mq, WorkerProcesses(url, Path(directory)) as workers:
            scenario = asyncio.create_task(Scenario(mq, workers, screen).run(), name="scenario")
            tally = await _unless(stopped, scenario)
        if tally is None:
            screen.end(["stopped; nothing is left behind"])
            return False
        problems = tally.problems()
        screen.end([*tally.lines(), *([] if problems else _next_steps())])
    if problems:
        raise DemoFailed("; ".join(problems))
    return True


def _next_steps() -> list[str]:
    ours = str(Path(sys.executable).with_name("mx-rmq"))
    program = "mx-rmq" if shutil.which("mx-rmq") == ours else _short(ours)
    return NEXT_STEPS.format(program=program, shop=_short(shop.__file__)).splitlines()


def _short(path: str) -> str:
    """Return a path relative to the current directory, if it is below."""
    here = Path.cwd()
    return str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else path


def _how_far(status: Status) -> str:
    return f"{status.progress:.0%}, {status.note}" if status.progress else status.state


async def _unless(event: asyncio.Event, scenario: asyncio.Task[Tally]) -> Tally | None:
    """Return the tally of a scenario; None if the event came first."""
    waiting = asyncio.create_task(event.wait(), name="stop")
    try:
        await asyncio.wait([scenario, waiting], return_when=asyncio.FIRST_COMPLETED)
        return scenario.result() if scenario.done() else None
    finally:
        waiting.cancel()
        scenario.cancel()
        with suppress(asyncio.CancelledError, Exception):  # raised above already, or irrelevant
            await scenario


class Scenario:
    """The four phases, and the task that shows them."""

    def __init__(self, mq: MessageQueue, workers: WorkerProcesses, screen: Screen) -> None:
        self._mq = mq
        self._workers = workers
        self._screen = screen
        self._started = time.monotonic()
        self._produced: set[str] = set()
        self._killed: WorkerProcess | None = None
        self._unsettled = 0

    async def run(self) -> Tally:
        """Run all phases; return the tally."""
        try:
            async with asyncio.timeout(END_WITHIN):
                return await self._run()
        except TimeoutError:
            left = f"{self._unsettled} messages are not settled"
            raise DemoFailed(f"it did not end within {END_WITHIN:g} s; {left}") from None
        except ExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _run(self) -> Tally:
        first, second = [await self._workers.start(name) for name in ("worker-1", "worker-2")]
        await self._until_they_run()
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(self._watch(), name="watch")
            self._screen.begin(1, "two workers at work")
            ordering = group.create_task(self._order(), name="producer")
            reporting = group.create_task(self._reports(), name="reports")
            await asyncio.sleep(KILL_AFTER)

            killed_at, held = await self._kill(first)
            busy = f"{len(held)} messages in processing"
            self._screen.begin(2, f"kill -9 {first.name} (pid {first.pid}) with {busy}")
            await asyncio.sleep(1)  # time to read; the leases last longer

            self._screen.begin(3, f"their leases run out, and {second.name} takes over")
            await self._take_over(first, second, killed_at, len(held))
            await ordering
            await reporting
            while await self._refresh():
                self._check()
                await asyncio.sleep(REFRESH)

            self._screen.begin(4, "the tally")
            watching.cancel()
        if not await second.stop(STOP_WITHIN):
            raise DemoFailed(f"{second.name} did not stop cleanly: {second.last_log_line()}")
        await self._refresh()
        return await self._tally(held, held & first.started & second.started)

    # the producer

    async def _order(self) -> None:
        """Produce orders, and among them everything that can go wrong."""
        for card in ("void", "stolen", "busy"):
            await self._produce("payments", shop.Payment(0, card), f"payment-{card}")
        await self._produce("orders", {"number": "seven"}, "order-broken")
        number = 0
        for tick in range(round((KILL_AFTER + ORDERS_AFTER_KILL) / TICK)):
            due = asyncio.get_running_loop().time() + TICK
            numbers = range(number + 1, number + ORDERS_PER_TICK + 1)
            number = numbers[-1]
            orders = [shop.Order(n, "teapot", f"customer{n}@example.org") for n in numbers]
            ids = [f"order-{n}" for n in numbers]
            self._produced.update(await self._mq.produce_many("orders", orders, ids=ids))
            self._produced.update(f"mail-{n}" for n in numbers)  # produced by the orders' handler
            await self._produce("payments", shop.Payment(number, "good"), f"payment-{number}")
            if tick % 10 == 0:
                reminder = shop.Reminder(number)
                await self._produce("reminders", reminder, f"reminder-{number}", delay=REMIND_AFTER)
            await asyncio.sleep(due - asyncio.get_running_loop().time())

    async def _reports(self) -> None:
        """Follow a report until its result is here; abort the other one when it has begun."""
        first, second = REPORTS
        await self._produce("reports", shop.Report(PAGES), first)
        await self._produce("reports", shop.Report(100 * PAGES), second)
        async for status in self._mq.watch("reports", second):
            self._screen.report(second, _how_far(status))
            if status.progress:
                await self._mq.admin.abort("reports", second, "it takes too long")
        self._screen.report(second, f"ended as {status.state}, {status.reason}", ended=True)
        async for status in self._mq.watch("reports", first):
            self._screen.report(first, _how_far(status))
        result = await self._mq.result("reports", first)
        self._screen.report(first, f"completed, its result: {result}", ended=True)

    async def _produce(
        self, topic: str, payload: object, id: str, *, delay: float | None = None
    ) -> None:
        self._produced.add(await self._mq.produce(topic, payload, id=id, delay=delay))

    # the processes

    async def _until_they_run(self) -> None:
        missing = {worker.name for worker in self._workers.all}
        while missing:
            self._check()
            missing -= {worker.name for worker in await self._mq.admin.workers()}
            await asyncio.sleep(REFRESH)

    async def _kill(self, worker: WorkerProcess) -> tuple[float, frozenset[str]]:
        """Kill a worker while it is busy; return when that was, and the messages leased to it."""
        while len(worker.running) < BUSY:
            self._check()
            await asyncio.sleep(0.01)
        self._killed = worker
        await worker.kill()
        now = time.monotonic()
        await asyncio.sleep(0.1)  # by then the server has run what it sent before
        return now, frozenset(await self._leased_to(worker))

    async def _take_over(
        self, lost: WorkerProcess, by: WorkerProcess, since: float, number: int
    ) -> None:
        """Wait until nothing is leased to the killed worker any more."""
        while left := len(await self._leased_to(lost)):
            self._check()
            self._screen.progress(
                f"their leases run out, and {by.name} takes over: {number - left} of {number}"
            )
            await asyncio.sleep(REFRESH)
        seconds = time.monotonic() - since
        self._screen.conclude(
            f"{by.name} has taken over {number} of {number}, {seconds:.1f} s after the kill"
        )

    async def _leased_to(self, worker: WorkerProcess) -> list[str]:
        return [
            message.id
            for topic in TOPICS
            for message in (await self._mq.admin.list(topic, State.PROCESSING, limit=1000)).messages
            if message.worker == worker.name
        ]

    def _check(self) -> None:
        """Raise DemoFailed if a worker ended that was not killed by us."""
        for worker in self._workers.all:
            if worker.exit_code is not None and worker is not self._killed:
                ended = f"{worker.name} ended with exit code {worker.exit_code}"
                raise DemoFailed(f"{ended}: {worker.last_log_line()}")

    # the tally

    async def _watch(self) -> None:
        while True:
            await self._refresh()
            await asyncio.sleep(REFRESH)

    async def _refresh(self) -> int:
        """Count and show the messages; return how many are not settled."""
        stats = [await self._mq.admin.stats(topic) for topic in TOPICS]
        self._unsettled = sum(one.pending + one.processing + one.delayed for one in stats)
        workers = self._workers.all
        rows = [
            Row(
                one,
                done=sum(worker.counts[one.topic] for worker in workers),
                rate=sum(worker.rate(one.topic) for worker in workers),
            )
            for one in stats
        ]
        self._screen.show(
            View(time.monotonic() - self._started, rows, [self._state(one) for one in workers])
        )
        return self._unsettled

    def _state(self, worker: WorkerProcess) -> str:
        if worker is self._killed:
            state = "killed"
        elif worker.exit_code is not None:
            state = "stopped cleanly"
        else:
            state = f"{len(worker.running)} handlers run"
        return f"{worker.name}  pid {worker.pid}  {worker.done.total()} done, {state}"

    async def _tally(self, held: frozenset[str], started_twice: frozenset[str]) -> Tally:
        admin = self._mq.admin
        archived: dict[State, dict[str, str]] = {State.DEAD: {}, State.QUARANTINED: {}}
        violations: list[str] = []
        for topic in TOPICS:
            for state, ids in archived.items():
                page = await admin.list(topic, state, limit=1000)
                ids |= {message.id: message.reason or message.error for message in page.messages}
            violations += map(str, await admin.audit(topic))
        return Tally(
            produced=frozenset(self._produced),
            doomed=DOOMED,
            done=self._workers.done(),
            dead=archived[State.DEAD],
            quarantined=archived[State.QUARANTINED],
            unsettled=self._unsettled,
            violations=tuple(violations),
            held=held,
            started_twice=started_twice,
        )
