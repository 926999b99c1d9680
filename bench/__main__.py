"""Compare mx-rmq with its peers on this machine."""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys
from pathlib import Path

from bench.compare import WORKLOADS, compare
from bench.environments import CACHE, ROOT, Environments
from bench.picture import picture
from bench.systems import chosen
from bench.table import markdown, text
from bench.workloads import Bench
from tests.lab.servers import Kind

QUICK = 0.1


def main() -> None:
    options = _parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that workers are ended, too
    logging.disable()
    workloads = options.workloads.split(",") if options.workloads else list(WORKLOADS)
    unknown = [name for name in workloads if name not in WORKLOADS]
    if unknown:
        raise SystemExit(f"there is no {', '.join(unknown)}; there are {', '.join(WORKLOADS)}")
    bench = Bench(
        Environments({"ours": sys.executable} if options.here else None),
        Kind(options.kind),
        scale=options.scale or (QUICK if options.quick else 1.0),
        alone=not options.no_lock,
    )
    results = compare(
        bench,
        chosen(options.only),
        chosen=workloads,
        rounds=options.rounds or (1 if options.quick else 3),
        idle_seconds=5 if options.quick else 20,
        crash_seconds=options.crash_wait or (45 if options.quick else 120),
    )
    print(text(results))
    partial = (options.only, options.workloads, options.quick, options.scale)
    published = options.kind == Kind.REDIS_7_0 and not any(partial)
    out = options.out or (ROOT / "bench" if published else CACHE) / "results"
    drawn = ROOT / "docs" / "images" if published and not options.out else out
    _write(out / f"{results['date']}.json", json.dumps(results, indent=1) + "\n")
    _write(out / f"{results['date']}.md", markdown(results))
    _write(drawn / "bench.svg", picture(results))


def _write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    print(f"bench: wrote {path}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    add = parser.add_argument
    add("--only", metavar="KEYS", help="these queues only: ours,repid,… (bench/systems.py)")
    add("--workloads", metavar="NAMES", help=f"these only: {','.join(WORKLOADS)}")
    add("--quick", action="store_true", help="a smoke run: a tenth of the messages, one round")
    add("--rounds", type=int, help="how often all is measured (3)")
    add("--scale", type=float, help="multiply the numbers of messages")
    add("--crash-wait", type=float, help="seconds to wait for what a killed worker held (120)")
    add("--kind", choices=list(Kind), default=Kind.REDIS_7_0, help="the server (redis-7.0)")
    add("--here", action="store_true", help="measure mx-rmq in this environment, not in its own")
    add("--no-lock", action="store_true", help="do not wait for other measurements")
    add("--out", type=Path, help="where to write: bench/results, .bench/results for a part of it")
    return parser


if __name__ == "__main__":
    main()
