"""The server dies and comes back with what its append-only file has, while everybody works.

In between its scripts are flushed and all connections are killed.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Final

from redis.asyncio import Redis

from tests.faults.check import EVERYSEC
from tests.faults.kills import tell
from tests.faults.scene import Scene
from tests.faults.trial import Fault
from tests.lab.servers import Kind, Server

if TYPE_CHECKING:
    from tests.faults.check import Checked
    from tests.faults.trial import Trial

WORKERS: Final = 2
MESSAGES: Final = 400
"""Messages for one death."""
PARTS: Final = tuple(
    itertools.product((Kind.VALKEY_9_1, Kind.REDIS_7_0, Kind.REDIS_6_2), ("always", "everysec"))
)


async def run(trial: Trial) -> None:
    """Kill servers so many times, in equal parts of each kind; a short trial has one part."""
    parts = PARTS if trial.size >= FAULT.full else PARTS[:1]
    shares = [len(range(part, trial.size, len(parts))) for part in range(len(parts))]
    for (kind, fsync), share in zip(parts, shares, strict=True):
        checked = await _part(trial, kind, fsync, share)
        tell(trial, checked)
        trial.count("server kills", share)
        trial.tables.setdefault(
            "Servers", [["server", "appendfsync", "kills", "acknowledged", "lost", "run again"]]
        ).append(
            [
                kind,
                fsync,
                f"{share}",
                f"{checked.counts['acknowledged']:,}",
                f"{checked.counts['lost']}",
                f"{sum(checked.causes.values()) - checked.causes['its handler failed, as told']}",
            ]
        )


async def _part(trial: Trial, kind: Kind, fsync: str, kills: int) -> Checked:
    directory = trial.directory / f"{kind}-{fsync}"
    options = ("--appendonly", "yes", "--appendfsync", fsync)
    server = Server(kind, directory, *options).start()
    try:
        async with Scene(trial, server, patience=30, name=f"{kind}-{fsync}") as scene:
            scene.hire(WORKERS)
            scene.produce(kills * MESSAGES, producers=2, paced=True, most=20, backlog=200)
            for number in range(kills):
                scene.allow((number + 1) / kills)
                await asyncio.sleep(trial.random.uniform(0.1, 1.0))
                await _disturb(scene)
                await asyncio.sleep(trial.random.uniform(0.1, 1.0))
                scene.trouble()
                server.kill()
                if fsync == "everysec":
                    scene.forgot(EVERYSEC)
                await asyncio.sleep(trial.random.uniform(0, 0.3))
                server.start()
                scene.calm()
                trial.say(f"{kind}, {fsync}: {number} of {kills}, {await scene.left()} to go")
            await scene.settle()
            return await scene.check()
    finally:
        server.kill()


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
