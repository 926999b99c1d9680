"""Workers that are killed and frozen, on a server that is killed, too."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import TYPE_CHECKING, Any

from mx_rmq import MessageQueue, MxRmqError, Worker
from tests.faults import member

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.faults.trial import Trial
    from tests.lab.servers import Server


class Staff:
    """Worker processes. Each runs a program with its place, its name, and perhaps a role."""

    def __init__(
        self, trial: Trial, program: Callable[..., None], place: Any, *, lease: float
    ) -> None:
        self.trial = trial
        self._program = program
        self._place = place
        self._lease = lease
        self._workers: dict[Any, tuple[str, ...]] = {}
        self._hired = 0

    def hire(self, *role: str) -> None:
        self._hired += 1
        worker = member.start(self._program, self._place, f"w{self._hired}", *role)
        self._workers[worker] = role

    def kill(self) -> None:
        """Kill a worker, and start another in its place."""
        victim = self.trial.random.choice([*self._workers])
        role = self._workers.pop(victim)
        victim.kill()
        victim.join(20)
        victim.close()
        self.hire(*role)
        self.trial.count("workers killed")

    async def freeze(self) -> None:
        """Freeze a worker past its lease, then let it continue."""
        pid = self.trial.random.choice([*self._workers]).pid
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(self._lease * self.trial.random.uniform(1.1, 1.8))
        finally:
            os.kill(pid, signal.SIGCONT)
        self.trial.count("zombies")

    async def kill_server(self, server: Server) -> None:
        server.kill()
        await asyncio.sleep(self.trial.random.uniform(0, 0.3))
        server.start()
        self.trial.count("server kills")

    async def fault(self, number: int, server: Server) -> None:
        """Inject one of four faults: two kills, a zombie, and a server kill take turns."""
        if number % 4 < 2:
            self.kill()
        elif number % 4 == 2:
            await self.freeze()
        else:
            await self.kill_server(server)

    def end(self) -> None:
        for worker in self._workers:
            worker.kill()
            worker.join(20)


async def serve(mq: MessageQueue, name: str) -> None:
    """Run a worker as a supervisor does: restart it if the server was away."""
    while True:
        try:
            async with mq:
                await Worker(mq, name=name, concurrency=20).run()
            return
        except MxRmqError:
            await asyncio.sleep(0.1)


async def insist(trial: Trial, call: Callable[[], Any]) -> None:
    """Call until it succeeds. With custom ids a repetition is harmless."""
    while True:
        try:
            await call()
            return
        except MxRmqError:
            trial.count("calls repeated")


async def settle(trial: Trial, mq: MessageQueue, topics: Iterable[str], stuck: float) -> None:
    """Wait until nothing waits or runs in these topics."""
    deadline = time.monotonic() + stuck
    while True:
        stats = [await mq.admin.stats(topic) for topic in topics]
        left = {one.topic: (one.pending, one.delayed, one.waiting, one.processing) for one in stats}
        if not any(any(counts) for counts in left.values()):
            return
        if time.monotonic() > deadline:
            trial.violated(f"stuck for {stuck:g} s: pending, delayed, waiting, processing: {left}")
            return
        await asyncio.sleep(0.05)
