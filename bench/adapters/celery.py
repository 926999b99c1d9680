"""Celery on its Redis broker, in one process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery import Celery  # type: ignore[import-not-found]  # in its own environment

from bench.adapter import BaseAdapter
from bench.handler import sync_handler

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.payload import Payload


class Adapter(BaseAdapter):
    is_async = False
    concurrency = 1
    bulk = "no bulk call: apply_async with one producer, one after the other"
    packages = ("celery", "kombu")
    results = "Redis result backend (pub/sub), result.get(), result_expires=60"
    settings = "pool=solo (the fastest here), ignore_result, no gossip, no mingle, no heartbeat"

    def _task(self, handle: Callable[[Payload], int | None]) -> None:
        backend = self.url if self.keeps_results else None
        self.app = Celery("bench", broker=self.url, backend=backend)
        self.app.conf.update(
            task_ignore_result=not self.keeps_results,
            result_expires=60,
            worker_hijack_root_logger=False,
            broker_connection_retry_on_startup=True,
        )
        self.task = self.app.task(name="bench")(handle)

    async def open(self) -> None:
        def nothing(payload: Payload) -> None: ...

        self._task(nothing)
        self.producer = self.app.amqp.producer_pool.acquire(block=True)

    async def close(self) -> None:
        self.producer.release()

    async def produce(self, payload: Payload) -> None:
        self.task.apply_async((payload,), producer=self.producer)

    async def produce_many(self, payloads: Sequence[Payload]) -> None:
        for payload in payloads:
            self.task.apply_async((payload,), producer=self.producer)

    async def produce_delayed(self, payload: Payload, delay: float) -> None:
        self.task.apply_async((payload,), countdown=delay, producer=self.producer)

    async def call(self, payload: Payload) -> Any:
        return self.task.delay(payload).get(timeout=30)

    def work(self, concurrency: int) -> None:
        self._task(sync_handler())
        self.app.worker_main(
            [
                "worker",
                "--pool=solo",
                f"--concurrency={concurrency}",
                "--loglevel=WARNING",
                "--without-gossip",
                "--without-mingle",
                "--without-heartbeat",
            ]
        )
