"""A process of the benchmark, from inside: a worker like a user's, or a producer.

    stdin   a line of JSON: what to do (Duty); then orders, one word per line. EOF ends the process
    stdout  a line of JSON for each of them

Handlers note CLOCK_MONOTONIC, which all processes of a machine share. A thread waits for the
orders, so nothing competes with what is measured.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from array import array
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mx_rmq.core.limits import Limit
from mx_rmq.queue import MessageQueue
from mx_rmq.runtime.loop import loop_factory
from mx_rmq.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from mx_rmq.core.middleware import Middleware
    from mx_rmq.metrics import Endpoint

LARGE: Final = "large"
LARGE_BYTES: Final = 1_000_000
BURST: Final = 10
RESULT_TTL: Final = 60
TENANT_SECONDS: Final = 0.005
BATCH: Final = 500
LINGER: Final = 0.05  # seconds


class Duty(msgspec.Struct, frozen=True, kw_only=True):
    """What a process must do."""

    url: str
    prefix: str
    topics: list[str]
    """`orders@billing`: the handler has this subscription."""
    handler: str = "nothing"
    """nothing, thread, wait, insert, bulk, late, answer or tenant; or none: it produces bursts of
    large payloads."""
    concurrency: int = 200
    running: int = 0
    """How many messages of each key may run at a time; 0: any number."""
    rate: str = ""
    """How many messages may start per second over all keys; empty: any number."""
    every: float = 0.5
    """Seconds between two bursts."""
    history: int | None = None
    """Entries of the history to keep; None: the default."""
    metrics: int = 0
    """The port on which to serve metrics; 0: none."""
    traces: bool = False
    """Make spans that are not exported."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What it has done."""

    count: int
    """Handler calls, or messages produced."""
    first: float = 0.0
    last: float = 0.0
    """When the first and the last of them started."""
    cpu: float = 0.0
    """Seconds of CPU time since it started to work."""
    seconds: float = 0.0
    """When that was read."""
    noted: list[float] = []
    """What handlers noted: how late they were in seconds, or when they started."""
    late: list[float] = []
    tenants: list[int] = []
    """Of the handler `tenant`: how many seconds late each was, and whose message."""


class Member:
    """The process."""

    def __init__(self, duty: Duty) -> None:
        self._duty = duty
        self._noted = array("d")
        self._late = array("d")
        self._tenants = array("l")
        self._cpu = time.process_time()
        self._loop = asyncio.get_running_loop()
        self._go, self._stop = asyncio.Event(), asyncio.Event()

    async def live(self) -> None:
        """Work between the orders `go` and `stop`."""
        duty = self._duty
        around = [_traces()] if duty.traces else []
        mq = MessageQueue(duty.url, prefix=duty.prefix, history=duty.history, middleware=around)
        for topic in self._duty.topics:
            self._declare(mq, topic)
        worker = Worker(mq, concurrency=duty.concurrency)
        watched = _endpoint(worker, duty.metrics) if duty.metrics else nullcontext()
        async with mq:
            threading.Thread(target=self._obey, daemon=True).start()
            await self._go.wait()
            self._cpu = time.process_time()
            if self._duty.handler == "none":
                await self._produce(mq)
            else:
                async with watched, worker:
                    await self._stop.wait()

    def _declare(self, mq: MessageQueue, topic: str) -> None:
        note, now = self._noted.append, time.monotonic

        async def nothing(payload: dict[str, Any]) -> None:
            note(now())

        def thread(payload: dict[str, Any]) -> None:
            note(now())

        async def wait(payload: dict[str, Any]) -> None:
            note(now())
            await asyncio.sleep(0.001)

        async def insert(payload: dict[str, Any]) -> None:
            await asyncio.sleep(0.001)
            note(now())

        async def bulk(payloads: list[dict[str, Any]]) -> None:
            await asyncio.sleep(0.001)
            self._noted.extend([now()] * len(payloads))

        async def late(payload: dict[str, Any]) -> None:
            if "due" in payload:  # a large one is not late
                note(now() - payload["due"])

        async def answer(payload: dict[str, Any]) -> int:
            note(now())
            return int(payload["order"])

        async def tenant(payload: dict[str, Any]) -> None:
            note(now())
            self._late.append(now() - payload["due"])
            self._tenants.append(payload["tenant"])
            await asyncio.sleep(TENANT_SECONDS)

        handlers: dict[str, Callable[..., Any]] = {
            "nothing": nothing,
            "thread": thread,
            "wait": wait,
            "insert": insert,
            "bulk": bulk,
            "late": late,
            "answer": answer,
            "tenant": tenant,
        }
        duty = self._duty
        if duty.handler in handlers:
            kept = RESULT_TTL if duty.handler == "answer" else None
            limit = Limit(rate=duty.rate) if duty.rate else None
            per_key = Limit(running=duty.running) if duty.running else None
            batch, linger = (BATCH, LINGER) if duty.handler == "bulk" else (None, None)
            base, _, name = topic.partition("@")
            declare = mq.handler(
                base,
                subscription=name or None,
                result_ttl=kept,
                limit=limit,
                per_key=per_key,
                batch=batch,
                linger=linger,
            )
            declare(handlers[duty.handler])

    async def _produce(self, mq: MessageQueue) -> None:
        """Produce bursts of large payloads until told to stop."""
        due = time.monotonic()
        payload = {"text": "x" * LARGE_BYTES}
        while not self._stop.is_set():
            for _ in range(BURST):
                self._noted.append(time.monotonic())
                await mq.produce(LARGE, payload)
            due += self._duty.every
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    def _obey(self) -> None:
        """Follow orders until there are no more, or the pipe is closed."""
        try:
            _say("ready")
            for line in sys.stdin:
                self._carry_out(line.strip())
        finally:
            os._exit(1)

    def _carry_out(self, order: str) -> None:
        if order == "report":
            _say(self._report())
        elif order == "count":
            _say(len(self._noted))
        elif order == "cpu":
            _say(Report(count=0, cpu=time.process_time(), seconds=time.monotonic()))
        else:
            event = self._go if order == "go" else self._stop
            self._loop.call_soon_threadsafe(event.set)
            _say(order)

    def _report(self) -> Report:
        noted = self._noted
        return Report(
            count=len(noted),
            first=min(noted, default=0.0),
            last=max(noted, default=0.0),
            cpu=time.process_time() - self._cpu,
            seconds=time.monotonic(),
            noted=list(noted)
            if self._duty.handler in ("late", "tenant") or self._duty.rate
            else [],
            late=list(self._late),
            tenants=list(self._tenants),
        )


def _traces() -> Middleware:
    from opentelemetry.sdk.trace import TracerProvider

    from mx_rmq.traces import Traces

    return Traces(TracerProvider())


def _endpoint(worker: Worker, port: int) -> Endpoint:
    from mx_rmq.metrics import Endpoint

    return Endpoint(worker, port=port)


def _say(answer: Any) -> None:
    sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
    sys.stdout.flush()


async def _live(duty: Duty) -> None:
    await Member(duty).live()


def main() -> None:
    logging.getLogger("mx_rmq").setLevel(logging.ERROR)
    duty = msgspec.json.decode(sys.stdin.readline(), type=Duty)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_live(duty))


if __name__ == "__main__":
    main()
