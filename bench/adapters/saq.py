"""SAQ on Redis."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from saq import Queue, Worker  # type: ignore[import-not-found]  # in its own environment

from bench.adapter import BaseAdapter, run
from bench.handler import async_handler

if TYPE_CHECKING:
    from bench.payload import Payload


class Adapter(BaseAdapter):
    chunk = 100
    bulk = "no bulk call: gather of enqueue, 100 at a time"
    packages = ("saq",)
    results = "ttl=60, queue.apply(poll_interval=0.001, or 0.005 for 100 callers)"
    settings = "concurrency=100, ttl=-1 (no results), max_concurrent_ops=100"

    async def open(self) -> None:
        self.queue = self._queue()

    def _queue(self) -> Queue:
        return Queue.from_url(self.url, max_concurrent_ops=100)

    async def close(self) -> None:
        await self.queue.disconnect()

    async def produce(self, payload: Payload) -> None:
        await self.queue.enqueue("task", payload=payload, ttl=-1)

    async def produce_delayed(self, payload: Payload, delay: float) -> None:
        # It takes whole seconds: rounded up, so that nothing runs early.
        due = int(time.time() + delay) + 1
        await self.queue.enqueue("task", payload=payload, ttl=-1, scheduled=due)

    async def call(self, payload: Payload) -> Any:
        return await self.queue.apply("task", payload=payload, poll_interval=self.poll, ttl=60)

    def work(self, concurrency: int) -> None:
        handle = async_handler()

        async def task(_: Any, *, payload: Payload) -> int | None:
            return await handle(payload)

        async def main() -> None:
            await Worker(self._queue(), [("task", task)], concurrency=concurrency).start()

        run(main())
