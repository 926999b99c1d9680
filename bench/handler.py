"""The handler that all queues run: it records its start, and may sleep.

The harness tells by the environment where the record is and how long to sleep.
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


def port() -> int:
    """Return the port of the server."""
    return int(os.environ[PORT])


def record() -> Record:
    """Return the record of this measurement."""
    return Record(Path(os.environ[RECORD]), int(os.environ[MESSAGES]))


def async_handler() -> Callable[[Payload], Awaitable[None]]:
    """Return the handler as a coroutine function."""
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

    return sleep if seconds else nothing


def sync_handler() -> Callable[[Payload], None]:
    """Return the handler as a plain function."""
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

    return sleep if seconds else nothing


def _where() -> tuple[memoryview[int], memoryview[int], float]:
    where = record()
    return where.entered, where.flags, float(os.environ.get(SLEEP, "0"))
