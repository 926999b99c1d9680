"""What is wrong with schedules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mx_rmq.admin import ScheduleView
from mx_rmq.doctor.finding import Severity
from mx_rmq.doctor.schedules import LATE, LONG, check_schedules

NOW = 1_800_000_000.0  # a full hour

WELL = ScheduleView(
    name="s",
    topic="t",
    expression="0 * * * *",
    tz="UTC",
    missed="skip",
    declared=False,
    next_run=NOW + 3600,
    waits_since=NOW,
)


@pytest.mark.parametrize(
    ("change", "served", "severity", "words"),
    [
        ({}, True, None, ""),
        ({"waits_since": None}, True, None, ""),
        ({"paused": True, "paused_at": NOW - LONG}, True, None, ""),
        (
            {"paused": True, "paused_at": NOW - LONG - 60, "pause_reason": "why"},
            *(True, Severity.WARN, "schedule s has been paused for 1 d 0 h (why)"),
        ),
        ({}, False, Severity.WARN, "no live worker serves the topic"),
        ({"next_run": None}, True, Severity.WARN, "no time zone 'UTC'"),
        ({"waits_since": NOW - 3601}, True, Severity.BAD, "should have run 1 h 2 min ago"),
        ({"waits_since": NOW - 3600}, True, None, ""),
        (
            {"declared": True, "waits_since": NOW - 7200},
            *(False, None, ""),
        ),
    ],
)
def test_what_is_found(
    change: dict[str, Any], served: bool, severity: Severity | None, words: str
) -> None:
    one = replace(WELL, **change)
    found = check_schedules([one], served={"t"} if served else (), now=NOW + LATE)
    if change.get("paused"):
        found = check_schedules([one], served={"t"}, now=NOW)
    assert [finding.severity for finding in found] == ([severity] if severity else [])
    assert all(words in finding.what for finding in found)
