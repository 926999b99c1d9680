"""Workers are killed at random, hundreds of times, while producers run.

Every worker runs its own monitor and scheduler, so these die as often. Now and then a supervisor is
killed: then its workers must stop on their own.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from tests.faults.check import percentile
from tests.faults.errand import Mix
from tests.faults.scene import Scene
from tests.faults.supervised import Supervisor, name_of
from tests.faults.trial import Fault
from tests.lab.servers import Kind, Server

if TYPE_CHECKING:
    from tests.faults.check import Checked
    from tests.faults.trial import Trial

WORKERS: Final = 6
"""Enough that some work while others start."""
MESSAGES: Final = 200
"""Messages per kill in the campaign."""
MIX: Final = Mix(work=60)
SHORT_MESSAGES: Final = 50
"""The same in `make test`."""
SHORT_MIX: Final = Mix(work=250)
"""Fewer messages take longer, so that they last until the last kill."""
AHEAD: Final = 20
"""How many kills ahead messages are produced."""
PACE: Final = 0.06
"""Seconds between two kills."""
CALM: Final = 50
"""Kills of a full trial that come one by one, to measure how soon others take over."""
SUPERVISED: Final = 50
"""One in this many kills takes a supervisor, and one of its processes before it."""
RECOVERED_WITHIN: Final = 2.0
"""Seconds beyond the lease within which the messages of a dead worker run again (p99)."""
IN_HAND: Final = 0.8
"""The share of killed workers that must have held messages."""


async def run(trial: Trial) -> None:
    """Kill this many workers."""
    is_short = trial.size <= FAULT.short
    messages = trial.size * (SHORT_MESSAGES if is_short else MESSAGES)
    mix = SHORT_MIX if is_short else MIX
    server = Server(Kind.VALKEY_9_1, trial.directory / "server").start()
    try:
        async with Scene(trial, server) as scene:
            calm = CALM if trial.size >= FAULT.full else 0
            scene.hire(WORKERS)
            scene.produce(messages, producers=2, paced=True, backlog=300, mix=mix)
            storm_at = await kill_one_by_one(scene, calm)
            await kill_in_a_storm(scene, trial.size - calm)
            checked = await scene.check()
        trial.figures["kills"] = trial.size
        tell(trial, checked)
        in_hand = checked.counts["killed with messages in hand"]
        trial.expect(in_hand >= trial.size * IN_HAND, f"only {in_hand} kills have hit something")
        if calm:
            recovery(trial, checked, scene.lease, before=storm_at)
    finally:
        server.kill()


async def kill_one_by_one(scene: Scene, kills: int) -> float:
    """Kill workers, each after the last one's messages were taken over; return when it ended."""
    for number in range(kills):
        (hand,) = await scene.catch()
        scene.kill(hand)
        scene.hire()
        await asyncio.sleep(scene.lease + RECOVERED_WITHIN)
        scene.trial.say(f"{number} of {kills} killed one by one")
    return time.monotonic()


async def kill_in_a_storm(scene: Scene, kills: int) -> None:
    """Kill workers so fast that many die before the last one's messages are taken over."""
    trial = scene.trial
    supervisor = Supervisor(scene.place)
    for number in range(kills):
        scene.allow((number + AHEAD) / kills)
        await asyncio.sleep(trial.random.uniform(0, 2 * PACE))
        if number % SUPERVISED == SUPERVISED - 1:
            await supervisor.until_begun()
            (victim, *_) = supervisor.workers()
            scene.kill_pid(victim, name_of(victim))
            await supervisor.until_begun()
            await supervisor.kill()
            supervisor = Supervisor(scene.place)
            trial.count("supervisors killed")
        (hand,) = await scene.catch()
        scene.kill(hand)
        scene.hire()
        trial.say(f"{number} of {kills} killed, {await scene.left()} messages to go")
    await scene.settle()
    await supervisor.kill()


def tell(trial: Trial, checked: Checked) -> None:
    """Put the counts into the figures."""
    for what, count in checked.counts.items():
        trial.count(what, count)
    trial.count("extra runs", sum(checked.causes.values()))
    for cause, count in checked.causes.most_common():
        trial.count(f"… because {cause}", count)
    for kind in ("leased by two", "produced twice", "a run without a cause"):
        trial.count(kind, checked.found[kind])


def recovery(trial: Trial, checked: Checked, lease: float, before: float) -> None:
    """Report how soon messages ran again, for workers killed before a moment."""
    found = [seconds for killed, seconds in checked.recoveries if killed < before]
    p99 = percentile(found, 0.99)
    trial.figures["messages of workers killed one by one, run again"] = len(found)
    trial.figures["… p50, s after the kill"] = round(percentile(found, 0.5), 2)
    trial.figures["… p99, s after the kill"] = round(p99, 2)
    trial.expect(
        p99 <= lease + RECOVERED_WITHIN,
        f"recovery took {p99:.2f} s (p99), more than the lease and {RECOVERED_WITHIN:g} s",
    )


FAULT: Final = Fault(
    "kills", "workers and monitors killed at random", run, unit="kills", short=100, full=5_000
)
