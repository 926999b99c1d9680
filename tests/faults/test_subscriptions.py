"""Tests the checker of subscriptions with bad histories."""

from __future__ import annotations

import pytest

from tests.faults.subscriptions import Entry, check


def history(*steps: str) -> list[Entry]:
    """Return one entry per step, "WHAT ID ID …"."""
    return [Entry(what, ids) for what, *ids in map(str.split, steps)]


GOOD = history("produced a b", "dispatched a b", "completed b", "retried a", "completed a")


def test_a_good_history_is_accepted() -> None:
    assert list(check("ab", history("produced a b", "fanned_out a b"), {"s": GOOD})) == []


@pytest.mark.parametrize(
    ("own", "copies", "violation"),
    [
        ("fanned_out a", "produced a b", "not fanned out: b"),
        ("fanned_out a b b", "produced a b", "fanned out 2 times: b"),
        ("fanned_out a b", "produced a", "s did not get b"),
        ("fanned_out a b", "produced a b b", "s got b 2 times"),
        ("fanned_out a b", "produced a b c", "s got c, which was never produced"),
    ],
)
def test_a_bad_history_is_reported(own: str, copies: str, violation: str) -> None:
    handled = history(copies, "completed a b c")
    assert list(check("ab", history(own), {"s": handled})) == [violation]


@pytest.mark.parametrize(
    ("then", "violation"),
    [
        ("completed a", "s did not complete b"),
        ("completed a b b", "s completed b 2 times"),
    ],
)
def test_how_copies_end_is_checked(then: str, violation: str) -> None:
    found = check("ab", history("fanned_out a b"), {"s": history("produced a b", then)})
    assert list(found) == [violation]
