"""Workers are killed at random, hundreds of times, while producers run.

Every worker runs a monitor and a scheduler of its own, so these die as often. Now and then it is
the supervisor of others: then they must stop by themselves.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from tests.faults.check import percentile
from tests.faults.scene import Scene
from tests.faults.supervised import Supervisor, name_of
from tests.faults.trial import Fault
from tests.lab.servers import Kind, Server

if TYPE_CHECKING:
    from tests.faults.check import Checked
    from tests.faults.trial import Trial

WORKERS: Final = 3
MESSAGES: Final = 200
"""Messages for one kill in the campaign."""
SHORT_MESSAGES: Final = 50
"""The same in `make test`."""
PACE: Final = 0.06
"""Seconds between two kills."""
SUPERVISED: Final = 100
"""Every so many kills a supervisor dies, and before it one of its processes."""
RECOVERED_WITHIN: Final = 2.0
"""Seconds beyond the lease within which the messages of a dead worker run again (p99)."""


async def run(trial: Trial) -> None:
    """Kill so many workers."""
    messages = trial.size * (SHORT_MESSAGES if trial.size <= FAULT.short else MESSAGES)
    server = Server(Kind.VALKEY_9_1, trial.directory / "server").start()
    try:
        async with Scene(trial, server) as scene:
            await kill_workers(scene, messages)
            checked = await scene.check()
        tell(trial, checked)
        recovery(trial, checked, scene.lease)
    finally:
        server.kill()


async def kill_workers(scene: Scene, messages: int) -> None:
    """Kill workers one after the other while messages come, as many as the trial is large."""
    trial = scene.trial
    scene.hire(WORKERS)
    supervisor = Supervisor(scene.place)
    scene.produce(messages, producers=2, paced=True, backlog=200)
    for number in range(trial.size):
        scene.allow((number + 1) / trial.size)
        await asyncio.sleep(trial.random.uniform(0, 2 * PACE))
        if number % SUPERVISED == SUPERVISED - 1:
            await supervisor.until_begun()
            (victim, *_) = supervisor.workers()
            scene.kill_pid(victim, name_of(victim))
            await supervisor.until_begun()
            await supervisor.kill()
            supervisor = Supervisor(scene.place)
            trial.count("supervisors killed")
        scene.kill(trial.random.choice(scene.hands))
        scene.hire()
        trial.say(f"{number} of {trial.size} killed, {await scene.left()} messages to go")
    trial.figures["kills"] = trial.size
    await scene.settle()
    await supervisor.kill()


def tell(trial: Trial, checked: Checked) -> None:
    """Put what was counted into the figures."""
    for what, count in checked.counts.items():
        trial.count(what, count)
    trial.count("runs beside the first", sum(checked.causes.values()))
    for cause, count in checked.causes.most_common():
        trial.count(f"… because {cause}", count)
    for kind in ("leased by two", "produced twice", "a run without a cause"):
        trial.count(kind, checked.found[kind])


def recovery(trial: Trial, checked: Checked, lease: float) -> None:
    """Tell how soon the messages of the dead were run again."""
    p99 = percentile(checked.recoveries, 0.99)
    taken_over = percentile(checked.take_overs, 0.99)
    trial.figures["taken over, p99, s after the kill"] = round(taken_over, 2)
    trial.figures["run again, p99, s after the kill"] = round(p99, 2)
    trial.expect(
        trial.size < FAULT.full or p99 <= lease + RECOVERED_WITHIN,
        f"recovery took {p99:.2f} s (p99), more than the lease and {RECOVERED_WITHIN:g} s",
    )


FAULT: Final = Fault("kills", "workers and monitors killed at random", run, short=200, full=5_000)
