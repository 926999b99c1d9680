"""mx-rmq, async handlers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.adapter import BaseAdapter, run
from bench.handler import AT_A_TIME, RATE, async_handler, limit, tenant
from mx_rmq import Limit, MessageQueue, Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.payload import Payload


class Adapter(BaseAdapter):
    concurrency = 200
    chunk = 1_000
    bulk = "produce_many, 1,000 at a time"
    packages = ("mx-rmq", "msgspec")
    results = "result_ttl=60, mq.result"
    settings = "Worker(concurrency=200), the rest at its defaults"

    async def open(self) -> None:
        self.mq = MessageQueue(self.url)
        await self.mq.open()

    async def close(self) -> None:
        await self.mq.close()

    async def produce(self, payload: Payload) -> None:
        await self.mq.produce("bench", payload)

    async def produce_many(self, payloads: Sequence[Payload]) -> None:
        keys = None
        if limit() in ("tenant", "quiet"):
            keys = [tenant(payload["i"]) for payload in payloads]
        await self.mq.produce_many("bench", payloads, keys=keys)

    async def produce_delayed(self, payload: Payload, delay: float) -> None:
        await self.mq.produce("bench", payload, delay=delay)

    async def call(self, payload: Payload) -> Any:
        id = await self.mq.produce("bench", payload)
        return await self.mq.result("bench", id, timeout=30)

    def handler(self) -> Callable[[Payload], object]:
        return async_handler()

    def work(self, concurrency: int) -> None:
        async def main() -> None:
            mq = MessageQueue(self.url)
            declare = mq.handler(
                "bench",
                result_ttl=60 if self.keeps_results else None,
                limit=Limit(rate=f"{RATE}/s") if limit() == "rate" else None,
                per_key=Limit(running=AT_A_TIME) if limit() == "tenant" else None,
            )
            declare(self.handler())
            await Worker(mq, concurrency=concurrency).run()

        run(main())
