"""Huey on a Redis list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from huey import RedisHuey  # type: ignore[import-not-found]  # in its own environment

from bench.adapter import BaseAdapter
from bench.handler import RATE, limit, sync_handler

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.payload import Payload


class Adapter(BaseAdapter):
    is_async = False
    concurrency = 4
    bulk = "no bulk call: task(), one after the other"
    packages = ("huey",)
    results = "RedisHuey(notify_result=True), result.get(blocking=True)"
    settings = "RedisHuey(results=False), 4 worker threads"

    def _task(self, handle: Callable[[Payload], int | None]) -> None:
        keeps = self.keeps_results
        self.huey = RedisHuey(
            "bench", host="127.0.0.1", port=self.port, results=keeps, notify_result=keeps
        )

        def bench(payload: Payload) -> int | None:  # it goes by module and name
            if limit() == "rate":
                with self.huey.rate_limit("bench", RATE, 1):
                    return handle(payload)
            return handle(payload)

        self.task = self.huey.task()(bench)

    async def open(self) -> None:
        def nothing(payload: Payload) -> None: ...

        self._task(nothing)

    async def close(self) -> None: ...

    async def produce(self, payload: Payload) -> None:
        self.task(payload)

    async def produce_many(self, payloads: Sequence[Payload]) -> None:
        for payload in payloads:
            self.task(payload)

    async def produce_delayed(self, payload: Payload, delay: float) -> None:
        self.task.schedule((payload,), delay=delay)

    async def call(self, payload: Payload) -> Any:
        return self.task(payload).get(blocking=True, timeout=30)

    def work(self, concurrency: int) -> None:
        self._task(sync_handler())
        self.huey.create_consumer(workers=concurrency, worker_type="thread").run()
