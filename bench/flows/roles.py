"""The roles of each script: `work`, `flow COUNT` and `steps COUNT`."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from contextlib import AbstractAsyncContextManager, nullcontext
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from bench.flows.job import CHILDREN

if TYPE_CHECKING:
    from collections.abc import Callable


async def _times(job: Callable[[], Any], count: int, expected: object) -> list[float]:
    times = []
    for _ in range(count):
        began = time.monotonic()
        answer = job()
        answer = await answer if isawaitable(answer) else answer
        times.append((time.monotonic() - began) * 1000)
        assert answer == expected, answer
    return times


def play(
    work: Callable[[], object],
    book: Callable[[], Any],
    ticket: Callable[[], Any],
    client: AbstractAsyncContextManager[Any] | None = None,
) -> None:
    """Play the role that the command line names."""

    async def measure() -> list[float]:
        async with client or nullcontext():
            if sys.argv[1] == "flow":
                return await _times(book, int(sys.argv[2]), sum(range(CHILDREN)))
            return await _times(ticket, int(sys.argv[2]), "bug!!!")

    if sys.argv[1] == "work":
        work()
    else:
        print(json.dumps(asyncio.run(measure())))
