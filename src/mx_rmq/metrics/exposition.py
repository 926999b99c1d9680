"""Metrics as text, in the format that the asker prefers: OpenMetrics, or Prometheus' own."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from prometheus_client.exposition import choose_encoder

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class Rendered(NamedTuple):
    content_type: str
    body: bytes


def render(registry: CollectorRegistry, accept: str = "") -> Rendered:
    """Return what a registry holds. `accept` is the header of that name."""
    try:
        encode, content_type = choose_encoder(accept)
        if content_type.isascii() and content_type.isprintable():  # it quotes the asker
            return Rendered(content_type, encode(registry))
    except (TypeError, ValueError):  # a version that is none
        pass
    encode, content_type = choose_encoder("")
    return Rendered(content_type, encode(registry))
