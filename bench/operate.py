"""Measure what docs/operating.md says: pages and scripts with a million messages, and the cost of
history, metrics and traces; then update its figures.

A full run writes bench/results/operate-DATE.json and the page; a quick one, or a part, writes to
.bench/results and leaves the page alone.
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
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from bench import crowd, extras, looks
from bench.capacity.page import fill
from bench.environments import CACHE, ROOT
from bench.operating import blocks
from bench.own.command import forget_settings
from bench.own.place import PREFIX, place, prefix_of_its_own
from bench.processes import machine_lock, started
from mx_rmq.runtime.loop import loop_factory
from tests.lab.nodes import Node
from tests.lab.ports import free_ports
from tests.lab.servers import Kind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

Results = dict[str, Any]

PAGE = ROOT / "docs" / "operating.md"
RESULTS = ROOT / "bench" / "results"
PARTS = ("looks", "extras")

TIMES = 5
"""How often a page is requested."""
STARTS_WITHIN = 30.0
WARM = 2.0
"""Seconds of traffic before the first request."""


def main() -> None:
    options = _parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers are ended, too
    if options.page:
        _write(PAGE, fill(PAGE.read_text(), blocks(last())))
        return
    logging.disable()
    forget_settings()
    with nullcontext() if options.no_lock else machine_lock():
        results = _measure(options)
    whole = not (options.quick or options.only or options.out or options.messages)
    whole = whole and options.kind == Kind.REDIS_7_0
    out = options.out or (RESULTS if whole else CACHE / "results")
    _write(out / f"operate-{results['date']}.json", json.dumps(results, indent=1) + "\n")
    if whole:
        _write(PAGE, fill(PAGE.read_text(), blocks(results)))
    else:
        for name, block in blocks(results).items():
            print(f"\n{name}\n\n{block}", end="")


def _measure(options: argparse.Namespace) -> Results:
    """Measure on our own server, each part on a fresh one."""
    began, load = time.monotonic(), [os.getloadavg()[0]]
    kind, parts = Kind(options.kind), options.only or PARTS
    extent = crowd.QUICK if options.quick else crowd.USUAL
    if options.messages:
        extent = replace(extent, messages=options.messages, quarantined=options.messages // 10)
    found: Results = {}
    with (
        tempfile.TemporaryDirectory(prefix="mx-rmq-bench-") as directory,
        asyncio.Runner(loop_factory=loop_factory()) as runner,
    ):
        here = Path(directory)
        if "looks" in parts:
            found["looks"] = runner.run(_look(here / "looks", kind, extent, options))
        if "extras" in parts:
            size = extras.QUICK if options.quick else extras.USUAL
            found["extras"] = runner.run(_extras(here / "extras", kind, size))
    load.append(os.getloadavg()[0])
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "server": str(kind),
        "machine": f"{os.cpu_count()} cores",
        "nice": options.nice,
        "python": ".".join(map(str, sys.version_info[:3])),
        "loop": "asyncio's event loop" if loop_factory() is None else "uvloop",
        "load": load,
        "minutes": (time.monotonic() - began) / 60,
        **found,
    }


async def _look(
    directory: Path, kind: Kind, extent: crowd.Extent, options: argparse.Namespace
) -> Results:
    """Fill a server; measure it without traffic, and then with it."""
    found: Results = {"extent": asdict(extent)}
    port, web = free_ports(2)
    with Node(kind, directory, port=port) as server:
        url, prefix = f"redis://{server.address}", prefix_of_its_own(PREFIX)
        began = time.monotonic()
        await crowd.fill(url, prefix, extent, _tell)
        found["seconds"] = time.monotonic() - began
        found["memory"] = int((await server.ask("INFO", "memory"))["used_memory"])
        command = [sys.executable, "-m", "mx_rmq.cli", "dashboard", "--port", str(web)]
        command += ["--url", url, "--prefix", prefix]
        with started([command], _environment(), directory / "dashboard.log") as pids:
            for process in (os.getpid(), server.pid, *pids) if options.nice else ():
                _hurry(process, options.nice)
            address = f"http://127.0.0.1:{web}"
            await _answers(address, directory / "dashboard.log")
            for name in ("quiet", "beside"):
                _tell(f"looks, {name}")
                load = os.getloadavg()[0]
                moving = name == "beside"
                async with (
                    _traffic(url, prefix, directory, wanted=moving),
                    looks.operator(url, prefix, address, moving=moving) as operator,
                ):
                    full = crowd.Crowd(extent)
                    await operator.look(full, 1 if options.quick else TIMES)
                    await operator.act(full)
                found[name] = {"load": load, **operator.times.summary()}
    if options.nice:
        _hurry(os.getpid(), 0)
    return found


def _hurry(process: int, nice: int) -> None:
    """Give a process another priority; also its session, if the system schedules by those."""
    os.setpriority(os.PRIO_PROCESS, process, nice)
    with suppress(OSError):
        (Path("/proc") / str(process) / "autogroup").write_text(str(nice))


@asynccontextmanager
async def _traffic(url: str, prefix: str, directory: Path, *, wanted: bool) -> AsyncIterator[None]:
    command = [sys.executable, "-m", crowd.__name__, url, prefix]
    with started([command] if wanted else [], _environment(), directory / "traffic.log"):
        if wanted:
            await asyncio.sleep(WARM)
        yield
        log_text = (directory / "traffic.log").read_text().strip()
        if log_text:
            raise RuntimeError(f"the traffic ended: {log_text[-1500:]}")


async def _answers(address: str, log: Path) -> None:
    """Wait until the dashboard has started."""
    deadline = time.monotonic() + STARTS_WITHIN
    async with httpx.AsyncClient() as web:
        while True:
            try:
                if (await web.get(f"{address}/healthz")).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            if time.monotonic() > deadline:
                log_text = log.read_text()  # noqa: ASYNC240 - there is nothing else to do
                raise RuntimeError(f"the dashboard did not start: {log_text[-1500:]}")
            await asyncio.sleep(0.1)


async def _extras(directory: Path, kind: Kind, size: extras.Extent) -> Results:
    (port,) = free_ports(1)
    with Node(kind, directory, port=port) as server:
        prefix = prefix_of_its_own(PREFIX)
        async with place(f"redis://{server.address}", prefix=prefix, patience=10.0) as where:
            return await extras.compare(where, size, _tell)


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MX_RMQ_")}
    return {**kept, "MX_RMQ_CONFIG": os.devnull, "PYTHONPATH": str(ROOT)}


def _tell(text: str) -> None:
    print(f"bench: {text}", flush=True)


def last() -> Results:
    """Return the results of the last full run."""
    written = sorted(RESULTS.glob("operate-*.json"))
    if not written:
        raise SystemExit("nothing has been measured yet")
    results: Results = json.loads(written[-1].read_text())
    return results


def _write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    print(f"bench: wrote {path}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.operate", description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="a smoke run: one round of little")
    add(
        "--page", action="store_true", help="measure nothing: update the page from the last results"
    )
    add("--only", choices=PARTS, nargs="+", help="these parts alone")
    add("--messages", type=int, help="messages in each state, instead of a million")
    add("--kind", choices=list(Kind), default=Kind.REDIS_7_0, help="the server (redis-7.0)")
    add("--nice", type=int, default=0, help="nice value of dashboard, client and server")
    add("--no-lock", action="store_true", help="do not wait for other measurements")
    add("--out", type=Path, help="where to write instead; the page is left alone")
    return parser


if __name__ == "__main__":
    main()
