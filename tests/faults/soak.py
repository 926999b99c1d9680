"""An hour of everything: a million messages, and every half minute something goes wrong.

A worker that is killed, frozen or stopped holds messages. Every minute the audit must be clean. One
worker is never touched: its memory and the server's must not grow.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from redis.asyncio import Redis

from tests.faults.check import EVERYSEC
from tests.faults.errand import Mix
from tests.faults.kills import IN_HAND, tell
from tests.faults.scene import Scene
from tests.faults.trial import Fault
from tests.lab.servers import Kind, Server

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.faults.trial import Trial

WORKERS: Final = 3
MESSAGES: Final = 285
"""Messages per second: a little more than a million in an hour."""
MIX: Final = Mix(work=100)
"""Handlers that take long enough to be hit in the middle: half of all slots are taken."""
LEASE: Final = 5.0
SILENT: Final = 7.0
"""Seconds for which the server does not answer: longer than a lease, but none may be lost."""
PAUSE: Final = (5.0, 25.0)
"""Seconds between two faults."""
SHORT_PAUSE: Final = (0.5, 1.5)
"""The same in `make test`, which has each fault once."""
FLAT: Final = 1.05
"""By how much memory may grow from the beginning to the end."""
LOOK: Final = 60.0
"""Seconds between two checks of the server and of memory."""
WARM: Final = 10
"""Checks after which memory counts as that of the beginning."""
HIT: Final = "with messages in hand"
MIB: Final = 1_048_576


async def run(trial: Trial) -> None:
    """Soak for this many seconds."""
    options = ("--appendonly", "yes", "--appendfsync", "everysec")
    server = Server(Kind.VALKEY_9_1, trial.directory / "server", *options).start()
    try:
        async with Scene(trial, server, lease=LEASE, patience=30) as scene:
            await Soak(scene).run()
            checked = await scene.check()
        tell(trial, checked)
        for what in ("killed", "frozen"):
            found, hit = trial.figures[f"workers {what}"], checked.counts[f"{what} {HIT}"]
            assert not isinstance(found, str)
            trial.expect(hit >= int(found * IN_HAND), f"only {hit} of {found} {what} had messages")
        failed, hit = checked.counts["failures of the server"], checked.counts[f"… {HIT}"]
        trial.expect(
            hit >= int(failed * IN_HAND), f"only {hit} of {failed} server kills hit leases"
        )
    finally:
        server.kill()


class Soak:
    """A scene that runs for long."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._trial = scene.trial
        self._memory: list[dict[str, float]] = []
        self._over = asyncio.Event()
        """No more trouble."""

    async def run(self) -> None:
        scene, trial = self._scene, self._trial
        (self._veteran,) = scene.hire()
        scene.hire(WORKERS - 1)
        scene.produce(trial.size * MESSAGES, producers=2, paced=True, backlog=2_000, mix=MIX)
        trouble = asyncio.create_task(self._make_trouble(), name="trouble")
        began = time.monotonic()
        while (passed := time.monotonic() - began) < trial.size:
            scene.allow(passed / trial.size)
            await asyncio.sleep(0.2)
            if trouble.done():
                trouble.result()
            if passed > LOOK * (len(self._memory) + 1):
                await self._look()
        self._over.set()
        await trouble
        await scene.settle(within=300)
        await self._look()
        if len(self._memory) > WARM:
            self._judge_memory()

    # what goes wrong

    async def _make_trouble(self) -> None:
        """Inject each fault once, in any order; then again, until time is up."""
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
        is_short = self._trial.size <= FAULT.short
        left: list[str] = []
        while left or not self._over.is_set():
            left = left or random.sample(list(faults), len(faults))
            pause = random.uniform(*(SHORT_PAUSE if is_short else PAUSE))
            with suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), pause)
            if self._over.is_set() and not is_short:
                return
            what = left.pop()
            await faults[what]()
            self._trial.count(what)

    async def _kill(self) -> None:
        (victim,) = await self._scene.catch(besides=self._veteran)
        self._scene.kill(victim)
        self._scene.hire()

    async def _freeze(self) -> None:
        (victim,) = await self._scene.catch(besides=self._veteran)
        self._scene.freeze(victim)
        try:
            await asyncio.sleep(LEASE * 1.5)
        finally:
            self._scene.thaw(victim)

    async def _stop(self) -> None:
        busy = await self._scene.busy(besides=self._veteran)
        await self._scene.stop(self._trial.random.choice(busy))
        self._scene.hire()

    async def _kill_server(self) -> None:
        await self._scene.busy()
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
        """Make every call wait. Then all workers extend their leases before any is taken over."""
        await self._command("CLIENT", "PAUSE", str(round(SILENT * 1000)), "ALL")
        await asyncio.sleep(SILENT)

    # what is checked

    async def _look(self) -> None:
        """Run the audit, and measure memory."""
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
        self._trial.say(
            f"{len(self._memory)} of {self._trial.size // LOOK:g} min, {self._memory[-1]}"
        )

    def _judge_memory(self) -> None:
        """Check that memory did not grow by more than a short backlog explains."""
        trial = self._trial
        for what in ("server", "worker"):
            early = max(one[what] for one in self._memory[:WARM])
            late = self._memory[-1][what]
            trial.figures[f"memory of the {what}, MiB, most in the first {WARM} min"] = round(
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


FAULT: Final = Fault("soak", "everything mixed", run, unit="seconds", short=20, full=3_600)
