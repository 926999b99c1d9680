"""`python -m bench.limits`: limits and fairness, compared with the peers that have them.

    tenant  no-op messages over 100 tenants, 2 at a time for each
    rate    50 per second: the mean, the most in any one second, the CPU time of the worker
    quiet   one message of a quiet tenant behind 5,000 of a noisy one, 5 ms each, 10 at a time

It uses the harness of `python -m bench`: one server, one worker process, public API only. The
queues take turns. It prints a table, and writes it to bench/results, or a partial one to
.bench/results.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from bench.environments import CACHE, ROOT, Environments
from bench.handler import RATE
from bench.own.tenants import most_in
from bench.processes import cpu_seconds, machine_lock
from bench.stage import stage
from bench.systems import SYSTEMS, System
from tests.lab.servers import Kind

if TYPE_CHECKING:
    from bench.stage import Stage

Figures = dict[str, float]
Found = dict[str, dict[str, list[Figures]]]
"""Queue -> workload -> the figures of each round."""

DOCKET: Final = System(
    "docket", "Docket", "docket", "docket", drained=3_000, produced=0, promise=""
)
KNOWN: Final = {one.key: one for one in (*SYSTEMS, DOCKET)}
ALL: Final = ("ours", "bullmq-node", "docket", "dramatiq", "huey")
TENANT_MESSAGES: Final = {"ours": 60_000, "docket": 3_000, "dramatiq": 2_000}
"""The queues with limits per tenant, and how many messages each gets: a few seconds' worth."""
BEHIND: Final = 5_000
SLEEP: Final = 0.005
CONCURRENCY: Final = 10
WITHIN: Final = 120.0
HEAD: Final = (
    "100 tenants, 2 at a time, /s",
    *("50/s: mean", "most in any one second", "worker CPU, s"),
    "a quiet tenant waits, ms",
)


def tenant(on: Stage, _: float) -> Figures:
    """Drain messages of many tenants, two at a time."""
    on.play("produce_many", on.messages)
    with on.workers():
        _until(on, on.messages)
    times = sorted(at for at in on.record.entered if at)
    return {"rate": (len(times) - 1) / (times[-1] - times[0]) * 1e9}


def rate(on: Stage, seconds: float) -> Figures:
    """Measure a limit of 50 per second for this many seconds."""
    on.play("produce_many", on.messages)
    with on.workers() as pids:
        _until(on, 1)
        before = cpu_seconds(pids)
        time.sleep(seconds)
        used = cpu_seconds(pids) - before
    times = sorted(at / 1e9 for at in on.record.entered if at)
    # The bucket or window is full at the start, so the first second is left out.
    inside = [at for at in times if times[0] + 1 <= at < times[0] + seconds]
    return {"mean": len(inside) / (seconds - 1), "most": most_in(times, 1.0), "cpu": used}


def quiet(on: Stage, _: float) -> Figures:
    """Measure from the first start until the quiet tenant's message starts."""
    on.play("produce_many", on.messages)
    last = on.messages - 1
    with on.workers(concurrency=CONCURRENCY, sleep=SLEEP):
        deadline = time.monotonic() + WITHIN
        while not on.record.entered[last] and time.monotonic() < deadline:
            time.sleep(0.01)
        first = min(at for at in on.record.entered if at)
        return {"waited": (on.record.entered[last] - first) / 1e6}


def _until(on: Stage, count: int) -> None:
    """Wait until this many handlers have started."""
    deadline = time.monotonic() + WITHIN
    while sum(1 for at in on.record.entered if at) < count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"not all messages arrived: {on.complaints()}")
        time.sleep(0.05)


WORKLOADS: Final = {"tenant": tenant, "rate": rate, "quiet": quiet}


def main() -> None:
    options = _options()
    chosen = options.only.split(",") if options.only else list(ALL)
    workloads = options.workloads.split(",") if options.workloads else list(WORKLOADS)
    environments = Environments()
    for key in chosen:
        environments.prepare(KNOWN[key])
    found: Found = {key: {} for key in chosen}
    for turn in range(1 if options.quick else options.rounds):
        for name in workloads:
            for key in chosen if turn % 2 == 0 else reversed(chosen):
                if name == "tenant" and key not in TENANT_MESSAGES:
                    continue
                figures = _measure(environments, key, name, options)
                found[key].setdefault(name, []).append(figures)
                print(f"{KNOWN[key].name}, {name}: {figures}", flush=True)
    _write(found, options)


def _measure(
    environments: Environments, key: str, name: str, options: argparse.Namespace
) -> Figures:
    seconds = 5.0 if options.quick else 30.0
    if name == "rate":
        messages = int(RATE * (seconds + 2) * 1.3)
    elif name == "quiet":
        messages = BEHIND + 1
    else:
        messages = TENANT_MESSAGES[key] // (10 if options.quick else 1)
    with (
        machine_lock(),
        stage(KNOWN[key], environments, options.kind, messages, limit=name) as on,
    ):
        return WORKLOADS[name](on, seconds)


def _write(found: Found, options: argparse.Namespace) -> None:
    """Write the medians as a table, and all figures as JSON."""
    day = f"{datetime.now(UTC):%Y-%m-%d}"
    text = "\n".join([f"# Limits and fairness, {day}", "", *_table(found, options.kind)]) + "\n"
    print(text)
    partial = options.quick or options.only or options.workloads
    place = CACHE / "results" if partial else ROOT / "bench" / "results"
    place.mkdir(parents=True, exist_ok=True)
    (place / f"limits-{day}.md").write_text(text)
    (place / f"limits-{day}.json").write_text(json.dumps(found, indent=1) + "\n")


def _table(found: Found, kind: str) -> list[str]:
    rounds = max(len(figures) for workloads in found.values() for figures in workloads.values())
    rows = [
        f"`python -m bench.limits` on {kind}; rounds: {rounds}, medians.",
        "",
        f"| | {' | '.join(HEAD)} |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for key, workloads in found.items():
        cells = [
            _middle(workloads.get("tenant", []), "rate", 0),
            _middle(workloads.get("rate", []), "mean", 1),
            _middle(workloads.get("rate", []), "most", 0),
            _middle(workloads.get("rate", []), "cpu", 2),
            _middle(workloads.get("quiet", []), "waited", 0),
        ]
        rows.append(f"| {KNOWN[key].name} | {' | '.join(cells)} |")
    return rows


def _middle(rounds: list[Figures], figure: str, digits: int) -> str:
    if not rounds:
        return "–"
    value: Any = statistics.median(one[figure] for one in rounds)
    return f"{value:,.{digits}f}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.limits",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--only", help=f"of {', '.join(ALL)}")
    parser.add_argument("--workloads", help=f"of {', '.join(WORKLOADS)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kind", type=Kind, default=Kind.REDIS_7_0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
