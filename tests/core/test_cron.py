"""When a schedule fires."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mx_rmq.core.cron import LATE_MS, MAX_COUNTED, Cron
from mx_rmq.core.errors import InvalidInput

DAY = 86_400_000


def ms(text: str) -> int:
    """Milliseconds of a moment, which says its own offset; UTC if it says none."""
    moment = datetime.fromisoformat(text)
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def shown(at: int, zone: str) -> str:
    return datetime.fromtimestamp(at / 1000, ZoneInfo(zone)).isoformat(timespec="minutes")


def ticks(cron: Cron, start: str, end: str) -> list[int]:
    found, at = [], ms(start)
    while (at := cron.next_after(at)) <= ms(end):
        found.append(at)
    return found


def test_the_next_tick_comes_after_the_time_never_at_it() -> None:
    cron = Cron.of("t", "*/5 * * * *")
    assert cron.next_after(ms("2026-01-01T00:00:00")) == ms("2026-01-01T00:05:00")
    assert cron.next_after(ms("2026-01-01T00:04:59.999")) == ms("2026-01-01T00:05:00")
    assert cron.next_after(ms("2026-01-01T00:05:00.001")) == ms("2026-01-01T00:10:00")


def test_the_latest_tick_may_be_at_the_time_itself() -> None:
    cron = Cron.of("t", "0 * * * *")
    noon = ms("2026-01-01T12:00:00")
    assert cron.latest(noon, 0) == noon
    assert cron.latest(noon + 1, 0) == noon
    assert cron.latest(noon - 1, 0) == noon - 3_600_000


def test_a_tick_that_is_not_after_the_last_one_is_none() -> None:
    cron = Cron.of("t", "0 * * * *")
    noon = ms("2026-01-01T12:00:00")
    assert cron.latest(noon, noon) is None
    assert cron.latest(noon, noon - 1) == noon
    assert cron.latest(noon + 60_000, noon) is None


def test_seconds_may_be_given_as_a_first_of_six_fields() -> None:
    cron = Cron.of("t", "*/15 * * * * *")
    assert cron.next_after(ms("2026-01-01T00:00:14.500")) == ms("2026-01-01T00:00:15")
    assert cron.latest(ms("2026-01-01T00:00:44.999"), 0) == ms("2026-01-01T00:00:30")


# summer time


def test_a_daily_tick_comes_once_on_the_day_when_its_hour_is_skipped() -> None:
    cron = Cron.of("t", "30 2 * * *", "Europe/Berlin")
    found = ticks(cron, "2026-03-28T00:00", "2026-03-30T23:00")
    assert [shown(at, "Europe/Berlin")[:10] for at in found] == [
        "2026-03-28",
        "2026-03-29",
        "2026-03-30",
    ]
    assert shown(found[1], "Europe/Berlin") == "2026-03-29T03:00+02:00"
    assert cron.latest(found[1], found[0]) == found[1]
    assert cron.due(found[1], found[0]) == found[1]


def test_a_daily_tick_comes_once_on_the_day_when_its_hour_comes_twice() -> None:
    cron = Cron.of("t", "30 2 * * *", "Europe/Berlin")
    found = ticks(cron, "2026-10-24T00:00", "2026-10-26T23:00")
    assert [shown(at, "Europe/Berlin")[:10] for at in found] == [
        "2026-10-24",
        "2026-10-25",
        "2026-10-26",
    ]
    assert cron.latest(found[1] + 3_600_000, found[1]) is None


@pytest.mark.parametrize("day", ["2026-03-29", "2026-10-25"])
def test_an_hourly_tick_comes_every_real_hour(day: str) -> None:
    cron = Cron.of("t", "0 * * * *", "Europe/Berlin")
    found = ticks(cron, f"{day}T00:00:00", f"{day}T06:00:00")
    assert {later - at for at, later in pairwise(found)} == {3_600_000}


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata"])
@pytest.mark.parametrize("expression", ["30 2 * * *", "*/15 * * * *", "0 1-3 * * *", "0 0 * * 0"])
@pytest.mark.parametrize("start", ["2026-03-07", "2026-03-28", "2026-10-24", "2026-10-31"])
def test_looking_back_finds_the_ticks_that_looking_ahead_found(
    zone: str, expression: str, start: str
) -> None:
    cron = Cron.of("t", expression, zone)
    end = ms(start) + 3 * DAY
    ahead = ticks(cron, start, datetime.fromtimestamp(end / 1000, UTC).isoformat())
    back, at = [], end
    while (tick := cron.latest(at, ms(start))) is not None:
        back.append(tick)
        at = tick - 1
    assert back[::-1] == ahead
    assert cron.ticks(ms(start), end) == len(ahead)


def test_ticks_are_counted_up_to_a_thousand() -> None:
    cron = Cron.of("t", "* * * * * *")
    assert cron.ticks(0, 999_000) == 999
    assert cron.ticks(0, DAY) == MAX_COUNTED == 1_000


@pytest.mark.xfail(strict=True, reason="cronsim, where the clock moves by half an hour")
def test_looking_back_agrees_with_looking_ahead_where_clocks_move_by_half_an_hour() -> None:
    cron = Cron.of("t", "30 * * * *", "Australia/Lord_Howe")
    ahead = ticks(cron, "2026-10-03T12:00", "2026-10-03T20:00")
    end, back = ms("2026-10-03T20:00"), []
    while (tick := cron.latest(end, ms("2026-10-03T12:00"))) is not None:
        back.append(tick)
        end = tick - 1
    assert back[::-1] == ahead


@given(
    at=st.integers(ms("2020-01-01"), ms("2035-01-01")),
    expression=st.sampled_from(["* * * * *", "*/7 3 * * *", "0 12 1 * *", "15 2 * * 6"]),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "America/New_York"]),
)
@settings(max_examples=200)
def test_whatever_comes_next_is_due_when_it_comes(at: int, expression: str, zone: str) -> None:
    cron = Cron.of("t", expression, zone)
    tick = cron.next_after(at)
    assert tick > at
    assert cron.due(tick, at) == tick
    assert cron.due(tick, tick) is None
    assert cron.latest(tick - 1, at) is None


# what was missed


@pytest.mark.parametrize(("late", "fires"), [(0, True), (LATE_MS, True), (LATE_MS + 1, False)])
def test_a_tick_is_missed_when_it_is_later_than_ten_seconds(late: int, fires: bool) -> None:
    cron = Cron.of("t", "0 * * * *", missed="skip")
    noon = ms("2026-01-01T12:00:00")
    assert cron.due(noon + late, noon - 1) == (noon if fires else None)


def test_of_missed_ticks_the_latest_one_fires_if_one_shall() -> None:
    cron = Cron.of("t", "0 * * * *", missed="once")
    noon = ms("2026-01-01T12:00:00")
    assert cron.due(noon + 59 * 60_000, noon - DAY) == noon
    assert cron.due(noon + 59 * 60_000, noon) is None


def test_of_missed_ticks_none_fires_if_they_are_skipped() -> None:
    cron = Cron.of("t", "0 * * * *")
    assert cron.due(ms("2026-01-01T12:59:00"), ms("2025-01-01T00:00:00")) is None


def test_a_clock_that_was_set_back_fires_nothing_again() -> None:
    cron = Cron.of("t", "* * * * *", missed="once")
    noon = ms("2026-01-01T12:00:00")
    assert cron.due(noon - 3_600_000, noon) is None


# what is refused


@pytest.mark.parametrize(
    "expression", ["", "* * * *", "61 * * * *", "* 25 * * *", "hello", "* * * * * * *", None, 5]
)
def test_an_expression_that_is_none_is_refused_by_name(expression: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        Cron.of("t", expression)
    assert repr(expression) in str(caught.value)
    assert "attribute" not in str(caught.value)
    assert "it has five fields, minute (0-59) hour (0-23) day " in str(caught.value)


@pytest.mark.parametrize("expression", ["0 0 30 2 *", "0 0 31 4 *"])
def test_an_expression_that_never_fires_is_refused(expression: str) -> None:
    with pytest.raises(InvalidInput):
        Cron.of("t", expression)


def test_an_expression_that_fires_once_in_four_years_is_none_to_refuse() -> None:
    cron = Cron.of("t", "0 0 29 2 *")
    assert cron.next_after(ms("2026-01-01")) == ms("2028-02-29")


@pytest.mark.parametrize(
    "zone", ["Mars/Olympus", "", "../../etc/passwd", "/etc/localtime", 5, None]
)
def test_a_zone_that_is_none_is_refused_by_name(zone: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        Cron.of("t", "* * * * *", zone)
    assert repr(zone) in str(caught.value)


def test_a_zone_may_be_an_object() -> None:
    assert Cron.of("t", "0 12 * * *", ZoneInfo("Asia/Tokyo")).next_after(0) == 3 * 3_600_000
    plus_two = timezone(timedelta(hours=2))
    assert Cron.of("t", "0 12 * * *", plus_two).next_after(0) == 10 * 3_600_000


@pytest.mark.parametrize("missed", ["all", "", None, "SKIP"])
def test_what_to_do_with_missed_ticks_is_one_of_two_words(missed: Any) -> None:
    with pytest.raises(InvalidInput, match="skip, once"):
        Cron.of("t", "* * * * *", missed=missed)
