"""Processes to measure: started in their own sessions, their CPU time read, and always killed."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

LOCK = Path("/tmp/bench.lock")  # noqa: S108 - one lock per machine, for every user
TICK = os.sysconf("SC_CLK_TCK")


@contextmanager
def machine_lock() -> Iterator[None]:
    """Wait until no other measurement runs on this machine. `flock /tmp/bench.lock` is the same."""
    with LOCK.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def started(
    commands: Sequence[Sequence[str]], environment: Mapping[str, str], errors: Path
) -> Iterator[list[int]]:
    """Run these, each in its own session, and kill them with all their children."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        with errors.open("ab") as file:
            for command in commands:
                processes.append(  # noqa: PERF401 - the first must be killed if the second fails
                    subprocess.Popen(
                        command,
                        env=environment,
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        stderr=file,
                        start_new_session=True,
                    )
                )
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def cpu_seconds(sessions: Sequence[int]) -> float:
    """Return the CPU time of all processes in these sessions, including ended children."""
    ticks = 0
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            with suppress(OSError):
                fields = (place / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) in sessions:
                    ticks += sum(int(field) for field in fields[11:15])
    return ticks / TICK


def is_alive(pid: int) -> bool:
    """Return whether a child of ours still runs."""
    with suppress(OSError):
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def calibrate() -> float:
    """Return the milliseconds of a fixed piece of Python: the machine's speed right now."""
    best = float("inf")
    for _ in range(3):
        began = time.monotonic()
        total = 0
        for number in range(1_000_000):
            total += number & 7
        best = min(best, time.monotonic() - began)
    return round(best * 1000, 1)
