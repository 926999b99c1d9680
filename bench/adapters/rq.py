"""RQ with its SimpleWorker, which does not fork for every job."""

from __future__ import annotations

from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

from redis import Redis
from rq import Queue, SimpleWorker  # type: ignore[import-not-found]  # in its own environment

from bench.adapter import BaseAdapter
from bench.handler import sync_handler

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.payload import Payload

TASK = "bench.adapters.rq.task"

_handler = cache(sync_handler)


def task(payload: Payload) -> int | None:
    """Run the handler. RQ finds it by name."""
    return _handler()(payload)


class Adapter(BaseAdapter):
    is_async = False
    concurrency = 1
    bulk = "Queue.enqueue_many (one pipeline), 500 at a time"
    packages = ("rq",)
    results = "job.latest_result(timeout=30), result_ttl=60"
    settings = "SimpleWorker, result_ttl=0 (no results), log_job_description=False, with_scheduler"

    async def open(self) -> None:
        self._connect()

    def _connect(self) -> None:
        self.redis = Redis(host="127.0.0.1", port=self.port)
        self.queue = Queue("bench", connection=self.redis)

    async def close(self) -> None:
        self.redis.close()

    async def produce(self, payload: Payload) -> None:
        self.queue.enqueue(TASK, payload, result_ttl=0)

    async def produce_many(self, payloads: Sequence[Payload]) -> None:
        self.queue.enqueue_many(
            [Queue.prepare_data(TASK, args=(payload,), result_ttl=0) for payload in payloads]
        )

    async def produce_delayed(self, payload: Payload, delay: float) -> None:
        self.queue.enqueue_in(timedelta(seconds=delay), TASK, payload, result_ttl=0)

    async def call(self, payload: Payload) -> Any:
        job = self.queue.enqueue(TASK, payload, result_ttl=60)
        return job.latest_result(timeout=30).return_value

    def work(self, concurrency: int) -> None:
        self._connect()
        worker = SimpleWorker([self.queue], connection=self.redis, log_job_description=False)
        worker.work(with_scheduler=True, logging_level="WARNING")
