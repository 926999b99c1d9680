"""A duration is a number of seconds or a timedelta, wherever one is given."""

from __future__ import annotations

from datetime import timedelta
from math import inf, nan
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import Delays, Exponential, InvalidInput, MessageQueue, Outgoing, Retry, Worker
from mx_rmq.core.durations import LONGEST, as_seconds
from mx_rmq.core.handler import Handler
from mx_rmq.core.retry import policy_of
from mx_rmq.settings import QueueSettings, WorkerSettings

if TYPE_CHECKING:
    from mx_rmq.core.outgoing import ProduceOptions

MINUTE = timedelta(minutes=1)


def handle(payload: Any) -> None: ...


@pytest.mark.parametrize(
    ("given", "expected"),
    [(0, 0.0), (2, 2.0), (0.5, 0.5), (MINUTE, 60.0), (timedelta(milliseconds=1), 0.001)],
)
def test_a_duration_is_seconds_or_a_timedelta(given: Any, expected: float) -> None:
    found = as_seconds("delay=", given)
    assert found == expected
    assert type(found) is float


@pytest.mark.parametrize(
    "given", [-1, timedelta(seconds=-1), inf, nan, True, "5", None, [1], LONGEST + 1]
)
def test_anything_else_is_refused_with_the_value_and_the_rule(given: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        as_seconds("delay=", given)
    text = str(caught.value)
    assert text.startswith("delay=")
    assert text.endswith("is not a number of seconds (or a timedelta) from 0 to 315,360,000")
    assert len(text) < 200


def test_a_timedelta_is_taken_by_produce() -> None:
    options: ProduceOptions = {"delay": MINUTE, "ttl": timedelta(hours=1)}
    outgoing = Outgoing.of("t", 1, options, id=None, key=None)
    assert (outgoing.delay, outgoing.ttl) == (60.0, 3600.0)
    message = outgoing.message(1000)
    assert (message.delay, message.ttl) == (60_000, 3_600_000)


@pytest.mark.parametrize("at", [MINUTE, True, "now", nan, -1, 1e13])
def test_a_time_is_no_duration(at: Any) -> None:
    with pytest.raises(InvalidInput, match="is not a datetime or a number of seconds since 1970"):
        Outgoing(topic="t", payload=1, at=at)


def test_a_timedelta_is_taken_by_handlers_and_retry_policies() -> None:
    assert Handler.of("t", handle, timeout=MINUTE).timeout == 60.0
    assert Handler.of("t", handle, retry=MINUTE).retry == Delays((60.0,))
    assert policy_of([1, MINUTE]) == Delays((1, 60))
    assert Exponential(first=MINUTE, cap=timedelta(hours=1)) == Exponential(60, cap=3600)
    assert Retry(MINUTE).delay == 60.0


def test_a_timedelta_is_taken_by_settings() -> None:
    settings = QueueSettings(url="redis://h", lease=MINUTE, dedup=MINUTE, dlq_ttl=MINUTE)  # type: ignore[arg-type]
    assert (settings.lease, settings.dedup, settings.dlq_ttl) == (60.0, 60.0, 60.0)
    assert WorkerSettings.load(grace=MINUTE).grace == 60.0


def test_a_default_ttl_is_a_duration_of_a_handler_a_cron_and_a_queue() -> None:
    mq = MessageQueue("redis://h", ttl=MINUTE)
    mq.handler("own", ttl=5)(handle)
    mq.handler("queue")(handle)
    mq.cron("* * * * *", topic="tick", ttl=timedelta(seconds=2))(lambda: None)
    assert [handler.ttl for handler in Worker(mq)._handlers().values()] == [5.0, 60.0, 2.0]
    assert MessageQueue("redis://h").settings.ttl is None
    for wrong in (0, -1, "5", True):
        with pytest.raises(InvalidInput, match="ttl="):
            Handler.of("t", handle, ttl=wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="ttl="):
            MessageQueue("redis://h", ttl=wrong)  # type: ignore[arg-type]


def test_the_environment_has_a_default_ttl_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MX_RMQ_TTL", "90")
    assert MessageQueue("redis://h").settings.ttl == 90.0
