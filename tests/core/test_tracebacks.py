"""Tracebacks that are stored: what is kept of a long one."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from mx_rmq.core.text import MAX_ERROR_TEXT
from mx_rmq.core.tracebacks import CAUSE, CONTEXT, MAX_CHAIN, MAX_GROUP, traceback_of

if TYPE_CHECKING:
    from collections.abc import Callable


def raised(act: Callable[[], object]) -> BaseException:
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - any
        act()
    return caught.value


def compiled(name: str, source: str) -> Callable[..., object]:
    """Return the function `act` of a file that has this name."""
    space: dict[str, Callable[..., object]] = {}
    exec(compile(source, name, "exec"), space)
    return space["act"]


LIBRARY = compiled(
    "/x/site-packages/lib/call.py", "def act(f, n):\n  return act(f, n - 1) if n else f()"
)
"""Calls itself n times, then what it is given."""


def first() -> object:
    return LIBRARY(second, 5)


def second() -> object:
    return LIBRARY(third, 30)


def third() -> object:
    raise ValueError("bad")


def test_a_short_one_is_kept_whole() -> None:
    text = traceback_of(raised(third))
    assert re.findall(r"in (\w+)", text)[-1] == "third"
    assert text.endswith('    raise ValueError("bad")\n')
    assert "left out" not in text


def test_one_that_was_never_raised_has_none() -> None:
    assert traceback_of(ValueError("never raised")) == ""


def test_frames_of_libraries_are_left_out_first() -> None:
    text = traceback_of(raised(first))
    assert len(text) <= MAX_ERROR_TEXT
    assert [
        one for one in re.findall(r"in (\w+)", text) if one in ("first", "second", "third")
    ] == [
        "first",
        "second",
        "third",
    ]
    assert re.search(r"… \d+ frames left out …\n", text)
    left = sum(map(int, re.findall(r"… (\d+) frame", text)))
    assert left + len(re.findall(r"  File ", text)) == 4 + 6 + 31


def test_of_the_users_frames_the_middle_is_left_out() -> None:
    def deeper(left: int) -> None:
        if left:
            deeper(left - 1)
        raise ValueError("bad")

    def start() -> None:
        deeper(200)

    text = traceback_of(raised(start))
    assert MAX_ERROR_TEXT / 2 < len(text) <= MAX_ERROR_TEXT
    assert re.search(r"in start\n", text)
    assert text.endswith('raise ValueError("bad")\n')
    assert text.count("left out …") == 1


def test_causes_are_kept_with_their_own_frames() -> None:
    def cause() -> None:
        try:
            LIBRARY(third, 40)
        except ValueError as error:
            raise KeyError("wrong") from error

    def context() -> None:
        try:
            LIBRARY(cause, 40)
        except KeyError:
            json.loads("{")  # a library raises: its last frame is kept

    text = traceback_of(raised(context))
    assert len(text) <= MAX_ERROR_TEXT
    shown = [line for line in text.splitlines() if line and not line.startswith(" ")]
    assert shown == ["ValueError: bad", CAUSE, "KeyError: 'wrong'", CONTEXT]
    assert "in third" in text
    assert text.splitlines()[-2].endswith("in raw_decode")


def test_a_context_that_was_suppressed_is_not_shown() -> None:
    def act() -> None:
        try:
            third()
        except ValueError:
            raise KeyError from None

    assert "third" not in traceback_of(raised(act))


def test_of_a_long_chain_the_first_cause_and_the_last_errors_are_kept() -> None:
    error: Exception = ValueError("number 0")
    for number in range(1, 20):
        error, error.__cause__ = ValueError(f"number {number}"), error
    text = traceback_of(error)
    assert "number 0\n" in text
    assert "number 18\n" in text
    assert text.count("number") == MAX_CHAIN - 1  # the caller shows the last one
    assert f"… {20 - MAX_CHAIN} exceptions left out …" in text


def test_of_a_very_long_chain_only_those_that_are_shown_are_asked_for_their_text() -> None:
    asked = 0

    class Counted(Exception):
        def __str__(self) -> str:
            nonlocal asked
            asked += 1
            return "x"

    error = Counted()
    for _ in range(50_000):  # a loop that tries again and keeps its last error
        last, error = error, Counted()
        error.__cause__ = last
    assert "left out" in traceback_of(error)
    assert asked <= MAX_CHAIN


def test_a_chain_that_bites_its_tail_ends() -> None:
    first, second = ValueError("1"), ValueError("2")
    first.__cause__, second.__cause__ = second, first
    assert traceback_of(first) == f"ValueError: 2\n\n{CAUSE}\n\n"


def test_a_group_shows_what_it_contains() -> None:
    def act() -> None:
        raise BaseExceptionGroup("several", [raised(third), *map(KeyError, range(9))])

    text = traceback_of(raised(act))
    assert "--- 1 of 10: ValueError: bad\n" in text
    assert "in third" in text
    assert text.count("--- ") == MAX_GROUP


@pytest.mark.parametrize("limit", [100, 500, 2048])
def test_no_text_is_over_its_limit(limit: int) -> None:
    error: Exception = ValueError("x" * 5000)
    for _ in range(20):
        error, error.__cause__ = ValueError("\udcff" * 5000), error
    text = traceback_of(error, limit)
    assert 0 < len(text) <= limit
    text.encode()
