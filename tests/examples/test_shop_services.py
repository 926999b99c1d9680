"""The shop whose three services hear of every order, also the one that is killed."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

from tests.cli.calls import MX_RMQ
from tests.cli.running import running, until
from tests.tour.pages import ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytest_plugins = ["mx_rmq.testing"]

EXAMPLES = ROOT / "examples"
SERVICES = ("billing", "search", "analytics")


def environment(url: str, records: Path) -> dict[str, str]:
    return {"MX_RMQ_URL": url, "SHOP_RECORDS": str(records), "PYTHONPATH": str(EXAMPLES)}


def orders(records: Path, service: str) -> set[int]:
    path = records / f"{service}.log"
    return {int(line) for line in path.read_text().split()} if path.exists() else set()


def test_every_service_gets_every_order_although_one_is_killed(
    mx_rmq_url: str, short_path: Path
) -> None:
    program = [sys.executable, "-m", "shop_services"]
    with running(short_path, program=program, **environment(mx_rmq_url, short_path)) as script:
        code, out, err = script.end(within=90)
    assert (code, err) == (0, "")
    running_now, killed, without, again, *lines = out.splitlines()
    assert running_now == "three services run, each in its own process"
    (before,) = re.findall(r"^killed search with SIGKILL after (\d+) orders$", killed)
    assert 20 <= int(before) < 100
    assert without == f"billing and analytics have all 200 orders; search has {before}"
    assert again == "started search again"
    for service, line in zip(SERVICES, lines, strict=True):
        assert re.fullmatch(rf"{service}: 200 of 200 orders, \d+ of them twice", line)
        assert orders(short_path, service) == {*range(1, 201)}
    assert lines[0].endswith(", 0 of them twice")
    assert lines[2].endswith(", 0 of them twice")


def test_the_commands_of_its_readme_run(mx_rmq_url: str, short_path: Path) -> None:
    text = (EXAMPLES / "shop_services" / "README.md").read_text()
    _, workers, commands = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    env = environment(mx_rmq_url, short_path)
    with ExitStack() as stack:
        for line in workers.splitlines():
            command = stack.enter_context(running(short_path, *shlex.split(line)[1:], **env))
            command.until_told("started")
        said = []
        export, *lines = commands.splitlines()
        assert export == "export MX_RMQ_URL=embedded://./mx-rmq-data"
        for line in lines:
            name, *words = shlex.split(line)
            assert name == "mx-rmq"
            done = subprocess.run(
                [MX_RMQ, *words], env=env, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done
            said.append(done.stdout)
        assert all(service in said[1] for service in SERVICES)
        until(lambda: all(orders(short_path, service) == {7} for service in SERVICES))
