"""Tests the fairness checks of the walk: they fail when they must, and only then."""

from __future__ import annotations

import pytest

from tests.lab.fairness import ROUND, Witness
from tests.lab.lines import InForce

LIMITS = InForce(interval=100, burst=2)


def test_starts_within_the_bucket_are_fine() -> None:
    witness = Witness()
    for at in (0, 0, 100, 200, 900, 900, 1000):
        witness.starts("k", LIMITS, at, 1)
    witness.starts("k", LIMITS, 1200, 5)  # the bucket is full, and it leaves a debt
    witness.starts("k", LIMITS, 1600, 1)


@pytest.mark.parametrize(
    "starts",
    [
        [(0, 1), (0, 1), (0, 1)],
        [(0, 2), (99, 1)],
        [(0, 1), (0, 1), (100, 1), (199, 1)],
        [(0, 2), (1000, 2), (1099, 1)],
        [(0, 5), (399, 1)],
    ],
)
def test_a_start_beyond_the_bucket_is_reported(starts: list[tuple[int, int]]) -> None:
    witness = Witness()
    for at, cost in starts[:-1]:
        witness.starts("k", LIMITS, at, cost)
    with pytest.raises(AssertionError, match="spends"):
        witness.starts("k", LIMITS, *starts[-1])


def test_a_rate_that_changes_starts_again() -> None:
    witness = Witness()
    for interval in (100, 200, None, 100):
        for _ in range(2):
            witness.starts("k", InForce(interval=interval, burst=2), 0, 1)


def test_lines_that_take_turns_are_fine() -> None:
    witness = Witness()
    for _ in range(9):
        witness.turns(["a", "b", ""], {"a", "b", ""})
        witness.turns(["a", "b", "a", ""], {"a", "b", ""})


def test_a_line_that_is_passed_over_is_reported() -> None:
    witness = Witness()
    witness.turns(["a"] * ROUND, {"a", "b"})
    with pytest.raises(AssertionError, match="'b' waits while 'a' has its turns"):
        witness.turns(["a"], {"a", "b"})


def test_a_line_that_could_not_start_meanwhile_waits_from_then_on() -> None:
    witness = Witness()
    witness.turns(["a"] * ROUND, {"a", "b"})
    witness.turns([], {"a"})
    witness.turns(["a"] * ROUND, {"a", "b"})
