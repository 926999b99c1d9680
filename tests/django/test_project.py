"""A Django project, run as its users run it: its own tests, web servers and workers are processes.

Django is set up once per process. So what a test case can show is tested in
tests/django/project/shop, by Django's test runner.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from mx_rmq import MessageQueue
from tests.cli.running import running, until
from tests.lab.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.cli.running import Running

pytest_plugins = ["mx_rmq.testing"]

ROOT = Path(__file__).parents[2]
MANAGE = ROOT / "tests/django/project/manage.py"
SHOP = "tests.django.project.shop"


def environment(url: str, directory: Path) -> dict[str, str]:
    return {
        "SHOP_REDIS": url,
        "SHOP_DATABASE": str(directory / "shop.sqlite3"),
        "MX_RMQ_LEASE": "1",
        "PYTHONPATH": str(ROOT),
        "DJANGO_SETTINGS_MODULE": "tests.django.project.settings",
        "PYTHONWARNINGS": "error",
    }


@pytest.mark.parametrize(
    "words",
    [("tests_queue", "--parallel=2"), ("tests_tasks",), ("tests_dashboard",)],
    ids=lambda words: words[0],
)
def test_the_tests_of_the_project_pass_and_leave_nothing(
    words: Sequence[str], short_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", MANAGE, "test", f"{SHOP}.{words[0]}", *words[1:]],
        env={**os.environ, "TMPDIR": str(short_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert "\nOK\n" in done.stderr
    assert not list(short_path.iterdir())


class Project:
    """The project with its database, and commands of its manage.py."""

    def __init__(self, url: str, directory: Path) -> None:
        self.directory = directory
        self.environment = environment(url, directory)
        self.manage("migrate", "--run-syncdb", "--verbosity", "0")

    def manage(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, MANAGE, *words],
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def mx_rmq(self, *words: str) -> Any:
        return json.loads(self.manage("mx_rmq", *words, "--json"))

    @contextmanager
    def worker(self, *words: str) -> Iterator[Running]:
        program = [sys.executable, str(MANAGE)]
        with running(
            self.directory, "mx_rmq", "worker", *words, program=program, **self.environment
        ) as worker:
            worker.until_told("started")
            yield worker

    @contextmanager
    def web(self, *program: str) -> Iterator[httpx.Client]:
        port = free_port()
        words = [one.format(port=port) for one in program]
        with (
            running(
                self.directory, program=[sys.executable, "-m", *words], **self.environment
            ) as server,
            httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client,
        ):
            until(lambda: _answers(client))
            yield client
            server.process.send_signal(signal.SIGTERM)
            code, _, err = server.end(within=30)
            assert code in (0, -signal.SIGTERM), err
            assert "Traceback" not in err, err


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/mx-rmq/").status_code == 302
    except httpx.TransportError:
        return False


@pytest.fixture
def project(mx_rmq_url: str, short_path: Path) -> Project:
    return Project(mx_rmq_url, short_path)


SERVERS = {
    "gunicorn, prefork and threads": (
        "gunicorn",
        "tests.django.project.wsgi",
        *("--workers", "2", "--threads", "2", "--preload", "--bind", "127.0.0.1:{port}"),
    ),
    "uvicorn": ("uvicorn", "tests.django.project.asgi:application", "--port", "{port}"),
}


@pytest.mark.parametrize("server", SERVERS)
def test_views_produce_and_wait_while_a_worker_works(server: str, project: Project) -> None:
    with project.worker(), project.web(*SERVERS[server]) as client:
        for path in ("/orders/", "/orders/async/", "/orders/", "/orders/async/"):
            id = client.post(path, data={"item": "book"}).json()["id"]
            assert client.get(f"/orders/{id}/").json()["result"].endswith("shipped")
            assert client.get(f"/watch/{id}/").text == "completed\n"
    counts = {one["topic"]: one for one in project.mx_rmq("stats")["topics"]}
    assert counts["order.placed"]["completed"] == 4


def test_workers_close_old_connections_and_a_killed_one_loses_no_task(project: Project) -> None:
    mq = MessageQueue(project.environment["SHOP_REDIS"])
    with project.worker("--processes", "2", "--concurrency", "2") as worker:
        exported = mq.sync.produce("export", None)
        for _ in range(4):
            mq.sync.result("transaction", mq.sync.produce("transaction", None), timeout=30)
        ids = [mq.sync.produce("connection", None) for _ in range(6)]
        assert {mq.sync.result("connection", id, timeout=30)[1] for id in ids} == {0}
        assert mq.sync.result("export", exported, timeout=30) == 101
        id = mq.sync.produce("tasks:default", {"task": f"{SHOP}.tasks.crash_once"})
        worker.until_told("was killed by signal 9")
        done = mq.sync.result("tasks:default", id, timeout=30)
        assert (done["value"], len(done["workers"])) == (2, 2)
        assert done["errors"][0][0] == "mx_rmq.core.outcome.WorkerLost"
        worker.process.send_signal(signal.SIGTERM)
        assert worker.end(within=60)[0] == 0
    mq.sync.close()
    settings = "--settings=tests.django.project.settings"
    assert "completed" in project.manage("mx_rmq", settings, "show", "tasks:default", id)


def test_the_fixtures_for_pytest_know_the_queue_of_a_project(short_path: Path) -> None:
    (short_path / "pytest.ini").write_text("[pytest]\nmx_rmq_queue = mx_rmq.django:mq\n")
    (short_path / "conftest.py").write_text(
        "import django\ndjango.setup()\npytest_plugins = ['mx_rmq.testing']\n"
    )
    (short_path / "test_it.py").write_text(
        "from mx_rmq.django.testing import drain\n\n"
        "def test_it(mx_rmq_queue):\n"
        f"    task = {{'task': '{SHOP}.tasks.add', 'args': [1]}}\n"
        "    mx_rmq_queue.sync.produce('tasks:default', task)\n"
        "    assert drain().completed == 1\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-pno:valkey", "-pno:asyncio", short_path],
        cwd=short_path,
        env={**os.environ, **environment("redis://127.0.0.1:1", short_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout


def test_the_workers_of_python_m_django_are_started_in_the_same_way(short_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "django", "mx_rmq", "worker", "--processes", "2"],
        env={
            **os.environ,
            **environment("redis://127.0.0.1:1", short_path),
            "MX_RMQ_PATIENCE": "0.5",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert "cannot use redis://127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_project_without_handlers_is_told_where_they_belong(short_path: Path) -> None:
    code = (
        "from django.conf import settings\n"
        "from django.core.management import call_command\n"
        "import django\n"
        "url = 'redis://127.0.0.1:1'\n"
        "settings.configure(INSTALLED_APPS=['mx_rmq.django'], MX_RMQ={'url': url})\n"
        "django.setup()\n"
        "call_command('mx_rmq', 'worker')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=short_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "in handlers.py of an app in INSTALLED_APPS" in done.stderr
