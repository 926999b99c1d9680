"""The plain script, with a worker in a process of its own."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tests.cli.running import running
from tests.tour.pages import ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytest_plugins = ["mx_rmq.testing"]

EXAMPLES = ROOT / "examples"


def test_it_follows_a_report_reads_it_and_aborts_another(mx_rmq_url: str, short_path: Path) -> None:
    words = ("worker", "plain_script:mq", "--url", mx_rmq_url)
    program = [sys.executable, str(EXAMPLES / "plain_script.py")]
    with (
        running(short_path, *words),
        running(short_path, program=program, MX_RMQ_URL=mx_rmq_url) as script,
    ):
        code, out, err = script.end(within=60)
    assert (code, err) == (0, "")
    *progress, result, aborted = out.splitlines()
    assert len(progress) > 3
    assert "processing page " in out
    assert progress[-1].startswith("completed")
    assert result == "the report ends with: Page 20 of sales"
    assert aborted == "no report: aborted: it takes too long"
