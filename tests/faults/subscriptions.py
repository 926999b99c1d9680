"""Subscriptions: workers, which relay and handle copies, are killed and frozen; so is the server.

Each worker has one of three subscriptions, so all of them are relays of the topic. What counts is
what the server's scripts wrote into the histories: the topic's says when a message was fanned out,
those of the subscriptions say how each copy ended.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from redis.asyncio import Redis

from mx_rmq import Delivery, MessageQueue
from mx_rmq.store.keys import Keys
from tests.faults import member
from tests.faults.staff import Staff, insist, serve, settle
from tests.faults.trial import Fault
from tests.lab.servers import Kind, Server

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

from tests.faults.trial import Trial

TOPIC: Final = "order.created"
NAMES: Final = ("billing", "search", "analytics")
TOPICS: Final = (TOPIC, *(f"{TOPIC}@{name}" for name in NAMES))
WORKERS: Final = 2
"""Workers of each subscription."""
LEASE: Final = 1.0
RETRY: Final = 0.05
FAILING: Final = 7
"""One in this many messages fails once in each subscription."""
MESSAGES: Final = 60
"""Messages per fault."""
HISTORY: Final = 1_000_000
STUCK: Final = 60.0


class Place(NamedTuple):
    """The URL and files that the workers share."""

    url: str
    log: Path


class Entry(NamedTuple):
    """An entry of a history."""

    what: str
    ids: list[str]


def work(place: Place, name: str, subscription: str) -> None:
    """Run a worker until it is killed."""
    member.begin(place.log)
    asyncio.run(_work(place, name, subscription))


async def _work(place: Place, name: str, subscription: str) -> None:
    mq = MessageQueue(place.url, lease=LEASE, patience=30, history=HISTORY)

    @mq.handler(
        TOPIC, subscription=subscription, retry=RETRY, max_attempts=1_000, max_crashes=1_000
    )
    async def handle(payload: int, delivery: Delivery) -> None:
        await asyncio.sleep(0.001)
        if payload % FAILING == 0 and delivery.attempt == 1:
            raise ValueError("as planned")

    await serve(mq, name)


class Crowd(Staff):
    """The workers, which are also relays, and the messages."""

    def __init__(self, trial: Trial, place: Place, server: Server) -> None:
        super().__init__(trial, work, place, lease=LEASE)
        self.server = server
        self.ids: list[str] = []

    async def produce(self, mq: MessageQueue) -> None:
        """Produce more messages of every sort. A repeated call makes no second message."""
        first = len(self.ids)
        numbers = range(first, first + MESSAGES)
        sorts: tuple[dict[str, Any], ...] = ({}, {"priority": "high"}, {"delay": 0.1}, {"ttl": 600})
        for sort, options in enumerate(sorts):
            mine = [number for number in numbers if number % len(sorts) == sort]
            ids = [f"m{number}" for number in mine]
            keys = [f"k{number % 5}" if number % 3 == 0 else None for number in mine]
            await insist(
                self.trial, partial(mq.produce_many, TOPIC, mine, ids=ids, keys=keys, **options)
            )
            self.ids += ids


async def run(trial: Trial) -> None:
    """Inject this many faults in turn: kills, zombies, server kills."""
    options = ("--appendonly", "yes", "--appendfsync", "always")
    server = Server(Kind.VALKEY_9_1, trial.directory / "server", *options).start()
    crowd = Crowd(trial, Place(server.url, trial.directory / "log"), server)
    try:
        async with MessageQueue(server.url, patience=30, history=HISTORY) as mq:
            for name in NAMES * WORKERS:
                crowd.hire(name)
            await declared(mq)
            for number in range(trial.size):
                await crowd.produce(mq)
                await asyncio.sleep(trial.random.uniform(0, 0.2))
                await crowd.fault(number, server)
                trial.say(f"{number} of {trial.size} faults")
            await settle(trial, mq, TOPICS, STUCK)
            await check_copies(trial, mq, server.url, crowd.ids)
    finally:
        crowd.end()
        server.kill()


async def declared(mq: MessageQueue) -> None:
    """Wait until every subscription is declared: from then on it must get everything."""
    async with asyncio.timeout(STUCK):
        while {*NAMES} - {*await mq.store.subscriptions(TOPIC)}:  # noqa: ASYNC110 - not announced
            await asyncio.sleep(0.02)


async def check_copies(trial: Trial, mq: MessageQueue, url: str, ids: list[str]) -> None:
    """Check the server's histories against what was produced, and its keys by the audit."""
    async with Redis.from_url(url, decode_responses=True) as raw:
        own = await _read(raw, TOPIC)
        copies = {name: await _read(raw, f"{TOPIC}@{name}") for name in NAMES}
    for violation in check(ids, own, copies):
        trial.violated(violation)
    trial.count("messages", len(ids))
    trial.count(
        "copies completed", sum(_count(one, "completed").total() for one in copies.values())
    )
    for topic in TOPICS:
        for wrong in await mq.admin.audit(topic):
            trial.violated(f"audit: {wrong}")


async def _read(raw: Any, topic: str) -> list[Entry]:
    key = Keys().of(topic).history
    return [Entry(row["what"], row["ids"].split(" ")) for _, row in await raw.xrange(key)]


def check(
    produced: Iterable[str], own: list[Entry], copies: Mapping[str, list[Entry]]
) -> Iterator[str]:
    """Yield violations: each subscription gets each message once, and completes it once."""
    ids = set(produced)
    fanned_out = _count(own, "fanned_out")
    yield from (f"not fanned out: {id}" for id in sorted(ids - fanned_out.keys()))
    yield from (f"fanned out {n} times: {id}" for id, n in fanned_out.items() if n > 1)
    for name, entries in copies.items():
        got, done = _count(entries, "produced"), _count(entries, "completed")
        yield from (f"{name} did not get {id}" for id in sorted(ids - got.keys()))
        yield from (f"{name} got {id} {n} times" for id, n in got.items() if n > 1)
        yield from (f"{name} did not complete {id}" for id in sorted(got.keys() - done.keys()))
        yield from (f"{name} completed {id} {n} times" for id, n in done.items() if n > 1)
        yield from (f"{name} got {id}, which was never produced" for id in sorted(got.keys() - ids))
        refused = _count(entries, "duplicate")
        yield from (f"{name} had {id} already" for id in refused)


def _count(entries: list[Entry], what: str) -> Counter[str]:
    return Counter(id for entry in entries if entry.what == what for id in entry.ids)


FAULT: Final = Fault(
    "subscriptions", "subscriptions, with kills of relays", run, unit="faults", short=8, full=200
)
