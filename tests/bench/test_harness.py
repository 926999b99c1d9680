"""The harness, for mx-rmq alone and few messages, on a real server."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from bench.environments import ROOT

if TYPE_CHECKING:
    from pathlib import Path

WORKLOADS = "produce,drain,latency,round_trip,round_trip_callers,memory"


def test_a_small_run_measures_us_and_writes_what_it_found(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "--here", "--no-lock", "--only", "ours"]
    command += ["--workloads", WORKLOADS, "--rounds", "1", "--scale", "0.001"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path)], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "failed" not in done.stdout
    [written] = tmp_path.glob("*.json")
    results = json.loads(written.read_text())
    ours = results["systems"]["ours"]
    for workload in WORKLOADS.split(","):
        assert ours[workload]["messages"] >= 100, workload
        assert ours[workload].get("missing", 0) == 0, workload
    assert ours["drain"]["rate"] > 0
    assert ours["drain"]["repeated"] == 0
    assert ours["memory"]["bytes"] > 200
    assert ours["latency"]["p50"] > 0
    assert 0 < ours["round_trip"]["p50"] <= ours["round_trip"]["p99"]
    assert ours["round_trip_callers"]["rate"] > 0
    assert results["server"].startswith("Redis 7.0")
    assert "Worker(concurrency=" in written.with_suffix(".md").read_text()
    assert (tmp_path / "bench.svg").read_text().startswith("<svg")
