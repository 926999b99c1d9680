"""The measurement behind docs/capacity.md: a small one on real servers, and the page."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest

from bench.capacity.costs import BATCHES, MOST, PAYLOADS, WEIGHED, WORKED
from bench.capacity.model import PHASES, Costs, Model
from bench.capacity.page import MARK, _verdict, blocks, fill
from bench.capacity.plan import RECEIVED, REPLICATED, SENT, shipped
from bench.capacity.publish import PAGE, last
from bench.capacity.shards import AOF, ONE, REPLICAS, THREE
from bench.environments import ROOT

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.measures
@pytest.mark.timeout(400)
def test_a_small_run_measures_costs_and_shards_and_makes_every_figure_of_the_page(
    tmp_path: Path,
) -> None:
    page = PAGE.read_text()
    command = [sys.executable, "-m", "bench.capacity.publish", "--quick", "--no-lock", "--out"]
    done = subprocess.run(
        [*command, str(tmp_path)], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert PAGE.read_text() == page
    found = msgspec.json.decode((tmp_path / "costs.json").read_bytes(), type=Costs)
    [written] = tmp_path.glob("capacity-*.json")
    results = json.loads(written.read_text())

    wanted = {(size, batch) for size in PAYLOADS for batch in BATCHES if size * batch <= MOST}
    assert {(cell.payload, cell.batch) for cell in found.cells} == wanted
    for cell in found.cells:
        assert sum(getattr(cell, phase).cpu for phase in PHASES) > 0  # one alone may be too short
        assert sum(getattr(cell, phase).script for phase in PHASES) > 0
    assert len(found.producer) == 3 * len(PAYLOADS)
    assert len(found.worker) == len(WORKED) * len(PAYLOADS)
    assert [weight.payload for weight in found.memory] == list(WEIGHED)
    assert all(weight.bytes > weight.payload for weight in found.memory)

    shards = results["shards"]
    for part in ("calls", "in_turn", "drain", "chores"):
        assert set(shards[part]) == {ONE, AOF, THREE, REPLICAS}
    assert found.cluster == shards["calls"][THREE]["cpu_ratio"] > 0
    one, copied = shards["calls"][ONE], shards["calls"][REPLICAS]
    assert one["cpu_ratio"] == 1
    assert one["received"] == pytest.approx(RECEIVED, rel=0.2)
    assert one["sent"] == pytest.approx(SENT, rel=0.4)  # what we ask of so small a run is in it
    assert copied["sent"] - one["sent"] - shards["payload"] == pytest.approx(REPLICATED, rel=0.4)
    assert shards["idle"][THREE]["connections"] >= shards["partitions"]

    filled = fill(page, blocks(Model(found), results))
    assert all(text.strip() for text in MARK.split(filled))
    for line in filled.splitlines():
        assert "nan" not in line.split()


def test_one_reading_over_the_goal_is_a_goal_missed() -> None:
    assert _verdict({"a": 1.1, "b": 1.2}) == "met in all readings, 1.20× at worst"
    assert _verdict({"a": 1.1, "b": 1.44}) == "**missed** in 1 of 2 readings (b: 1.44×)"


def test_a_page_gets_exactly_the_blocks_that_it_marks() -> None:
    page = "a\n<!-- figures: x -->\nold\n<!-- end -->\nb\n"
    assert fill(page, {"x": "new\n"}) == "a\n<!-- figures: x -->\n\nnew\n\n<!-- end -->\nb\n"
    assert fill(fill(page, {"x": "1\n"}), {"x": "new\n"}) == fill(page, {"x": "new\n"})
    for wrong in ({}, {"y": "new\n"}, {"x": "new\n", "y": "new\n"}):
        with pytest.raises(ValueError, match="the page has"):
            fill(page, wrong)


def test_the_page_and_what_is_shipped_are_of_the_last_full_run() -> None:
    found, results = last()
    assert shipped() == found
    page = PAGE.read_text()
    assert fill(page, blocks(Model(found), results)) == page


def test_the_tables_of_the_page_are_whole() -> None:
    head: list[str] = []
    for line in PAGE.read_text().splitlines():
        if not line.startswith("|"):
            head = []
            continue
        head = head or [line]
        assert line.count("|") == head[0].count("|"), line
