"""`mq.sse`: every change of a message, a comment after each silence, and the end, as bytes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from mx_rmq.core.sse import COMMENT, END, event_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from mx_rmq.core.status import Status


async def server_sent_events(
    watching: AsyncGenerator[Status, None], heartbeat: float
) -> AsyncGenerator[bytes, None]:
    """Yield what `mq.watch` yields as server-sent events, and a comment after each silence."""

    async def next_one() -> Status | None:
        return await anext(watching, None)

    coming = asyncio.create_task(next_one(), name="mx-rmq sse")
    try:
        while True:
            await asyncio.wait([coming], timeout=heartbeat)
            if not coming.done():
                yield COMMENT
            elif (status := coming.result()) is None:
                yield END
                return
            else:
                yield event_of(status)
                coming = asyncio.create_task(next_one(), name="mx-rmq sse")
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)
        await watching.aclose()
