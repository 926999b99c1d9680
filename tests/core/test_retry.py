"""Retry policies as values."""

from __future__ import annotations

import json
import re
from math import inf, nan
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mx_rmq.core import codec
from mx_rmq.core.durations import LONGEST
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.message import Message
from mx_rmq.core.retry import (
    ByError,
    Delays,
    Exponential,
    as_dict,
    from_dict,
    policy_of,
)

if TYPE_CHECKING:
    from mx_rmq.core.retry import Policy

ERROR = ValueError("x")

seconds = st.floats(0, LONGEST) | st.integers(0, int(LONGEST))
waits = st.builds(Delays, st.lists(seconds, min_size=1, max_size=5)) | st.builds(
    Exponential,
    first=seconds,
    factor=st.floats(1, 1e300),
    cap=seconds,
    jitter=st.floats(0, 1),
)
policies = waits | st.builds(
    ByError,
    st.dictionaries(
        st.sampled_from(["ValueError", "OSError", KeyError]), waits | st.none(), min_size=1
    ),
    waits | st.none(),
)


def all_waits(policy: Policy, count: int, chance: float = 0) -> list[float | None]:
    return [policy.delay(failures, ERROR, chance) for failures in range(1, count + 1)]


# waits


@pytest.mark.parametrize(
    ("delays", "expected"),
    [([5], [5, 5, 5, 5]), ((1, 10.5, 60), [1, 10.5, 60, 60]), ([0], [0, 0, 0, 0])],
)
def test_delays_come_in_order_and_the_last_one_repeats(delays: Any, expected: list[float]) -> None:
    for chance in (0, 0.5, 0.999):
        assert all_waits(Delays(delays), 4, chance) == expected
    assert Delays(delays).delay(10_000, ERROR, 0) == expected[-1]


@pytest.mark.parametrize(
    ("policy", "chance", "expected"),
    [
        (Exponential(), 0, [1, 2, 4, 8, 16]),
        (Exponential(), 0.5, [0.75, 1.5, 3, 6, 12]),
        (Exponential(jitter=0), 0.9, [1, 2, 4, 8, 16]),
        (Exponential(jitter=1), 0.75, [0.25, 0.5, 1, 2, 4]),
        (Exponential(first=3, factor=10, cap=100), 0, [3, 30, 100, 100, 100]),
        (Exponential(first=30, factor=1), 0, [30] * 5),
        (Exponential(first=30, cap=5), 0, [5] * 5),
        (Exponential(first=0), 0, [0] * 5),
        (Exponential(cap=0), 0, [0] * 5),
    ],
)
def test_exponential_waits_grow_to_the_cap_and_chance_shortens_them(
    policy: Policy, chance: float, expected: list[float]
) -> None:
    assert all_waits(policy, 5, chance) == expected


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Exponential(), 600),
        (Exponential(factor=1e300), 600),
        (Exponential(first=0, factor=1e300), 0),
        (Exponential(first=LONGEST, factor=1.7e308, cap=LONGEST), LONGEST),
        (Exponential(first=5e-324, factor=1.0000001), 5e-324),
    ],
)
def test_ten_thousand_failures_overflow_nothing(policy: Policy, expected: float) -> None:
    assert policy.delay(10_000, ERROR, 0) == expected
    assert policy.delay(10**18, ERROR, 0) is not None


def test_without_a_failure_the_first_wait_is_the_answer() -> None:
    for policy in (Delays((7, 8)), Exponential(first=7), ByError({OSError: None}, [7, 8])):
        assert policy.delay(0, ERROR, 0) == 7


@given(policies, st.integers(1, 100_000), st.floats(0, 1, exclude_max=True))
def test_every_wait_lies_between_nought_and_ten_years(
    policy: Policy, failures: int, chance: float
) -> None:
    wait = policy.delay(failures, ERROR, chance)
    assert wait is None or 0 <= wait <= LONGEST


# by error


class Refused(ConnectionError):
    pass


class Both(Refused, ValueError):
    pass


BY_ERROR = ByError(
    {ConnectionError: [1, 5], "OSError": 20, ValueError: None, "Elsewhere": Exponential(first=9)},
    otherwise=(100,),
)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionError(), [1, 5, 5]),
        (ConnectionResetError(), [1, 5, 5]),
        (Refused(), [1, 5, 5]),
        (Both(), [1, 5, 5]),
        (FileNotFoundError(), [20, 20, 20]),
        (ValueError(), [None, None, None]),
        (UnicodeError(), [None, None, None]),
        (type("Elsewhere", (Exception,), {})(), [9, 18, 36]),
        (KeyError(), [100, 100, 100]),
        (KeyboardInterrupt(), [100, 100, 100]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_the_most_specific_rule_for_an_error_decides(
    error: BaseException, expected: list[float | None]
) -> None:
    for policy in (BY_ERROR, from_dict(as_dict(BY_ERROR))):
        assert [policy.delay(failures, error, 0) for failures in (1, 2, 3)] == expected


def test_a_rule_for_exception_catches_the_rest() -> None:
    policy = ByError({Exception: None, OSError: 3})
    assert policy.delay(1, OSError(), 0) == 3
    assert policy.delay(1, KeyError(), 0) is None
    assert policy.delay(1, KeyboardInterrupt(), 0) == 1


def test_no_further_attempt_may_be_the_answer_to_every_other_error() -> None:
    policy = ByError({OSError: 3}, otherwise=None)
    assert policy.delay(1, KeyError(), 0) is None


def test_rules_are_kept_by_name() -> None:
    assert ByError({ConnectionError: 1}).rules == {"ConnectionError": Delays((1,))}
    assert ByError({ConnectionError: 1}) == ByError({"ConnectionError": [1.0]})


# policy_of


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (5, Delays((5,))),
        (0, Delays((0,))),
        (0.5, Delays((0.5,))),
        ([1, 2.5], Delays((1, 2.5))),
        ((1, 2), Delays((1, 2))),
        ({OSError: 5}, ByError({OSError: 5})),
        ({"OSError": None}, ByError({OSError: None})),
        (LONGEST, Delays((LONGEST,))),
    ],
    ids=repr,
)
def test_a_plain_value_stands_for_a_policy(value: Any, expected: Policy) -> None:
    assert policy_of(value) == expected


@pytest.mark.parametrize("policy", [Delays((1,)), Exponential(), BY_ERROR])
def test_a_policy_stands_for_itself(policy: Policy) -> None:
    assert policy_of(policy) is policy


LONG = "is not a number of seconds (or a timedelta) from 0 to 315,360,000"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (-1, f"retry delay -1 {LONG}"),
        (nan, f"retry delay nan {LONG}"),
        (inf, f"retry delay inf {LONG}"),
        (LONGEST + 1, f"retry delay 315360001.0 {LONG}"),
        ([1, "2"], f"retry delay '2' {LONG}"),
        ([True], f"retry delay True {LONG}"),
        ([[1]], f"retry delay [1] {LONG}"),
        (10**400, "retry delay 1000"),
        (10**5000, "retry delay of type int is not a number of seconds"),
        ([], "retry delays=() is empty"),
        ({}, "retry rules={} is not a dict of error types to policies"),
        (None, "retry=None is not a number of seconds, a list of them, a dict of error types"),
        (True, "retry=True is not a number"),
        ("5", "retry='5' is not a number"),
        ({1, 2}, "retry={1, 2} is not a number"),
        (Exponential, "retry=<class 'mx_rmq.core.retry.Exponential'> is not a number"),
        ({OSError: -1}, f"retry rule for OSError: retry delay -1 {LONG}"),
        ({OSError: []}, "retry rule for OSError: retry delays=() is empty"),
        ({OSError: "no"}, "retry rule for OSError: retry='no' is not a number"),
        ({OSError: {KeyError: 1}}, "{<class 'KeyError'>: 1} is a dict of errors"),
        ({OSError: ByError({KeyError: 1})}, "rules cannot be nested"),
        ({int: 1}, "<class 'int'> is not an exception type"),
        ({5: 1}, "retry rules: 5 is not an exception type"),
        ({"a.b": 1}, "'a.b' is not an exception type"),
        ({OSError: 1, "OSError": 2}, "retry has two rules for 'OSError'"),
    ],
    ids=lambda value: f"{type(value).__name__}" if not isinstance(value, str) else value[:40],
)
def test_what_is_no_policy_is_refused_and_named(value: Any, expected: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(expected)) as caught:
        policy_of(value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"first": -1}, f"retry first -1 {LONG}"),
        ({"first": None}, f"retry first None {LONG}"),
        ({"cap": inf}, f"retry cap inf {LONG}"),
        ({"cap": -0.1}, f"retry cap -0.1 {LONG}"),
        ({"factor": 0.99}, "retry factor 0.99 is not a finite number of at least 1"),
        ({"factor": inf}, "retry factor inf is not a finite number of at least 1"),
        ({"factor": nan}, "retry factor nan is not a finite number of at least 1"),
        ({"jitter": 1.01}, "retry jitter 1.01 is not a number from 0 to 1"),
        ({"jitter": -0.01}, "retry jitter -0.01 is not a number from 0 to 1"),
        ({"jitter": False}, "retry jitter False is not a number from 0 to 1"),
    ],
)
def test_a_number_out_of_range_is_refused_and_named(fields: dict[str, Any], expected: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(expected)):
        Exponential(**fields)


def test_a_bad_policy_for_other_errors_is_refused_and_named() -> None:
    with pytest.raises(InvalidInput, match="retry otherwise: retry delay -5 is not"):
        ByError({OSError: 1}, otherwise=-5)


def test_a_policy_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Exponential().first = 5  # type: ignore[misc]


# stored


@given(policies)
def test_a_stored_policy_comes_back_as_it_was(policy: Policy) -> None:
    stored = as_dict(policy)
    message = Message.new(msgspec.Raw(b"1"), topic="t", id="a", retry=stored)
    read = codec.decode(codec.encode(message)).retry
    assert read == stored == json.loads(json.dumps(stored))
    assert from_dict(read) == policy


def test_an_operator_can_read_a_stored_policy() -> None:
    assert as_dict(ByError({OSError: [1, 2], KeyError: None}, otherwise=3)) == {
        "type": "by_error",
        "rules": {"OSError": {"type": "delays", "delays": [1.0, 2.0]}, "KeyError": None},
        "otherwise": {"type": "delays", "delays": [3.0]},
    }


DEEP: dict[str, Any] = {}
for _ in range(100_000):
    DEEP = {"rules": DEEP}


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"type": "sometimes"},
        {"type": "delays"},
        {"type": "delays", "delays": []},
        {"type": "delays", "delays": [-1]},
        {"type": "delays", "delays": ["1"]},
        {"type": "exponential", "factor": 0},
        {"type": "exponential", "cap": "x" * 10_000},
        {"type": "by_error", "rules": {}},
        {"type": "by_error", "rules": {"a b": None}},
        {"type": "by_error", "rules": {"A": {"type": "by_error", "rules": {"B": None}}}},
        {"type": "by_error", "rules": DEEP},
        [],
        None,
        5,
    ],
    ids=lambda data: "deep" if isinstance(data, dict) and data.get("rules") is DEEP else None,
)
def test_what_is_no_stored_policy_is_refused(data: Any) -> None:
    with pytest.raises(InvalidInput, match="is not a stored retry policy") as caught:
        from_dict(data)
    assert len(str(caught.value)) < 400


def test_fields_of_a_later_release_are_passed_over() -> None:
    assert from_dict({"type": "delays", "delays": [1], "colour": "red"}) == Delays((1,))
