"""The server dies under load and comes back with what its append-only file has.

Workers hold messages and producers are producing when it dies. Every other time it freezes for a
moment first, so that there are calls that it will never answer. In between, its scripts are flushed
and all connections are killed.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from typing import TYPE_CHECKING, Final

from redis.asyncio import Redis

from tests.faults.check import EVERYSEC, FORGOTTEN_PRODUCES
from tests.faults.errand import Mix
from tests.faults.kills import IN_HAND, tell
from tests.faults.scene import LEASE, Scene
from tests.faults.trial import Fault
from tests.lab.servers import Kind, Server

if TYPE_CHECKING:
    from tests.faults.check import Checked
    from tests.faults.trial import Trial

WORKERS: Final = 2
MESSAGES: Final = 250
"""Messages per death: half of them for the time before, half of them just before it."""
MIX: Final = Mix(least=50, work=250)
"""Handlers that take long enough to be hit in the middle."""
BURST: Final = (0.01, 0.06)
"""Seconds from when producers continue until the server dies."""
STALLED: Final = 0.05
"""Seconds for which it is frozen before it dies, every other time."""
LONG: Final = 5
"""After one in this many deaths it is away for longer than a lease."""
HEAD: Final = [
    *("server", "appendfsync", "kills", "with messages in hand", "with calls under way"),
    *("acknowledged", "forgotten", "lost", "run again"),
]
PARTS: Final = tuple(
    itertools.product((Kind.VALKEY_9_1, Kind.REDIS_7_0, Kind.REDIS_6_2), ("always", "everysec"))
)


async def run(trial: Trial) -> None:
    """Kill servers this many times, equally often of each kind; a short trial has one kind."""
    parts = PARTS if trial.size >= FAULT.full else PARTS[:1]
    shares = [len(range(part, trial.size, len(parts))) for part in range(len(parts))]
    in_hand = under_way = 0
    for (kind, fsync), share in zip(parts, shares, strict=True):
        checked = await _part(trial, kind, fsync, share)
        tell(trial, checked)
        in_hand += checked.counts["… with messages in hand"]
        under_way += checked.counts["… with one of both under way"]
        trial.tables.setdefault("Servers", [HEAD]).append(
            [
                kind,
                fsync,
                f"{share}",
                f"{checked.counts['… with messages in hand']}",
                f"{checked.counts['… with one of both under way']}",
                f"{checked.counts['acknowledged']:,}",
                f"{checked.counts[FORGOTTEN_PRODUCES]}",
                f"{checked.counts['lost']}",
                f"{checked.causes.total() - checked.causes['its handler failed, as planned']}",
            ]
        )
    least = int(trial.size * IN_HAND)
    trial.expect(in_hand >= least, f"only {in_hand} kills hit messages in hand")
    trial.expect(under_way >= least, f"only {under_way} kills hit calls under way")


async def _part(trial: Trial, kind: Kind, fsync: str, kills: int) -> Checked:
    directory = trial.directory / f"{kind}-{fsync}"
    options = ("--appendonly", "yes", "--appendfsync", fsync)
    server = Server(kind, directory, *options).start()
    try:
        async with Scene(trial, server, patience=30, name=f"{kind}-{fsync}") as scene:
            scene.hire(WORKERS)
            scene.produce(kills * MESSAGES, producers=2, paced=True, most=2, backlog=0, mix=MIX)
            for number in range(kills):
                scene.allow((number + 0.5) / kills)
                await asyncio.sleep(trial.random.uniform(0.1, 1.0))
                await _disturb(scene)
                await asyncio.sleep(trial.random.uniform(0.1, 1.0))
                await scene.busy()
                scene.allow((number + 1) / kills)
                await asyncio.sleep(trial.random.uniform(*BURST))
                away = LEASE * 1.5 if number % LONG == 0 else trial.random.uniform(0, 0.3)
                await _kill(scene, away, stalled=number % 2 == 1, forgets=fsync == "everysec")
                trial.say(f"{kind}, {fsync}: {number} of {kills}, {await scene.left()} to go")
            await scene.settle()
            return await scene.check()
    finally:
        server.kill()


async def _kill(scene: Scene, away: float, *, stalled: bool, forgets: bool) -> None:
    """Kill the server, and restart it."""
    if stalled:
        os.kill(scene.server.pid, signal.SIGSTOP)
        await asyncio.sleep(STALLED)
    scene.trouble()
    scene.server.kill()
    if forgets:
        scene.forgot(EVERYSEC + STALLED)
    await asyncio.sleep(away)
    scene.server.start()
    scene.calm()


async def _disturb(scene: Scene) -> None:
    """Take away what clients rely on: the scripts, or their connections."""
    async with Redis.from_url(scene.server.url) as raw:
        if scene.trial.random.random() < 0.5:
            await raw.script_flush()
            scene.trial.count("scripts flushed")
        else:
            await raw.client_kill_filter(_type="normal", skipme=True)
            scene.trial.count("all connections killed")


FAULT: Final = Fault(
    "server_kills", "the server killed and restarted", run, unit="kills", short=3, full=100
)
