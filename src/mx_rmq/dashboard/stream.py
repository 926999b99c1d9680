"""Live updates of open pages, and what other programs read: metrics and health."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any, Final

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from mx_rmq.core.errors import MxRmqError
from mx_rmq.core.names import LISTED
from mx_rmq.core.text import how_to_install
from mx_rmq.dashboard.sampler import KEPT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from starlette.types import Receive, Scope, Send

    from mx_rmq.dashboard.request import DashboardRequest
    from mx_rmq.dashboard.sampler import Sample, Sampler

    Metrics = Callable[[str], Awaitable[tuple[str, bytes]]]
    """Takes the Accept header; returns the content type, and what Prometheus reads."""

POINTS: Final = 360  # maximum points of a chart
SPARK: Final = 30  # maximum points of a small chart in a table
SPARK_SPAN: Final = 900.0  # seconds that it shows

STREAMS: Final = 200  # event streams that may be open at the same time

LASTS: Final = 20.0
"""Seconds after which a stream ends, and its page opens the next one. A server that shuts down
waits for its streams, and a mounted application is not told that it does."""


class _Stream(StreamingResponse):
    """A stream of events, counted from before its first byte until after its last."""

    media_type = "text/event-stream"

    def __init__(self, sampler: Sampler, topic: str | None, page: int) -> None:
        super().__init__(_events(sampler, topic, page), headers={"X-Accel-Buffering": "no"})
        self._sampler = sampler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._sampler.listeners += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._sampler.listeners -= 1


async def stream(request: DashboardRequest) -> Response:
    """Every sample of the topics of a page, or of one topic, as server-sent events."""
    if request.http.method == "HEAD":
        return Response(media_type=_Stream.media_type)
    if request.parts.sampler.listeners >= STREAMS:
        raise HTTPException(503, "Too many pages are open.")
    topic = request.query.get("topic") or None
    if topic is not None and not LISTED.fullmatch(topic):
        raise HTTPException(404, "Not a valid topic name.")
    return _Stream(request.parts.sampler, topic, request.page_number)


async def _events(sampler: Sampler, topic: str | None, page: int) -> AsyncIterator[str]:
    ends, number = time.monotonic() + LASTS, 0
    yield "retry: 3000\n\n"
    while (left := ends - time.monotonic()) > 0:
        try:
            async with asyncio.timeout(left):
                following = await sampler.next(number)
        except TimeoutError:
            break
        if following is None:
            return
        number = following
        if sampler.error is not None:
            yield _event("away", {"text": str(sampler.error) or "no answer in time"})
        elif sampler.latest is not None:
            yield _sample_event(sampler.latest, topic, page)
    yield _event("again", {})


def _sample_event(sample: Sample, topic: str | None, page: int) -> str:
    """Return the event for a topic or a page of topics, made once for all who show it.

    Nothing is cached for topics and pages that do not exist: clients could invent any number.
    """
    key = (topic, page if topic is None else 1)
    known = sample.events.get(key)
    if known is None:
        known = _event("sample", _fields(sample, topic, page))
        if topic in sample.stats or (topic is None and page <= sample.pages):
            sample.events[key] = known
    return known


def _fields(sample: Sample, topic: str | None, page: int) -> dict[str, Any]:
    topics = sample.page(page) if topic is None else [topic]
    fields: dict[str, Any] = {
        "at": sample.at,
        "topics": {name: sample.points.get(name) for name in topics},
        "paused": [name for name in topics if name in sample.stats and sample.stats[name].paused],
    }
    if topic is None:
        alive = sample.alive
        fields["all"] = sample.all
        fields["count"] = len(sample.stats)
        fields["workers"] = {"alive": alive, "silent": len(sample.workers) - alive}
        fields["bad"] = sum(finding.bad for finding in sample.findings)
        fields["attention"] = sample.findings_key
    return fields


def _event(name: str, data: object) -> str:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"


async def series(request: DashboardRequest) -> Response:
    """The last hour of a topic, or of all topics, for the charts."""
    await request.parts.sampler.first()
    found = request.parts.sampler.series(request.query.get("topic") or None)
    return JSONResponse(found.chart(time.time() - KEPT, POINTS))


async def sparks(request: DashboardRequest) -> Response:
    """Messages per second that each topic of a page completed in the last 15 minutes."""
    sampler, since = request.parts.sampler, time.time() - SPARK_SPAN
    topics = (await sampler.first()).page(request.page_number)
    return JSONResponse(
        {topic: sampler.series(topic).chart(since, SPARK)["completed"] for topic in topics}
    )


async def metrics(answer: Metrics | None, request: DashboardRequest) -> Response:
    """What Prometheus reads."""
    if answer is None:
        raise HTTPException(404, f"No metrics are served here: {how_to_install('metrics')}")
    kind, data = await answer(request.http.headers.get("accept", ""))
    return Response(data, headers={"Content-Type": kind})


async def healthz(request: DashboardRequest) -> Response:
    """Report whether the dashboard reaches its server. Needs no sign-in, so it says no more."""
    try:
        if await request.parts.queries.answers():  # the latest sample may be old
            await request.parts.sampler.first()
            return PlainTextResponse("ok\n")
    except (MxRmqError, TimeoutError):
        pass
    return PlainTextResponse("away\n", status_code=503)
