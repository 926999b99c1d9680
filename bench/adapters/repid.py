"""repid on its Redis Streams server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repid import Repid, Router  # type: ignore[import-not-found]  # in its own environment
from repid.connections.redis import RedisServer  # type: ignore[import-not-found]  # the same

from bench.adapter import BaseAdapter, run
from bench.handler import async_handler

if TYPE_CHECKING:
    from bench.payload import Payload


class Adapter(BaseAdapter):
    has_delay = False
    chunk = 100
    bulk = "no bulk call: gather of send_message_json, 100 at a time"
    packages = ("repid",)
    settings = (
        "batch_size=100, tasks_limit=100, keep_alive=False (a task less a message), "
        "claim_interval=15 (off by default; without it nothing comes back)"
    )

    def _app(self) -> Repid:
        app = Repid(title="bench", version="1")
        server = RedisServer(self.url, batch_size=100, claim_interval=15)
        app.servers.register_server("default", server, is_default=True)
        return app

    async def open(self) -> None:
        self.app = self._app()
        self.connection = self.app.servers.default.connection()
        await self.connection.__aenter__()

    async def close(self) -> None:
        await self.connection.__aexit__(None, None, None)

    async def produce(self, payload: Payload) -> None:
        await self.app.send_message_json(
            channel="bench", payload={"payload": payload}, headers={"topic": "bench"}
        )

    def work(self, concurrency: int) -> None:
        app = self._app()
        router = Router()
        router.actor(name="bench", channel="bench", keep_alive=False)(async_handler())
        app.include_router(router)

        async def main() -> None:
            async with app.servers.default.connection():
                await app.run_worker(tasks_limit=concurrency)

        run(main())
