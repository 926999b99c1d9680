"""Asking an endpoint, byte for byte, and reading what Prometheus would read."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from mx_rmq.metrics import Rendered

Samples = dict[str, float]


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: str


async def say(port: int, request: bytes) -> bytes:
    """Send bytes; return everything that comes back until the other end closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        async with asyncio.timeout(15):
            return await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()


def understood(answer: bytes) -> Reply:
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *rest = head.decode("ascii").split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in rest)}
    return Reply(int(first.split()[1]), headers, body.decode())


async def get(port: int, path: str, *, method: str = "GET", accept: str = "") -> Reply:
    """Ask for a page."""
    head = f"{method} {path} HTTP/1.1\r\nHost: test\r\n" + (f"Accept: {accept}\r\n" * bool(accept))
    return understood(await say(port, f"{head}\r\n".encode()))


def parsed(text: str, *, openmetrics: bool = False) -> Samples:
    """Return each sample as it is written, and its value."""
    families = (parse_openmetrics if openmetrics else parse_text)(text)
    found: Samples = {}
    for family in families:
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            name = f"{sample.name}{{{labels}}}" if labels else sample.name
            assert name not in found, f"{name} is there twice"
            found[name] = sample.value
    return found


def rendered(registry: CollectorRegistry) -> Samples:
    """Return what a registry holds, by way of its text."""
    from mx_rmq.metrics import render

    text: Rendered = render(registry)
    return parsed(text.body.decode())


async def metrics(port: int, path: str = "/metrics") -> Samples:
    reply = await get(port, path)
    assert reply.status == 200
    return parsed(reply.body)
