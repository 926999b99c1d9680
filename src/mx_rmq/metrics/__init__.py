"""Prometheus metrics, health and readiness. Needs the extra `metrics`."""

from mx_rmq.core.text import how_to_install

try:
    import prometheus_client as _prometheus_client  # noqa: F401 - asked for here, to say what is missing
except ImportError as missing:
    raise ImportError(
        f"metrics need the package prometheus-client: {how_to_install('metrics')}"
    ) from missing

from mx_rmq.metrics.depth import Depth
from mx_rmq.metrics.endpoint import Endpoint
from mx_rmq.metrics.exposition import Rendered, Renderer, render
from mx_rmq.metrics.recorder import Recorder

__all__ = ["Depth", "Endpoint", "Recorder", "Rendered", "Renderer", "render"]
