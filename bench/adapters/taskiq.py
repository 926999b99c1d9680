"""Taskiq on a Redis stream, its broker with acknowledgements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taskiq.api import run_receiver_task  # type: ignore[import-not-found]  # in its own environment
from taskiq_redis import (  # type: ignore[import-not-found]  # the same
    RedisAsyncResultBackend,
    RedisStreamBroker,
)

from bench.adapter import BaseAdapter, run
from bench.handler import async_handler

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from bench.payload import Payload


class Adapter(BaseAdapter):
    has_delay = False
    chunk = 100
    bulk = "no bulk call: gather of kiq, 100 at a time"
    packages = ("taskiq", "taskiq-redis")
    results = (
        "RedisAsyncResultBackend(result_ex_time=60), wait_result(check_interval=0.001, or 0.005 "
        "for 100 callers)"
    )
    settings = (
        "RedisStreamBroker, max_async_tasks=100, max_prefetch=100, xread_count=100, no results, "
        "validate_params=False, consumer_id='0' (else it does not see what is queued)"
    )

    def _task(self, handle: Callable[[Payload], Awaitable[int | None]]) -> tuple[Any, Any]:
        broker = RedisStreamBroker(self.url, consumer_id="0")
        if self.keeps_results:
            broker = broker.with_result_backend(
                RedisAsyncResultBackend(self.url, result_ex_time=60)
            )
        return broker, broker.task(task_name="bench")(handle)

    async def open(self) -> None:
        async def nothing(payload: dict[str, Any]) -> None: ...  # it evaluates this

        self.broker, self.task = self._task(nothing)
        await self.broker.startup()

    async def close(self) -> None:
        await self.broker.shutdown()

    async def produce(self, payload: Payload) -> None:
        await self.task.kiq(payload)

    async def call(self, payload: Payload) -> Any:
        task = await self.task.kiq(payload)
        return (await task.wait_result(check_interval=self.poll, timeout=30)).return_value

    def work(self, concurrency: int) -> None:
        async def main() -> None:
            broker, _ = self._task(async_handler())
            broker.is_worker_process = True
            await broker.startup()
            await run_receiver_task(
                broker,
                max_async_tasks=concurrency,
                max_prefetch=concurrency,
                validate_params=False,
            )

        run(main())
