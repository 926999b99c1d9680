"""Limits and order by key while primaries die or freeze, behind Sentinel and in a cluster.

Workers are killed and frozen at the same time, and a topic gets more partitions. What counts is the
history of the primaries at the end. Each script writes its history together with the state, so the
history obeys the limits even if replication lost the last calls. Nothing may be stuck or left over.

The servers keep an append-only file: Sentinels may promote a primary that has just restarted, and
if it were empty, everything would be lost.

An old primary that thaws accepts writes until it is demoted, and these are lost. So a message may
be lost if it was produced during a failover, and at no other time.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from redis.asyncio import Redis

from mx_rmq import Delivery, Limit, MessageQueue, MxRmqError, Rate, Worker
from mx_rmq.core.partition import partition
from tests.faults import member
from tests.faults.failovers import WAYS, WINDOW, BehindSentinel, Way, bring_back, hinder_replication
from tests.faults.key_check import ROUNDING, Entry, Rules, check
from tests.faults.keys import FAILING, HISTORY, LEASE, RETRY, STUCK, WORK, Place
from tests.faults.staff import Staff
from tests.faults.trial import Fault
from tests.lab.cluster import Cluster, ClusterNode
from tests.lab.servers import USUAL, Kind

if TYPE_CHECKING:
    from tests.faults.trial import Trial
    from tests.lab.nodes import Node

KEYS: Final = 6
WORKERS: Final = 3
MESSAGES: Final = 3
"""Messages of each key and topic in one call."""
PARTITIONS: Final = 2
GROWN: Final = 6
"""Partitions at the end."""
LATE: Final = 25
"""Milliseconds by which a noted time may be off on Redis: an entry gets the time at which it is
written, not that of the script, and the server may have to wait for the CPU in between."""
CALM: Final = 4.0
"""Seconds before each failover in which nothing may be lost, except in the last one."""
IDLE: Final = 20.0
"""Seconds in which a topic with messages must make progress once all servers are back. Workers look
for new partitions every 15 seconds."""


class Declared(NamedTuple):
    """The limits of a topic, and the rules for its history."""

    options: dict[str, Any]
    rules: tuple[Rules, ...]


_BUCKET: Final = Rate(20, burst=3)
_ALL: Final = Rate(60, burst=6)
TOPICS: Final = {
    "two": Declared({"per_key": Limit(running=2)}, (Rules(running=2),)),
    "strict": Declared({"per_key": Limit(running=1)}, (Rules(running=1, ordered=True),)),
    "rated": Declared(
        {"per_key": Limit(running=2, rate=_BUCKET)}, (Rules(running=2), Rules(rate=_BUCKET))
    ),
    "whole": Declared(
        {"limit": Limit(running=5, rate=_ALL), "per_key": Limit(running=1)},
        (
            Rules(running=1, ordered=True),
            Rules(running=5, per_key=False),
            Rules(rate=_ALL, per_key=False),
        ),
    ),
    "parted": Declared(
        {"per_key": Limit(running=1), "partitions": PARTITIONS}, (Rules(running=1, ordered=True),)
    ),
}
NAMES: Final = (*TOPICS, *(partition("parted", number) for number in range(1, GROWN)))
"""As the store has them: a key that moves is in two partitions, and each applies the limits."""


def work(place: Place, name: str) -> None:
    """Run a worker until it is killed."""
    member.begin(place.log)
    asyncio.run(_work(place, name))


async def _work(place: Place, name: str) -> None:
    mq = MessageQueue(place.url, lease=LEASE, patience=30, history=HISTORY)

    async def handle(payload: int, delivery: Delivery) -> None:
        await asyncio.sleep(WORK)
        if payload % FAILING == 0 and delivery.attempt == 1:
            raise ValueError("as planned")

    settings: dict[str, Any] = {"retry": RETRY, "max_attempts": 1_000, "max_crashes": 1_000}
    for topic, declared in TOPICS.items():
        mq.handler(topic, **declared.options, **settings)(handle)
    while True:
        try:
            async with mq:
                await Worker(mq, name=name, concurrency=20).run()
            return
        except MxRmqError:  # the server is away: a supervisor would restart us
            await asyncio.sleep(0.1)


class Producer:
    """Produces messages of every key, over and over."""

    def __init__(self, trial: Trial, mq: MessageQueue) -> None:
        self._trial = trial
        self._mq = mq
        self._sent = 0
        self.going = True
        self.acknowledged: dict[tuple[str, str], float] = {}
        """When the produce of each topic and id returned."""

    async def run(self) -> None:
        while self.going:
            numbers = range(self._sent, self._sent + MESSAGES)
            self._sent += MESSAGES
            await asyncio.gather(*(self._produce(topic, numbers) for topic in TOPICS))
            await asyncio.sleep(self._trial.random.uniform(0.05, 0.3))

    async def _produce(self, topic: str, numbers: range) -> None:
        keys = [f"k{key}" for key in range(KEYS)] * MESSAGES
        payloads = [number for number in numbers for _ in range(KEYS)]
        ids = [f"{key}.{number}" for key, number in zip(keys, payloads, strict=True)]
        while True:
            try:
                await self._mq.produce_many(topic, payloads, keys=keys, ids=ids)
            except MxRmqError:
                self._trial.count("produces repeated")
            else:
                self._trial.count("acknowledged", len(ids))
                now = time.monotonic()
                self.acknowledged.update({(topic, id): now for id in ids})
                return


class Sentinels(BehindSentinel):
    """A primary, its replica, and three Sentinels."""

    async def holder(self, _: str) -> Node:
        return await self.primary()


class Nodes(Cluster):
    """Three primaries, each with a replica. The one that has `topic` fails."""

    topic = "two"

    async def holder(self, name: str) -> Node:
        return await self.primary_of(name)

    async def victim(self) -> Node:
        return await self.primary_of(self.topic)

    async def replicas_of(self, victim: Node) -> list[Node]:  # type: ignore[override]
        assert isinstance(victim, ClusterNode)
        return [*await super().replicas_of(victim)]

    async def until_replaced(self, victim: Node) -> float:
        assert isinstance(victim, ClusterNode)
        await self.until_moved(self.topic, victim)
        return time.monotonic()

    async def until_whole(self) -> None:
        await self.until_agreed(60)


async def run(trial: Trial) -> None:
    """Fail over this many times, every second time in a cluster, four times per set of servers."""
    for figure in (
        "Sentinel failovers",
        "cluster failovers",
        "leases",
        "limits reached",
        "acknowledged",
    ):
        trial.count(figure, 0)
    ways = [trial.random.choice(WAYS) for _ in range(trial.size)]
    for number in range(0, trial.size, 4):
        kind = USUAL[number // 4 % len(USUAL)]
        behind, among = ways[number : number + 4 : 2], ways[number + 1 : number + 4 : 2]
        if behind:
            directory = trial.directory / f"S{number}"
            async with Sentinels(directory, replicas=1, kind=kind, aof=True) as site:
                await _hold(trial, site, f"Sentinel, {kind}", behind)
            trial.count("Sentinel failovers", len(behind))
        if among:
            directory = trial.directory / f"c{number}"
            async with Nodes(directory, replicas=1, kind=kind, aof=True) as nodes:
                await _hold(trial, nodes, f"cluster, {kind}", among)
            trial.count("cluster failovers", len(among))
    trial.expect(not trial.size or trial.figures["limits reached"], "no limit was ever reached")


async def _hold(trial: Trial, site: Sentinels | Nodes, what: str, ways: list[Way]) -> None:
    place = Place(site.url, trial.directory / "log")
    staff = Staff(trial, work, place, lease=LEASE)
    try:
        async with MessageQueue(site.url, patience=5, history=HISTORY) as mq:
            for _ in range(WORKERS):
                staff.hire()
            producer = Producer(trial, mq)
            producing = asyncio.create_task(producer.run())
            failovers = []
            for number, way in enumerate(ways):
                trial.say(f"{what}: {way}")
                grown = PARTITIONS + (GROWN - PARTITIONS) * (number + 1) // len(ways)
                failovers.append(await _fail_over(trial, site, staff, mq, way, grown))
            producer.going = False
            await producing
            await _grow(mq, GROWN)  # a failover may have lost it
            await _drain(trial, what, mq)
            ended = await _check(trial, what, site, mq)
            _check_lost(trial, what, producer, ended, failovers)
    finally:
        staff.end()


async def _fail_over(
    trial: Trial, site: Sentinels | Nodes, staff: Staff, mq: MessageQueue, way: Way, grown: int
) -> tuple[float, float]:
    """Fail a primary; return the time span in which produced messages may be lost."""
    if isinstance(site, Nodes):
        site.topic = trial.random.choice(list(TOPICS))
    await asyncio.sleep(CALM)
    victim, since = await site.victim(), time.monotonic() - WINDOW
    behind = await hinder_replication(site, victim, way, lambda: asyncio.sleep(0.4))
    growing = asyncio.create_task(_grow(mq, grown))
    getattr(victim, way.end)()
    for replica in behind:
        replica.thaw()
    if trial.random.random() < 0.5:
        staff.kill()
        trial.count("workers killed")
    else:
        await staff.freeze()
        trial.count("zombies")
    await site.until_replaced(victim)
    await bring_back(victim)
    await site.until_whole()
    until = time.monotonic() + WINDOW
    await growing
    return since, until


async def _grow(mq: MessageQueue, partitions: int) -> None:
    """Give a topic more partitions, as soon as the servers allow it."""
    while True:
        try:
            await mq.admin.grow("parted", partitions)
        except MxRmqError:
            await asyncio.sleep(0.1)
        else:
            return


async def _drain(trial: Trial, what: str, mq: MessageQueue) -> None:
    """Wait until nothing is left to do. All topics must make progress meanwhile."""
    began = time.monotonic()
    least: dict[str, tuple[int, float]] = {}
    backlog, longest, slowest = 0, 0.0, ""
    while True:
        now, left = time.monotonic(), {}
        for topic in TOPICS:
            one = await mq.admin.stats(topic)
            left[topic] = one.pending + one.processing + one.delayed
            fewest, since = least.get(topic, (left[topic] + 1, now))
            if left[topic] < fewest:
                least[topic] = (left[topic], now)
            if left[topic] and now - since > longest:
                longest, slowest = now - since, topic
        backlog = backlog or sum(left.values())
        if not any(left.values()):
            break
        if longest > STUCK:
            trial.violated(f"{what}: stuck for {STUCK:g} s with {left}, since {least}")
            return
        await asyncio.sleep(0.05)
    took = time.monotonic() - began
    trial.say(f"{what}: {backlog} messages in {took:.1f} s; none of {slowest} for {longest:.1f} s")
    for figure, seconds in (
        ("longest until everything was handled, s", took),
        ("longest time without progress in a topic, s", longest),
    ):
        before = trial.figures.get(figure, 0)
        assert not isinstance(before, str)
        trial.figures[figure] = max(round(seconds, 1), before)
    trial.expect(longest < IDLE, f"{what}: {slowest} made no progress for {longest:.1f} s")


async def _check(
    trial: Trial, what: str, site: Sentinels | Nodes, mq: MessageQueue
) -> set[tuple[str, str]]:
    """Check the history of the primaries against the rules, and their keys by the audit.

    Returns the topics and ids of the messages that have ended.
    """
    ended: set[tuple[str, str]] = set()
    exact = site.nodes[0].kind is Kind.VALKEY_9_1
    for name in NAMES:
        topic, key = name.partition("/")[0], f"mx-rmq:{{{name}}}"
        node = await site.holder(name)
        async with Redis.from_url(node.url, decode_responses=True) as raw:
            rows: Any = await raw.xrange(f"{key}:history")
            for one in ("lines", "ring", "blocked", "running", "keyed"):
                left = await raw.exists(f"{key}:{one}")
                if one == "keyed" and left:  # the last number of a line stays
                    left = await raw.hlen(f"{key}:{one}") - await raw.hexists(f"{key}:{one}", "!")
                trial.expect(not left, f"{what}: {name}: entries of {one} are left")
        entries = [
            Entry(int(id.partition("-")[0]), row["what"], row["ids"].split(" ")) for id, row in rows
        ]
        for number, rules in enumerate(TOPICS[topic].rules):
            found = check(entries, rules, rounding=ROUNDING if exact else LATE)
            trial.count("leases", 0 if number else found.leases)
            trial.count("limits reached", found.reached)
            ended.update((topic, id) for id in found.ended)
            for violation in found.violations:
                trial.violated(f"{what}: {name}: {violation}")
        for wrong in await mq.store.audit.topic(name):
            trial.violated(f"{what}: audit: {wrong}")
    return ended


def _check_lost(
    trial: Trial,
    what: str,
    producer: Producer,
    ended: set[tuple[str, str]],
    failovers: list[tuple[float, float]],
) -> None:
    """Count lost messages. Only those produced during a failover may be lost."""
    lost = producer.acknowledged.keys() - ended
    trial.count("acknowledged during a failover, lost", len(lost))
    calm = {
        one
        for one, at in producer.acknowledged.items()
        if not any(since <= at <= until for since, until in failovers)
    }
    trial.count("acknowledged at another time", len(calm))
    others = sorted(calm & lost)
    trial.expect(not others, f"{what}: lost, but not produced during a failover: {others[:5]}")


FAULT: Final = Fault(
    "key_failovers",
    "limits and order by key while primaries are killed or frozen",
    run,
    unit="failovers",
    short=0,
    full=24,
)
