"""Workers with batch handlers are killed and frozen in the middle of their batches.

The checker is the same as for single messages: each message of a batch must end as planned, and a
worker that lost some of a batch may settle only the others.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from tests.faults.errand import Mix
from tests.faults.kills import IN_HAND, tell
from tests.faults.scene import Scene
from tests.faults.trial import Fault
from tests.faults.zombies import make_zombie
from tests.lab.servers import Kind, Server

if TYPE_CHECKING:
    from tests.faults.trial import Trial

WORKERS: Final = 4
BATCH: Final = 25
LEASE: Final = 1.2
MESSAGES: Final = 150
"""Messages for one kill or freeze."""
MIX: Final = Mix(failing=5, dead=1, quarantined=1, delayed=2, longest_delay=300, work=200)


async def run(trial: Trial) -> None:
    """Hit this many workers: kill one, freeze the next."""
    server = Server(Kind.VALKEY_9_1, trial.directory / "server").start()
    try:
        async with Scene(trial, server, lease=LEASE, fences=True, batch=BATCH) as scene:
            scene.hire(WORKERS, concurrency=2)
            scene.produce(trial.size * MESSAGES, mix=MIX, most=20, backlog=200, paced=True)
            for number in range(trial.size):
                scene.allow((number + 2) / trial.size)
                await asyncio.sleep(trial.random.uniform(0, 0.2))
                (hand,) = await scene.catch()
                if number % 2:
                    await make_zombie(scene, hand)
                else:
                    scene.kill(hand)
                    scene.hire(concurrency=2)
                trial.say(f"{number} of {trial.size} hit, {await scene.left()} messages to go")
            await scene.settle()
            checked = await scene.check()
        trial.figures["killed or frozen"] = trial.size
        tell(trial, checked)
        in_hand = sum(
            checked.counts[f"{how} with messages in hand"] for how in ("killed", "frozen")
        )
        trial.expect(in_hand >= trial.size * IN_HAND, f"only {in_hand} had messages in hand")
    finally:
        server.kill()


FAULT: Final = Fault(
    "batches",
    "workers killed or frozen in the middle of a batch",
    run,
    unit="workers",
    short=6,
    full=400,
)
