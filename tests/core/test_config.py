"""Limits, validated at once."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from math import inf, nan
from typing import Any

import pytest

from mx_rmq.core.config import Limits
from mx_rmq.core.errors import InvalidInput

NAMES = [field.name for field in fields(Limits)]
WHOLE = [field.name for field in fields(Limits) if field.type == "int"]


def limits(name: str, value: Any) -> Any:
    return getattr(Limits(**{name: value}), name)


def test_the_defaults_are_those_of_the_contract() -> None:
    found = Limits()
    assert (found.max_payload, found.max_pending, found.dedup) == (1_048_576, 0, 120)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [1, 2, 10_000_000])
def test_a_whole_number_is_accepted_everywhere(name: str, value: int) -> None:
    assert limits(name, value) == value


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [-1, -0.1, 2**53, inf, -inf, nan], ids=str)
def test_a_number_out_of_range_is_refused_and_named(name: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=name):
        limits(name, value)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [None, "1", True, b"1", [1], 1j], ids=repr)
def test_what_is_no_number_is_refused_and_named(name: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=f"{name}=.* is not a number"):
        limits(name, value)


@pytest.mark.parametrize("name", NAMES)
def test_only_times_may_have_a_fraction(name: str) -> None:
    if name in WHOLE:
        with pytest.raises(InvalidInput, match=f"{name}=1.5 is not a whole number"):
            limits(name, 1.5)
    else:
        assert limits(name, 1.5) == 1.5


@pytest.mark.parametrize("name", [name for name in NAMES if name != "max_payload"])
def test_nought_switches_off(name: str) -> None:
    assert limits(name, 0) == 0


def test_a_payload_limit_of_nought_is_refused() -> None:
    with pytest.raises(InvalidInput, match="max_payload=0 would refuse every payload"):
        Limits(max_payload=0)


def test_limits_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Limits().dedup = 1  # type: ignore[misc]


def test_an_unknown_limit_is_refused() -> None:
    with pytest.raises(TypeError):
        Limits(max_pennding=1)  # type: ignore[call-arg]
