"""Tests the checker for steps and flows, with bad histories and a deliberate bug."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults.bugs import FORGETS_STEPS
from tests.faults.step_check import check, parse
from tests.faults.steps import hold
from tests.faults.trial import Trial

if TYPE_CHECKING:
    from pathlib import Path


def wrongs(*lines: str) -> list[str]:
    return check(parse("".join(f"{line} .\n" for line in lines)))


def test_a_step_that_runs_again_is_found() -> None:
    twice = ["step-runs a 1 pay", "step-noted a 1 pay", "step-runs a 2 pay"]
    assert wrongs(*twice) == ["step pay of a ran again after it was noted"]
    assert wrongs("step-runs a 1 pay", "step-runs a 2 pay", "step-noted a 2 pay") == []
    zombie = ["step-runs a 2 pay", "step-noted a 2 pay", "step-runs a 1 pay"]
    assert wrongs(*zombie) == []


def test_a_parent_that_runs_too_early_is_found() -> None:
    early = ["returns c1 1", "parent-runs p 9 c1 c2", "returns c2 2"]
    assert wrongs(*early) == ["parent p ran before its child c2 had returned"]
    assert wrongs("returns c1 1", "returns c2 2", "parent-runs p 9 c1 c2") == []


def test_a_child_that_runs_after_its_parent_is_found() -> None:
    late = ["returns c1 1", "parent-runs p 9 c1", "step-runs c1 2 pay"]
    assert wrongs(*late) == ["child c1 ran after its parent p"]


def test_a_line_that_was_cut_off_is_ignored() -> None:
    assert parse("returns c1 1 .\nreturns c2") == parse("returns c1 1 .\n")


@pytest.mark.timeout(240)
async def test_steps_that_are_not_noted_are_found(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory: Path = tmp_path_factory.mktemp("s")
    trial = Trial("steps", 3, 1, directory)
    await hold(trial, FORGETS_STEPS, stuck=3)
    assert any("ran again after it was noted" in one for one in trial.violations)
