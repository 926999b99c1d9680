"""Workloads that mostly wait, so all queues run at once, each on its own server."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from bench.processes import cpu_seconds, is_alive
from bench.record import DONE
from bench.stage import Stage, stage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.systems import System
    from bench.workloads import Bench, Figures

CRASH_MESSAGES = 500
CRASH_CONCURRENCY = 50
START_SECONDS = 45
AGE = 3_600.0
"""How long a handler runs, so that it is still running when its worker is killed."""


def idle(bench: Bench, systems: Sequence[System], seconds: float) -> dict[str, Figures]:
    """Watch idle workers."""

    def watch(system: System) -> Figures:
        with stage(system, bench.environments, bench.kind, 1) as on, on.workers() as pids:
            on.play("produce_many", 1)
            _wait(lambda: on.record.seen() == 1, START_SECONDS)
            time.sleep(5)  # until it has settled down
            began, cpu, reads = time.monotonic(), cpu_seconds(pids), on.server_reads()
            time.sleep(seconds)
            reads = on.server_reads() - reads - 1  # without our own request
            cpu = cpu_seconds(pids) - cpu
            watched = time.monotonic() - began
        return {"cpu_percent": cpu / watched * 100, "reads": reads / watched}

    return _together(watch, systems)


def crash(bench: Bench, systems: Sequence[System], patience: float) -> dict[str, Figures]:
    """Kill a worker while its handlers run, start another, and count what comes back."""

    def kill(system: System) -> Figures:
        with stage(system, bench.environments, bench.kind, CRASH_MESSAGES) as on:
            on.play("produce_many", CRASH_MESSAGES)
            with on.workers(concurrency=CRASH_CONCURRENCY, sleep=AGE) as pids:
                _until_busy(on, pids)
            killed = time.monotonic_ns()
            held = [index for index, flag in enumerate(on.record.flags) if flag]
            with on.workers(concurrency=CRASH_CONCURRENCY):
                _wait(lambda: on.record.done() == CRASH_MESSAGES, patience)
            back = [
                (on.record.entered[index] - killed) / 1e9
                for index in held
                if on.record.flags[index] >= DONE
            ]
            return {
                "messages": CRASH_MESSAGES,
                "held": len(held),
                "back": len(back),
                "completed": on.record.done(),
                "last_back": max(back, default=0.0),
                "waited": patience,
            }

    return _together(kill, systems)


def _until_busy(on: Stage, pids: Sequence[int]) -> None:
    """Wait until all slots are taken; some queues have only one."""
    deadline = time.monotonic() + START_SECONDS
    seen, moved = 0, time.monotonic()
    while time.monotonic() < deadline and all(map(is_alive, pids)):
        now = on.record.seen()
        if now != seen:
            seen, moved = now, time.monotonic()
        if seen >= CRASH_CONCURRENCY or (seen and time.monotonic() - moved > 3):
            return
        time.sleep(0.05)
    raise RuntimeError(f"no handler was entered: {on.complaints()}")


def _wait(fact: Callable[[], bool], seconds: float) -> None:
    """Wait, but not longer than this: what did not happen is a result, too."""
    deadline = time.monotonic() + seconds
    while not fact() and time.monotonic() < deadline:
        time.sleep(0.1)


def _together(
    measure: Callable[[System], Figures], systems: Sequence[System]
) -> dict[str, Figures]:
    with ThreadPoolExecutor(len(systems)) as pool:
        futures = {}
        for system in systems:
            futures[system.key] = pool.submit(measure, system)
            time.sleep(1)  # two cores cannot start a dozen workers at once
        found = {}
        for key, future in futures.items():
            try:
                found[key] = future.result()
            except Exception as error:  # noqa: BLE001 - one that fails must not stop the others
                print(f"bench: {key} failed: {error}", flush=True)
        return found
