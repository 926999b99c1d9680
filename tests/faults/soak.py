"""An hour of everything: a million messages, and every half minute something goes wrong.

Every minute the audit must be clean. One worker is never touched: its memory and the server's must
be as flat at the end as they were at the beginning.
"""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from redis.asyncio import Redis

from tests.faults.check import EVERYSEC
from tests.faults.kills import tell
from tests.faults.scene import Scene
from tests.faults.trial import Fault
from tests.lab.servers import Kind, Server

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.faults.scene import Hand
    from tests.faults.trial import Trial

WORKERS: Final = 3
MESSAGES: Final = 17_000
"""Messages a minute: a little more than a million in an hour."""
LEASE: Final = 5.0
SILENT: Final = 7.0
"""Seconds for which the server answers nobody: longer than a lease, and yet nobody may lose his."""
PAUSE: Final = (5.0, 25.0)
"""Seconds between two faults."""
FLAT: Final = 1.05
"""By how much memory at the end may be above that of the beginning."""
WARM: Final = 10
"""Minutes after which memory is taken for that of the beginning."""
MIB: Final = 1_048_576


async def run(trial: Trial) -> None:
    """Soak for so many minutes."""
    options = ("--appendonly", "yes", "--appendfsync", "everysec")
    server = Server(Kind.VALKEY_9_1, trial.directory / "server", *options).start()
    try:
        async with Scene(trial, server, lease=LEASE, patience=30) as scene:
            await Soak(scene).run()
            tell(trial, await scene.check())
    finally:
        server.kill()


class Soak:
    """A scene that goes on for long."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._trial = scene.trial
        self._memory: list[dict[str, float]] = []

    async def run(self) -> None:
        scene, trial = self._scene, self._trial
        (self._veteran,) = scene.hire()
        scene.hire(WORKERS - 1)
        scene.produce(trial.size * MESSAGES, producers=2, paced=True, backlog=2_000)
        trouble = asyncio.create_task(self._make_trouble(), name="trouble")
        began = time.monotonic()
        for minute in range(trial.size):
            while (passed := (time.monotonic() - began) / 60) < minute + 1:
                scene.allow(passed / trial.size)
                await asyncio.sleep(0.2)
                if trouble.done():
                    trouble.result()
            await self._look()
        trouble.cancel()
        await asyncio.gather(trouble, return_exceptions=True)
        scene.allow(2)
        await scene.settle(within=300)
        await self._look()
        self._judge_memory()

    # what goes wrong

    async def _make_trouble(self) -> None:
        random = self._trial.random
        faults: dict[str, Callable[[], Awaitable[None]]] = {
            "workers killed": self._kill,
            "workers frozen": self._freeze,
            "workers stopped and replaced": self._stop,
            "server kills": self._kill_server,
            "scripts flushed": self._flush,
            "all connections killed": self._cut,
            "out of memory": self._fill,
            f"server silent for {SILENT:g} s": self._silence,
        }
        while True:
            await asyncio.sleep(random.uniform(*PAUSE))
            what = random.choice(list(faults))
            await faults[what]()
            self._trial.count(what)

    def _victim(self) -> Hand:
        return self._trial.random.choice(
            [one for one in self._scene.hands if one is not self._veteran]
        )

    async def _kill(self) -> None:
        self._scene.kill(self._victim())
        self._scene.hire()

    async def _freeze(self) -> None:
        victim = self._victim()
        self._scene.freeze(victim)
        try:
            await asyncio.sleep(LEASE * 1.5)
        finally:
            self._scene.thaw(victim)

    async def _stop(self) -> None:
        victim = self._victim()
        victim.send(signal.SIGTERM)
        await asyncio.to_thread(victim.join)
        self._scene.hands.remove(victim)
        self._scene.hire()

    async def _kill_server(self) -> None:
        self._scene.trouble()
        server = self._scene.server
        await asyncio.to_thread(server.kill)
        self._scene.forgot(EVERYSEC)
        await asyncio.sleep(self._trial.random.uniform(0, 2))
        await asyncio.to_thread(server.start)
        self._scene.calm()

    async def _flush(self) -> None:
        await self._command("SCRIPT", "FLUSH")

    async def _cut(self) -> None:
        await self._command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    async def _fill(self) -> None:
        await self._command("CONFIG", "SET", "maxmemory", "1")
        await asyncio.sleep(2)
        await self._command("CONFIG", "SET", "maxmemory", "0")

    async def _silence(self) -> None:
        """Let every call wait. Then everybody extends his leases before anybody takes one over."""
        await self._command("CLIENT", "PAUSE", str(round(SILENT * 1000)), "ALL")
        await asyncio.sleep(SILENT)

    # what is looked at

    async def _look(self) -> None:
        """Audit, and weigh."""
        await self._scene.audit()
        self._trial.count("audits")
        info = await self._command("INFO", "memory")
        archives = 0
        for topic in ("work", "plain"):
            for key in ("dlq", "dlq:payload", "error:parse:queue", "error:parse:payload"):
                name = f"mx-rmq:{{{topic}}}:{key}"
                archives += await self._command("MEMORY", "USAGE", name, "SAMPLES", "0") or 0
        self._memory.append(
            {
                "server": (info["used_memory"] - archives) / MIB,
                "worker": _resident(self._veteran.pid) / MIB,
                "left": await self._scene.left(),
            }
        )
        self._trial.say(f"{len(self._memory)} of {self._trial.size} min, {self._memory[-1]}")

    def _judge_memory(self) -> None:
        """The end must not be above the beginning, beyond what a moment's backlog explains."""
        trial = self._trial
        warm = min(WARM, trial.size)
        for what in ("server", "worker"):
            early = max(one[what] for one in self._memory[:warm])
            late = self._memory[-1][what]
            trial.figures[f"memory of the {what}, MiB, most in the first {warm} min"] = round(
                early, 1
            )
            trial.figures[f"memory of the {what}, MiB, at the end"] = round(late, 1)
            trial.expect(
                late <= early * FLAT, f"memory of the {what} grew: {early:.1f} to {late:.1f} MiB"
            )
        rows = [["minute", "server, MiB", "worker, MiB", "messages waiting"]]
        for minute, one in enumerate(self._memory, 1):
            if minute % 5 == 0 or minute == len(self._memory):
                figures = [f"{one['server']:.1f}", f"{one['worker']:.1f}", f"{one['left']:.0f}"]
                rows.append([str(minute), *figures])
        trial.tables["Memory"] = rows

    async def _command(self, *words: str) -> Any:
        async with Redis.from_url(self._scene.server.url, socket_timeout=30) as raw:
            execute: Callable[..., Awaitable[Any]] = raw.execute_command
            return await execute(*words)


def _resident(pid: int) -> int:
    """Return the memory of a process, in bytes."""
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * 4096


FAULT: Final = Fault("soak", "everything mixed", run, unit="minutes", short=0, full=60)
