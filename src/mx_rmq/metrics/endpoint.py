"""A worker's HTTP endpoint: metrics, liveness and readiness.

/metrics         what this worker has done and is doing
/metrics/depth   how full all topics are, and who serves them; asks the server: scrape one or two
/healthz         200: the event loop runs
/readyz          200: started, not stopping, and the server answers; otherwise 503 and the reason
"""

from __future__ import annotations

from http import HTTPStatus
from importlib.metadata import version
from typing import TYPE_CHECKING, Self

from prometheus_client import ProcessCollector
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from mx_rmq.core.errors import InvalidInput
from mx_rmq.metrics.depth import Depth
from mx_rmq.metrics.exposition import Renderer
from mx_rmq.metrics.http import Answer, HttpServer
from mx_rmq.metrics.recorder import Recorder
from mx_rmq.safe_log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from prometheus_client import Metric

    from mx_rmq.metrics.exposition import Rendered
    from mx_rmq.worker import Worker

logger = get_logger(__name__)


class _Snapshot(Collector):
    """Metrics made in the worker's thread, to be rendered in another."""

    metrics: Sequence[Metric] = ()

    def collect(self) -> Sequence[Metric]:
        return self.metrics


class Endpoint:
    """The pages of one worker. `async with Endpoint(worker, port=9464): await worker.run()`."""

    def __init__(self, worker: Worker, *, port: int | None = None, host: str | None = None) -> None:
        """None: the worker's settings decide. Port 0: a free one, then found in `port`."""
        self._worker = worker
        self.host = worker.settings.metrics_host if host is None else host
        self.port = worker.settings.metrics_port if port is None else port
        if port is None and not self.port:
            raise InvalidInput("no port for the metrics: pass one, or set metrics_port")
        self.recorder = Recorder(worker.mq)
        self._load = _Snapshot()
        self.recorder.registry.register(self._load)
        ProcessCollector(registry=self.recorder.registry)
        topics = worker.settings.topics or worker.mq.handlers
        top_keys = worker.settings.metrics_keys
        self._depth = Depth(lambda: worker.mq.admin, first=tuple(topics), top_keys=top_keys)
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
        self._stop_counting: Callable[[], None] | None = None

    async def start(self) -> None:
        """Start listening and counting. Call it before the worker starts."""
        self.port = await self._http.start(self.host, self.port)
        self._stop_counting = self.recorder.listen()
        logger.info("metrics and health at %s", self.url)

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/metrics"

    async def stop(self) -> None:
        if self._stop_counting is not None:
            self._stop_counting()
            self._stop_counting = None
        await self._http.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _metrics(self, headers: Mapping[str, str]) -> Answer:
        self._load.metrics = self._measure()
        return _answer(await self._page(headers.get("accept", "")))

    def _measure(self) -> list[Metric]:
        worker, gauge = self._worker, GaugeMetricFamily
        return [
            InfoMetricFamily(
                "mx_rmq_worker",
                "The worker's name, the same as in its leases and in `mx-rmq workers`.",
                {"worker": worker.name, "version": version("mx-rmq")},
            ),
            gauge("mx_rmq_ready", "1 while /readyz returns 200.", not worker.trouble),
            gauge("mx_rmq_running", "Handlers that are running.", worker.running),
            gauge("mx_rmq_held", "Messages leased to this worker, running or not.", worker.held),
            gauge(
                "mx_rmq_concurrency",
                "Handlers that may run at the same time.",
                worker.settings.concurrency,
            ),
        ]

    async def _metrics_depth(self, headers: Mapping[str, str]) -> Answer:
        await self._depth.refresh()
        return _answer(await self._depth_page(headers.get("accept", "")))

    async def _healthz(self, _: Mapping[str, str]) -> Answer:
        return Answer(HTTPStatus.OK, b"alive\n")

    async def _readyz(self, _: Mapping[str, str]) -> Answer:
        if trouble := self._worker.trouble:
            return Answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{trouble}\n".encode())
        return Answer(HTTPStatus.OK, b"ready\n")


def _answer(text: Rendered) -> Answer:
    return Answer(HTTPStatus.OK, text.body, text.content_type)
