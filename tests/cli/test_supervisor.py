"""Several worker processes under one supervisor, and the one that reloads: real processes."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import click
import pytest

from mx_rmq import MessageQueue
from mx_rmq.cli import main
from mx_rmq.cli import worker as worker_command
from mx_rmq.cli.supervisor import Ended, code_in, directories_of
from tests.cli.test_worker_command import CODE, App, until
from tests.conftest import assert_clean
from tests.lab.servers import Kind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from redis.asyncio import Redis

    from tests.lab.servers import Server

one_kind = pytest.mark.parametrize("kind", [Kind.VALKEY_9_1], indirect=True)


@pytest.fixture
async def mq(raw: Redis, server: Server) -> AsyncIterator[MessageQueue]:
    """A queue on an empty server; afterwards the audit must be clean."""
    async with MessageQueue(server.url) as mq:
        yield mq
        await assert_clean(mq.store, raw)


@pytest.fixture
def app(mq: MessageQueue, server: Server, tmp_path: Path) -> Iterator[App]:
    app = App(tmp_path, server.url)
    yield app
    app.stop()
    until(lambda: app.output.count(" stopped; ") >= app.output.count(" started; ") - app.killed)


# several processes


def test_a_process_gets_the_options_that_were_given_and_no_others() -> None:
    given = (
        *("app:queue", "--topics", "a", "--topics", "b,c", "--drain", "--grace", "1.5"),
        *("--log-level", "INFO", "--mask", "card.number", "--log-payloads", "--url", "redis://x"),
    )
    apart = ("--processes", "2", "--metrics-port", "9000")
    parent = click.Context(main, **main.context_settings)  # click keeps the help option
    with worker_command.worker.make_context("worker", [*given, *apart], parent=parent):
        command = worker_command.child_command("processes", "metrics_port")
    assert command[:5] == [sys.executable, "-P", "-m", "mx_rmq.cli", "worker"]
    assert command[5:] == [
        *("app:queue", "--url", "redis://x", "--topics", "a,b,c", "--grace", "1.5", "--drain"),
        *("--log-level", "info", "--log-payloads", "--mask", "card.number"),
    ]


@one_kind
async def test_one_sigterm_stops_all_processes_in_good_order(app: App, mq: MessageQueue) -> None:
    supervisor = app.start("app", "--processes", "3")
    until(lambda: app.output.count(" started; ") == 3)
    await mq.produce_many("orders", list(range(100)))
    await mq.produce("orders", "wait")
    until(lambda: len(app.noted("done")) == 100 and "wait" in app.noted("begun"))
    supervisor.terminate()
    until(lambda: app.output.count(" stopped; ") == 2)
    assert supervisor.poll() is None
    (app.directory / "go").touch()
    assert supervisor.wait(30) == 0
    assert len(app.noted("done")) == 101
    assert sorted(app.noted("started")) == sorted(app.noted("ended"))
    assert (await mq.admin.stats("orders")).total == 0


WITH_LIFESPAN = """
from contextlib import asynccontextmanager
from typing import Annotated
from mx_rmq import Depends

@asynccontextmanager
async def lifespan(mq):
    note("order", f"{os.getpid()} begin")
    yield
    note("order", f"{os.getpid()} end")

def engine():
    note("order", f"{os.getpid()} open")
    yield "engine"
    note("order", f"{os.getpid()} close")

mq.lifespan = lifespan

@mq.handler("engine")
def use(payload, engine: Annotated[str, Depends(engine, scope="worker")]):
    note("order", f"{os.getpid()} use")
"""


@one_kind
async def test_each_process_has_its_own_lifespan_and_providers(app: App, mq: MessageQueue) -> None:
    app.write(CODE + WITH_LIFESPAN)
    supervisor = app.start("app", "--processes", "2")
    until(lambda: app.output.count(" started; ") == 2)
    supervisor.terminate()
    assert supervisor.wait(30) == 0
    for pid in app.noted("started"):
        lines = [line for line in app.noted("order") if line.startswith(f"{pid} ")]
        assert lines == [f"{pid} {what}" for what in ("begin", "open", "close", "end")]


@one_kind
async def test_a_second_signal_is_passed_on_too(app: App, mq: MessageQueue) -> None:
    await mq.produce("orders", "forever")
    supervisor = app.start("app", "--processes", "2")
    until(lambda: app.output.count(" started; ") == 2 and app.noted("begun"))
    supervisor.send_signal(signal.SIGINT)
    until(lambda: "1 running" in app.output)
    supervisor.send_signal(signal.SIGINT)
    assert supervisor.wait(30) == 0
    assert (await mq.admin.stats("orders")).pending == 1


@one_kind
async def test_a_killed_process_is_replaced(app: App, mq: MessageQueue) -> None:
    supervisor = app.start("app", "--processes", "2")
    until(lambda: app.output.count(" started; ") == 2)
    killed = app.noted("started")[0]
    app.kill(int(killed))
    until(lambda: app.output.count(" started; ") == 3)
    assert f"worker process {killed} was killed by signal 9, Killed; restarting in" in app.output
    await mq.produce("orders", 1)
    until(lambda: app.noted("done") == ["1"])
    supervisor.terminate()
    assert supervisor.wait(30) == 0
    assert sorted([*app.noted("ended"), killed]) == sorted(app.noted("started"))


@one_kind
async def test_processes_do_not_outlive_a_killed_supervisor(app: App, mq: MessageQueue) -> None:
    await mq.produce("orders", "wait")
    supervisor = app.start("app", "--processes", "2")
    until(lambda: app.output.count(" started; ") == 2 and app.noted("begun"))
    supervisor.kill()
    supervisor.wait(30)
    until(lambda: "1 running" in app.output)
    (app.directory / "go").touch()
    until(lambda: len(app.noted("ended")) == 2)
    assert sorted(app.noted("started")) == sorted(app.noted("ended"))
    assert app.noted("done") == ["wait"]
    assert (await mq.admin.stats("orders")).total == 0


@one_kind
async def test_processes_are_in_sessions_of_their_own(app: App) -> None:
    supervisor = app.start("app", "--processes", "2")
    until(lambda: app.output.count(" started; ") == 2)
    children = [int(pid) for pid in app.noted("started")]
    assert [os.getsid(pid) for pid in children] == children
    assert supervisor.pid not in children


@one_kind
async def test_processes_that_share_a_configured_name_get_a_number(
    app: App, mq: MessageQueue
) -> None:
    app.start("app", "--processes", "2", MX_RMQ_NAME="shop")
    until(lambda: app.output.count(" started; ") == 2)
    assert sorted(one.name for one in await mq.admin.workers()) == ["shop-1", "shop-2"]


@one_kind
async def test_drained_processes_are_not_replaced(app: App, mq: MessageQueue) -> None:
    await mq.produce_many("orders", list(range(50)))
    supervisor = app.start("app", "--processes", "2", "--drain")
    assert supervisor.wait(60) == 0
    assert len(app.noted("done")) == 50


@one_kind
async def test_a_drain_ends_if_its_processes_fail(app: App, mq: MessageQueue) -> None:
    app.write(
        CODE
        + """
from contextlib import asynccontextmanager

@asynccontextmanager
async def lifespan(mq):
    yield
    raise OSError("no farewell")

mq.lifespan = lifespan
"""
    )
    await mq.produce("orders", 1)
    supervisor = app.start("app", "--processes", "2", "--drain")
    assert supervisor.wait(60) == 3
    assert app.output.count("OSError: no farewell") >= 1
    assert "restarting" not in app.output
    assert len(app.noted("done")) == 1


@one_kind
async def test_a_signal_before_anything_has_begun_ends_it_with_0(app: App) -> None:
    app.write(
        "import time\nfrom pathlib import Path\nPath('begun').touch()\n"
        "while True: time.sleep(0.01)\n"  # Python looks for signals between two sleeps
    )
    supervisor = app.start("app", "--processes", "2")
    until((app.directory / "begun").exists)
    supervisor.terminate()
    assert supervisor.wait(30) == 0
    assert app.output == ""


@pytest.mark.parametrize(
    ("code", "verdict"), [(0, 0), (1, 1), (2, 2), (3, 3), (-signal.SIGTERM, 0), (-9, 1), (-40, 1)]
)
def test_the_end_of_a_process_says_what_it_means_for_the_messages(code: int, verdict: int) -> None:
    ended = Ended(4711, code)
    assert ended.verdict == verdict
    assert "4711" in str(ended)


# reloading


@one_kind
async def test_a_changed_handler_is_picked_up_and_a_broken_one_waited_out(
    app: App, mq: MessageQueue
) -> None:
    supervisor = app.working("app", "--reload")
    await mq.produce("orders", 1)
    until(lambda: app.noted("done") == ["1"])

    app.write(CODE.replace('note("done", payload)', 'note("done", f"new {payload}")'))
    until(lambda: app.output.count(" started; ") == 2)
    assert "app.py has changed: restarting the worker" in app.output
    await mq.produce("orders", 2)
    until(lambda: app.noted("done") == ["1", "new 2"])

    app.write("import nowhere\n")
    until(lambda: "waiting until the code changes" in app.output)
    assert "Error: cannot import app: app.py:1: ModuleNotFoundError" in app.output
    assert "Traceback" not in app.output
    assert supervisor.poll() is None

    app.write(CODE)
    until(lambda: app.output.count(" started; ") == 3)
    supervisor.terminate()
    assert supervisor.wait(30) == 0
    assert sorted(app.noted("started")) == sorted(app.noted("ended"))


@one_kind
async def test_a_reloader_that_waits_can_be_stopped(app: App) -> None:
    app.write("import nowhere\n")
    supervisor = app.start("app", "--reload")
    until(lambda: "waiting until the code changes" in app.output)
    supervisor.send_signal(signal.SIGINT)
    assert supervisor.wait(30) == 2


def test_only_python_files_are_looked_at_and_no_environments(tmp_path: Path) -> None:
    for name in (
        "a.py",
        "deep/er/b.py",
        "notes.txt",
        ".hidden/c.py",
        "env/d.py",
        "env/pyvenv.cfg",
        "node_modules/e.py",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    looked = code_in([str(tmp_path), str(tmp_path / "gone")])
    assert sorted(looked) == [str(tmp_path / "a.py"), str(tmp_path / "deep/er/b.py")]


def test_the_directories_of_a_package_and_of_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop_package").mkdir()
    (tmp_path / "shop_package" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (tmp_path / "shop_module.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert directories_of("shop_package.tasks") == [str(tmp_path / "shop_package")]
    assert directories_of("shop_module") == [str(tmp_path)]
    assert directories_of("shop_nowhere") == [str(tmp_path)]
