"""Dramatiq on its Redis broker, one process of threads."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from dramatiq import (  # type: ignore[import-not-found]  # in its own environment
    Worker,
    actor,
    set_broker,
)
from dramatiq.brokers.redis import RedisBroker  # type: ignore[import-not-found]  # the same
from dramatiq.rate_limits import (  # type: ignore[import-not-found]  # the same
    ConcurrentRateLimiter,
    WindowRateLimiter,
)
from dramatiq.rate_limits.backends import (  # type: ignore[import-not-found]  # the same
    RedisBackend as LimitBackend,
)
from dramatiq.results import Results  # type: ignore[import-not-found]  # the same
from dramatiq.results.backends import RedisBackend  # type: ignore[import-not-found]  # the same

from bench.adapter import BaseAdapter
from bench.handler import AT_A_TIME, RATE, limit, sync_handler, tenant

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.payload import Payload


class Adapter(BaseAdapter):
    is_async = False
    concurrency = 8
    bulk = "no bulk call: send, one after the other"
    packages = ("dramatiq",)
    results = (
        "RedisBackend, message.get_result(block=True), result_ttl=60 s, worker_timeout=1 ms "
        "(default 1,000: how long it sleeps at most while nothing comes)"
    )
    settings = (
        "worker_threads=8 (default), dramatiq_queue_prefetch=1000 (default 16, a third slower; "
        "16 in the crash test), default middleware"
    )

    def _actor(self, handle: Callable[[Payload], int | None]) -> Any:
        self.broker = RedisBroker(host="127.0.0.1", port=self.port)
        set_broker(self.broker)
        options: dict[str, Any] = {}
        if self.keeps_results:
            self.backend = RedisBackend(host="127.0.0.1", port=self.port)
            self.broker.add_middleware(Results(backend=self.backend))
            options = {"store_results": True, "result_ttl": 60_000}
        if limit() in ("tenant", "rate"):
            handle = self._limited(handle)
            options = {"max_retries": None, "min_backoff": 10, "max_backoff": 100}
        return actor(handle, actor_name="bench", queue_name="bench", **options)

    def _limited(self, handle: Callable[[Payload], int | None]) -> Callable[[Payload], int | None]:
        """Return a handler that fails when the limit is reached, and is retried."""
        backend = LimitBackend(host="127.0.0.1", port=self.port)
        window = WindowRateLimiter(backend, "bench", limit=RATE, window=1)

        def limited(payload: Payload) -> int | None:
            limiter = window
            if limit() == "tenant":
                limiter = ConcurrentRateLimiter(backend, tenant(payload["i"]), limit=AT_A_TIME)
            with limiter.acquire():
                return handle(payload)

        return limited

    async def open(self) -> None:
        def nothing(payload: Payload) -> None: ...

        self.actor = self._actor(nothing)

    async def close(self) -> None:
        self.broker.close()

    async def produce(self, payload: Payload) -> None:
        self.actor.send(payload)

    async def produce_many(self, payloads: Sequence[Payload]) -> None:
        for payload in payloads:
            self.actor.send(payload)

    async def produce_delayed(self, payload: Payload, delay: float) -> None:
        self.actor.send_with_options(args=(payload,), delay=int(delay * 1000))

    async def call(self, payload: Payload) -> Any:
        return self.actor.send(payload).get_result(block=True, timeout=30_000)

    def work(self, concurrency: int) -> None:
        self._actor(sync_handler())
        options = {"worker_timeout": 1} if self.keeps_results else {}
        worker = Worker(self.broker, worker_threads=concurrency, **options)
        if concurrency == self.concurrency:
            worker.queue_prefetch = 1_000
        worker.start()
        threading.Event().wait()
