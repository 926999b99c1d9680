"""mx-rmq, plain functions as handlers, which it runs in threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.adapters.ours import Adapter as Ours
from bench.handler import sync_handler

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.payload import Payload


class Adapter(Ours):
    is_async = False
    concurrency = 8
    settings = "def handler, Worker(concurrency=8), the rest at its defaults"

    def handler(self) -> Callable[[Payload], object]:
        return sync_handler()
