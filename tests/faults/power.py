"""Power losses: the server dies under load, and the disk has only what was fsynced.

A kill alone shows nothing, because the kernel keeps what was written. So a shim notes how much of
the AOF each fsync covered. After the kill the file is cut there, and the server starts from it.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from redis.asyncio import Redis

from mx_rmq import Delivery, MessageQueue, MxRmqError, OutcomeUnknown, ProduceUnknown, Worker
from mx_rmq.core import codec
from mx_rmq.store.results import RetryRequest
from mx_rmq.store.store import Store
from tests.faults.trial import Fault
from tests.lab.messages import FAILURE
from tests.lab.servers import USUAL, Server
from tests.lab.shims import FsyncLog
from tests.lab.snapshot import snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mx_rmq.store.results import Leased
    from tests.faults.trial import Trial
    from tests.lab.servers import Kind
    from tests.lab.snapshot import Snapshot

TOPIC: Final = "power"
WORKER: Final = "w1"
MODES: Final = ("always", "everysec")
PRODUCERS: Final = 12
SETTLERS: Final = 3
LEASE: Final = 1.5
ATTEMPTS: Final = 3
PATIENCE: Final = 0.5
WINDOW: Final = 2.0
"""Seconds of acknowledged writes that everysec may lose."""
CUTS: Final = 10
"""Cuts of the AOF per loss."""
TRANSACTIONS: Final = 20
"""The last transactions of the AOF, which are cut."""
MULTI: Final = b"*1\r\n$5\r\nMULTI\r\n"


@dataclass
class Acknowledged:
    """What the server acknowledged, each with its time on the monotonic clock."""

    produced: dict[str, float] = field(default_factory=dict)
    completed: dict[str, float] = field(default_factory=dict)
    dead: dict[str, float] = field(default_factory=dict)
    retried: dict[str, tuple[float, int]] = field(default_factory=dict)
    """With the number of attempts that the record has since."""
    unsure: set[str] = field(default_factory=set)
    """Messages of calls without a reply."""

    @property
    def count(self) -> int:
        """How many writes were acknowledged."""
        return len(self.produced) + len(self.completed) + len(self.dead) + len(self.retried)

    def lost(self, found: Snapshot) -> Iterator[tuple[str, str, float]]:
        """Yield what was acknowledged and is lost: the script, the message, and when."""
        for id, at in self.produced.items():
            gone = id not in found.records and id not in found.dead
            if gone and id not in self.completed and id not in self.unsure:
                yield "produce", id, at
        for id, at in self.completed.items():
            if id in found.records or id in found.dead:
                yield "complete_message", id, at
        for id, at in self.dead.items():
            if id not in found.dead:
                yield "move_to_dlq", id, at
        for id, (at, attempts) in self.retried.items():
            if id in found.records and codec.decode(found.records[id]).attempts < attempts:
                yield "retry_message", id, at

    def never_produced(self, found: Snapshot) -> set[str]:
        """Return messages that exist although their produce was refused or never made."""
        return {*found.records, *found.dead} - self.produced.keys() - self.unsure


async def run(trial: Trial) -> None:
    for figure in ("power losses", "acknowledged writes", "lost with appendfsync always"):
        trial.figures[figure] = 0
    for figure in ("lost with appendfsync everysec", "longest window of everysec, ms"):
        trial.figures[figure] = 0
    for figure in ("cuts inside the last transactions", "torn states", "refused starts"):
        trial.figures[figure] = 0
    rows: dict[tuple[Kind, str], list[int]] = {}
    first = trial.random.randrange(6)
    for number in range(trial.size):
        kind, mode = USUAL[(first + number) % 3], MODES[(first + number) % 2]
        loss = Loss(trial, kind, mode, trial.directory / f"{number}")
        await loss.happen()
        row = rows.setdefault((kind, mode), [0, 0, 0, 0])
        for column, more in enumerate((1, loss.acknowledged.count, loss.lost)):
            row[column] += more
        row[3] = max(row[3], round(loss.window * 1000))
        trial.say(f"{number + 1} of {trial.size} power losses")
        if not trial.violations:
            shutil.rmtree(loss.directory)
    windows = [row[3] for (_, mode), row in rows.items() if mode == "everysec"]
    trial.figures["longest window of everysec, ms"] = max(windows, default=0)
    head = ["server", "appendfsync", "losses", "acknowledged", "lost", "longest window, ms"]
    body = [[*names, *map(str, row)] for names, row in sorted(rows.items())]
    trial.tables["Power losses by server"] = [head, *body]


class Loss:
    """One loss of power."""

    def __init__(self, trial: Trial, kind: Kind, mode: str, directory: Path) -> None:
        self.trial = trial
        self.directory = directory
        self.acknowledged = Acknowledged()
        self.lost = 0
        self.window = 0.0
        self._mode = mode
        self._name = f"{kind}, {mode}"
        self._random = random.Random(trial.random.random())
        self._fsyncs = FsyncLog(directory)
        self._kind = kind
        self._options = ["--appendonly", "yes", "--appendfsync", mode]
        self._options += ["--auto-aof-rewrite-percentage", "0"]
        self._server = Server(
            kind, directory / "d", *self._options, environment=self._fsyncs.environment
        )

    async def happen(self) -> None:
        """Load, loss, restart; then compare, cut, and let a worker finish."""
        with self._server:
            await self._load(self._random.uniform(0.3, 2.5))
            killed_at = self._killed_at
            aof = self._aof().read_bytes()
            self._lose_what_is_not_synced()
            self._server.start()
            self.trial.count("power losses")
            self.trial.count("acknowledged writes", self.acknowledged.count)
            await self._compare(killed_at)
            await self._go_on()
        await self._cut(aof)

    async def _load(self, seconds: float) -> None:
        url = self._server.url
        async with (
            MessageQueue(url, patience=PATIENCE) as mq,
            await Store.open(url, patience=PATIENCE) as store,
        ):
            tasks = [asyncio.create_task(self._produce(mq)) for _ in range(PRODUCERS)]
            tasks += [asyncio.create_task(self._settle(store)) for _ in range(SETTLERS)]
            await asyncio.sleep(seconds)  # a load has a length
            self._killed_at = time.monotonic()
            self._server.kill()
            await asyncio.gather(*tasks)

    async def _produce(self, mq: MessageQueue) -> None:
        chance = random.Random(self._random.random())
        while True:
            delay = 0.2 if chance.random() < 0.1 else None
            try:
                id = await mq.produce(TOPIC, 1, delay=delay)
            except ProduceUnknown as error:
                self.acknowledged.unsure.update(error.ids)
                return
            except MxRmqError:
                return
            self.acknowledged.produced[id] = time.monotonic()

    async def _settle(self, store: Store) -> None:
        chance = random.Random(self._random.random())
        while True:
            try:
                await store.process_delay_message(TOPIC, count=100)
                taken = await store.dispatch_message(
                    TOPIC, WORKER, count=chance.randint(1, 30), lease=round(LEASE * 1000)
                )
            except MxRmqError:
                return
            if not taken.messages:
                await asyncio.sleep(0.005)
            for one in taken.messages[: len(taken.messages) // 2]:
                if not await self._fail(store, one, chance.random()):
                    return
            if not await self._complete(store, taken.messages[len(taken.messages) // 2 :]):
                return

    async def _complete(self, store: Store, taken: list[Leased]) -> bool:
        ids = [one.id for one in taken]
        try:
            answers = await store.complete_message(TOPIC, WORKER, taken)
        except MxRmqError as error:
            return self._failed(ids, error)
        done = [id for id, answer in zip(ids, answers, strict=True) if answer]
        self.acknowledged.completed |= dict.fromkeys(done, time.monotonic())
        return True

    async def _fail(self, store: Store, one: Leased, chance: float) -> bool:
        """Retry it, move it to the dead letters, or keep it."""
        message = codec.decode(one.record).failed(FAILURE)
        try:
            if message.attempts > ATTEMPTS or chance < 0.1:
                if await store.move_to_dlq(TOPIC, WORKER, one, message):
                    self.acknowledged.dead[one.id] = time.monotonic()
            elif chance < 0.9:
                again = RetryRequest(one, message, 50)
                if all(await store.retry_message(TOPIC, WORKER, [again])):
                    self.acknowledged.retried[one.id] = time.monotonic(), message.attempts
        except MxRmqError as error:
            return self._failed([one.id], error)
        return True

    def _failed(self, ids: list[str], error: MxRmqError) -> bool:
        if isinstance(error, OutcomeUnknown):
            self.acknowledged.unsure.update(ids)
        return False

    def _aof(self) -> Path:
        """Return the file to which the server appends."""
        return max(self._server.directory.rglob("*.aof"), key=lambda path: path.stat().st_mtime_ns)

    def _lose_what_is_not_synced(self) -> None:
        path = self._aof()
        synced = self._fsyncs.synced(path) or 0
        self.trial.count("bytes lost", path.stat().st_size - synced)
        with path.open("r+b") as file:
            file.truncate(synced)
        self._fsyncs.forget()

    async def _compare(self, killed_at: float) -> None:
        async with Redis.from_url(self._server.url) as raw:
            found = await snapshot(raw, TOPIC)
        await self._audit(self._server, "after the restart")
        self._live = set(found.records)
        lost = list(self.acknowledged.lost(found))
        self.lost = len(lost)
        self.trial.count(f"lost with appendfsync {self._mode}", self.lost)
        if lost:
            script, id, at = min(lost, key=lambda one: one[-1])
            self.window = killed_at - at
            self.trial.expect(
                self._mode == "everysec" and self.window <= WINDOW,
                f"{self._name}: {self.lost} acknowledged writes are lost, the first is {script} "
                f"of {id}, acknowledged {self.window * 1000:.0f} ms before",
            )
        for id in self.acknowledged.never_produced(found):
            self.trial.violated(f"{self._name}: {id} exists, but its produce was refused")

    async def _audit(self, server: Server, when: str) -> None:
        async with await Store.open(server.url) as store:
            for violation in await store.audit.topic(TOPIC):
                self.trial.count("torn states")
                self.trial.violated(f"{self._name}, {when}: {violation}")

    async def _go_on(self) -> None:
        """Let a worker finish what is left, and something new."""
        handled = set()
        mq = MessageQueue(self._server.url, lease=LEASE)

        @mq.handler(TOPIC)
        async def handle(_: int, delivery: Delivery) -> None:
            handled.add(delivery.id)

        async with mq:
            new = await mq.produce(TOPIC, 1)
            try:
                async with asyncio.timeout(60):
                    await Worker(mq).drain(delayed=True)
            except TimeoutError:
                self.trial.violated(f"{self._name}: the queue does not work after the restart")
            stats = await mq.admin.stats(TOPIC)
        left = stats.pending + stats.processing + stats.delayed
        self.trial.expect(not left, f"{self._name}: {left} messages are left after the drain")
        missed = {*self._live, new} - handled
        self.trial.expect(not missed, f"{self._name}: never handled after the restart: {missed}")
        await self._audit(self._server, "after the drain")

    async def _cut(self, aof: bytes) -> None:
        """Start from the AOF cut at some bytes of its last transactions."""
        start = len(aof)
        for _ in range(TRANSACTIONS):
            start = max(0, aof.rfind(MULTI, 0, start))
        places = range(start, len(aof))
        for at in sorted(self._random.sample(places, min(CUTS, len(places)))):
            self._aof().write_bytes(aof[:at])
            self.trial.count("cuts inside the last transactions")
            try:
                with Server(self._kind, self._server.directory, *self._options) as server:
                    await self._audit(server, f"cut at byte {at}")
            except RuntimeError as error:
                self.trial.count("refused starts")
                self.trial.violated(f"{self._name}, cut at byte {at}: {error}")


FAULT: Final = Fault(
    name="power",
    title="power loss under load: unsynced writes are gone, and the AOF is cut at any byte",
    run=run,
    unit="power losses",
    short=2,
    full=50,
)
