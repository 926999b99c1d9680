"""Tests the checkers of the mixed trial with bad histories."""

from __future__ import annotations

from tests.faults.mixed import check_ticks


def test_a_tick_that_made_two_messages_is_found() -> None:
    assert list(check_ticks([("12:00", "a"), ("12:00", "a"), ("12:01", "b")])) == []
    assert list(check_ticks([("12:00", "a"), ("12:00", "b")])) == ["tick 12:00 made 2 messages"]


def test_a_schedule_that_never_fires_is_found() -> None:
    assert list(check_ticks([])) == ["the schedule never fired"]
