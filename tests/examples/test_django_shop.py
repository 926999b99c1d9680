"""The shop in Django, on a real PostgreSQL, by the commands of its README."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx
import pytest

from tests.cli.running import running, until
from tests.lab.ports import free_port
from tests.tour.pages import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.lab.postgres import Postgres

pytest_plugins = ["mx_rmq.testing"]

SHOP = ROOT / "examples/django_shop"


@pytest.fixture
def environment(mx_rmq_url: str, postgres: Postgres) -> dict[str, str]:
    database = urlsplit(postgres.new_database())
    return {
        "MX_RMQ_URL": mx_rmq_url,
        "PGHOST": database.hostname or "",
        "PGPORT": str(database.port),
        "PGUSER": database.username or "",
        "PGDATABASE": database.path[1:],
        "DJANGO_SUPERUSER_PASSWORD": "a long secret",
        "PYTHONWARNINGS": "error",
    }


def commands(number: int) -> list[str]:
    """Return the lines of one block of commands."""
    blocks = re.findall(
        r"^```sh\n(.*?)^```", (SHOP / "README.md").read_text(), re.DOTALL | re.MULTILINE
    )
    return str(blocks[number]).splitlines()


def run(line: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    name, *words = shlex.split(line)
    assert name == "python"
    done = subprocess.run(
        [sys.executable, *words],
        cwd=SHOP,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_its_own_tests_pass(environment: dict[str, str]) -> None:
    (line,) = commands(0)
    assert "\nOK\n" in run(line, environment).stderr


def test_an_order_is_shipped_and_staff_see_it(
    environment: dict[str, str], short_path: Path
) -> None:
    server, migrate, add_ann, worker, web = commands(1)
    assert server == "mx-rmq server"  # the fixture has started one
    run(migrate, environment)
    run(f"{add_ann} --noinput", environment)
    environment["PYTHONPATH"] = str(SHOP)
    port = str(free_port())
    manage = [sys.executable, str(SHOP / "manage.py")]
    serve = shlex.split(web.replace("8000", port))[2:]
    with (
        running(short_path, *shlex.split(worker)[2:], program=manage, **environment),
        running(short_path, *serve, "--noreload", program=manage, **environment),
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client,
    ):
        until(lambda: _answers(client))
        order = {"item": "book", "email": "flaky@example.org"}
        assert client.post("/orders/", data=order).json() == {"number": 1}
        assert client.get("/orders/1/").json() == {"item": "book", "state": "shipped"}
        form = client.get("/mx-rmq/", follow_redirects=True)
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', form.text)
        assert token is not None
        sign_in = {"username": "ann", "password": "a long secret", "next": "/mx-rmq/"}
        page = client.post(
            form.url,
            data={**sign_in, "csrfmiddlewaretoken": token[1]},
            headers={"Referer": str(form.url)},
            follow_redirects=True,
        )
        assert page.url.path == "/mx-rmq/"
        assert "signed in as <strong>ann</strong>" in page.text
        assert "order.placed" in page.text
        until(lambda: _mail_was_sent(environment))


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/orders/0/").status_code == 404
    except httpx.TransportError:
        return False


def _mail_was_sent(environment: dict[str, str]) -> bool:
    """Return whether the task was retried and completed."""
    stats = run(f"{commands(2)[-1]} --json", environment).stdout
    totals = {one["topic"]: one["totals"] for one in json.loads(stats)["topics"]}
    task = totals.get("tasks:default", {})
    return (task.get("retried"), task.get("completed")) == (1, 1)
