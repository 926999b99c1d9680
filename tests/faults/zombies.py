"""Workers freeze for longer than their lease, wake up, and try to continue.

Whatever a zombie sends must be refused. A resource that knows the fence must refuse what its
handlers still write: here that is a real SQLite file.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from tests.faults.errand import Mix
from tests.faults.kills import IN_HAND, tell
from tests.faults.scene import Scene
from tests.faults.trial import Fault
from tests.lab.servers import Kind, Server

if TYPE_CHECKING:
    from tests.faults.scene import Hand
    from tests.faults.trial import Trial

WORKERS: Final = 4
FROZEN: Final = 2
"""Workers that are frozen at the same time."""
LEASE: Final = 0.6
EXTENDS_AFTER: Final = 0.05
MESSAGES: Final = 60
"""Messages per zombie."""
MIX: Final = Mix(failing=2, dead=0, quarantined=0, delayed=0, work=500)
"""Handlers that take long enough to be hit in the middle."""


async def run(trial: Trial) -> None:
    """Make this many zombies."""
    server = Server(Kind.VALKEY_9_1, trial.directory / "server").start()
    try:
        async with Scene(trial, server, lease=LEASE, fences=True) as scene:
            scene.hire(WORKERS, extends_after=EXTENDS_AFTER)
            scene.produce(trial.size * MESSAGES, mix=MIX, most=10, backlog=50, paced=True)
            zombies = 0
            while zombies < trial.size:
                scene.allow((zombies + FROZEN) / trial.size)
                await asyncio.sleep(trial.random.uniform(0, 0.3))
                chosen = await scene.catch(min(FROZEN, trial.size - zombies))
                await asyncio.gather(*(make_zombie(scene, hand) for hand in chosen))
                zombies += len(chosen)
                trial.say(f"{zombies} of {trial.size} zombies, {await scene.left()} messages to go")
            trial.figures["zombies"] = zombies
            await scene.settle()
            checked = await scene.check()
        tell(trial, checked)
        in_hand = checked.counts["frozen with messages in hand"]
        trial.expect(in_hand >= zombies * IN_HAND, f"only {in_hand} zombies held messages")
        trial.expect(
            checked.counts["stale settles refused"] >= zombies // 4,
            "hardly any zombie tried to settle: nothing was tested",
        )
    finally:
        server.kill()


async def make_zombie(scene: Scene, hand: Hand) -> None:
    """Freeze a worker until its leases are over, and other workers have its messages."""
    scene.freeze(hand)
    try:
        await asyncio.sleep(scene.lease * scene.trial.random.uniform(1.1, 2.2))
    finally:
        scene.thaw(hand)


FAULT: Final = Fault(
    "zombies", "workers frozen past their lease", run, unit="zombies", short=10, full=500
)
