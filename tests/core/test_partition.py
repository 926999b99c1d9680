"""Partitions: their names, and which one a key or an id belongs to."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.names import check_partition, check_topic
from mx_rmq.core.partition import (
    MAX_PARTITIONS,
    check_partitions,
    number_for,
    number_in,
    number_of,
    partition,
    partitions,
    suffix,
    topic_of,
)

KEYS = [f"customer-{number}" for number in range(40_000)]


# names


def test_the_first_partition_has_the_topics_own_name() -> None:
    assert partitions("orders", 1) == ["orders"]
    assert partitions("orders", 3) == ["orders", "orders/1", "orders/2"]
    assert partition("orders", MAX_PARTITIONS - 1) == "orders/1023"


@pytest.mark.parametrize("topic", ["t", "order.created", "a-1.2"])
def test_a_name_tells_its_topic_and_its_number(topic: str) -> None:
    for number, name in enumerate(partitions(topic, 12)):
        assert (topic_of(name), number_of(name)) == (topic, number)
        assert check_partition(name) == name


def test_ids_made_for_a_partition_lead_back_to_it() -> None:
    for number, name in enumerate(partitions("t", 12)):
        assert number_in(f"k3v9m2x0qwz1t-17{suffix(name)}") == number
    assert suffix("t") == ""
    assert suffix("t/11") == ".11"


@pytest.mark.parametrize("id", ["a", "a.1", "a-1", "a-.1", "a-1.", "a-1.x", "a-1.12345", "-1.1"])
def test_any_other_id_is_of_the_first_partition(id: str) -> None:
    assert number_in(id) == 0


@pytest.mark.parametrize(
    "name",
    ["t/", "t/0", "t/01", "t/-1", "t/x", "t/1/2", "t/12345", "/1", "t /1", "t/1\n", "t/\u0661"],
)
def test_what_is_no_name_of_a_partition_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="topic"):
        check_partition(name)


def test_a_partition_is_no_topic_for_those_who_name_one() -> None:
    with pytest.raises(InvalidInput, match="topic 't/1'"):
        check_topic("t/1")


# keys


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("a", [0, 0, 0, 6, 11, 379]),
        ("order-1", [0, 1, 2, 5, 19, 542]),
        ("Zürich", [0, 1, 1, 6, 6, 782]),
        ("customer:42", [0, 1, 1, 3, 12, 283]),
        ("x" * 1000, [0, 1, 2, 2, 55, 493]),
    ],
)
def test_a_key_has_the_same_partition_for_ever(key: str, expected: list[int]) -> None:
    """Another release must not move what is in order now."""
    assert [number_for(key, count) for count in (1, 2, 3, 8, 100, 1024)] == expected


@pytest.mark.parametrize("count", [2, 3, 8])
def test_keys_are_spread_evenly(count: int) -> None:
    found = Counter(number_for(key, count) for key in KEYS)
    assert sorted(found) == list(range(count))
    fair = len(KEYS) / count
    assert all(0.9 * fair < number < 1.1 * fair for number in found.values())


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 3), (3, 8), (8, 9), (8, 16)])
def test_when_a_topic_grows_keys_move_to_the_new_partitions_only(before: int, after: int) -> None:
    moved = 0
    for key in KEYS:
        old, new = number_for(key, before), number_for(key, after)
        if old != new:
            assert new >= before
            moved += 1
    share = (after - before) / after
    assert moved / len(KEYS) == pytest.approx(share, rel=0.1)


# counts


@pytest.mark.parametrize("count", [1, 2, MAX_PARTITIONS])
def test_a_topic_has_up_to_1024_partitions(count: int) -> None:
    assert check_partitions(count) == count
    assert check_partition(partition("t", count - 1))


@pytest.mark.parametrize("count", [0, -1, MAX_PARTITIONS + 1, 10**30, 1.0, "2", True, None, [1]])
def test_any_other_number_is_refused(count: Any) -> None:
    with pytest.raises(InvalidInput, match="is not a whole number from 1 to 1024") as caught:
        check_partitions(count)
    assert len(str(caught.value)) < 200
