"""The rules for topics, ids, workers and prefixes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq.core.errors import InvalidInput, MxRmqError
from mx_rmq.core.names import check_id, check_key, check_prefix, check_topic, check_worker

if TYPE_CHECKING:
    from collections.abc import Callable

ALL = [check_topic, check_id, check_worker, check_prefix]
LONGEST = {check_topic: 128, check_id: 128, check_worker: 64, check_prefix: 64}


@pytest.mark.parametrize("check", ALL)
@pytest.mark.parametrize("name", ["a", "Z", "0", "order.created", "a_b-c.D9", "1" * 64])
def test_a_good_name_is_returned_as_it_is(check: Callable[[str], str], name: str) -> None:
    assert check(name) == name


@pytest.mark.parametrize("check", ALL)
@pytest.mark.parametrize(
    "name",
    [
        "",
        "a\n",
        "\na",
        "a b",
        "a\x00",
        "a{b",
        "a}b",
        "a*",
        "a?",
        "a[b]",
        "a\\b",
        "a%b",
        "a,b",
        "a!b",
        "é",
        "\u0663",  # a digit, but not of ours
        "a\u0660",
        "\uff41",
        "\udcff",
        "a\u200b",
    ],
    ids=ascii,
)
def test_a_name_that_could_leave_its_place_in_a_key_is_refused(
    check: Callable[[str], str], name: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        check(name)
    assert repr(name) in str(caught.value)
    assert " must consist of letters, digits and . _ -" in str(caught.value)


@pytest.mark.parametrize("check", ALL)
def test_the_longest_name_is_accepted_and_one_more_character_is_refused(
    check: Callable[[str], str],
) -> None:
    longest = "x" * LONGEST[check]
    assert check(longest) == longest
    with pytest.raises(InvalidInput):
        check(longest + "x")


@pytest.mark.parametrize("check", ALL)
@pytest.mark.parametrize("name", [None, 1, b"a", ["a"]])
def test_what_is_no_text_is_refused(check: Callable[[Any], str], name: Any) -> None:
    with pytest.raises(InvalidInput):
        check(name)


@pytest.mark.parametrize("first", [".", "_", "-"])
def test_a_topic_and_a_prefix_begin_with_a_letter_or_a_digit_an_id_need_not(first: str) -> None:
    for refuses in (check_topic, check_prefix):
        with pytest.raises(InvalidInput):
            refuses(first + "a")
    for accepts in (check_id, check_worker):
        assert accepts(first + "a") == first + "a"


def test_only_a_worker_has_no_colon() -> None:
    for check in (check_topic, check_id, check_prefix):
        assert check("app:mx-rmq") == "app:mx-rmq"
    with pytest.raises(InvalidInput):
        check_worker("a:b")


@pytest.mark.parametrize("mark", "@/+=~")
def test_only_an_id_may_have_what_urls_and_addresses_have(mark: str) -> None:
    for id in (f"a{mark}b", mark):
        assert check_id(id) == id
    for check in (check_topic, check_worker, check_prefix):
        with pytest.raises(InvalidInput):
            check(f"a{mark}b")


@pytest.mark.parametrize(
    ("check", "rule"),
    [
        (
            check_topic,
            ". _ - :, at most 128 characters, the first a letter or a digit",
        ),
        (check_id, ". _ - : @ / + = ~, at most 128 characters"),
        (check_worker, ". _ -, at most 64 characters"),
        (check_prefix, ". _ - :, at most 64 characters, the first a letter or a digit"),
    ],
)
def test_the_rule_is_said_in_words(check: Callable[[str], str], rule: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check("a b")
    assert str(caught.value).endswith(f"'a b' must consist of letters, digits and {rule}")


@pytest.mark.parametrize(
    ("check", "what"),
    [
        (check_topic, "topic"),
        (check_id, "message id"),
        (check_worker, "worker"),
        (check_prefix, "prefix"),
    ],
)
def test_the_error_says_what_is_wrong_and_stays_short(
    check: Callable[[str], str], what: str
) -> None:
    with pytest.raises(InvalidInput, match=f"^{what} 'xxx") as caught:
        check("x" * 1_000_000)
    assert len(str(caught.value)) < 200
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, MxRmqError)


# keys


@pytest.mark.parametrize(
    "key",
    ["a", " ", "Zürich", "{x}", "tenant:7/a*", "x" * 128, "\U0001f600" * 128, "a\u2028b"],
    ids=ascii,
)
def test_a_key_may_be_almost_any_text(key: str) -> None:
    assert check_key(key) == key
    assert len(key.encode()) <= 512


@pytest.mark.parametrize(
    "key",
    ["", None, 5, b"a", ["a"], True, "\udcff", "a\tb", "a\n", "\x00", "\x7f", "\x85", "x" * 129],
    ids=ascii,
)
def test_a_key_that_could_leave_its_line_is_refused(key: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_key(key)
    assert str(caught.value) == (
        f"key={key!r:.80} is not a string of 1 to 128 characters without control characters"
    )
