"""The agent that is killed at step 7, and the book that is rendered page by page."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tests.cli.running import running
from tests.tour.pages import ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytest_plugins = ["mx_rmq.testing"]

EXAMPLES = ROOT / "examples"


def test_the_agent_repeats_no_step_that_was_done(mx_rmq_url: str, short_path: Path) -> None:
    log = short_path / "calls.log"
    environment = {
        "MX_RMQ_URL": mx_rmq_url,
        "AGENT_CALLS": str(log),
        "PYTHONPATH": str(EXAMPLES),
    }
    program = [sys.executable, "-m", "agent_with_approval"]
    with running(short_path, program=program, **environment) as script:
        code, out, err = script.end(within=60)
    assert (code, err) == (0, "")
    ready, killed, result, *lines = out.splitlines()
    assert ready.startswith("the patch is ready")
    assert killed.startswith("killed the worker with SIGKILL")
    assert result == "ticket 7: deployed"
    first = [line for line in lines if line.startswith("first")]
    second = [line for line in lines if line.startswith("second")]
    assert [line.split()[2] for line in first] == ["model:"] * 3 + ["call:"] * 3 + ["deploy:"]
    assert [line.split()[2] for line in second] == ["deploy:", "mail:"]


def test_the_book_is_bound_after_its_last_page(mx_rmq_url: str, short_path: Path) -> None:
    environment = {"MX_RMQ_URL": mx_rmq_url, "PYTHONPATH": str(EXAMPLES)}
    program = [sys.executable, "-m", "book"]
    with (
        running(short_path, "worker", "book.render:mq", **environment),
        running(short_path, program=program, **environment) as script,
    ):
        code, out, err = script.end(within=60)
    assert (code, err) == (0, "")
    assert out == "The Whale: 100 pages, from 'page 1' to 'page 100'\n"
