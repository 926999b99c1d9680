"""Limits and order by key: workers killed and frozen, the server killed, its clock set.

Three topics: two messages of a key at a time, one at a time and in order, and a number per second.
What counts is the server's own view: the history that its scripts wrote in the order in which they
ran. It says which messages were leased at any moment.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from redis.asyncio import Redis
from redis.exceptions import ConnectionError as NotConnected

from mx_rmq import Delivery, Limit, MessageQueue, Rate
from tests.faults import member
from tests.faults.bugs import switch_on
from tests.faults.key_check import Entry, Rules, check
from tests.faults.staff import Staff, insist, serve, settle
from tests.faults.trial import Fault
from tests.lab.servers import Kind, Server
from tests.lab.shims import SetClock

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faults.trial import Trial

KEYS: Final = 8
WORKERS: Final = 3
LEASE: Final = 1.0
RETRY: Final = 0.05
FAILING: Final = 7
"""One in this many messages of a key fails once."""
MESSAGES: Final = 4
"""Messages of each key and topic for one fault."""
WORK: Final = 0.02
"""Seconds that a handler takes."""
JUMPS: Final = (300.0, 0.0, -300.0, 300.0)
"""Offsets of the server's clock. At the end it is ahead again: retries that were planned while it
was ahead are due only then."""
HISTORY: Final = 1_000_000
STUCK: Final = 60.0

TOPICS: Final = {
    "two": Rules(running=2),
    "strict": Rules(running=1, ordered=True),
    "rated": Rules(rate=Rate(20, burst=3)),
}


class Place(NamedTuple):
    """The URL and files that the workers share."""

    url: str
    log: Path
    bug: str = ""


def work(place: Place, name: str) -> None:
    """Run a worker until it is killed."""
    member.begin(place.log)
    if place.bug:
        switch_on(place.bug)
    asyncio.run(_work(place, name))


async def _work(place: Place, name: str) -> None:
    mq = MessageQueue(place.url, lease=LEASE, patience=30, history=HISTORY)

    async def handle(payload: int, delivery: Delivery) -> None:
        await asyncio.sleep(WORK)
        if payload % FAILING == 0 and delivery.attempt == 1:
            raise ValueError("as planned")

    for topic, rules in TOPICS.items():
        limit = Limit(running=rules.running, rate=rules.rate)
        settings: dict[str, Any] = {"retry": RETRY, "max_attempts": 1_000, "max_crashes": 1_000}
        mq.handler(topic, per_key=limit, **settings)(handle)
    await serve(mq, name)


class Crowd(Staff):
    """The workers, the messages, and the server."""

    def __init__(self, trial: Trial, place: Place, server: Server) -> None:
        super().__init__(trial, work, place, lease=LEASE)
        self.server = server
        self._sent = 0
        self.ids: dict[str, list[str]] = {topic: [] for topic in TOPICS}

    async def produce(self, mq: MessageQueue) -> None:
        """Produce more messages of every key. A repeated call makes no second message."""
        numbers = range(self._sent, self._sent + MESSAGES)
        self._sent += MESSAGES
        for topic in TOPICS:
            keys = [f"k{key}" for key in range(KEYS)] * MESSAGES
            payloads = [number for number in numbers for _ in range(KEYS)]
            ids = [f"{key}.{number}" for key, number in zip(keys, payloads, strict=True)]
            await insist(self.trial, partial(mq.produce_many, topic, payloads, keys=keys, ids=ids))
            self.ids[topic] += ids


async def run(trial: Trial) -> None:
    """Inject this many faults in turn: kills, zombies, server kills; then jumps of the clock."""
    await hold(trial)


async def hold(trial: Trial, bug: str = "") -> None:
    """Run the trial, perhaps with a deliberate bug."""
    clock = SetClock(trial.directory)
    options = ("--appendonly", "yes", "--appendfsync", "always")
    directory = trial.directory / "server"
    server = Server(Kind.VALKEY_9_1, directory, *options, environment=clock.environment).start()
    place = Place(server.url, trial.directory / "log", bug)
    crowd = Crowd(trial, place, server)
    try:
        async with MessageQueue(server.url, patience=30, history=HISTORY) as mq:
            for _ in range(WORKERS):
                crowd.hire()
            for number in range(trial.size):
                await crowd.produce(mq)
                await asyncio.sleep(trial.random.uniform(0, 0.2))
                await crowd.fault(number, server)
                trial.say(f"{number} of {trial.size} faults")
            steady = await _last_ids(server)
            for seconds in JUMPS:
                await crowd.produce(mq)
                clock.set(seconds)
                trial.count("clock jumps")
                await asyncio.sleep(LEASE / 2)
            await settle(trial, mq, TOPICS, STUCK)
            await _check(trial, mq, crowd, steady)
    finally:
        crowd.end()
        server.kill()


async def _check(trial: Trial, mq: MessageQueue, crowd: Crowd, steady: dict[str, str]) -> None:
    """Check the server's history against the rules, and its keys by the audit."""
    async with Redis.from_url(crowd.server.url, decode_responses=True) as raw:
        for topic, rules in TOPICS.items():
            key = f"mx-rmq:{{{topic}}}"
            rows: Any = await raw.xrange(f"{key}:history")
            entries = [
                Entry(int(id.partition("-")[0]), row["what"], row["ids"].split(" "))
                for id, row in rows
            ]
            # After a jump the times of the history say nothing.
            last = int(steady[topic].partition("-")[0])
            found = check(entries, rules, steady_until=last)
            trial.count("leases", found.leases)
            trial.count("limits reached", found.reached)
            for violation in found.violations:
                trial.violated(f"{topic}: {violation}")
            for id in set(crowd.ids[topic]) - found.ended:
                trial.violated(f"{topic}: lost: {id}")
            for name in ("lines", "ring", "blocked", "running"):
                left = await raw.zcard(f"{key}:{name}")
                trial.expect(not left, f"{topic}: {left} entries of {name} are left")
            for wrong in await mq.admin.audit(topic):
                trial.violated(f"audit: {wrong}")
    trial.expect(trial.figures.get("limits reached", 0), "no key ever reached its limit")


async def _last_ids(server: Server) -> dict[str, str]:
    """Return the last entry of each topic's history."""
    while True:
        try:
            async with Redis.from_url(server.url, decode_responses=True) as raw:
                found = {}
                for topic in TOPICS:
                    info = await raw.xinfo_stream(f"mx-rmq:{{{topic}}}:history")
                    found[topic] = str(info["last-generated-id"])
                return found
        except NotConnected:
            await asyncio.sleep(0.05)


FAULT: Final = Fault(
    "keys",
    "limits and order by key, with workers and servers killed and clocks set",
    run,
    unit="faults",
    short=8,
    full=200,
)
