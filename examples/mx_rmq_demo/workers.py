"""The worker processes of the demo. Run as a program, this module is one of them.

A process prints what its handlers do to stdout, such as `done orders order-17`. It exits when its
stdin closes, because then the demo is gone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from collections import Counter, deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

from mx_rmq.worker import Worker
from mx_rmq_demo import shop

if TYPE_CHECKING:
    from pathlib import Path

CONCURRENCY: Final = 20
WINDOW: Final = 2.0  # seconds over which throughput is measured


class WorkerProcess:
    """One worker process, and what it reported."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self.started: set[str] = set()  # every message that one of its handlers started
        self.running: set[str] = set()  # the messages that its handlers work on now
        self.done: Counter[str] = Counter()  # id -> how often one of its handlers completed it
        self.counts: Counter[str] = Counter()  # topic -> messages done
        self._times: dict[str, deque[float]] = {topic: deque() for topic in shop.mq.handlers}
        self._process = process
        self._log = log
        self._reading = asyncio.create_task(self._read(), name=f"{name} output")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.returncode

    def rate(self, topic: str) -> float:
        """Return how many messages of a topic it completes per second."""
        times = self._times[topic]
        while times and times[0] < time.monotonic() - WINDOW:
            times.popleft()
        return len(times) / WINDOW

    async def kill(self) -> None:
        """Send SIGKILL if it runs, and read the rest of its output."""
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._wait()

    async def stop(self, seconds: float) -> bool:
        """Stop it with SIGTERM; return whether it shut down cleanly."""
        with suppress(ProcessLookupError, TimeoutError):
            self._process.terminate()
            async with asyncio.timeout(seconds):
                await self._wait()
        return self.exit_code == 0

    def last_log_line(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "its log is empty"

    async def _wait(self) -> None:
        await self._process.wait()
        await self._reading

    async def _read(self) -> None:
        if self._process.stdout is None:
            return
        async for line in self._process.stdout:
            event, topic, id = line.decode().split()
            if event == "started":
                self.started.add(id)
                self.running.add(id)
                continue
            self.running.discard(id)
            if event == "done":
                self.done[id] += 1
                self.counts[topic] += 1
                self._times[topic].append(time.monotonic())


class WorkerProcesses:
    """All worker processes. They are killed at the end of the `async with`."""

    def __init__(self, url: str, directory: Path) -> None:
        self.all: list[WorkerProcess] = []
        self._environment = {**os.environ, "MX_RMQ_URL": url}
        self._directory = directory

    async def start(self, name: str) -> WorkerProcess:
        """Start a worker process."""
        path = self._directory / f"{name}.log"
        with path.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", __name__, name),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=self._environment,
                start_new_session=True,  # only the demo gets Ctrl-C
            )
        self.all.append(WorkerProcess(name, process, path))
        return self.all[-1]

    def done(self) -> Counter[str]:
        """Return how often each message was completed."""
        return sum((one.done for one in self.all), Counter())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for one in self.all:
            await one.kill()


# the program


def _exit_with_the_demo() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(1)


def main() -> None:
    threading.Thread(target=_exit_with_the_demo, daemon=True).start()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    shop.journal.addHandler(logging.StreamHandler(sys.stdout))
    shop.journal.propagate = False
    clean = asyncio.run(Worker(shop.mq, name=sys.argv[1], concurrency=CONCURRENCY).run())
    sys.exit(0 if clean else 1)


if __name__ == "__main__":
    main()
