"""Steps and flows: workers killed and frozen, the server killed, in the middle of all of it.

Each round sends flows of children and a parent, jobs with steps, a sleep and a wait for a signal,
and orders with follow-ups. The handlers' log and the server's totals are checked.
"""

from __future__ import annotations

import asyncio
import os
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mx_rmq import Delivery, MessageQueue, MxRmqError
from tests.faults import member
from tests.faults.bugs import switch_on
from tests.faults.staff import Staff, insist, serve, settle
from tests.faults.step_check import Seen, check, parse
from tests.faults.trial import Fault
from tests.lab.servers import Kind, Server

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.faults.trial import Trial

WORKERS: Final = 3
LEASE: Final = 1.0
CHILDREN: Final = 4
FLOWS: Final = 4  # of each round; as many jobs and orders
STUCK: Final = 90.0
TOPICS: Final = ("child", "parent", "job", "order", "mail")


SETTINGS: Final[dict[str, Any]] = {"retry": 0.05, "max_attempts": 1_000, "max_crashes": 1_000}


class Place(NamedTuple):
    """The URL and files that the workers share."""

    url: str
    log: Path  # of errors
    lines: Path  # what handlers did
    bug: str = ""


def work(place: Place, name: str) -> None:
    """Run a worker until it is killed."""
    member.begin(place.log)
    if place.bug:
        switch_on(place.bug)
    asyncio.run(_work(place, name))


async def _work(place: Place, name: str) -> None:
    mq = MessageQueue(place.url, lease=LEASE, patience=30)
    declare(mq, place)
    await serve(mq, name)


def declare(mq: MessageQueue, place: Place) -> None:
    """Declare the handlers, which log what they do."""
    log = os.open(place.lines, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def say(what: Seen, delivery: Delivery, *words: str) -> None:
        line = (what, delivery.id, str(delivery.fence), *words, ".\n")
        os.write(log, " ".join(line).encode())

    @mq.handler("child", **SETTINGS)
    async def child(number: int, delivery: Delivery) -> int:
        async def square() -> int:
            say(Seen.STEP_RUNS, delivery, "square")
            await asyncio.sleep(0.005)
            return number * number

        value: int = await delivery.step("square", square)
        say(Seen.STEP_NOTED, delivery, "square")
        if number % 3 == 0 and delivery.attempt == 1:
            raise ValueError("as planned")
        say(Seen.RETURNS, delivery)
        return value

    @mq.handler("parent", result_ttl=3600, **SETTINGS)
    async def parent(children: list[str], delivery: Delivery) -> list[int]:
        say(Seen.PARENT_RUNS, delivery, *children)
        await asyncio.sleep(0.005)
        return delivery.results

    @mq.handler("job", result_ttl=3600, **SETTINGS)
    async def job(number: int, delivery: Delivery) -> int:
        def count(step: str, value: int) -> int:
            say(Seen.STEP_RUNS, delivery, step)
            return value + 1

        value = number
        for step in ("one", "two", "three"):
            value = await delivery.step(step, count, step, value)
            say(Seen.STEP_NOTED, delivery, step)
        await delivery.sleep("nap", 0.1)
        value += await delivery.wait("bonus")
        last: int = await delivery.step("four", count, "four", value)
        say(Seen.STEP_NOTED, delivery, "four")
        return last

    @mq.handler("order", **SETTINGS)
    async def order(number: int, delivery: Delivery) -> None:
        delivery.produce("mail", number)
        delivery.produce("mail", -number)
        await asyncio.sleep(0.002)
        if number % 4 == 0 and delivery.attempt < 3:
            raise ValueError("as planned")
        say(Seen.RETURNS, delivery)

    @mq.handler("mail", **SETTINGS)
    async def mail(_: int) -> None:
        pass


class Crew(Staff):
    """The workers, and the messages sent."""

    def __init__(self, trial: Trial, place: Place, program: Callable[..., None] = work) -> None:
        super().__init__(trial, program, place, lease=LEASE)
        self._round = 0
        self.parents: dict[str, list[int]] = {}
        self.jobs: dict[str, int] = {}
        self.orders: list[str] = []

    async def send(self, mq: MessageQueue) -> None:
        """Send a round. With custom ids a repetition is harmless."""
        self._round += 1
        for number in range(self._round * FLOWS, (self._round + 1) * FLOWS):
            numbers = list(range(number, number + CHILDREN))
            await insist(self.trial, partial(_send_flow, mq, number, numbers))
            self.parents[f"p{number}"] = [one * one for one in numbers]
            await insist(self.trial, partial(mq.produce, "job", number, id=f"j{number}"))
            await insist(self.trial, partial(mq.signal, "job", f"j{number}", "bonus", 100))
            self.jobs[f"j{number}"] = number + 104
            await insist(self.trial, partial(mq.produce, "order", number, id=f"o{number}"))
            self.orders.append(f"o{number}")


async def _send_flow(mq: MessageQueue, number: int, numbers: list[int]) -> None:
    async with mq.flow() as flow:
        ids = [f"c{number}-{place}" for place in range(len(numbers))]
        for id, one in zip(ids, numbers, strict=True):
            flow.produce("child", one, id=id)
        flow.produce("parent", ids, id=f"p{number}", after=ids)


async def run(trial: Trial) -> None:
    """Inject faults in turn: kills, zombies, server kills."""
    await hold(trial)


async def hold(trial: Trial, bug: str = "", *, stuck: float = STUCK) -> None:
    """Run the trial, perhaps with a deliberate bug."""
    options = ("--appendonly", "yes", "--appendfsync", "always")
    server = Server(Kind.VALKEY_9_1, trial.directory / "server", *options).start()
    place = Place(server.url, trial.directory / "log", trial.directory / "lines", bug)
    crew = Crew(trial, place)
    try:
        async with MessageQueue(server.url, patience=30) as mq:
            for _ in range(WORKERS):
                crew.hire()
            for number in range(trial.size):
                await crew.send(mq)
                await asyncio.sleep(trial.random.uniform(0, 0.3))
                await crew.fault(number, server)
                trial.say(f"{number} of {trial.size} faults")
            await settle(trial, mq, TOPICS, stuck)
            await check_work(trial, mq, crew, place)
    finally:
        crew.end()
        server.kill()


async def check_work(trial: Trial, mq: MessageQueue, crew: Crew, place: Place) -> None:
    """Check the log, the results and the totals against the guarantees."""
    lines = parse(place.lines.read_text())
    for wrong in check(lines):
        trial.violated(wrong)
    trial.count("log lines of handlers", len(lines))
    for topic, expected in (("parent", crew.parents), ("job", crew.jobs)):
        for id, value in expected.items():
            try:
                found = await mq.result(topic, id, timeout=0.1 if trial.violations else 5)
            except MxRmqError as error:
                found = error
            trial.expect(found == value, f"{topic} {id}: the result is {found!r}, not {value!r}")
        trial.count(f"{topic}s", len(expected))
    totals = {topic: (await mq.admin.stats(topic)).totals for topic in TOPICS}
    mails, orders = totals["mail"].produced, totals["order"].completed
    trial.count("follow-ups", mails)
    trial.expect(orders == len(crew.orders), f"{orders} of {len(crew.orders)} orders completed")
    trial.expect(mails == 2 * orders, f"{mails} follow-ups of {orders} orders, not 2 of each")
    for topic in TOPICS:
        for violation in await mq.admin.audit(topic):
            trial.violated(f"audit: {violation}")


FAULT: Final = Fault(
    "steps",
    "steps, flows and follow-ups, with workers and servers killed",
    run,
    unit="faults",
    short=8,
    full=200,
)
