"""Everything at once: subscriptions, batches, follow-ups, flows, steps, signals, and a schedule.

Every worker does all of it, while workers are killed and frozen and the server is killed. The
checkers are those of the single trials, plus checks of ticks and of follow-ups of subscriptions.
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Final

from mx_rmq import Batch, Delivery, MessageQueue
from tests.faults import member, steps, subscriptions
from tests.faults.staff import insist, serve, settle
from tests.faults.steps import LEASE, SETTINGS, STUCK, Crew, Place
from tests.faults.subscriptions import HISTORY, TOPIC
from tests.faults.trial import Fault
from tests.lab.servers import Kind, Server

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.faults.trial import Trial

WORKERS: Final = 3
ORDERS: Final = 20
"""Messages for the subscriptions, per fault."""
TICKS: Final = "ticks"
EVERY_SECOND: Final = "* * * * * *"
TOPICS: Final = (*subscriptions.TOPICS, *steps.TOPICS, "receipt", "tick")


def work(place: Place, name: str) -> None:
    """Run a worker until it is killed."""
    member.begin(place.log)
    asyncio.run(_work(place, name))


async def _work(place: Place, name: str) -> None:
    mq = MessageQueue(place.url, lease=LEASE, patience=30, history=HISTORY)
    steps.declare(mq, place)
    ticks = os.open(place.lines.with_name(TICKS), os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    @mq.handler(TOPIC, subscription="billing", **SETTINGS)
    async def bill(number: int, delivery: Delivery) -> None:
        delivery.produce("receipt", number)
        if number % 7 == 0 and delivery.attempt == 1:
            raise ValueError("as planned")

    @mq.handler(TOPIC, subscription="search", **SETTINGS)
    async def index(number: int, delivery: Delivery) -> None:
        await delivery.step("index", abs, number)
        await delivery.sleep("let it settle", 0.05)

    @mq.handler(TOPIC, subscription="analytics", batch=25, linger=0.02, **SETTINGS)
    async def insert(numbers: list[int], batch: Batch) -> None:
        await asyncio.sleep(0.01)
        for place, (number, delivery) in enumerate(zip(numbers, batch, strict=True)):
            if number % 11 == 0 and delivery.attempt == 1:
                batch.fail(place, "as planned")

    @mq.handler("receipt", **SETTINGS)
    async def print_receipt(_: int) -> None:
        pass

    @mq.handler("tick", **SETTINGS)
    async def tick(_: None, delivery: Delivery) -> None:
        os.write(ticks, f"{delivery.headers['cron-tick']} {delivery.id} .\n".encode())

    await serve(mq, name)


async def run(trial: Trial) -> None:
    """Inject faults in turn: kills, zombies, server kills."""
    options = ("--appendonly", "yes", "--appendfsync", "always")
    server = Server(Kind.VALKEY_9_1, trial.directory / "server", *options).start()
    place = Place(server.url, trial.directory / "log", trial.directory / "lines")
    crew = Crew(trial, place, work)
    ids: list[str] = []
    try:
        async with MessageQueue(server.url, patience=30, history=HISTORY) as mq:
            for _ in range(WORKERS):
                crew.hire()
            await subscriptions.declared(mq)
            schedule = partial(mq.admin.schedule, TICKS, "tick", EVERY_SECOND, None)
            await insist(trial, schedule)
            for number in range(trial.size):
                await crew.send(mq)
                numbers = range(len(ids), len(ids) + ORDERS)
                ids += [f"m{number}" for number in numbers]
                more = partial(mq.produce_many, TOPIC, numbers, ids=ids[-ORDERS:])
                await insist(trial, more)
                await asyncio.sleep(trial.random.uniform(0, 0.3))
                await crew.fault(number, server)
                trial.say(f"{number} of {trial.size} faults")
            await insist(trial, partial(mq.admin.unschedule, TICKS))
            await settle(trial, mq, TOPICS, STUCK)
            await steps.check_work(trial, mq, crew, place)
            await subscriptions.check_copies(trial, mq, server.url, ids)
            await _check_totals(trial, mq, len(ids))
    finally:
        crew.end()
        server.kill()
    text = place.lines.with_name(TICKS).read_text()
    lines = [line.split(" ") for line in text.splitlines() if line.endswith(" .")]
    for violation in check_ticks((tick, id) for tick, id, _ in lines):
        trial.violated(violation)
    trial.count("ticks", len({tick for tick, _, _ in lines}))


async def _check_totals(trial: Trial, mq: MessageQueue, orders: int) -> None:
    """Check that each bill has one receipt, and no receipt or tick is left."""
    for topic in ("receipt", "tick"):
        totals = (await mq.admin.stats(topic)).totals
        produced, completed = totals.produced, totals.completed
        trial.expect(produced == completed, f"{topic}: {completed} of {produced} completed")
        if topic == "receipt":
            trial.expect(produced == orders, f"{produced} receipts of {orders} orders")
        for violation in await mq.admin.audit(topic):
            trial.violated(f"audit: {violation}")


def check_ticks(seen: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield violations: a tick makes one message, however often that is handled."""
    ids: defaultdict[str, set[str]] = defaultdict(set)
    for tick, id in seen:
        ids[tick].add(id)
    if not ids:
        yield "the schedule never fired"
    yield from (
        f"tick {tick} made {len(made)} messages" for tick, made in ids.items() if len(made) > 1
    )


FAULT: Final = Fault(
    "mixed",
    "subscriptions, batches, flows, steps and a schedule at once, with workers and servers killed",
    run,
    unit="faults",
    short=4,
    full=600,
)
