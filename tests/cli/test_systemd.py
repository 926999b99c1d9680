"""What `mx-rmq worker` tells systemd over a real datagram socket, and how a broken one ends."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mx_rmq import MessageQueue
from mx_rmq.cli.systemd import Systemd
from tests.cli.test_worker_command import App, until
from tests.conftest import assert_clean
from tests.lab.servers import Kind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from redis.asyncio import Redis

    from tests.lab.servers import Server

one_kind = pytest.mark.parametrize("kind", [Kind.VALKEY_9_1], indirect=True)

CODE = """
import asyncio, os, time
from pathlib import Path
from mx_rmq import MessageQueue
from mx_rmq.runtime import watchdog

watchdog.CHECK_EVERY, watchdog.FIRST_PAUSE, watchdog.LONGEST_PAUSE = 0.02, 0.01, 0.02
mq = MessageQueue()

def kill_survey():
    for task in asyncio.all_tasks():
        if task.get_name() == "mx-rmq survey":
            task.cancel()
    asyncio.get_running_loop().call_later(0.005, kill_survey)

@mq.handler("orders")
async def orders(payload):
    first = not Path(payload).exists()
    with Path(payload).open("a") as file:
        file.write(os.environ.get("NOTIFY_SOCKET", "") + "x")
    if payload == "break" and first:
        kill_survey()
    if payload == "block" and first:
        time.sleep(60)
"""


class Listener:
    """systemd's end of the socket."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)
        self._all: list[str] = []

    @property
    def heard(self) -> list[str]:
        """All that was told so far."""
        while True:
            try:
                self._all.append(self._socket.recv(4096).decode())
            except BlockingIOError:
                return self._all

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def systemd() -> Iterator[Listener]:
    with tempfile.TemporaryDirectory(prefix="mxs-") as directory:
        listener = Listener(Path(directory, "notify"))
        yield listener
        listener.close()


@pytest.fixture
async def mq(raw: Redis, server: Server) -> AsyncIterator[MessageQueue]:
    async with MessageQueue(server.url, lease=2.0) as mq:
        yield mq
        await assert_clean(mq.store, raw)


@pytest.fixture
def app(mq: MessageQueue, server: Server, tmp_path: Path) -> Iterator[App]:
    app = App(tmp_path, server.url)
    app.write(CODE)
    yield app
    app.stop()


@one_kind
async def test_a_worker_tells_that_it_is_ready_alive_and_stopping(
    app: App, mq: MessageQueue, systemd: Listener
) -> None:
    worker = app.start("app", NOTIFY_SOCKET=str(systemd.path), WATCHDOG_USEC="300000")
    until(lambda: systemd.heard.count("WATCHDOG=1") >= 3)
    assert systemd.heard[0] == "READY=1"
    await mq.produce("orders", "look")
    until(lambda: app.noted("look"))
    assert app.noted("look") == ["x"]  # no child process is to tell systemd anything
    worker.terminate()
    assert worker.wait(30) == 0
    assert "STOPPING=1" in systemd.heard


@one_kind
async def test_a_worker_whose_part_keeps_dying_ends_with_exit_code_3(
    app: App, mq: MessageQueue, systemd: Listener
) -> None:
    worker = app.start("app", NOTIFY_SOCKET=str(systemd.path))
    await mq.produce("orders", "break")
    assert worker.wait(30) == 3, app.output
    assert "the survey was restarted 10 times and is down again: it was cancelled" in app.output
    assert "Traceback" not in app.output
    assert systemd.heard == ["READY=1", "STOPPING=1"]  # nobody asked for signs of life
    assert await mq.admin.workers() == []


@one_kind
async def test_a_supervisor_tells_systemd_and_replaces_who_is_broken_or_gives_no_sign_of_life(
    app: App, mq: MessageQueue, systemd: Listener
) -> None:
    supervisor = app.start(
        "app",
        "--processes",
        "2",
        NOTIFY_SOCKET=str(systemd.path),
        WATCHDOG_USEC="3000000",
        MX_RMQ_LEASE="2",
    )
    until(lambda: app.output.count(" started; ") == 2)
    assert systemd.heard.count("READY=1") == 1
    await mq.produce("orders", "break")
    until(lambda: "ended with exit code 3; restarting in" in app.output)
    until(lambda: app.output.count(" started; ") == 3)
    await mq.produce("orders", "block")
    until(lambda: "was silent for 3 s and is killed" in app.output)
    until(lambda: len(app.noted("block")) == 1 and app.noted("block")[0] == "xx")
    before = systemd.heard.count("WATCHDOG=1")
    until(lambda: systemd.heard.count("WATCHDOG=1") > before)
    supervisor.terminate()
    supervisor.wait(30)
    assert "STOPPING=1" in systemd.heard


def test_without_systemd_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
        monkeypatch.delenv(name, raising=False)
    systemd = Systemd.take_over()
    assert (systemd.address, systemd.watchdog) == ("", None)
    systemd.ready()


@pytest.mark.parametrize(
    ("pid", "seconds"),
    [(str(os.getpid()), 5.0), ("1", None), ("", 5.0)],
    ids=["ours", "another", "none"],
)
def test_the_watchdog_of_another_process_is_not_ours(
    pid: str, seconds: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/nowhere")
    monkeypatch.setenv("WATCHDOG_USEC", "5000000")
    monkeypatch.setenv("WATCHDOG_PID", pid)
    assert Systemd.take_over().watchdog == seconds
    assert "NOTIFY_SOCKET" not in os.environ


def test_an_abstract_socket_is_told_and_one_that_is_gone_does_no_harm() -> None:
    name = f"mx-rmq-test-{os.getpid()}-{time.monotonic_ns()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("\0" + name)
        listener.settimeout(5)
        Systemd("@" + name, 1.0).alive()
        assert listener.recv(100) == b"WATCHDOG=1"
    Systemd("@" + name).ready()
