"""One queue at work: its worker, its callers, and a file with one byte per finished child."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from bench.environments import CACHE, ROOT
from bench.processes import started

Work = Callable[[], AbstractContextManager[list[int]]]
Play = Callable[[str, int], subprocess.Popen[str]]


@contextmanager
def stage(command: Sequence[str], url: str, sleep: float) -> Iterator[tuple[Work, Play, Path]]:
    with tempfile.TemporaryDirectory() as place:
        record, errors = Path(place) / "record", Path(place) / "errors"
        record.touch()
        own = {"FLOWS_URL": url, "FLOWS_SLEEP": str(sleep), "FLOWS_RECORD": str(record)}
        own |= {"PYTHONPATH": str(ROOT), "FLOWS_NODE": str(CACHE / "npm")}
        environment = {**os.environ, **own}

        def play(role: str, count: int) -> subprocess.Popen[str]:
            words = [*command, role, str(count)]
            return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)

        yield lambda: started([[*command, "work"]], environment, errors), play, record
