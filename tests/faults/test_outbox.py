"""The check of the trial `outbox` sees what it must see."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.faults.outbox import check

GOOD: dict[str, Any] = {
    "ids": ["a", "b"],
    "numbers": [1, 2],
    "shipped": [2, 1],
    "produced": Counter("ab"),
    "completed": Counter("ab"),
}


def test_each_order_produced_and_shipped_once_is_right() -> None:
    assert [*check(**GOOD)] == []


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"produced": Counter("a"), "completed": Counter("a")}, "never produced: b"),
        ({"produced": Counter("abb")}, "produced 2 times: b"),
        ({"produced": Counter("abc"), "completed": Counter("abc")}, "but never committed: c"),
        ({"completed": Counter("a")}, "not completed: b"),
        ({"shipped": [1]}, "not shipped: 2"),
        ({"shipped": [1, 2, 2]}, "shipped 2 times: 2"),
        ({"shipped": [1, 2, 3]}, "shipped, but never ordered: 3"),
    ],
)
def test_everything_else_is_wrong(wrong: dict[str, Any], says: str) -> None:
    (said,) = check(**GOOD | wrong)
    assert says in said
