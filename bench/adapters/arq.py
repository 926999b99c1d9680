"""arq."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from arq import create_pool  # type: ignore[import-not-found]  # in its own environment
from arq.connections import RedisSettings  # type: ignore[import-not-found]  # the same
from arq.worker import Worker, func  # type: ignore[import-not-found]  # the same

from bench.adapter import BaseAdapter, run
from bench.handler import async_handler

if TYPE_CHECKING:
    from bench.payload import Payload


class Adapter(BaseAdapter):
    chunk = 50
    bulk = "no bulk call: gather of enqueue_job, 50 at a time"
    packages = ("arq",)
    results = (
        "keep_result=60, job.result(poll_delay=0.001, or 0.005 for 100 callers), "
        "poll_delay=0.002 of the worker"
    )
    settings = "max_jobs=100, poll_delay=0.05 (default 0.5), keep_result=0, log_results=False"

    async def open(self) -> None:
        self.pool = await create_pool(RedisSettings(host="127.0.0.1", port=self.port))

    async def close(self) -> None:
        await self.pool.aclose()

    async def produce(self, payload: Payload) -> None:
        await self.pool.enqueue_job("task", payload)

    async def produce_delayed(self, payload: Payload, delay: float) -> None:
        await self.pool.enqueue_job("task", payload, _defer_by=delay)

    async def call(self, payload: Payload) -> Any:
        job = await self.pool.enqueue_job("task", payload)
        return await job.result(timeout=30, poll_delay=self.poll)

    def work(self, concurrency: int) -> None:
        handle = async_handler()

        async def task(_: Any, payload: Payload) -> int | None:
            return await handle(payload)

        async def main() -> None:
            worker = Worker(
                functions=[func(task, name="task")],
                redis_settings=RedisSettings(host="127.0.0.1", port=self.port),
                max_jobs=concurrency,
                poll_delay=0.002 if self.keeps_results else 0.05,
                keep_result=60 if self.keeps_results else 0,
                log_results=False,
                handle_signals=False,
            )
            await worker.async_run()

        run(main())
