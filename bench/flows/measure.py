"""Measures one queue on a fresh server: how long the jobs take, and how it recovers from a kill."""

from __future__ import annotations

import json
import subprocess
import time
from contextlib import suppress
from statistics import median
from typing import TYPE_CHECKING

from bench.flows.stage import stage

if TYPE_CHECKING:
    from collections.abc import Sequence

START = 8  # seconds until a worker has started, even on a busy machine
LIMIT = 125


def times(command: Sequence[str], url: str) -> dict[str, list[int]]:
    """Return the median in milliseconds, then each run without the first."""
    with stage(command, url, sleep=0) as (work, play, _), work():
        time.sleep(START)
        found = {role: json.loads(play(role, 6).communicate()[0])[1:] for role in ("flow", "steps")}
    return {role: [round(ms) for ms in (median(ran), *ran)] for role, ran in found.items()}


def after_a_kill(command: Sequence[str], url: str) -> dict[str, float | None]:
    """Kill the worker when half the children are done, start another, and wait for the parent."""
    with stage(command, url, sleep=0.2) as (work, play, record):
        with work():
            time.sleep(START)
            producer = play("flow", 1)
            while record.stat().st_size < 50 and producer.poll() is None:
                time.sleep(0.01)
        killed, done = time.monotonic(), record.stat().st_size
        with work():
            with suppress(subprocess.TimeoutExpired):
                producer.wait(LIMIT)
            seconds = round(time.monotonic() - killed, 1)
            producer.kill()
        return {
            "done": done,
            "seconds": seconds if producer.wait() == 0 else None,
            "runs": record.stat().st_size,
        }
