"""The server's clock is set forward and back, and the workers' clocks are hours off.

A jump must not cost a message or an attempt: a holder keeps its messages, and what a dead worker
left behind is found. Due times follow the server's clock: set forward, messages are due sooner;
set back, later.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Self

from mx_rmq import MessageQueue
from tests.faults.trial import Fault
from tests.lab.crew import PLAIN, ROOT, TICK, TOPIC, History, Line, Member, until
from tests.lab.servers import USUAL, Server
from tests.lab.shims import SetClock

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faults.trial import Trial
    from tests.lab.servers import Kind

HOUR: Final = 3600.0
JUMPS: Final = ((300.0, -300.0), (-300.0, 300.0), (HOUR, -HOUR), (-HOUR, HOUR))
"""Forward and back again."""
SKEWS: Final = (-5 * HOUR, 0.0, 5 * HOUR)
"""Seconds by which a worker's own clock is off."""
STORED: Final = "stored"  # the name of the schedule
LEASE: Final = 1.5
HOLD_BACK: Final = LEASE / 3 + 0.5
"""Seconds for which monitors hold back after a jump."""
HELD: Final = 8
HELD_FOR: Final = 2 * LEASE + 0.5
"""Seconds that handlers run across a jump: longer than a lease that is not extended."""
WAITING: Final = 5
DEDUP: Final = 120.0
SLACK: Final = 20.0
"""Seconds that a busy machine may add. Jumps are far longer, and must not stall anything."""
PROMPT: Final = 5.0
"""Seconds within which pending messages, or due ones by the server's clock, are handled."""


@dataclass(frozen=True)
class Sent:
    """A message, and how it may end."""

    at: float
    due: float
    """By the server's clock."""
    runs: int = 1
    """How often it may run."""


class Skewed(Member):
    """A worker process whose own wall clock is wrong."""

    def __init__(self, url: str, directory: Path, skew: float, **options: Any) -> None:
        self.skew = skew
        self.log = directory / f"worker-{time.monotonic_ns()}.log"
        program = [sys.executable, "-m", "tests.lab.crew", url, str(directory / "history")]
        clock = SetClock(directory, f"skew{skew:.0f}", skew)
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*program, json.dumps(options)],
                cwd=ROOT,
                env={**os.environ, **clock.environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )


async def run(trial: Trial) -> None:
    trial.figures["jumps"] = 0
    for figure in ("lost", "attempts burnt", "extra runs", "too early"):
        trial.figures[figure] = 0
    trial.figures["workers killed at a jump"] = 0
    for figure in ("longest recovery, s", "longest wait of new work, s"):
        trial.figures[figure] = 0.0
    for figure in ("longest wait of a due message, s", "longest silence of a cron, s"):
        trial.figures[figure] = 0.0
    first = trial.random.randrange(len(JUMPS) * len(USUAL))
    plans: defaultdict[Kind, list[tuple[float, float]]] = defaultdict(list)
    for number in range(first, first + (trial.size + 1) // 2):
        plans[USUAL[number % len(USUAL)]].append(JUMPS[number % len(JUMPS)])
    sizes: defaultdict[str, int] = defaultdict(int)
    for kind, pairs in plans.items():
        async with Place(trial, kind, trial.directory / kind) as place:
            for jump in [jump for pair in pairs for jump in pair]:
                await place.jump(jump)
                sizes[f"{jump:+.0f} s"] += 1
                trial.say(f"{trial.figures['jumps']} of {trial.size} jumps")
            await place.finish()
    body = [[size, str(count)] for size, count in sorted(sizes.items())]
    trial.tables["Jumps by size"] = [["jump of the server's clock", "times"], *body]


class Place:
    """A server with its own clock, and two workers."""

    def __init__(self, trial: Trial, kind: Kind, directory: Path) -> None:
        self.trial = trial
        self._name = str(kind)
        self._directory = directory
        self._random = random.Random(trial.random.random())
        self._clock = SetClock(directory)
        self._server = Server(kind, directory / "d", environment=self._clock.environment)
        self._offsets = [(0.0, 0.0)]
        """When the server's clock was set, and by how much it has been off since."""
        self._history = History(directory / "history")
        self._members: list[Skewed] = []
        self._skews: dict[int, float] = {}
        self._sent: dict[str, Sent] = {}
        self._failing: set[str] = set()
        self._killed: dict[str, float] = {}
        """Messages whose worker was killed at a jump, and when."""
        self._numbers = 0

    async def __aenter__(self) -> Self:
        self._stack = AsyncExitStack()
        self._stack.enter_context(self._server)
        self._stack.callback(self._end_members)
        self.mq = await self._stack.enter_async_context(MessageQueue(self._server.url))
        await self.mq.admin.schedule(STORED, TICK, "* * * * * *")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def _end_members(self) -> None:
        for member in self._members:
            if member.is_alive():
                member.end(signal.SIGKILL)

    async def _two_members(self) -> None:
        while sum(member.is_alive() for member in self._members) < 2:
            member = Skewed(
                self._server.url,
                self._directory,
                self._random.choice(SKEWS),
                lease=LEASE,
                concurrency=100,
                cron="* * * * * *",
                handler={"retry": 3.0, "max_attempts": 2},
            )
            self._members.append(member)
            self._skews[member.pid] = member.skew
            await asyncio.to_thread(member.until_ready)

    def _lines(self, event: str) -> list[Line]:
        """Return what happened, in real time."""
        lines = self._history.lines(event)
        for line in lines:
            line.at -= self._skews[line.pid]
        return lines

    def _ended(self, ids: list[str]) -> bool:
        return set(ids) <= set(self._history.ids("end"))

    async def _send(
        self, payload: dict[str, Any], topic: str = TOPIC, delay: float = 0, **fields: Any
    ) -> str:
        at = time.time()
        due = at + self._clock.seconds + delay
        id = await self.mq.produce(topic, payload, delay=delay or None, **fields)
        self._sent[id] = Sent(at, due)
        return id

    # one jump

    async def jump(self, seconds: float) -> None:
        """Set the clock while messages are held, delayed and pending."""
        await self._two_members()
        own = await self._own_id()
        failing = [await self._send({"fail": True}) for _ in range(2)]
        self._failing.update(failing)
        held = [await self._send({"sleep": HELD_FOR}) for _ in range(HELD)]
        await until(lambda: set(held + failing) <= set(self._history.ids("start")))
        await self.mq.admin.pause(PLAIN)
        waiting = [await self._send({}, PLAIN) for _ in range(WAITING)]
        for delay in (1.0, 3.0, self._random.uniform(10, 250)):
            await self._send({}, delay=delay)
        await asyncio.sleep(self._random.uniform(0, LEASE))  # at any moment of a lease
        kill = self._random.random() < 0.3
        if kill and self._random.random() < 0.5:
            self._kill_one()
            kill = False
        self._set(self._clock.seconds + seconds)
        if kill:
            self._kill_one()
        await self.mq.admin.resume(PLAIN)
        await self._work_goes_on(held + waiting)
        await self._cron_goes_on()
        await self._produce_again(own)
        await self._audit(f"after {seconds:+.0f} s")
        self.trial.count("jumps")

    def _set(self, seconds: float) -> None:
        self._offsets.append((time.time(), seconds))
        self._clock.set(seconds)

    def _kill_one(self) -> None:
        member = next(member for member in self._members if member.is_alive())
        member.end(signal.SIGKILL)
        killed_at = time.time()
        ended = set(self._history.ids("end"))
        mine = {line.id for line in self._lines("start") if line.pid == member.pid}
        self._killed |= dict.fromkeys(mine - ended - self._failing, killed_at)
        self.trial.count("workers killed at a jump")

    async def _work_goes_on(self, ids: list[str]) -> None:
        """Send new work until all earlier work has ended."""
        deadline = time.monotonic() + 30
        probes = []
        while not self._ended(ids) and time.monotonic() < deadline:
            probes.append(await self._send({}))
            await asyncio.sleep(0.1)
        try:
            await until(lambda: self._ended(ids + probes), 30)
        except AssertionError:
            stuck = set(ids + probes) - set(self._history.ids("end"))
            self.trial.violated(f"{self._name}: {stuck} are not handled after {self._jumps()}")
        started: dict[str, float] = {}
        for line in self._lines("start"):
            started.setdefault(line.id, line.at)
        waits = [started[id] - self._sent[id].at for id in probes if id in started]
        self._longest("longest wait of new work, s", max(waits, default=0), PROMPT)

    async def _cron_goes_on(self) -> None:
        """Check that both fire: the cron declared in code, and the schedule on the server."""
        since = self._offsets[-1][0]
        for stored, what in ((False, "a cron"), (True, "a schedule")):

            def fired(stored: bool = stored) -> bool:
                lines = [line for line in self._lines("tick") if line.at > since]
                return any(line.id.endswith(f"@{STORED}") is stored for line in lines)

            try:
                await until(fired, 15)
            except AssertionError:
                self.trial.violated(
                    f"{self._name}: {what} is silent for 15 s after {self._jumps()}"
                )

    async def _own_id(self) -> str:
        self._numbers += 1
        own = await self._send({}, id=f"own-{self._numbers}")
        await until(lambda: self._ended([own]))
        return own

    async def _produce_again(self, own: str) -> None:
        """Produce an id again; it may run only if its window is over by the server's clock."""
        first = self._sent[own]
        again = await self._send({}, id=own)
        assert again == own
        runs = 2 if self._sent[own].due - first.due > DEDUP else 1
        self._sent[own] = Sent(first.at, first.due, runs)

    async def _audit(self, when: str) -> None:
        for topic in (TOPIC, PLAIN, TICK):
            for violation in await self.mq.admin.audit(topic):
                self.trial.violated(f"{self._name}, {when}: {violation}")

    # the end

    async def finish(self) -> None:
        """Set the clock so far ahead that everything is due; then everything must end."""
        self._set(3 * HOUR)
        await self._two_members()
        try:
            await until(self._is_empty, 60)
        except AssertionError:
            stats = await self.mq.admin.stats(TOPIC)
            self.trial.violated(f"{self._name}: not empty at the end: {stats}")
        await self._audit("at the end")
        starts = defaultdict(list)
        for line in self._lines("start"):
            starts[line.id].append(line)
        ended = set(self._history.ids("end"))
        for id, sent in self._sent.items():
            if id in self._failing:
                continue
            if id not in ended:
                self.trial.count("lost")
                self.trial.violated(f"{self._name}: {id} is lost: {starts[id]}")
            self._check_runs(id, sent, starts[id])
        dead = (await self.mq.admin.stats(TOPIC)).dead
        if dead != len(self._failing):
            self.trial.count("lost", max(0, len(self._failing) - dead))
            self.trial.violated(f"{self._name}: {dead} dead letters of {len(self._failing)}")
        ticks = sorted(line.at for line in self._lines("tick"))
        silence = max((later - one for one, later in pairwise(ticks)), default=0)
        self._longest("longest silence of a cron, s", silence)

    async def _is_empty(self) -> bool:
        for topic in (TOPIC, PLAIN):
            stats = await self.mq.admin.stats(topic)
            if stats.pending or stats.processing or stats.delayed:
                return False
        return True

    def _check_runs(self, id: str, sent: Sent, lines: list[Line]) -> None:
        killed = self._killed.get(id)
        allowed = sent.runs + (killed is not None)
        if len(lines) > allowed:
            self.trial.count("extra runs", len(lines) - allowed)
            self.trial.violated(f"{self._name}: {id} ran {len(lines)} times: {lines}")
        if killed is None and any(line.attempt > 1 for line in lines):
            self.trial.count("attempts burnt")
            self.trial.violated(f"{self._name}: an attempt of {id} is burnt: {lines}")
        if killed is not None and len(lines) > 1:
            within = LEASE + HOLD_BACK + SLACK
            self._longest("longest recovery, s", lines[1].at - killed, within)
        if lines and lines[0].at + self._ahead(sent.at, lines[0].at) < sent.due - 0.01:
            self.trial.count("too early")
            self.trial.violated(f"{self._name}: {id} ran before its time: {sent}, {lines}")
        if lines:
            late = lines[0].at - self._due_at(sent)
            self._longest("longest wait of a due message, s", late, PROMPT)

    def _ahead(self, since: float, until: float) -> float:
        """Return by how much the server's clock was ahead at most, between two moments."""
        ends = [*(at for at, _ in self._offsets[1:]), float("inf")]
        spans = zip(self._offsets, ends, strict=True)
        return max(offset for (at, offset), end in spans if at <= until and end >= since)

    def _due_at(self, sent: Sent) -> float:
        """Return when a message was first due by the server's clock."""
        ends = [*(at for at, _ in self._offsets[1:]), float("inf")]
        for (at, offset), end in zip(self._offsets, ends, strict=True):
            due = max(sent.due - offset, sent.at, at)
            if end > sent.at and due < end:
                return due
        return float("inf")

    def _longest(self, what: str, seconds: float, most: float = float("inf")) -> None:
        before = self.trial.figures[what]
        assert not isinstance(before, str)
        self.trial.figures[what] = max(before, round(seconds, 1))
        self.trial.expect(
            seconds <= most, f"{self._name}: {what} {seconds:.1f}, after {self._jumps()}"
        )

    def _jumps(self) -> str:
        return ", ".join(f"{offset:+.0f}" for _, offset in self._offsets)


FAULT: Final = Fault(
    name="clocks",
    title="the server's clock set by ±300 s and ±1 h, workers' clocks off by ±5 h",
    run=run,
    unit="jumps",
    short=2,
    full=50,
)
