"""BullMQ's Python package."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from bullmq import Queue, Worker  # type: ignore[import-not-found]  # in its own environment

from bench.adapter import BaseAdapter, run
from bench.handler import async_handler

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.payload import Payload


class Adapter(BaseAdapter):
    bulk = "Queue.addBulk, 500 at a time"
    packages = ("bullmq",)
    settings = "concurrency=100, removeOnComplete"

    @property
    def _connection(self) -> dict[str, Any]:
        return {"connection": {"host": "127.0.0.1", "port": self.port}}

    async def open(self) -> None:
        self.queue = Queue("bench", self._connection)

    async def close(self) -> None:
        await self.queue.close()

    async def produce(self, payload: Payload) -> None:
        await self.queue.add("bench", payload, {"removeOnComplete": True})

    async def produce_many(self, payloads: Sequence[Payload]) -> None:
        await self.queue.addBulk(
            [
                {"name": "bench", "data": payload, "opts": {"removeOnComplete": True}}
                for payload in payloads
            ]
        )

    async def produce_delayed(self, payload: Payload, delay: float) -> None:
        options = {"removeOnComplete": True, "delay": int(delay * 1000)}
        await self.queue.add("bench", payload, options)

    def work(self, concurrency: int) -> None:
        handle = async_handler()

        async def process(job: Any, _token: str) -> None:
            await handle(job.data)

        async def main() -> None:
            worker = Worker("bench", process, {**self._connection, "concurrency": concurrency})
            await asyncio.Event().wait()
            await worker.close()

        run(main())
