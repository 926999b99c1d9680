"""Tests the checker for limits and order by key, with bad histories and a deliberate bug."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mx_rmq import Rate
from tests.faults.bugs import ONE_TOO_MANY
from tests.faults.key_check import Entry, Rules, check
from tests.faults.keys import hold
from tests.faults.trial import Trial

if TYPE_CHECKING:
    from pathlib import Path


def history(*steps: str) -> list[Entry]:
    """Return one entry per step, "WHAT ID ID …", one millisecond apart."""
    return [Entry(at, what, ids) for at, (what, *ids) in enumerate(map(str.split, steps))]


def test_a_key_with_more_leases_than_its_limit_is_found() -> None:
    steps = history(
        "dispatched a.0 a.1 b.0",
        "retried a.0",
        "dispatched a.2",
        "taken_over a.1",
        "completed b.0",
        "dispatched b.1 b.2",
        "dispatched a.3",
    )
    assert check(steps[:-1], Rules(running=2)).violations == []
    assert check(steps, Rules(running=2)).violations == ["3 at a time: a.1, a.2, a.3"]


def test_a_message_that_overtakes_a_failed_one_is_found() -> None:
    steps = history(
        "dispatched a.0 b.0", "retried a.0", "dispatched a.0", "completed a.0", "dispatched a.1"
    )
    rules = Rules(running=1, ordered=True)
    assert check(steps, rules).violations == []
    guilty = history("dispatched a.0", "retried a.0", "dispatched a.1", "completed a.1")
    assert check(guilty, rules).violations == ["out of order: a.1 before a.0 ended"]
    late = history("dispatched a.1", "died a.1", "dispatched a.0")
    assert check(late, rules).violations == ["out of order: a.0 after 1"]


@pytest.mark.parametrize(("apart", "guilty"), [(50, False), (40, True)])
def test_starts_beyond_the_bucket_are_found(apart: int, guilty: bool) -> None:
    rate = Rate(20, burst=2)
    times = [0, *range(0, 10 * apart, apart)]
    steps = [Entry(at, "dispatched", [f"a.{number}"]) for number, at in enumerate(times)]
    assert bool(check(steps, Rules(rate=rate)).violations) is guilty


def test_a_lease_after_the_end_is_found() -> None:
    steps = history("dispatched a.0", "completed a.0", "taken_over a.0")
    assert check(steps, Rules()).violations == ["leased after its end: a.0"]


@pytest.mark.timeout(120)
async def test_a_trial_with_a_bug_is_reported(short_path: Path) -> None:
    trial = Trial("keys", 1, 1, short_path)
    await hold(trial, ONE_TOO_MANY)
    assert any("3 at a time" in found for found in trial.violations), trial.violations
