"""Docket, for its limits only: bench/limits.py."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from docket import (  # type: ignore[import-not-found]  # in its own environment
    ConcurrencyLimit,
    Docket,
    RateLimit,
    Worker,
)

from bench.adapter import BaseAdapter, run
from bench.handler import AT_A_TIME, RATE, async_handler, limit, tenant

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.payload import Payload

AT_MOST_TWO: Any = ConcurrencyLimit("tenant", AT_A_TIME)
PER_SECOND: Any = RateLimit(RATE, per=timedelta(seconds=1))
SOON = timedelta(milliseconds=10)


class Adapter(BaseAdapter):
    concurrency = 20  # with more, its worker runs out of connections
    chunk = 50  # more calls at once are refused: too many connections
    bulk = "docket.add, 50 at once"
    packages = ("pydocket",)
    settings = "concurrency=20, minimum_check_interval and scheduling_resolution 10 ms"

    async def open(self) -> None:
        self.docket = Docket(name="bench", url=self.url)
        await self.docket.__aenter__()
        self.docket.register(_task(_nothing))

    async def close(self) -> None:
        await self.docket.__aexit__(None, None, None)

    async def produce(self, payload: Payload) -> None:
        await self.docket.add("bench")(payload=payload, tenant=tenant(payload["i"]))

    def work(self, concurrency: int) -> None:
        async def main() -> None:
            async with Docket(name="bench", url=self.url) as docket:
                docket.register(_task(async_handler()))
                options = {"minimum_check_interval": SOON, "scheduling_resolution": SOON}
                async with Worker(docket, concurrency=concurrency, **options) as worker:
                    await worker.run_forever()

        run(main())


async def _nothing(payload: Payload) -> None: ...


def _task(handle: Callable[[Payload], Any]) -> Callable[..., Any]:
    """Return the task with the limit of this measurement. Its name is `bench`."""

    async def plain(payload: dict[str, Any], tenant: str) -> None:
        await handle(payload)

    async def two(payload: dict[str, Any], tenant: str, limit: Any = AT_MOST_TWO) -> None:
        await handle(payload)

    async def rated(payload: dict[str, Any], tenant: str, limit: Any = PER_SECOND) -> None:
        await handle(payload)

    task: Callable[..., Any] = {"tenant": two, "rate": rated}.get(limit(), plain)
    task.__name__ = "bench"
    return task
