"""The measurement behind docs/operating.md: a small one on a real server, and the page."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from bench.capacity.page import MARK, fill
from bench.crowd import QUICK, STATES, Crowd
from bench.environments import ROOT
from bench.extras import AGAINST, FIGURES, SETTINGS
from bench.looks import SEEN_US, paths
from bench.operate import PAGE, last
from bench.operating import MOMENTS, blocks
from mx_rmq.dashboard.app import _routes

if TYPE_CHECKING:
    from pathlib import Path

APART = {"/jobs/{job}", "/live", "/static/{version}/{name}", "/{path:path}/"}
"""A job is looked at while it works; the others ask the server for nothing, or never end."""


@pytest.mark.measures
@pytest.mark.timeout(120)
def test_a_small_run_looks_at_everything_and_makes_every_figure_of_the_page(
    tmp_path: Path,
) -> None:
    page = PAGE.read_text()
    command = [sys.executable, "-m", "bench.operate", "--quick", "--no-lock", "--out"]
    done = subprocess.run(
        [*command, str(tmp_path)], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert PAGE.read_text() == page
    [written] = tmp_path.glob("operate-*.json")
    results = json.loads(written.read_text())

    for moment in MOMENTS:
        found = results["looks"][moment]
        for part in ("pages", "calls"):
            for state in STATES:
                assert f"{state}: " in " ".join(found[part])
            assert all(0 < one["median"] <= one["worst"] for one in found[part].values())
        assert all(one["worst"] >= SEEN_US / 1000 for one in found["server"].values())
        assert found["commands"] > 10_000
    assert "produce_normal_message" not in results["looks"]["quiet"]["server"]
    assert "produce_normal_message" in results["looks"]["beside"]["server"]

    extras = results["extras"]
    assert set(extras["settings"]) == set(SETTINGS)
    for name in AGAINST:
        assert set(extras["ratios"][name]) == set(FIGURES)

    filled = fill(page, blocks(results))
    assert all(text.strip() for text in MARK.split(filled))
    for line in filled.splitlines():
        assert "nan" not in line.split()


def test_the_page_is_of_the_last_full_run() -> None:
    page = PAGE.read_text()
    assert fill(page, blocks(last())) == page


def test_every_page_of_the_dashboard_is_looked_at() -> None:
    crowd = Crowd(QUICK)
    for state in STATES:
        crowd.ids[state], crowd.since[state] = ("a", "b", "c"), (1e9, 2e9)
    looked = [path.partition("?")[0] for _, path, _ in paths(crowd)]
    for route in _routes(None):
        if "GET" in (route.methods or ()) and route.path not in APART:
            assert any(route.path_regex.match(path) for path in looked), route.path
