"""`make faults`: every kind of fault at full length, two at a time, then the report.

`.venv/bin/python -m tests.faults NAME --size N --seed N` runs one of them; a failure prints it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tests.faults import (
    batches,
    cancels,
    clocks,
    crash_points,
    cuts,
    failovers,
    fuzz,
    key_failovers,
    keys,
    kills,
    memory,
    mixed,
    outbox,
    parts,
    power,
    server_kills,
    soak,
    steps,
    subscriptions,
    zombies,
)
from tests.faults.report import write
from tests.faults.result import RESULTS, Result, commit
from tests.faults.trial import Fault, Trial, say
from tests.lab.servers import ROOT

FAULTS: Final[dict[str, Fault]] = {
    fault.name: fault
    for fault in (
        crash_points.FAULT,
        kills.FAULT,
        zombies.FAULT,
        batches.FAULT,
        server_kills.FAULT,
        power.FAULT,
        memory.FAULT,
        failovers.FAULT,
        cuts.FAULT,
        cancels.FAULT,
        parts.FAULT,
        keys.FAULT,
        steps.FAULT,
        key_failovers.FAULT,
        subscriptions.FAULT,
        outbox.FAULT,
        mixed.FAULT,
        fuzz.FAULT,
        clocks.FAULT,
        soak.FAULT,
    )
}
"""All kinds, in the order of the report."""

SEED: Final = 1
AT_ONCE: Final = 2
"""Kinds that run at the same time: the machines have two cores."""


async def hold(fault: Fault, *, size: int, seed: int) -> Result:
    """Run a trial in its own directory, which is kept if there is a violation."""
    directory = Path(tempfile.mkdtemp(prefix="mxf-"))
    trial = Trial(fault.name, size, seed, directory)
    began, code = time.monotonic(), commit()
    say(trial.replay)
    await fault.hold(trial)
    if trial.violations:
        say(f"what they left is in {directory}")
    else:
        shutil.rmtree(directory)
    return Result(
        fault=fault.name,
        size=size,
        seed=seed,
        commit=code,
        day=f"{datetime.now(UTC):%Y-%m-%d}",
        seconds=round(time.monotonic() - began, 1),
        figures=trial.figures,
        violations=trial.violations,
        tables=trial.tables,
    )


def main() -> int:
    """Run one kind, or all of them."""
    options = _options()
    if options.fault is None:
        return _all(options.seed)
    fault = FAULTS[options.fault]
    size = options.size or fault.full
    path = RESULTS / f"{fault.name}.json"
    if size >= fault.full:  # if this crashes, the report must not show an older result
        path.unlink(missing_ok=True)
    result = asyncio.run(hold(fault, size=size, seed=options.seed))
    say(json.dumps(asdict(result), indent=2, ensure_ascii=False))
    if size >= fault.full:
        RESULTS.mkdir(exist_ok=True)
        path.write_text(json.dumps(asdict(result), indent=2, ensure_ascii=False) + "\n")
        write(list(FAULTS.values()))
    found = f"{len(result.violations)} violations; again: {result.replay}"
    say(found if result.violations else f"{fault.name}: no violation")
    return 1 if result.violations else 0


def _all(seed: int) -> int:
    """Run every kind in its own process, the longest first."""

    def run(name: str) -> int:
        began = time.monotonic()
        program = [sys.executable, "-m", "tests.faults", name, "--seed", str(seed)]
        code = subprocess.run(program, cwd=ROOT, stdout=subprocess.DEVNULL, check=False).returncode
        ended = (
            "ok" if code == 0 else "FAILED" if (RESULTS / f"{name}.json").exists() else "CRASHED"
        )
        say(f"{name}: {ended} in {time.monotonic() - began:.0f} s")
        return code

    names = sorted(FAULTS, key=lambda name: name != "soak")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        codes = list(pool.map(run, names))
    write(list(FAULTS.values()))
    return 1 if any(codes) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("fault", nargs="?", choices=list(FAULTS), help="one kind; default: all")
    parser.add_argument("--size", type=_size, help="how many faults; default: as in the campaign")
    parser.add_argument("--seed", type=int, default=int(os.environ.get("MX_RMQ_SEED", SEED)))
    return parser.parse_args()


def _size(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least 1")
    return int(text)
