"""Measure what docs/capacity.md says: costs, shards; then update its figures.

A full run writes bench/capacity/costs.json, bench/results/capacity-DATE.json and the page; a
quick one writes to .bench/results and leaves the page alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec

from bench.capacity import costs, shards
from bench.capacity.model import Costs, Model
from bench.capacity.page import blocks, fill
from bench.capacity.plan import SHIPPED
from bench.environments import CACHE, ROOT
from bench.own.command import forget_settings
from bench.own.place import PREFIX, place, prefix_of_its_own
from bench.processes import machine_lock
from mx_rmq.runtime.loop import loop_factory
from tests.lab.nodes import Node
from tests.lab.ports import free_ports
from tests.lab.servers import Kind

PAGE = ROOT / "docs" / "capacity.md"
RESULTS = ROOT / "bench" / "results"


def main() -> None:
    options = _parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers are ended, too
    if options.page:
        _write_page(*last())
        return
    logging.disable()
    forget_settings()
    with nullcontext() if options.no_lock else machine_lock():
        measured, results = _measure(Kind(options.kind), quick=options.quick)
    whole = not options.quick and options.kind == Kind.VALKEY_9_1 and options.out is None
    out = options.out or (RESULTS if whole else CACHE / "results")
    _write(out / f"capacity-{measured.date}.json", json.dumps(results, indent=1) + "\n")
    _write(SHIPPED if whole else out / "costs.json", _text(measured))
    if whole:
        _write_page(measured, results)
    else:
        for name, block in blocks(Model(measured), results).items():
            print(f"\n{name}\n\n{block}", end="")


def _measure(kind: Kind, *, quick: bool) -> tuple[Costs, dict[str, Any]]:
    """Measure costs on one server, then compare one server with clusters."""
    began, load = time.monotonic(), [os.getloadavg()[0]]
    with (
        tempfile.TemporaryDirectory(prefix="mx-rmq-bench-") as directory,
        asyncio.Runner(loop_factory=loop_factory()) as runner,
    ):
        here = Path(directory)
        found = runner.run(_costs(here, kind, costs.QUICK if quick else costs.USUAL))
        beside = runner.run(shards.compare(here, kind, shards.QUICK if quick else shards.USUAL))
    load.append(os.getloadavg()[0])
    calls = beside["calls"]
    found = msgspec.structs.replace(
        found,
        cluster=calls[shards.THREE]["cpu_ratio"],
        replicas=calls[shards.REPLICAS]["cpu_ratio"],
    )
    return found, {
        "date": found.date,
        "machine": found.machine,
        "loop": "asyncio's event loop" if loop_factory() is None else "uvloop",
        "load": load,
        "minutes": (time.monotonic() - began) / 60,
        "costs": msgspec.to_builtins(found),
        "shards": beside,
    }


async def _costs(directory: Path, kind: Kind, extent: costs.Extent) -> Costs:
    (port,) = free_ports(1)
    with Node(kind, directory / "costs", port=port) as server:
        prefix = prefix_of_its_own(PREFIX)
        async with place(f"redis://{server.address}", prefix=prefix, patience=10.0) as where:
            return await costs.measure(where, extent, _tell)


def _tell(text: str) -> None:
    print(f"bench: costs,{text}", flush=True)


def last() -> tuple[Costs, dict[str, Any]]:
    """Return the results of the last full run."""
    written = sorted(RESULTS.glob("capacity-*.json"))
    if not written:
        raise SystemExit("nothing has been measured yet")
    results = json.loads(written[-1].read_text())
    return msgspec.convert(results["costs"], Costs), results


def _write_page(found: Costs, results: dict[str, Any]) -> None:
    _write(PAGE, fill(PAGE.read_text(), blocks(Model(found), results)))


def _text(found: Costs) -> str:
    return msgspec.json.format(msgspec.json.encode(found)).decode() + "\n"


def _write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    print(f"bench: wrote {path}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.capacity.publish", description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="a smoke run: one round of little")
    add(
        "--page", action="store_true", help="measure nothing: update the page from the last results"
    )
    add("--kind", choices=list(Kind), default=Kind.VALKEY_9_1, help="the server (valkey-9.1)")
    add("--no-lock", action="store_true", help="do not wait for other measurements")
    add("--out", type=Path, help="where to write instead; the page is left alone")
    return parser


if __name__ == "__main__":
    main()
