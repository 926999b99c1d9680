"""Measures all queues in turns: a b c, then c b a, and so on."""

from __future__ import annotations

import os
import platform
import statistics
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import together, workloads
from bench.payload import PAYLOAD_BYTES
from bench.processes import calibrate
from bench.stage import stage
from bench.systems import THREADS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.systems import System
    from bench.workloads import Bench, Figures

Results = dict[str, Any]

TIMED: dict[str, Callable[[Bench, System], Figures]] = {
    "produce": workloads.produce,
    "callers": workloads.produce_callers,
    "drain": workloads.drain,
    "drain_two": workloads.drain_two,
    "drain_slow": workloads.drain_slow,
    "latency": workloads.latency,
    "delayed": workloads.delayed,
    "round_trip": workloads.round_trip,
    "round_trip_callers": workloads.round_trip_callers,
}
ONCE = ("memory", "idle", "crash")
WORKLOADS = (*TIMED, *ONCE)


def compare(
    bench: Bench,
    systems: Sequence[System],
    *,
    chosen: Sequence[str],
    rounds: int,
    idle_seconds: float,
    crash_seconds: float,
) -> Results:
    """Measure everything; return the data of the tables and the picture."""
    results = _begin(bench, systems, rounds)
    about = {system.key: results["systems"][system.key]["about"] for system in systems}
    measured: dict[tuple[str, str], list[Figures]] = {}
    for number in range(rounds):
        order = systems if number % 2 == 0 else list(reversed(systems))
        for workload in [name for name in TIMED if name in chosen]:
            for system in order:
                if not takes_part(workload, system, about[system.key]):
                    continue
                with bench.turn():
                    figures = _measure(TIMED[workload], bench, system)
                if figures:
                    measured.setdefault((system.key, workload), []).append(figures)
                    _say(f"round {number + 1}", system, workload, figures)
        results["load"].append(round(os.getloadavg()[0], 2))
        results["calibration_ms"].append(calibrate())
    for (key, workload), found in measured.items():
        results["systems"][key][workload] = medians(found)
    for workload, found_by_key in _once(bench, systems, chosen, idle_seconds, crash_seconds):
        for key, figures in found_by_key.items():
            results["systems"][key][workload] = _rounded(figures)
    results["minutes"] = round((time.monotonic() - results.pop("began")) / 60, 1)
    return results


def takes_part(workload: str, system: System, about: dict[str, Any]) -> bool:
    """Return whether this queue takes part in this workload."""
    if system.key == THREADS:
        return workload in ("drain", "drain_two")
    if workload in ("callers", "drain_slow"):
        return bool(about["is_async"])
    if workload in ("round_trip", "round_trip_callers"):
        return bool(about["results"])
    return workload != "delayed" or bool(about["has_delay"])


def medians(found: Sequence[Figures]) -> Results:
    """Return the median of each figure, and all rates."""
    middle: Results = _rounded(
        {name: statistics.median(f[name] for f in found) for name in found[0]}
    )
    if "rate" in found[0]:
        middle["rates"] = [round(figures["rate"]) for figures in found]
    return middle


def _begin(bench: Bench, systems: Sequence[System], rounds: int) -> Results:
    results: Results = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": _machine(),
        "payload_bytes": PAYLOAD_BYTES,
        "rounds": rounds,
        "scale": bench.scale,
        "load": [round(os.getloadavg()[0], 2)],
        "calibration_ms": [calibrate()],
        "began": time.monotonic(),
        "systems": {},
    }
    for system in systems:
        bench.environments.prepare(system)
        with stage(system, bench.environments, bench.kind, 1) as on:
            about = on.play("describe")
            results["server"] = (
                f"{bench.kind.value.split('-')[0].capitalize()} {on.server_version()}"
            )
        results["systems"][system.key] = {
            "name": system.name,
            "promise": system.promise,
            "about": about,
        }
    return results


def _once(
    bench: Bench,
    systems: Sequence[System],
    chosen: Sequence[str],
    idle_seconds: float,
    crash_seconds: float,
) -> list[tuple[str, dict[str, Figures]]]:
    found = []
    alone = [system for system in systems if system.key != THREADS]
    with bench.turn():
        if "memory" in chosen:
            sizes = {system.key: _measure(workloads.memory, bench, system) for system in alone}
            found.append(("memory", {key: figures for key, figures in sizes.items() if figures}))
        if "idle" in chosen:
            found.append(("idle", together.idle(bench, alone, idle_seconds)))
        if "crash" in chosen:
            found.append(("crash", together.crash(bench, systems, crash_seconds)))
    return found


def _measure(
    workload: Callable[[Bench, System], Figures], bench: Bench, system: System
) -> Figures | None:
    try:
        return workload(bench, system)
    except Exception as error:  # noqa: BLE001 - one that fails must not stop the others
        print(f"bench: {system.key} {workload.__name__} failed: {error}", flush=True)
        return None


def _rounded(figures: Figures) -> Results:
    return {
        name: round(figure) if abs(figure) >= 1000 else round(figure, 2)
        for name, figure in figures.items()
    }


def _machine() -> str:
    return f"{os.cpu_count()} cores, {_processor()}, {platform.system()} {platform.release()}"


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def _say(when: str, system: System, workload: str, figures: Figures) -> None:
    shown = ("rate", "bulk_rate", "worker_cpu", "server_cpu", "p50", "p99", "missing", "repeated")
    words = [f"{name} {figures[name]:,.1f}" for name in shown if figures.get(name)]
    print(f"{when}  {system.key:12} {workload:11} {', '.join(words)}", flush=True)
