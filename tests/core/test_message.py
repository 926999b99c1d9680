"""Messages as values."""

from __future__ import annotations

import re
from math import inf, nan
from typing import Any

import msgspec
import pytest

from mx_rmq.core import codec
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.message import MAX_ERRORS, MAX_PATH, VERSION, Failure, Message, Priority, State
from mx_rmq.core.text import end_of, ends_of


def failure(number: int) -> Failure:
    return Failure(type="ValueError", text=f"attempt {number}", at=number)


def draft(**fields: Any) -> Message:
    return Message.new(msgspec.Raw(b"1"), **fields)


def new(**fields: object) -> Message:
    base = Message(v=VERSION, id="a", topic="t", payload=msgspec.Raw(b"1"), created_at=1000)
    return msgspec.structs.replace(base, **fields)


def test_a_failure_has_the_path_of_its_error_unless_it_is_built_in() -> None:
    assert Failure.of(ValueError("no"), at=1).path == ""
    assert Failure.of(InvalidInput("no"), at=1).path == "mx_rmq.core.errors.InvalidInput"
    long = type("E" * 300, (Exception,), {"__module__": "m"})
    assert len(Failure.of(long(), at=1).path) == MAX_PATH


def test_a_new_message_has_never_been_tried() -> None:
    message = Message.new(
        msgspec.Raw(b"{}"),
        topic="t",
        id="own",
        priority=Priority.LOW,
        at=7,
        max_attempts=3,
        retry={"base": 2},
        ttl=9,
        headers={"k": "v"},
        key="tenant-7",
        cost=3,
    )
    assert message == Message(
        v=VERSION,
        id="own",
        topic="t",
        payload=msgspec.Raw(b"{}"),
        created_at=0,
        priority=Priority.LOW,
        attempts=0,
        crashes=0,
        max_attempts=3,
        retry={"base": 2},
        ttl=9,
        headers={"k": "v"},
        errors=[],
        reason="",
        delay=0,
        due=7,
        key="tenant-7",
        cost=3,
    )


@pytest.mark.parametrize(
    ("field", "least"), [("delay", 0), ("at", 0), ("ttl", 1), ("max_attempts", 1)]
)
def test_a_number_of_a_draft_is_whole_and_in_range(field: str, least: int) -> None:
    for good in (least, least + 1, 2**52 - 1):
        found = getattr(draft(**{field: good}), "due" if field == "at" else field)
        assert found == good
    for bad in (least - 1, 1.5, nan, inf, True, "1", 2**53):
        with pytest.raises(InvalidInput, match=f"{field}={bad!r} is not a whole number"):
            draft(**{field: bad})


@pytest.mark.parametrize("cost", [0, -1, 1.5, True, "2", None, 10**9 + 1])
def test_a_cost_is_a_whole_number_from_1(cost: Any) -> None:
    assert draft(cost=10**9).cost == 10**9
    with pytest.raises(InvalidInput, match=f"cost={cost!r} is not a whole number from 1 to"):
        draft(cost=cost)


def test_a_draft_with_a_wrong_key_is_refused() -> None:
    with pytest.raises(InvalidInput, match="key='' is not a string"):
        draft(key="")


def test_a_message_keeps_its_key_and_its_cost_whatever_happens_to_it() -> None:
    message = new(key="k", cost=7)
    for after in (message.failed(failure(1)), message.crashed(failure(1)), message.revived()):
        assert (after.key, after.cost) == ("k", 7)
    assert codec.decode(codec.encode(message)) == message


def test_a_plain_record_has_neither_key_nor_cost() -> None:
    assert {b"key", b"cost"}.isdisjoint(codec.encode(new()).split(b'"'))


@pytest.mark.parametrize("priority", ["urgent", "HIGH", "", None, 1, ["high"], {}])
def test_a_draft_of_an_unknown_priority_is_refused(priority: Any) -> None:
    with pytest.raises(InvalidInput, match=r"priority=.* is not one of high, normal, low"):
        draft(priority=priority)


def test_a_failure_keeps_an_errors_type_and_text_fit_to_be_stored() -> None:
    found = Failure.of(ValueError("bad \udcff" + "x" * 10_000), at=5, worker="w1")
    assert (found.type, found.at, found.worker) == ("ValueError", 5, "w1")
    assert found.text.startswith("bad \\udcffxxx")
    assert len(found.text.encode()) < 3000


def test_a_failure_keeps_the_traceback() -> None:
    with pytest.raises(ValueError, match="bad") as caught:
        raise ValueError("bad")
    found = Failure.of(caught.value, at=5).traceback
    assert found.startswith('  File "')
    assert found.rstrip().endswith('raise ValueError("bad")')


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("12345", "12345"),
        ("123456", "…3456"),
        ("é" * 6, "…éééé"),
        ("\udcff", "…dcff"),
        ("x" * 10_000 + "end", "…xend"),
    ],
)
def test_the_end_of_a_text_is_kept_within_its_limit(text: str, expected: str) -> None:
    assert end_of(text, 5) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("123456", "123456"),
        ("1234567", "12…567"),
        ("\udcff\udcff", "\\u…cff"),
        ("x" * 10_000 + "end", "xx…end"),
    ],
)
def test_both_ends_of_a_text_are_kept_within_its_limit(text: str, expected: str) -> None:
    assert ends_of(text, 6) == expected


@pytest.mark.parametrize(("ttl", "expires"), [(None, None), (0, 1000), (500, 1500)])
def test_a_message_expires_its_ttl_after_it_was_produced(
    ttl: int | None, expires: int | None
) -> None:
    assert new(ttl=ttl).expires_at == expires


def test_a_failure_counts_an_attempt_and_leaves_the_rest() -> None:
    before = new(headers={"k": "v"}, ttl=5)
    after = before.failed(failure(1))
    assert after == new(headers={"k": "v"}, ttl=5, attempts=1, errors=[failure(1)])
    assert (before.attempts, before.errors) == (0, [])


def test_a_crash_counts_an_attempt_that_no_handler_ended() -> None:
    before = new(headers={"k": "v"})
    after = before.crashed(failure(1))
    assert after == new(headers={"k": "v"}, attempts=1, crashes=1, errors=[failure(1)])
    assert (before.attempts, before.crashes) == (0, 0)
    assert (before.failures, after.failures) == (0, 0)


@pytest.mark.parametrize(
    ("history", "attempts", "crashes", "failures"),
    [("", 0, 0, 0), ("f", 1, 0, 1), ("c", 1, 1, 0), ("fcf", 3, 1, 2), ("ccff", 4, 2, 2)],
)
def test_failures_and_crashes_are_counted_apart(
    history: str, attempts: int, crashes: int, failures: int
) -> None:
    message = new()
    for number, what in enumerate(history):
        message = (message.failed if what == "f" else message.crashed)(failure(number))
    assert (message.attempts, message.crashes, message.failures) == (attempts, crashes, failures)
    assert message.errors == [failure(number) for number in range(attempts)]


def test_only_the_latest_failures_are_carried_oldest_first() -> None:
    message = new()
    for number in range(MAX_ERRORS + 5):
        message = message.failed(failure(number))
    assert message.attempts == MAX_ERRORS + 5
    assert message.errors == [failure(number) for number in range(5, MAX_ERRORS + 5)]


def test_a_revived_message_starts_anew_and_keeps_its_errors() -> None:
    dead = new(attempts=3, crashes=2, reason="too many", ttl=5, errors=[failure(1)], max_attempts=3)
    assert dead.revived() == new(errors=[failure(1)], max_attempts=3)


@pytest.mark.parametrize(
    ("message", "ready"),
    [
        (new(), 1000),
        (new(delay=60), 1060),
        (new(due=5000), 5000),
        (new(due=5000, delay=60).failed(failure(7000)), 7060),
        (new(due=9000, delay=60).failed(failure(7000)), 9000),  # failed, then snoozed
        (new(attempts=1), None),  # written by somebody else
    ],
)
def test_a_message_is_ready_when_it_has_waited_as_long_as_it_was_told(
    message: Message, ready: int | None
) -> None:
    assert message.ready_at == ready


def test_messages_do_not_share_what_they_hold() -> None:
    one, two = new(), new()
    assert one.errors is not two.errors
    assert one.headers is not two.headers


def test_a_message_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        new().attempts = 1  # type: ignore[misc]


def test_the_words_for_states_and_priorities_are_the_contracts() -> None:
    states = ["pending", "delayed", "waiting", "processing", "dead", "quarantined"]
    assert [*State] == [*states, "completed"]
    assert [*Priority] == ["high", "normal", "low"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"delay": 1, "at": 2}, "pass either delay=1 or at=2, not both"),
        ({"headers": {"a": 1}}, "headers={'a': 1} is not a dict of str to str"),
        ({"headers": [1]}, "is not a dict of str to str"),
        ({"retry": 5}, "retry=5 is not a dict"),
    ],
)
def test_a_draft_that_no_reader_could_decode_is_refused(
    fields: dict[str, Any], expected: str
) -> None:
    with pytest.raises(InvalidInput, match=re.escape(expected)):
        draft(**fields)


@pytest.mark.parametrize(
    ("fields", "expires_at"),
    [
        ({}, 1100),
        ({"due": 9000}, 1100),
        ({"due": 9000, "requeued": 5000}, 5100),
        ({"due": 9000, "errors": [failure(1)]}, 9100),  # requeued by release 2.0
        ({"due": 9000, "errors": [failure(1)], "attempts": 1}, 1100),  # snoozed after a failure
        ({"due": 9000, "ttl": 50}, 1050),
    ],
)
def test_a_default_ttl_counts_from_the_produce_or_the_requeue(
    fields: dict[str, Any], expires_at: int
) -> None:
    assert new(**fields).with_default_ttl(100).expires_at == expires_at
