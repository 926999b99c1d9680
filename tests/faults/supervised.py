"""Workers under the command line's own supervisor, as `mx-rmq worker --processes` starts them.

As a module this is the application that they run; `MX_RMQ_LAB` has the URL and files.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.lab.crew import until
from tests.lab.servers import ROOT, die_with_parent

if TYPE_CHECKING:
    from mx_rmq import MessageQueue
    from tests.faults.member import Place

VARIABLE: Final = "MX_RMQ_LAB"
PROCESSES: Final = 2


class Supervisor:
    """A supervisor and its worker processes."""

    def __init__(self, place: Place) -> None:
        program = [sys.executable, "-m", "mx_rmq.cli", "worker", f"{__name__}:mq"]
        program += ["--processes", str(PROCESSES), "--concurrency", "2", "--grace", "5"]
        environment = {**os.environ, VARIABLE: json.dumps(place, default=str)}
        with place.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*program, "--log-level", "error"],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - before any thread of ours
            )

    async def until_begun(self) -> None:
        """Wait until all its processes have started."""
        await until(lambda: len(self.workers()) == PROCESSES, 60)

    def workers(self) -> list[int]:
        """Return the pids of its worker processes."""
        pid = self._process.pid
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    async def kill(self) -> None:
        """End it the way a crash does, and wait for its orphans, which stop on their own."""
        orphans = self.workers()
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(20)
        await until(lambda: not any(Path(f"/proc/{one}").exists() for one in orphans), 60)


def name_of(pid: int) -> str:
    """Return the name of a supervised worker in the history."""
    return f"s{pid}"


def _application() -> MessageQueue:
    from tests.faults.history import Journal  # here, because supervisors do not need it
    from tests.faults.member import Place, make

    fields: list[Any] = json.loads(os.environ[VARIABLE])
    url, history, log, *rest = fields
    place = Place(url, Path(history), Path(log), *rest)
    return make(place, Journal(place.history, name_of(os.getpid())))


if VARIABLE in os.environ:
    mq = _application()
