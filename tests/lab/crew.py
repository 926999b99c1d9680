"""Worker processes that are really killed, and a history of what their handlers did.

As a program (`python -m tests.lab.crew URL HISTORY OPTIONS`) this is one worker. Its handlers do
what their payload says, and write a line when they start and when they end.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec

from mx_rmq import Batch, Delivery, MessageQueue, Worker
from tests.lab.appended import whole_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
TOPIC = "work"
PLAIN = "plain"
BATCHES = "batches"
TICK = "tick"


class Line(msgspec.Struct):
    """One moment of a handler."""

    event: str
    id: str
    fence: int
    attempt: int
    pid: int
    at: float
    """Monotonic time; all processes of a machine share that clock."""


class History:
    """What happened, in one file that every process appends to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._path.touch()

    def lines(self, event: str | None = None) -> list[Line]:
        decoder = msgspec.json.Decoder(Line)
        found = [decoder.decode(line) for line in whole_lines(self._path)]
        return [line for line in found if event in (None, line.event)]

    def ids(self, event: str) -> list[str]:
        return [line.id for line in self.lines(event)]


class Member:
    """One worker process."""

    def __init__(self, url: str, directory: Path, **options: Any) -> None:
        self.log = directory / f"worker-{time.monotonic_ns()}.log"
        program = [sys.executable, "-m", "tests.lab.crew"]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*program, url, str(directory / "history"), json.dumps(options)],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self, number: signal.Signals, seconds: float = 30) -> int:
        """Send a signal and wait for the end; return the exit code."""
        self.send(number)
        return self._process.wait(seconds)

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def output(self) -> str:
        return self.log.read_text()

    def until_ready(self) -> Self:
        wait_for(lambda: " started; " in self.output() or not self.is_alive())
        assert " started; " in self.output(), (
            self.output()
        )  # what it served may have killed it since
        return self


@contextmanager
def crew(url: str, directory: Path) -> Iterator[tuple[Callable[..., Member], History]]:
    """Yield a function that starts workers, and the history; end them all."""
    members: list[Member] = []

    def start(**options: Any) -> Member:
        members.append(Member(url, directory, **options))
        return members[-1]

    try:
        yield start, History(directory / "history")
    finally:
        for member in members:
            if member.is_alive():
                member.send(signal.SIGCONT)
                member.end(signal.SIGKILL)


def wait_for(fact: Callable[[], object], seconds: float = 30) -> None:
    """Wait until a fact is true."""
    deadline = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


async def until(fact: Callable[[], Any], seconds: float = 30) -> None:
    """Wait until a fact is true, while the loop runs. The fact may be a coroutine."""
    deadline = time.monotonic() + seconds
    while True:
        found = fact()
        if await found if inspect.isawaitable(found) else found:
            return
        assert time.monotonic() < deadline, "waited too long"
        await asyncio.sleep(0.01)


# the program


def make(url: str, history: int, options: dict[str, Any]) -> MessageQueue:
    """Make the queue of a worker process."""
    limit = options.pop("dlq_max_bytes", None)
    mq = MessageQueue(url, lease=options.pop("lease", 30.0), dlq_max_bytes=limit)
    settings = {"retry": 0.05, **options.pop("handler", {})}

    def note(event: str, delivery: Delivery) -> None:
        line = Line(event, delivery.id, delivery.fence, delivery.attempt, os.getpid(), time.time())
        os.write(history, msgspec.json.encode(line) + b"\n")

    @mq.handler(TOPIC, **settings)
    async def work(payload: dict[str, Any], delivery: Delivery) -> None:
        note("start", delivery)
        if "sleep" in payload:
            await asyncio.sleep(payload["sleep"])
        if "block" in payload:
            time.sleep(payload["block"])
        if payload.get("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        if payload.get("fail"):
            raise ValueError("as planned")
        note("end", delivery)

    @mq.handler(PLAIN, **settings)
    def plain(payload: dict[str, Any], delivery: Delivery) -> None:
        note("start", delivery)
        time.sleep(payload.get("sleep", 0))
        note("end", delivery)

    @mq.handler(BATCHES, batch=20, linger=0.3, **settings)
    async def batches(payloads: list[dict[str, Any]], batch: Batch) -> None:
        for delivery in batch:
            note("start", delivery)
        await asyncio.sleep(max(one["sleep"] for one in payloads))
        for index, (payload, delivery) in enumerate(zip(payloads, batch, strict=True)):
            if payload.get("fail") and delivery.attempt <= payload["fail"]:
                batch.fail(index, "as planned")
            else:
                note("end", delivery)

    if every := options.pop("cron", None):

        @mq.cron(every, topic=TICK)
        async def tick(delivery: Delivery) -> None:
            note("tick", delivery)

    return mq


def main() -> None:
    url, path, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    logging.basicConfig(level=logging.INFO, format="%(created)f %(levelname)s %(message)s")
    history = os.open(path, os.O_WRONLY | os.O_APPEND)
    mq = make(url, history, options)
    clean = asyncio.run(Worker(mq, **options).run())
    sys.exit(0 if clean else 1)


if __name__ == "__main__":
    main()
