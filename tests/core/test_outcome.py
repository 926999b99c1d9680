"""What becomes of a delivery."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import msgspec
import pytest

from mx_rmq.core.durations import LONGEST
from mx_rmq.core.errors import InvalidInput, NewerRecord
from mx_rmq.core.handler import Handler
from mx_rmq.core.message import MAX_ERRORS, Message
from mx_rmq.core.outcome import (
    CRASH_SPREAD,
    LONGEST_SPREAD,
    LONGEST_WAIT,
    SHORTEST_WAIT,
    Circumstances,
    DeadLetter,
    Reject,
    Retry,
    RetryLater,
    Snooze,
    SnoozeLater,
    after_crash,
    after_error,
    expired,
    postponed,
)
from mx_rmq.core.retry import ByError, Delays, as_dict

NOW = 1_800_000_000_000
BOOM = ValueError("boom")


def at(chance: float = 0.0) -> Circumstances:
    return Circumstances(now=NOW, worker="w1", chance=chance)


def message(**fields: Any) -> Message:
    return Message(v=1, id="m", topic="t", payload=msgspec.Raw(b"1"), created_at=NOW, **fields)


def handler(**options: Any) -> Handler:
    def function(payload: Any) -> None: ...

    return Handler.of("t", function, **options)


def retried(outcome: object) -> RetryLater:
    assert isinstance(outcome, RetryLater)
    return outcome


def dead(outcome: object) -> DeadLetter:
    assert isinstance(outcome, DeadLetter)
    return outcome


# a handler raised


def test_an_error_is_retried_after_the_handlers_policy_and_noted_in_the_message() -> None:
    outcome = retried(after_error(message(), handler(retry=[3, 9]), BOOM, at()))
    assert outcome.delay == outcome.message.delay == 3000
    assert outcome.error is BOOM
    assert outcome.message.attempts == 1
    assert outcome.message.reason == ""
    (failure,) = outcome.message.errors
    assert (failure.type, failure.text, failure.at, failure.worker) == (
        "ValueError",
        "boom",
        NOW,
        "w1",
    )


def test_the_next_failure_takes_the_next_delay() -> None:
    outcome = retried(after_error(message(attempts=1), handler(retry=[3, 9]), BOOM, at()))
    assert outcome.delay == 9000


def test_a_retry_with_a_delay_goes_before_every_policy() -> None:
    own = message(retry=as_dict(Delays((7,))))
    assert retried(after_error(own, handler(retry=3), Retry(0.25), at())).delay == 250
    assert retried(after_error(own, handler(retry=3), Retry(0), at())).delay == 0


def test_a_retry_without_a_delay_asks_the_policy() -> None:
    assert retried(after_error(message(), handler(retry=3), Retry(), at())).delay == 3000


def test_a_retry_counts_as_an_attempt_and_can_exhaust_them() -> None:
    outcome = dead(after_error(message(attempts=4), handler(), Retry(1), at()))
    assert outcome.message.reason.startswith("exhausted: failed 5 times")


def test_a_retry_with_a_delay_is_kept_even_if_the_policy_would_give_up() -> None:
    never = ByError({Exception: None}, otherwise=None)
    assert retried(after_error(message(), handler(retry=never), Retry(2), at())).delay == 2000


@pytest.mark.parametrize("delay", [-1, -0.001, inf, -inf, nan])
def test_a_retry_refuses_a_delay_that_is_none(delay: float) -> None:
    with pytest.raises(InvalidInput, match="from 0 to"):
        Retry(delay)


def test_a_retry_refuses_a_delay_that_the_store_would_refuse() -> None:
    assert Retry(LONGEST).delay == LONGEST
    with pytest.raises(InvalidInput):
        Retry(LONGEST + 1)


def test_a_retry_says_why() -> None:
    assert str(Retry(1, "the bank is closed")) == "the bank is closed"
    assert str(Retry()) == "the handler asked for another attempt"


def test_a_snooze_counts_nothing_and_says_when() -> None:
    own = message(attempts=4, crashes=1)
    outcome = after_error(own, handler(max_attempts=1), Snooze(2.5, "429"), at())
    assert outcome == SnoozeLater(msgspec.structs.replace(own, due=NOW + 2500), 2500, "429")


@pytest.mark.parametrize("attempts", [0, 1])
def test_a_snoozed_message_is_ready_when_its_snooze_ends(attempts: int) -> None:
    own = message()
    if attempts:
        own = retried(after_error(own, handler(retry=3), BOOM, at())).message
    outcome = after_error(own, handler(), Snooze(60), at())
    assert isinstance(outcome, SnoozeLater)
    assert outcome.message.ready_at == NOW + 60_000


@pytest.mark.parametrize("seconds", [-1, inf, nan, None, "5", LONGEST + 1])
def test_a_snooze_refuses_what_is_no_duration(seconds: Any) -> None:
    with pytest.raises(InvalidInput, match="Snooze seconds="):
        Snooze(seconds)


def test_a_snooze_may_hold_back_every_message_of_the_key() -> None:
    outcome = after_error(message(key="tenant-7"), handler(), Snooze(60, "429", key=True), at())
    assert isinstance(outcome, SnoozeLater)
    assert outcome.key
    alone = after_error(message(key="tenant-7"), handler(), Snooze(60), at())
    assert isinstance(alone, SnoozeLater)
    assert not alone.key


def test_a_message_without_a_key_snoozes_only_itself() -> None:
    outcome = after_error(message(), handler(), Snooze(60, key=True), at())
    assert isinstance(outcome, SnoozeLater)
    assert not outcome.key


def test_a_snooze_takes_no_other_key() -> None:
    with pytest.raises(InvalidInput, match="key='tenant-7' is not True or False: it means the"):
        Snooze(60, key="tenant-7")  # type: ignore[arg-type]


def test_a_reason_of_snooze_that_is_no_string_is_refused() -> None:
    with pytest.raises(InvalidInput, match="Snooze reason=True is not a string"):
        Snooze(60, True)  # type: ignore[arg-type] # key=True was meant


def test_a_snooze_that_was_carelessly_subclassed_is_a_failure() -> None:
    class Later(Snooze):
        def __init__(self) -> None: ...

    assert retried(after_error(message(), handler(retry=3), Later(), at())).delay == 3000


def test_a_reject_is_dead_at_once_whatever_attempts_are_left() -> None:
    error = Reject("no such customer")
    outcome = dead(after_error(message(max_attempts=100), handler(retry=1), error, at()))
    assert outcome.message.reason == "rejected: no such customer"
    assert outcome.message.attempts == 1
    assert outcome.error is error


def test_a_reason_that_no_record_can_hold_is_made_storable() -> None:
    outcome = dead(after_error(message(), handler(), Reject("bad \udcff" + "x" * 9000), at()))
    assert outcome.message.reason.encode()
    assert len(outcome.message.reason) <= 2048


@pytest.mark.parametrize(("limit", "times"), [(1, "once"), (2, "2 times"), (5, "5 times")])
def test_the_last_attempt_is_the_one_that_the_handler_allows(limit: int, times: str) -> None:
    if limit > 1:
        before = message(attempts=limit - 2)
        retried(after_error(before, handler(max_attempts=limit), BOOM, at()))
    outcome = dead(
        after_error(message(attempts=limit - 1), handler(max_attempts=limit), BOOM, at())
    )
    assert outcome.message.reason.startswith(f"exhausted: failed {times}")
    assert outcome.message.attempts == limit


@pytest.mark.parametrize(("own", "theirs"), [(1, 5), (7, 2)])
def test_the_messages_own_limit_goes_before_the_handlers(own: int, theirs: int) -> None:
    limited = handler(max_attempts=theirs)
    dead(after_error(message(max_attempts=own, attempts=own - 1), limited, BOOM, at()))
    if own > 1:
        again = message(max_attempts=own, attempts=own - 2)
        retried(after_error(again, limited, BOOM, at()))


def test_an_error_that_a_policy_gives_up_is_dead_at_once() -> None:
    policy = ByError({ValueError: None}, otherwise=1)
    outcome = dead(after_error(message(), handler(retry=policy), BOOM, at()))
    assert outcome.message.reason.startswith("not retried: ValueError")
    assert retried(after_error(message(), handler(retry=policy), OSError(), at())).delay == 1000


def test_the_messages_own_policy_goes_before_the_handlers() -> None:
    own = message(retry=as_dict(Delays((7, 8))))
    assert retried(after_error(own, handler(retry=3), BOOM, at())).delay == 7000


@pytest.mark.parametrize("unreadable", [{}, {"type": "lunar"}, {"type": "delays", "delays": []}])
def test_an_own_policy_that_nobody_can_read_leaves_it_to_the_handler(unreadable: Any) -> None:
    own = message(retry=unreadable)
    assert retried(after_error(own, handler(retry=3), BOOM, at())).delay == 3000


def test_chance_reaches_the_policy() -> None:
    assert retried(after_error(message(), handler(), BOOM, at(0.0))).delay == 1000
    assert retried(after_error(message(), handler(), BOOM, at(0.5))).delay == 750


def test_crashes_use_up_no_attempts() -> None:
    crashed = message(attempts=6, crashes=5)  # so one failure
    outcome = retried(after_error(crashed, handler(max_attempts=3, retry=[1, 2, 3]), BOOM, at()))
    assert outcome.delay == 2000
    last = message(attempts=7, crashes=5)
    assert dead(after_error(last, handler(max_attempts=3), BOOM, at())).message.attempts == 8


def test_only_the_latest_errors_are_kept() -> None:
    failing = message(max_attempts=100)
    for number in range(MAX_ERRORS + 3):
        failing = retried(after_error(failing, handler(), ValueError(number), at())).message
    assert [one.text for one in failing.errors] == [str(n) for n in range(3, MAX_ERRORS + 3)]


def test_an_error_whose_text_cannot_be_had_is_decided_about_all_the_same() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    outcome = retried(after_error(message(), handler(), Mute(), at()))
    assert outcome.message.errors[0].type == "Mute"


# a worker went silent


def test_the_first_crash_is_retried_at_once() -> None:
    outcome = retried(after_crash(message(), 3, "w9", at(0.99)))
    assert outcome.delay == 0
    assert (outcome.message.attempts, outcome.message.crashes, outcome.message.failures) == (
        1,
        1,
        0,
    )
    assert outcome.message.errors[0].type == "WorkerLost"
    assert outcome.message.errors[0].worker == "w9"
    assert "w9" in outcome.message.errors[0].text


@pytest.mark.parametrize("crashes", [2, 3, 4])
def test_from_the_second_crash_on_they_come_back_spread_out(crashes: int) -> None:
    before = message(attempts=crashes - 1, crashes=crashes - 1)
    most = CRASH_SPREAD * 2**crashes * 1000
    assert retried(after_crash(before, 50, "w9", at(0.0))).delay == 0
    assert retried(after_crash(before, 50, "w9", at(0.5))).delay == most / 2
    assert retried(after_crash(before, 50, "w9", at(0.999))).delay == round(most * 0.999)


@pytest.mark.parametrize(
    "crashes",
    [
        5,
        40,
        1000,
        pytest.param(
            2000,
        ),
    ],
)
def test_the_spread_has_a_bound(crashes: int) -> None:
    before = message(attempts=crashes, crashes=crashes)
    outcome = retried(after_crash(before, 10_000, "w9", at(0.999)))
    assert outcome.delay == round(LONGEST_SPREAD * 0.999 * 1000)


def test_crashes_have_a_limit_of_their_own() -> None:
    retried(after_crash(message(attempts=1, crashes=1), 3, "w", at()))
    outcome = dead(after_crash(message(attempts=2, crashes=2), 3, "w", at()))
    assert outcome.message.reason == "crashed: its worker was lost 3 times"
    assert outcome.message.crashes == 3


def test_failures_use_up_no_crashes() -> None:
    retried(after_crash(message(attempts=50), 2, "w", at()))


def test_a_message_that_expired_while_it_was_held_counts_no_crash() -> None:
    late = message(ttl=1000)
    now = Circumstances(now=NOW + 1500, worker="w1", chance=0.0)
    outcome = dead(after_crash(late, 1, "w2", now))
    assert outcome.message == msgspec.structs.replace(
        late, reason="expired: 0.500 s after its time to live"
    )
    assert retried(after_crash(late, 2, "w2", at())).message.crashes == 1


def test_one_crash_may_be_the_limit() -> None:
    outcome = dead(after_crash(message(), 1, "w", at()))
    assert outcome.message.reason == "crashed: its worker was lost once"


def test_the_messages_own_attempts_do_not_limit_its_crashes() -> None:
    retried(after_crash(message(max_attempts=1), 3, "w", at()))


# its time is over


def test_a_message_without_a_time_to_live_never_expires() -> None:
    assert expired(message(), 2**52) is None


def test_a_message_expires_exactly_at_the_end_of_its_time_to_live() -> None:
    mortal = message(ttl=1000)
    assert expired(mortal, NOW + 999) is None
    outcome = expired(mortal, NOW + 1000)
    assert outcome is not None
    assert outcome.message.reason == "expired: 0.000 s after its time to live"
    late = expired(mortal, NOW + 3500)
    assert late is not None
    assert late.message.reason == "expired: 2.500 s after its time to live"
    assert late.message.attempts == 0


def test_the_waits_of_a_newer_record_grow_with_its_age_and_end_at_a_minute() -> None:
    def wait(age: float | None) -> float:
        created = {} if age is None else {"created_at": round((10_000 - age) * 1000)}
        newer = NewerRecord("newer", msgspec.json.encode({"v": 2, **created}))
        return postponed(newer, Circumstances(now=10_000_000, worker="w", chance=0.5)).delay / 1000

    assert wait(0) == wait(3) == SHORTEST_WAIT
    assert wait(40) == 10
    assert wait(9_000) == wait(None) == LONGEST_WAIT
