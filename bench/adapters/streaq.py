"""streaQ."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from streaq import Worker  # type: ignore[import-not-found]  # in its own environment

from bench.adapter import BaseAdapter
from bench.handler import async_handler

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from bench.payload import Payload


class Adapter(BaseAdapter):
    bulk = "Worker.enqueue_many (one pipeline), 500 at a time"
    packages = ("streaq", "coredis")
    results = "task.result(), ttl=60, max_connections=300 (each caller needs one or two)"
    settings = "concurrency=100, prefetch=100, ttl=0 (no results), silent tasks, uvloop"

    def _worker(self, concurrency: int) -> Worker:
        return Worker(
            redis_url=self.url,
            redis_kwargs={"max_connections": 300} if self.keeps_results else None,
            concurrency=concurrency,
            anyio_kwargs={"use_uvloop": True},
        )

    def _task(self, worker: Worker, handle: Callable[[Payload], Awaitable[int | None]]) -> Any:
        return worker.task(name="bench", silent=True, ttl=60 if self.keeps_results else 0)(handle)

    async def open(self) -> None:
        async def nothing(payload: Payload) -> None: ...

        self.worker = self._worker(self.concurrency)
        self.task = self._task(self.worker, nothing)
        await self.worker.__aenter__()

    async def close(self) -> None:
        await self.worker.__aexit__(None, None, None)

    async def produce(self, payload: Payload) -> None:
        await self.task.enqueue(payload)

    async def produce_many(self, payloads: Sequence[Payload]) -> None:
        await self.worker.enqueue_many([self.task.enqueue(payload) for payload in payloads])

    async def produce_delayed(self, payload: Payload, delay: float) -> None:
        await self.task.enqueue(payload).start(delay=timedelta(seconds=delay))

    async def call(self, payload: Payload) -> Any:
        task = await self.task.enqueue(payload)
        return (await task.result(30)).result

    def work(self, concurrency: int) -> None:
        worker = self._worker(concurrency)
        self._task(worker, async_handler())
        worker.run_sync()
