"""Rendering: outside the event loop, once for all who ask, and not all the time."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from mx_rmq.metrics import Renderer, exposition
from mx_rmq.metrics.exposition import OPENMETRICS
from tests.runtime.stage import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest
    from prometheus_client import Metric


class Slow(Collector):
    """Counts how often it is asked, and answers when it may."""

    def __init__(self) -> None:
        self.threads: list[int] = []
        self.may = threading.Event()
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)

    def collect(self) -> Iterator[Metric]:
        self.threads.append(threading.get_ident())
        assert self.may.wait(30)
        yield GaugeMetricFamily("renderings", "So many.", len(self.threads))


async def test_all_who_ask_meanwhile_share_one_rendering_outside_the_loop() -> None:
    slow = Slow()
    render = Renderer(slow.registry)
    askers = [asyncio.create_task(render()) for _ in range(20)]
    askers += [asyncio.create_task(render(OPENMETRICS)) for _ in range(20)]
    await until(lambda: len(slow.threads) == 2)  # the loop goes on: it is not rendered in it
    askers[0].cancel()
    slow.may.set()
    texts = await asyncio.gather(*askers[1:])
    assert len(slow.threads) == 2
    assert threading.get_ident() not in slow.threads
    assert {text.content_type.partition(";")[0] for text in texts} == {"text/plain", OPENMETRICS}
    assert b"renderings 3.0" in (await render()).body  # it was quick, so the next is a new one


async def test_a_text_that_took_long_is_given_out_for_ten_times_as_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = Slow()
    slow.may.set()
    render = Renderer(slow.registry)
    monkeypatch.setattr(exposition, "QUICK", -1.0)
    monkeypatch.setattr(exposition, "SHARE", 10**9)
    for _ in range(5):
        assert b"renderings 1.0" in (await render()).body
    monkeypatch.setattr(time, "monotonic", lambda: float("inf"))
    assert b"renderings 2.0" in (await render()).body
