"""The handler that all queues run: it records its start, and may sleep.

The harness passes the record's path and how long to sleep in the environment.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable  # noqa: TC003 - peers read annotations at run time
from pathlib import Path
from typing import Any

from bench.payload import Payload  # noqa: TC001 - the same
from bench.record import DONE, Record

RECORD = "BENCH_RECORD"
MESSAGES = "BENCH_MESSAGES"
SLEEP = "BENCH_SLEEP"
PORT = "BENCH_PORT"
RESULTS = "BENCH_RESULTS"
LIMIT = "BENCH_LIMIT"

TENANTS = 100
AT_A_TIME = 2
RATE = 50
"""The limits of bench/limits.py: messages of a tenant at a time, and messages per second."""


def port() -> int:
    """Return the port of the server."""
    return int(os.environ[PORT])


def keeps_results() -> bool:
    """Return whether results are kept in this measurement."""
    return os.environ.get(RESULTS) == "1"


def limit() -> str:
    """Return what is limited in this measurement: "tenant", "rate", "quiet" (nothing) or ""."""
    return os.environ.get(LIMIT, "")


def tenant(index: int) -> str:
    """Return the tenant of a message. In "quiet", only the last one has another tenant."""
    if limit() == "quiet":
        return "quiet" if index == int(os.environ[MESSAGES]) - 1 else "noisy"
    return f"tenant-{index % TENANTS}"


def record() -> Record:
    """Return the record of this measurement."""
    return Record(Path(os.environ[RECORD]), int(os.environ[MESSAGES]))


def async_handler() -> Callable[[Payload], Awaitable[int | None]]:
    """Return the handler as a coroutine function. If results are kept, it returns one."""
    entered, flags, seconds = _where()

    async def nothing(payload: dict[str, Any]) -> None:
        index = payload["i"]
        entered[index] = time.monotonic_ns()
        flags[index] = flags[index] + 1 | DONE

    async def sleep(payload: dict[str, Any]) -> None:
        index = payload["i"]
        entered[index] = time.monotonic_ns()
        flags[index] += 1
        await asyncio.sleep(seconds)
        flags[index] |= DONE

    async def answer(payload: dict[str, Any]) -> int:
        await nothing(payload)
        return int(payload["i"])

    if keeps_results():
        return answer
    return sleep if seconds else nothing


def sync_handler() -> Callable[[Payload], int | None]:
    """Return the handler as a plain function. If results are kept, it returns one."""
    entered, flags, seconds = _where()

    def nothing(payload: dict[str, Any]) -> None:
        index = payload["i"]
        entered[index] = time.monotonic_ns()
        flags[index] = flags[index] + 1 | DONE

    def sleep(payload: dict[str, Any]) -> None:
        index = payload["i"]
        entered[index] = time.monotonic_ns()
        flags[index] += 1
        time.sleep(seconds)
        flags[index] |= DONE

    def answer(payload: dict[str, Any]) -> int:
        nothing(payload)
        return int(payload["i"])

    if keeps_results():
        return answer
    return sleep if seconds else nothing


def _where() -> tuple[memoryview[int], memoryview[int], float]:
    where = record()
    return where.entered, where.flags, float(os.environ.get(SLEEP, "0"))
