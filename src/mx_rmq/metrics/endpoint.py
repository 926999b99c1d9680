"""A worker's HTTP endpoint: metrics, liveness and readiness.

/metrics         what this worker has done and is doing
/metrics/depth   how full all topics are, and who serves them; asks the server: scrape one or two
/healthz         200: the event loop runs
/readyz          200: started, not stopping, and the server is there; else 503 and the reason
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Self

from prometheus_client import ProcessCollector

from mx_rmq.core.errors import InvalidInput
from mx_rmq.metrics.depth import Depth
from mx_rmq.metrics.exposition import Renderer
from mx_rmq.metrics.http import Answer, HttpServer
from mx_rmq.metrics.recorder import Recorder
from mx_rmq.metrics.worker_metrics import LoadFamilies, WorkerLoad
from mx_rmq.safe_log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mx_rmq.metrics.exposition import Rendered
    from mx_rmq.worker import Worker

logger = get_logger(__name__)


class Endpoint:
    """The pages of one worker. `async with Endpoint(worker, port=9464): await worker.run()`."""

    def __init__(self, worker: Worker, *, port: int | None = None, host: str | None = None) -> None:
        """None: as the worker's settings say. Port 0: a free one; `port` tells which."""
        self._worker = worker
        self.host = worker.settings.metrics_host if host is None else host
        self.port = worker.settings.metrics_port if port is None else port
        if port is None and not self.port:
            raise InvalidInput("no port for the metrics: pass one, or set metrics_port")
        self.recorder = Recorder(worker.mq)
        self._load = LoadFamilies()
        self.recorder.registry.register(self._load)
        ProcessCollector(registry=self.recorder.registry)
        topics = worker.settings.topics or worker.mq.handlers
        self._depth = Depth(lambda: worker.mq.admin, first=tuple(topics))
        self._page = Renderer(self.recorder.registry)
        self._depth_page = Renderer(self._depth.registry)
        self._http = HttpServer(
            {
                "/metrics": self._metrics,
                "/metrics/depth": self._metrics_depth,
                "/healthz": self._healthz,
                "/readyz": self._readyz,
            }
        )
        self._forget: Callable[[], None] | None = None

    async def start(self) -> None:
        """Listen, and count from now on. Call it before the worker starts."""
        self.port = await self._http.start(self.host, self.port)
        self._forget = self.recorder.listen()
        logger.info("metrics and health at %s", self.url)

    @property
    def url(self) -> str:
        """Where the metrics are."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/metrics"

    async def stop(self) -> None:
        """Listen and count no more."""
        if self._forget is not None:
            self._forget()
            self._forget = None
        await self._http.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _metrics(self, headers: Mapping[str, str]) -> Answer:
        worker = self._worker
        self._load.load = WorkerLoad(
            name=worker.name,
            concurrency=worker.settings.concurrency,
            running=worker.running,
            held=worker.held,
            ready=not worker.trouble,
        )
        return _answer(await self._page(headers.get("accept", "")))

    async def _metrics_depth(self, headers: Mapping[str, str]) -> Answer:
        await self._depth.refresh()
        return _answer(await self._depth_page(headers.get("accept", "")))

    async def _healthz(self, _: Mapping[str, str]) -> Answer:
        return Answer(HTTPStatus.OK, b"alive\n")

    async def _readyz(self, _: Mapping[str, str]) -> Answer:
        trouble = self._worker.trouble
        if trouble:
            return Answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{trouble}\n".encode())
        return Answer(HTTPStatus.OK, b"ready\n")


def _answer(text: Rendered) -> Answer:
    return Answer(HTTPStatus.OK, text.body, text.content_type)
