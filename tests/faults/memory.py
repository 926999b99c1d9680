"""The server reaches maxmemory under load: produce is refused, everything else works."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from redis.asyncio import Redis

from mx_rmq import MessageQueue, MxRmqError, ServerFull, Worker
from tests.faults.trial import Fault
from tests.lab import crew
from tests.lab.crew import TOPIC, until
from tests.lab.servers import USUAL, Server
from tests.lab.snapshot import snapshot

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faults.trial import Trial
    from tests.lab.crew import History, Line, Member
    from tests.lab.servers import Kind

PRODUCERS: Final = 6
LEASE: Final = 2.0
ATTEMPTS: Final = 3
OPTIONS: Final = {
    "lease": LEASE,
    "dlq_max_bytes": 1 << 28,  # else dead letters get a tenth of the maxmemory that is taken away
    "handler": {"max_attempts": ATTEMPTS},
}
HELD: Final = 8
"""Messages that a worker has when it is killed."""
HELD_FOR: Final = 2.5
"""Seconds for which their handlers run."""
QUICKLY: Final = 5.0
"""Seconds within which a produce is refused on a busy machine. Its patience is ten."""
RULE: Final = "raise maxmemory"
"""What a refusal must name."""


@dataclass
class Produced:
    """A produce that returned, with its times on the monotonic clock."""

    payload: dict[str, Any]
    asked: float
    answered: float


@dataclass
class Load:
    """Producers that continue whatever the server answers."""

    mq: MessageQueue
    random: random.Random
    produced: dict[str, Produced] = field(default_factory=dict)
    refused: list[tuple[float, float, ServerFull]] = field(default_factory=list)
    """When it was called, and when it was refused."""
    failed: list[MxRmqError] = field(default_factory=list)
    going: bool = True

    async def produce(self, payload: dict[str, Any], delay: float | None = None) -> None:
        asked = time.monotonic()
        try:
            id = await self.mq.produce(TOPIC, payload, delay=delay)
        except ServerFull as error:
            self.refused.append((asked, time.monotonic(), error))
            await asyncio.sleep(0.03)
        except MxRmqError as error:
            self.failed.append(error)
        else:
            self.produced[id] = Produced(payload, asked, time.monotonic())

    async def go_on(self) -> None:
        chance = random.Random(self.random.random())
        while self.going:
            kind = chance.random()
            if kind < 0.15:
                await self.produce({"fail": True})
            elif kind < 0.3:
                await self.produce({}, delay=chance.uniform(0.1, 0.8))
            else:
                await self.produce({"sleep": 0.05} if kind < 0.4 else {})
            await asyncio.sleep(0.002)


async def run(trial: Trial) -> None:
    for figure in ("cycles", "produced", "refused", "stored at maxmemory", "lost", "duplicated"):
        trial.figures[figure] = 0
    for figure in ("handled at maxmemory", "died at maxmemory", "taken over at maxmemory"):
        trial.figures[figure] = 0
    trial.figures["half-written"] = 0
    trial.figures["longest refusal, ms"] = 0
    rows: Counter[Kind] = Counter()
    first = trial.random.randrange(len(USUAL))
    for number in range(trial.size):
        kind = USUAL[(first + number) % len(USUAL)]
        cycle = Cycle(trial, kind, trial.directory / f"{number}", newcomer=number % 2 == 1)
        await cycle.turn()
        rows[kind] += 1
        trial.say(f"{number + 1} of {trial.size} cycles")
        if not trial.violations:
            shutil.rmtree(cycle.directory)
    body = [[kind, str(count)] for kind, count in sorted(rows.items())]
    trial.tables["Cycles by server"] = [["server", "cycles"], *body]


class Cycle:
    """A server that fills up once, then has room again."""

    def __init__(self, trial: Trial, kind: Kind, directory: Path, *, newcomer: bool) -> None:
        self.trial = trial
        self.directory = directory
        self._name = f"{directory.name}, {kind}"
        self._newcomer = newcomer
        """Whether the lasting worker starts when the memory is already full."""
        self._random = random.Random(trial.random.random())
        self._server = Server(kind, directory / "d")

    async def turn(self) -> None:
        """Apply load, take the memory, kill a worker, drain; then give memory and continue."""
        self.directory.mkdir()
        async with AsyncExitStack() as stack:
            url = stack.enter_context(self._server).url
            start, history = stack.enter_context(crew.crew(url, self.directory))
            victim = start(concurrency=HELD, **OPTIONS)
            mq = await stack.enter_async_context(MessageQueue(url))
            self._raw = await stack.enter_async_context(Redis.from_url(url))
            self._mq, self._history = mq, history
            load = Load(mq, self._random)
            await asyncio.gather(*(load.produce({"sleep": HELD_FOR}) for _ in range(HELD)))
            await until(lambda: len(set(history.ids("start"))) == HELD)
            producing = [asyncio.create_task(load.go_on()) for _ in range(PRODUCERS)]
            if not self._newcomer:
                await self._worker(stack)
            await until(lambda: len(load.produced) > HELD + 200)
            await self._without_memory(load, victim, stack)
            enough = len(load.produced) + 40
            await until(lambda: len(load.produced) >= enough)
            load.going = False
            await asyncio.gather(*producing)
            await self._until_empty("once there was memory again")
            await self._audit("at the end")
            await self._check(load, victim)

    async def _worker(self, stack: AsyncExitStack) -> None:
        """Start a worker in this process that stays."""
        file = os.open(self.directory / "history", os.O_WRONLY | os.O_APPEND)
        stack.callback(os.close, file)
        mq = crew.make(self._server.url, file, {**OPTIONS})
        await stack.enter_async_context(mq)
        await stack.enter_async_context(Worker(mq, concurrency=50))

    async def _without_memory(self, load: Load, victim: Member, stack: AsyncExitStack) -> None:
        used = (await self._raw.info("memory"))["used_memory"]
        self._filling_at = time.monotonic()
        await self._raw.config_set("maxmemory", self._random.choice((1, used // 4)))
        self._full_at = time.monotonic()
        before = await self._done()
        victim.end(signal.SIGKILL)
        self._held = self._held_by(victim)
        if self._newcomer:
            await self._worker(stack)
        await self._audit("at maxmemory, under load")
        await self._until_empty("at maxmemory")
        await self._audit("at maxmemory")
        for what, count in ((await self._done()) - before).items():
            self.trial.count(what, count)
        refused = len(load.refused)
        await until(lambda: len(load.refused) > refused)
        self._room_at = time.monotonic()
        await self._raw.config_set("maxmemory", 0)
        self._room_again_at = time.monotonic()

    async def _done(self) -> Counter[str]:
        stats = await self._mq.admin.stats(TOPIC)
        handled = len(self._history.ids("end"))
        return Counter({"handled at maxmemory": handled, "died at maxmemory": stats.dead})

    def _held_by(self, victim: Member) -> set[str]:
        mine = [line for line in self._history.lines() if line.pid == victim.pid]
        ended = {line.id for line in mine if line.event == "end"}
        return {line.id for line in mine} - ended

    async def _until_empty(self, when: str) -> None:
        async def empty() -> bool:
            stats = await self._mq.admin.stats(TOPIC)
            return not (stats.pending or stats.processing or stats.delayed)

        try:
            await until(empty, 60)
        except AssertionError:
            stats = await self._mq.admin.stats(TOPIC)
            self.trial.violated(f"{self._name}: the queue does not empty {when}: {stats}")

    async def _audit(self, when: str) -> None:
        for violation in await self._mq.admin.audit(TOPIC):
            self.trial.violated(f"{self._name}, {when}: {violation}")

    async def _check(self, load: Load, victim: Member) -> None:
        self.trial.count("cycles")
        self.trial.count("produced", len(load.produced))
        self.trial.count("refused", len(load.refused))
        self._check_refusals(load)
        runs = Runs(self._history)
        dead = set((await snapshot(self._raw, TOPIC)).dead)
        for id, made in load.produced.items():
            self._check_message(id, made, runs, dead, victim)
        for id in (runs.ids | dead) - load.produced.keys():
            self.trial.count("half-written")
            self.trial.violated(f"{self._name}: {id} exists, but no produce returned it")
        again = {line.id for line in self._history.lines("start") if line.pid != victim.pid}
        self.trial.count("taken over at maxmemory", len(self._held & again))

    def _check_refusals(self, load: Load) -> None:
        longest = self.trial.figures["longest refusal, ms"]
        assert isinstance(longest, int)
        for asked, answered, error in load.refused:
            took = answered - asked
            longest = max(longest, round(took * 1000))
            self.trial.expect(took < QUICKLY, f"{self._name}: refused after {took:.1f} s")
            self.trial.expect(RULE in str(error), f"{self._name}: {error} does not say {RULE!r}")
            was_full = answered > self._filling_at and asked < self._room_again_at
            self.trial.expect(was_full, f"{self._name}: refused although there was memory")
        self.trial.figures["longest refusal, ms"] = longest
        for failed in load.failed:
            self.trial.violated(f"{self._name}: produce raised {failed!r} instead of ServerFull")
        stored = [
            id
            for id, made in load.produced.items()
            if made.asked > self._full_at and made.answered < self._room_at
        ]
        self.trial.count("stored at maxmemory", len(stored))
        self.trial.expect(not stored, f"{self._name}: {len(stored)} were stored at maxmemory")

    def _check_message(
        self, id: str, made: Produced, runs: Runs, dead: set[str], victim: Member
    ) -> None:
        fails = bool(made.payload.get("fail"))
        if not (id in dead if fails else runs.ends[id]):
            self.trial.count("lost")
            self.trial.violated(f"{self._name}: {id} {made.payload} is lost: {runs.of(id)}")
        if id in dead and not fails:
            self.trial.violated(f"{self._name}: {id} {made.payload} is dead: {runs.of(id)}")
        allowed = (ATTEMPTS if fails else 1) + any(line.pid == victim.pid for line in runs.of(id))
        if runs.starts[id] > allowed:
            self.trial.count("duplicated")
            self.trial.violated(f"{self._name}: {id} {made.payload} ran again: {runs.of(id)}")


class Runs:
    """What handlers did, by message."""

    def __init__(self, history: History) -> None:
        self._lines = history.lines()
        self.starts = Counter(line.id for line in self._lines if line.event == "start")
        self.ends = Counter(line.id for line in self._lines if line.event == "end")
        self.ids = set(self.starts)

    def of(self, id: str) -> list[Line]:
        return [line for line in self._lines if line.id == id]


FAULT: Final = Fault(
    name="memory",
    title="maxmemory set below what is used, under load, while a worker is killed; then raised",
    run=run,
    unit="cycles",
    short=1,
    full=50,
)
