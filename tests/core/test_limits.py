"""Limits and rates: what they accept, and how the partitions of a topic share them."""

from __future__ import annotations

from datetime import timedelta
from math import inf, nan
from typing import Any

import pytest

from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.limits import Limit, Rate, declared, rate_of

# a rate


@pytest.mark.parametrize(
    ("text", "expected", "interval"),
    [
        ("50/s", Rate(50), 20),
        ("100/m", Rate(100, 60), 600),
        ("1000/h", Rate(1000, 3600), 3600),
        ("0.5/s", Rate(0.5), 2000),
    ],
)
def test_a_text_is_a_rate_per_second_minute_or_hour(
    text: str, expected: Rate, interval: float
) -> None:
    assert rate_of(text) == Limit(rate=text).rate == expected
    assert expected.interval == interval
    assert str(expected) == text


@pytest.mark.parametrize(
    "value",
    [
        *("", "50", "50/", "/s", "50/d", "50/sec", " 50/s", "50 /s", "-1/s", "1e3/s", "1.2.3/s"),
        *(".", "٣/s", 50, 1.5, True, ["50/s"], b"50/s"),
    ],
    ids=ascii,
)
def test_what_is_no_rate_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        Limit(rate=value)
    expected = "not a rate such as 50/s, 100/m or 1000/h"
    if not isinstance(value, str):
        expected = 'neither a Rate nor a string such as "50/s"'
    assert str(caught.value) == f"rate={value!r} is {expected}"


@pytest.mark.parametrize("value", ["0/s", "0.0/h", "1000001/s", "9" * 400 + "/s"])
def test_a_rate_out_of_range_is_refused_as_it_was_written(value: str) -> None:
    with pytest.raises(InvalidInput, match=f"rate='{value[:5]}.* is not between 1 in ten years"):
        Limit(rate=value)


def test_a_rate_counts_in_seconds_or_a_timedelta() -> None:
    assert Rate(10, timedelta(minutes=1)) == Rate(10, 60) == Rate(10, per_seconds=60.0)
    assert str(Rate(3, 7.5)) == "3 per 7.5 s"
    with pytest.raises(InvalidInput, match="Rate per_seconds=0 is not a number of seconds"):
        Rate(10, 0)


@pytest.mark.parametrize("count", [0, -1, nan, inf, True, "5", None, 1_000_001, 1e-300, 10**30])
def test_a_count_is_above_0_and_up_to_a_million_per_second(count: Any) -> None:
    with pytest.raises(InvalidInput, match=r"Rate count=.* in 1 s is not a number between 1"):
        Rate(count)


@pytest.mark.parametrize("burst", [0, 0.5, -1, nan, inf, True, "5", 10**10])
def test_a_burst_is_at_least_1(burst: Any) -> None:
    with pytest.raises(InvalidInput, match=r"Rate burst=.* is not a number from 1 to"):
        Rate(5, burst=burst)


@pytest.mark.parametrize(
    ("rate", "burst"),
    [("50/s", 5), ("5/s", 1), ("100/m", 1), ("15/s", 1.5), ("36000/h", 1), ("10000/s", 1000)],
)
def test_the_burst_is_a_tenth_of_a_second_and_at_least_1(rate: str, burst: float) -> None:
    assert rate_of(rate).at_once == burst
    assert Rate(50, burst=1).at_once == 1


# a limit


@pytest.mark.parametrize("running", [0, -1, 1.0, True, "5", 1_000_001])
def test_running_is_a_whole_number_from_1(running: Any) -> None:
    with pytest.raises(InvalidInput, match=r"Limit running=.* is not a whole number from 1 to"):
        Limit(running=running)


def test_a_limit_must_limit_something() -> None:
    with pytest.raises(InvalidInput, match=r"Limit\(\) limits nothing: pass running, rate or both"):
        Limit()


def test_only_a_running_limit_can_be_overtaken() -> None:
    assert Limit(running=1, overtake=True).overtake
    with pytest.raises(InvalidInput, match="overtake=True needs running"):
        Limit(rate="5/s", overtake=True)
    with pytest.raises(InvalidInput, match="overtake=1 is not True or False"):
        Limit(running=1, overtake=1)  # type: ignore[arg-type]


def test_a_limit_does_not_change_and_is_compared_by_value() -> None:
    limit = Limit(running=2, rate="50/s")
    assert limit == Limit(running=2, rate=Rate(50))
    assert hash(limit) == hash(Limit(running=2, rate=Rate(50)))
    with pytest.raises(AttributeError):
        limit.running = 3  # type: ignore[misc]


# what the server gets


def test_a_handler_without_limits_declares_nothing() -> None:
    assert declared(None, None) == declared(None, None, 3, 8) == ""


def test_the_topics_limits_come_first_then_those_of_each_key() -> None:
    both = declared(Limit(running=200, rate="50/s"), Limit(running=1, rate="5/s", overtake=True))
    assert both == "200 20 5 1 200 1 1"
    assert declared(Limit(rate="100/m"), None) == "- 600 1 - - - 0"
    assert declared(None, Limit(running=1)) == "- - - 1 - - 0"


def test_an_interval_is_a_decimal_number_of_milliseconds() -> None:
    assert declared(Limit(rate="3/s"), None).split()[1] == "333.333333333"
    assert float(declared(Limit(rate="1000000/s"), None).split()[1]) == 0.001


@pytest.mark.parametrize(("running", "parts"), [(10, 1), (10, 3), (10, 10), (1000, 7)])
def test_partitions_share_the_running_limit_to_the_last_one(running: int, parts: int) -> None:
    limit = Limit(running=running)
    shares = [int(declared(limit, None, number, parts).split()[0]) for number in range(parts)]
    assert sum(shares) == running
    assert max(shares) - min(shares) <= 1


def test_every_partition_may_run_one_message() -> None:
    limit = Limit(running=2)
    shares = [declared(limit, None, number, 4).split()[0] for number in range(4)]
    assert shares == ["1"] * 4


def test_partitions_share_the_rate_and_its_burst() -> None:
    limit = Limit(rate=Rate(50, burst=10))
    assert declared(limit, None, 1, 4) == "- 80 2.5 - - - 0"
    assert declared(limit, None, 1, 20) == "- 400 1 - - - 0"


def test_a_key_has_its_limits_in_one_partition() -> None:
    per_key = Limit(running=3, rate="5/s")
    assert declared(None, per_key, 5, 8) == declared(None, per_key) == "- - - 3 200 1 0"
