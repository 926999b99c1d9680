"""Metrics as text: OpenMetrics if the asker takes it, otherwise Prometheus' own format."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from prometheus_client.exposition import choose_encoder

from mx_rmq.in_thread import in_thread

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

OPENMETRICS: Final = "application/openmetrics-text"

SHARE: Final = 10
"""A page that took a second to render is reused for ten seconds, so that rendering never takes more
than a tenth of a processor, however often it is requested."""
QUICK: Final = 0.02
"""Pages that take less processor time than this, in seconds, are rendered for every request."""


class Rendered(NamedTuple):
    content_type: str
    body: bytes


def render(registry: CollectorRegistry, accept: str = "") -> Rendered:
    """Return what a registry holds. `accept` is the header of that name."""
    encode, content_type = choose_encoder(OPENMETRICS if OPENMETRICS in accept else "")
    return Rendered(content_type, encode(registry))


class Renderer:
    """Renders a registry in a thread; concurrent requests share one rendering.

    The thread keeps the event loop free: a page with a thousand topics takes 0.2 s to render.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._under_way: dict[bool, asyncio.Task[Rendered]] = {}
        self._kept: dict[bool, tuple[float, Rendered]] = {}
        """Until when each of the two formats is given out again."""

    async def __call__(self, accept: str = "") -> Rendered:
        """Return what the registry holds, or held a moment ago."""
        kind = OPENMETRICS in accept
        until, text = self._kept.get(kind, (0.0, None))
        if text is not None and time.monotonic() < until:
            return text
        task = self._under_way.get(kind)
        if task is None:
            task = asyncio.create_task(self._render(kind), name="mx-rmq metrics")
            self._under_way[kind] = task
            task.add_done_callback(lambda _: self._under_way.pop(kind))
        return await asyncio.shield(task)  # one asker that leaves does not end it for the others

    async def _render(self, kind: bool) -> Rendered:
        text, took = await in_thread(self._timed, kind)
        if took > QUICK:
            self._kept[kind] = time.monotonic() + SHARE * took, text
        return text

    def _timed(self, kind: bool) -> tuple[Rendered, float]:
        began = time.thread_time()
        text = render(self._registry, OPENMETRICS if kind else "")
        return text, time.thread_time() - began
