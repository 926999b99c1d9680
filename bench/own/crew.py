"""The processes of the benchmark, from outside: start, ask, end. None outlives the crew."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self, TypedDict, TypeVar

import msgspec

from bench.environments import ROOT
from bench.own import member
from bench.own.load import Trouble
from bench.own.member import Duty, Report

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import IO, Unpack

    from mx_rmq.queue import MessageQueue

T = TypeVar("T")

ANSWER_WITHIN: Final = 30.0
MOVE_WITHIN: Final = 30.0
"""Seconds without progress after which something is stuck."""
LOOK_EVERY: Final = 0.05
SETTLE: Final = 0.3
"""Seconds from the start of the last handler until everything is completed."""


class Details(TypedDict, total=False):
    """The optional fields of a `Duty`."""

    handler: str
    concurrency: int
    running: int
    rate: str
    every: float
    history: int | None
    metrics: int
    traces: bool


class Hand:
    """One process."""

    def __init__(self, process: asyncio.subprocess.Process, log: IO[bytes]) -> None:
        self._process = process
        self._log = log

    async def go(self) -> None:
        """Let it start."""
        await self._ask("go", str)

    async def count(self) -> int:
        """Return how many handlers have started."""
        return await self._ask("count", int)

    async def cpu(self) -> Report:
        """Return its CPU time, and when that was read."""
        return await self._ask("cpu", Report)

    async def report(self) -> Report:
        """Return what it has done."""
        return await self._ask("report", Report)

    async def stop(self) -> None:
        """Let it end cleanly."""
        await self._ask("stop", str)
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                code = await self._process.wait()
        except TimeoutError:
            raise Trouble("a process did not stop") from None
        if code:
            raise Trouble(f"a process ended with exit code {code}: {self._last_words()}")

    async def kill(self) -> None:
        """Kill it, if it is alive."""
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        self._log.close()

    async def begin(self, duty: Duty) -> None:
        """Tell it what to do; wait until it is ready."""
        await self._ask(msgspec.json.encode(duty).decode(), str)

    async def _ask(self, order: str, kind: type[T]) -> T:
        orders, answers = self._process.stdin, self._process.stdout
        if orders is None or answers is None:
            raise Trouble("a process cannot be reached")
        line = b""
        with suppress(OSError):
            if not orders.is_closing():  # uvloop raises RuntimeError for a pipe that has closed
                orders.write(order.encode() + b"\n")
                await orders.drain()
            try:
                async with asyncio.timeout(ANSWER_WITHIN):
                    line = await answers.readline()
            except TimeoutError:
                raise Trouble("a process does not answer") from None
        if not line:
            await self._process.wait()
            raise Trouble(f"a process ended: {self._last_words()}")
        return msgspec.json.decode(line, type=kind)

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


class Crew:
    """The processes of one measurement, all of them on one queue."""

    def __init__(self, mq: MessageQueue) -> None:
        self._settings = mq.settings
        self._hands: list[Hand] = []

    async def hire(self, topics: Sequence[str], **duty: Unpack[Details]) -> Hand:
        """Start a process; it is connected, and waits for `go`."""
        log = tempfile.TemporaryFile()  # noqa: SIM115 - `kill` closes it
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", member.__name__),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            env=_environment(),
            start_new_session=True,  # Ctrl-C reaches only the benchmark
            limit=2**24,  # a report is one line
        )
        hand = Hand(process, log)
        self._hands.append(hand)
        url, prefix = self._settings.url, self._settings.prefix
        await hand.begin(Duty(url=url, prefix=prefix, topics=list(topics), **duty))
        return hand

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for hand in self._hands:
            await hand.kill()


async def until_begun(count: int, *hands: Hand) -> None:
    """Wait until this many handlers have started. Raise if none starts for long."""
    loop = asyncio.get_running_loop()
    seen, moved = -1, loop.time()
    while seen < count:
        await asyncio.sleep(LOOK_EVERY)
        now = sum([await hand.count() for hand in hands])
        if now != seen:
            seen, moved = now, loop.time()
        elif loop.time() - moved > MOVE_WITHIN:
            raise Trouble(f"{seen:,} of {count:,} messages were handled, then no more")


def _environment() -> dict[str, str]:
    """Return an environment without the user's settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MX_RMQ_")}
    return {**kept, "MX_RMQ_CONFIG": os.devnull, "PYTHONPATH": str(ROOT)}
