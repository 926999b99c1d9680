"""`mx-rmq worker --metrics-port`: real processes, each with a port of its own."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from mx_rmq import MessageQueue
from mx_rmq.core.text import how_to_install
from tests.cli.test_worker_command import App
from tests.lab.ports import free_port
from tests.lab.servers import Kind
from tests.metrics.asking import get, metrics
from tests.runtime.stage import until, until_so

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from redis.asyncio import Redis

    from tests.lab.servers import Server

pytestmark = pytest.mark.parametrize("kind", [Kind.VALKEY_9_1])


@pytest.fixture
async def mq(raw: Redis, server: Server) -> AsyncIterator[MessageQueue]:
    async with MessageQueue(server.url) as mq:
        yield mq


@pytest.fixture
def app(mq: MessageQueue, server: Server, tmp_path: Path) -> Iterator[App]:
    app = App(tmp_path, server.url)
    yield app
    app.stop()


def two_free_ports() -> int:
    """Return a loopback port that nobody uses, nor the next one."""
    while True:
        port = free_port()
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            return port


async def is_ready(port: int) -> bool:
    try:
        return (await get(port, "/readyz")).status == 200
    except OSError:
        return False


async def test_each_process_serves_at_a_port_of_its_own(app: App, mq: MessageQueue) -> None:
    port = two_free_ports()
    supervisor = app.start("app", "--processes", "2", "--metrics-port", str(port))
    for one in (port, port + 1):
        await until_so(lambda one=one: is_ready(one))  # type: ignore[misc]
    await mq.produce_many("orders", range(50))
    await until(lambda: len(app.noted("done")) == 50)
    name = "mx_rmq_messages_total{outcome=completed,topic=orders}"

    async def all_counted() -> bool:
        return sum([(await metrics(one))[name] for one in (port, port + 1)]) == 50

    await until_so(all_counted)
    supervisor.terminate()
    assert supervisor.wait(30) == 0
    assert f"metrics and health at http://127.0.0.1:{port}/metrics" in app.output


async def test_the_environment_names_a_port_too(app: App) -> None:
    port = free_port()
    app.start("app", MX_RMQ_METRICS_PORT=str(port))
    await until_so(lambda: is_ready(port))


def test_a_port_that_is_taken_ends_it_before_it_begins(app: App) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        output = app.refused("app", "--metrics-port", port)
    assert output.startswith(f"Error: cannot listen on 127.0.0.1, port {port}: ")
    assert not app.noted("begun")


def test_one_of_several_ports_that_is_taken_ends_it_before_any_begins(app: App) -> None:
    port = two_free_ports()
    with socket.create_server(("127.0.0.1", port + 1)):
        output = app.refused("app", "--processes", "2", "--metrics-port", str(port))
    assert output.startswith(f"Error: cannot listen on 127.0.0.1, port {port + 1}: Address already")
    assert not app.noted("begun")


def test_ports_that_do_not_exist_are_refused(app: App) -> None:
    output = app.refused("app", "--processes", "10", "--metrics-port", "65530")
    assert (
        output == "Error: metrics need 10 ports, starting at 65530, but the highest port is 65535\n"
    )


def test_without_the_extra_it_says_what_to_install(app: App, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    missing.mkdir()
    (missing / "prometheus_client.py").write_text("raise ImportError('not installed')")
    path = os.pathsep.join([str(missing), os.environ.get("PYTHONPATH", "")])
    output = app.refused("app", "--metrics-port", "1", PYTHONPATH=path)
    assert output == (
        f"Error: metrics need the package prometheus-client: {how_to_install('metrics')}\n"
    )
