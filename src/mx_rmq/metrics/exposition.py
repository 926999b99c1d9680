"""Metrics as text: OpenMetrics if the client accepts it, otherwise Prometheus' own format."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder

from mx_rmq.in_thread import in_thread

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric

OPENMETRICS: Final = "application/openmetrics-text"

SHARE: Final = 10
"""A page that took a second to render is reused for ten seconds, so that rendering never takes more
than a tenth of a processor, however often it is requested."""
QUICK: Final = 0.02
"""Pages that take less processor time than this, in seconds, are rendered for every request."""


Samples = Iterable[tuple[Sequence[str], float]]
"""Label values, and the value."""


def gauge(name: str, what: str, labels: Sequence[str], samples: Samples) -> Metric:
    return _filled(GaugeMetricFamily(name, what, labels=labels), samples)


def counter(name: str, what: str, labels: Sequence[str], samples: Samples) -> Metric:
    return _filled(CounterMetricFamily(name, what, labels=labels), samples)


def _filled(metric: GaugeMetricFamily | CounterMetricFamily, samples: Samples) -> Metric:
    for labels, value in samples:
        metric.add_metric(labels, value)
    return metric


class Rendered(NamedTuple):
    content_type: str
    body: bytes


def render(registry: CollectorRegistry, accept: str = "") -> Rendered:
    """Return what a registry holds. `accept` is the Accept header."""
    encode, content_type = choose_encoder(OPENMETRICS if OPENMETRICS in accept else "")
    return Rendered(content_type, encode(registry))


class Renderer:
    """Renders a registry in a thread; concurrent requests share one rendering.

    The thread keeps the event loop free: a page with a thousand topics takes 0.2 s to render.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._rendering: dict[bool, asyncio.Task[Rendered]] = {}
        self._kept: dict[bool, tuple[float, Rendered]] = {}  # with the time until it is reused

    async def __call__(self, accept: str = "") -> Rendered:
        """Return what the registry holds, or held a moment ago."""
        is_open = OPENMETRICS in accept
        until, text = self._kept.get(is_open, (0.0, None))
        if text is not None and time.monotonic() < until:
            return text
        task = self._rendering.get(is_open)
        if task is None:
            task = asyncio.create_task(self._render(is_open), name="mx-rmq metrics")
            self._rendering[is_open] = task
            task.add_done_callback(lambda _: self._rendering.pop(is_open))
        return await asyncio.shield(task)  # a client that leaves does not cancel it for the others

    async def _render(self, is_open: bool) -> Rendered:
        text, took = await in_thread(self._timed, is_open)
        if took > QUICK:
            self._kept[is_open] = time.monotonic() + SHARE * took, text
        return text

    def _timed(self, is_open: bool) -> tuple[Rendered, float]:
        began = time.thread_time()
        text = render(self._registry, OPENMETRICS if is_open else "")
        return text, time.thread_time() - began
