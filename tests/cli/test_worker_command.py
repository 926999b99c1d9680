"""`mx-rmq worker`, run as a user runs it: a process, signals, an exit code."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from mx_rmq import MessageQueue
from mx_rmq.core.message import State
from tests.cli.calls import MX_RMQ
from tests.conftest import assert_clean
from tests.lab.servers import Kind, Server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from redis.asyncio import Redis

pytestmark = pytest.mark.parametrize("kind", [Kind.VALKEY_9_1], indirect=True)


CODE = """
import asyncio, atexit, os, time
from pathlib import Path
from mx_rmq import MessageQueue

def note(name, text):
    with Path(name).open("a") as file:
        file.write(f"{text}\\n")

note("started", os.getpid())
atexit.register(note, "ended", os.getpid())
mq = MessageQueue()
empty = MessageQueue()

def make():
    return mq

@mq.handler("orders")
async def orders(payload):
    note("begun", payload)
    while payload == "wait" and not Path("go").exists():
        await asyncio.sleep(0.01)
    if payload == "forever":
        await asyncio.Event().wait()
    note("done", payload)

@mq.handler("plain")
def plain(payload):
    note("begun", payload)
    time.sleep(3600)

@mq.handler("other")
async def other(payload):
    note("done", f"other {payload}")
"""


def until(fact: Callable[[], object], seconds: float = 30) -> None:
    """Wait for a fact."""
    deadline = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.01)


class App:
    """An application in a directory of its own, and the commands that run it."""

    def __init__(self, directory: Path, url: str) -> None:
        self.directory = directory
        self.url = url
        self.killed = 0
        self._started: list[subprocess.Popen[bytes]] = []
        self.write(CODE)

    def write(self, code: str) -> None:
        (self.directory / "app.py").write_text(code)

    def start(self, *words: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start `mx-rmq worker` with these words."""
        with (self.directory / "output").open("ab") as output:
            process = subprocess.Popen(
                [MX_RMQ, "worker", *words],
                cwd=self.directory,
                env={**os.environ, "MX_RMQ_URL": self.url, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self._started.append(process)
        return process

    def working(self, *words: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start it and wait until it works."""
        process = self.start(*words, **environment)
        until(lambda: " started; " in self.output or process.poll() is not None)
        assert process.poll() is None, self.output
        return process

    def refused(self, *words: str, **environment: str) -> str:
        """Run it in vain; return the one line that says why."""
        process = self.start(*words, **environment)
        assert process.wait(30) == 2, self.output
        assert self.output.count("\n") == 1, self.output
        assert "Traceback" not in self.output
        return self.output

    @property
    def output(self) -> str:
        return (self.directory / "output").read_text()

    def noted(self, name: str) -> list[str]:
        path = self.directory / name
        return path.read_text().splitlines() if path.exists() else []

    def kill(self, pid: int) -> None:
        """Kill a process that one of those started here has started."""
        os.kill(pid, signal.SIGKILL)
        self.killed += 1

    def stop(self) -> None:
        """End what is left of what was started; their own processes end with them."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait(30)


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


# working


async def test_messages_are_handled_until_a_signal_comes(app: App, mq: MessageQueue) -> None:
    await mq.produce_many("orders", [1, 2, 3])
    worker = app.working("app:mq")
    until(lambda: sorted(app.noted("done")) == ["1", "2", "3"])
    worker.terminate()
    assert worker.wait(30) == 0
    assert "everything is settled or handed back" in app.output
    assert (await mq.admin.stats("orders")).total == 0


async def test_a_module_alone_means_its_mq_and_topics_choose(app: App, mq: MessageQueue) -> None:
    await mq.produce("orders", "left")
    await mq.produce("other", "taken")
    worker = app.start("app", "--topics", "other", "--drain")
    assert worker.wait(30) == 0
    assert app.noted("done") == ["other taken"]
    assert "1 completed, 0 retried, 0 dead, 0 quarantined\n" in app.output


async def test_a_lifespan_that_fails_stops_the_worker_and_is_named(app: App) -> None:
    app.write(
        CODE
        + """
from contextlib import asynccontextmanager

@asynccontextmanager
async def lifespan(mq):
    raise OSError("no database")
    yield

mq.lifespan = lifespan
"""
    )
    assert app.start("app").wait(30) != 0
    why = "the worker cannot start: its lifespan or a provider raised OSError: no database\n"
    assert app.output.endswith(f"Error: {why}")
    assert 'raise OSError("no database")' in app.output


async def test_topics_may_be_repeated_or_separated_by_commas(app: App, mq: MessageQueue) -> None:
    app.working("app", "--topics", "other, orders", "--topics", "plain", "--concurrency", "7")
    assert "topics: other, orders, plain; concurrency: 7" in app.output


async def test_settings_come_from_the_environment_too(app: App) -> None:
    app.working("app", MX_RMQ_CONCURRENCY="3", MX_RMQ_TOPICS="other")
    assert "topics: other; concurrency: 3" in app.output


async def test_it_says_what_it_handled_unless_it_shall_be_quiet(app: App, mq: MessageQueue) -> None:
    await mq.produce("orders", 1, id="a")
    assert app.start("app", "--drain").wait(30) == 0
    assert re.search(r" INFO .* orders a: completed in \S+ ms\n", app.output)
    for words, environment in ((["--quiet"], {}), ([], {"MX_RMQ_QUIET": "1"})):
        await mq.produce("orders", 1, id=f"b{len(words)}")
        assert app.start("app", "--drain", *words, **environment).wait(30) == 0
    assert len(app.noted("done")) == 3
    assert app.output.count(": completed in") == 1


async def test_the_log_level_may_come_from_the_environment(app: App, mq: MessageQueue) -> None:
    worker = app.start("app", "--drain", MX_RMQ_LOG_LEVEL="error")
    assert worker.wait(30) == 0
    assert app.output == "0 completed, 0 retried, 0 dead, 0 quarantined\n"


# stopping


async def test_a_running_handler_finishes_after_sigterm(app: App, mq: MessageQueue) -> None:
    await mq.produce("orders", "wait")
    worker = app.working("app")
    until(lambda: app.noted("begun"))
    worker.terminate()
    until(lambda: "1 running" in app.output)
    assert worker.poll() is None
    (app.directory / "go").touch()
    assert worker.wait(30) == 0
    assert app.noted("done") == ["wait"]
    assert (await mq.admin.stats("orders")).total == 0


@pytest.mark.parametrize("words", [[], ["--drain"]])
async def test_a_second_sigint_cancels_and_hands_back(
    app: App, mq: MessageQueue, words: list[str]
) -> None:
    id = await mq.produce("orders", "forever")
    worker = app.working("app", *words)
    until(lambda: app.noted("begun"))
    worker.send_signal(signal.SIGINT)
    until(lambda: "1 running" in app.output)
    worker.send_signal(signal.SIGINT)
    assert worker.wait(30) == 0
    message = await mq.admin.get("orders", id)
    assert message is not None
    assert (message.state, message.attempts, app.noted("done")) == (State.PENDING, 0, [])


async def test_the_grace_ends(app: App, mq: MessageQueue) -> None:
    await mq.produce("orders", "forever")
    worker = app.working("app", "--grace", "0.1")
    until(lambda: app.noted("begun"))
    worker.terminate()
    assert worker.wait(30) == 0
    assert (await mq.admin.stats("orders")).pending == 1


async def test_a_thread_that_cannot_be_stopped_does_not_keep_the_process(
    app: App, mq: MessageQueue
) -> None:
    await mq.produce("plain", 1)
    worker = app.working("app", "--grace", "0")
    until(lambda: app.noted("begun"))
    worker.terminate()
    until(lambda: " stopped; " in app.output)
    assert worker.wait(30) == 0
    assert (await mq.admin.stats("plain")).pending == 1


async def test_what_cannot_be_handed_back_is_exit_code_1(
    app: App, kind: Kind, short_path: Path
) -> None:
    with Server(kind, short_path) as mortal:
        async with MessageQueue(mortal.url) as mq:
            await mq.produce("orders", "forever")
        worker = app.working("app", "--grace", "0", MX_RMQ_URL=mortal.url, MX_RMQ_PATIENCE="0.5")
        until(lambda: app.noted("begun"))
    worker.terminate()
    assert worker.wait(60) == 1
    assert "other workers take over the rest when the leases expire" in app.output


# wrong input


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["nowhere:mq"], "no module 'nowhere' in"),
        (["app.deeper:mq"], "no module 'app.deeper' in"),
        (["app:nothing"], "module app has no 'nothing'; its queues are app:mq, app:empty"),
        (["app:make"], "app:make is a function, not a MessageQueue; its queues are"),
        (["app:empty"], "app:empty has no handlers: declare one with @empty.handler(topic)"),
        (["app:empty", "--import", "os,json"], "app:empty has no handlers: declare one with"),
        (["app", "--import", "tasks"], "no module 'tasks' in"),
        (["app", "--import", "app.tasks"], "no module 'app.tasks' in"),
        (["app", "--import", "tasks", "--processes", "2"], "no module 'tasks' in"),
        (["app", "--import", "tasks.py"], "'tasks.py' is a file; pass its module: tasks"),
        (["app", "--import", "a-b"], "--import 'a-b' is not a module name"),
        (["app.py"], "'app.py' is a file; pass its module: app:mq"),
        (["app:"], "'app:' must have the form module:attribute"),
        (
            ["app", "--topics", "orderz"],
            "no handler for 'orderz'; the topics with handlers are orders, ",
        ),
        (["app", "--topics", ","], "topics=() names no topic"),
        (["app", "--concurrency", "0"], "concurrency=0 is not between 1 and 10,000"),
        (["app", "--grace", "-1"], "grace=-1.0 is not a number of seconds"),
        (["app", "--reload", "--processes", "2"], "--reload cannot be combined"),
        (["app", "--reload", "--drain"], "--reload cannot be combined"),
        (["app", "--processes", "2", "--topics", "orderz"], "no handler for 'orderz'"),
        (["nowhere", "--processes", "2"], "no module 'nowhere' in"),
    ],
)
async def test_wrong_input_gets_one_line(app: App, words: list[str], line: str) -> None:
    assert app.refused(*words).startswith(f"Error: {line}")


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("x = 1\n\nimport nowhere\n", "app.py:3: ModuleNotFoundError: No module named 'nowhere'"),
        ("x = (\n", "app.py:1: SyntaxError: '(' was never closed"),
        ("import json\njson.loads('{')\n", "app.py:2: JSONDecodeError: Expecting property name"),
        ("raise SystemExit(3)\n", "app.py:1: SystemExit: 3"),
        ("raise ValueError('a\\nb\\x1b[31m')\n", "app.py:1: ValueError: a\\nb\\x1b[31m"),
        (
            CODE + "\n@mq.handler('a b')\ndef wrong(payload): ...\n",
            f"app.py:{CODE.count(chr(10)) + 2}: InvalidInput: topic 'a b' must consist of",
        ),
    ],
)
async def test_an_error_in_the_module_is_told_with_its_place(
    app: App, code: str, line: str
) -> None:
    app.write(code)
    assert app.refused("app").startswith(f"Error: cannot import app: {line}")


# handlers in other modules

SHOP = {
    "__init__.py": "",
    "queue.py": "from mx_rmq import MessageQueue\n\nmq = MessageQueue()\n",
    "handlers/__init__.py": (
        "from shop.handlers import mail\nfrom shop.queue import mq\n\nmq.include(mail.router)\n"
    ),
    "handlers/mail.py": """
from pathlib import Path

from mx_rmq import Router

router = Router()

@router.handler("mail")
async def send(address: str) -> None:
    Path("sent").write_text(address)
""",
    "reports.py": """
from pathlib import Path

from shop.queue import mq

@mq.handler("report")
def write(name: str) -> None:
    Path("written").write_text(name)
""",
}


@pytest.fixture
def shop(app: App) -> App:
    for name, code in SHOP.items():
        path = app.directory / "shop" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(code)
    return app


@pytest.mark.parametrize("words", [[], ["--processes", "2"]])
async def test_handlers_of_imported_modules_run(
    shop: App, mq: MessageQueue, words: list[str]
) -> None:
    await mq.produce("mail", "ann@example.org")
    await mq.produce("report", "june")
    worker = shop.working(
        "shop.queue", "--import", "shop.handlers", "--import", "shop.reports", *words
    )
    until((shop.directory / "sent").exists)
    until((shop.directory / "written").exists)
    worker.terminate()
    assert worker.wait(30) == 0


async def test_a_changed_module_that_was_imported_restarts_the_worker(
    shop: App, mq: MessageQueue
) -> None:
    outside = shop.directory / "lib" / "outside" / "__init__.py"
    outside.parent.mkdir(parents=True)
    outside.write_text("import shop.handlers\n")
    path = os.pathsep.join((str(shop.directory / "lib"), os.environ.get("PYTHONPATH", "")))
    worker = shop.working("shop.queue", "--reload", "--import", "outside", PYTHONPATH=path)
    outside.write_text("import shop.handlers, shop.reports\n")
    until(lambda: shop.output.count(" started; ") == 2)
    await mq.produce("report", "june")
    until((shop.directory / "written").exists)
    worker.terminate()
    assert worker.wait(30) == 0


async def test_two_handlers_of_one_topic_are_told_with_both_places(shop: App) -> None:
    (shop.directory / "more.py").write_text(
        "from shop.queue import mq\n\n@mq.handler('mail')\ndef post(mail: str) -> None: ...\n"
    )
    line = shop.refused("shop.queue", "--import", "shop.handlers", "--import", "more")
    assert line == (
        "Error: cannot import more: more.py:3: InvalidInput: topic 'mail' already has the handler "
        "shop.handlers.mail.send (shop/handlers/mail.py:8); more.post (more.py:3) needs a "
        "different topic\n"
    )


async def test_a_queue_without_handlers_names_the_modules_that_were_imported(shop: App) -> None:
    line = shop.refused("shop.queue", "--import", "shop")
    assert line.endswith(
        "or include a router with mq.include(router), in shop.queue, shop or in another "
        "module that you pass with --import\n"
    )


@pytest.mark.parametrize("words", [[], ["--drain"], ["--processes", "3"]])
async def test_a_server_that_is_not_there_gets_one_line(app: App, words: list[str]) -> None:
    url = "redis://user:secret@127.0.0.1:1"
    line = app.refused("app", *words, MX_RMQ_URL=url, MX_RMQ_PATIENCE="0.1")
    assert line.startswith("Error: cannot use redis://***@127.0.0.1:1: ")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "cannot use redis://***@127.0.0.1:1: "),
        (["--mask", "."], "mask '.' is not"),
        (["--concurrency", "0"], "concurrency=0 is"),
    ],
)
async def test_that_it_cannot_begin_is_json_where_the_logs_are(
    app: App, words: list[str], expected: str
) -> None:
    url = "redis://user:secret@127.0.0.1:1"
    more = ("--log-format", "json", *words)
    line = json.loads(app.refused("app", *more, MX_RMQ_URL=url, MX_RMQ_PATIENCE="0.1"))
    assert (line["level"], line["logger"]) == ("ERROR", "mx_rmq")
    assert line["message"].startswith(expected)


async def test_a_wrong_url_gets_one_line(app: App) -> None:
    line = app.refused("app", MX_RMQ_URL="http://localhost")
    assert "must start with one of redis://" in line
