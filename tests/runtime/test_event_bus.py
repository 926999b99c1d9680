"""Events and those who hear of them."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

from mx_rmq.core import events
from mx_rmq.runtime.event_bus import Events
from mx_rmq.runtime.event_log import LOGGED, EventLog

if TYPE_CHECKING:
    from collections.abc import Callable

DONE = events.Completed("t", "a", 1, 0.1)
AGAIN = events.Retried("t", "a", 1, 2.0, "ValueError: x")


def test_a_subscriber_hears_of_the_kinds_that_it_named_and_of_all_without() -> None:
    some: list[Any] = []
    every: list[Any] = []
    bus = Events()
    bus.subscribe(some.append, events.Completed)
    bus.subscribe(every.append)
    bus.emit(DONE)
    bus.emit(AGAIN)
    assert some == [DONE]
    assert every == [DONE, AGAIN]


def test_who_has_unsubscribed_hears_nothing_and_may_do_it_twice() -> None:
    heard: list[Any] = []
    bus = Events()
    unsubscribe = bus.subscribe(heard.append)
    other = bus.subscribe(heard.append)
    unsubscribe()
    unsubscribe()
    bus.emit(DONE)
    assert heard == [DONE]
    other()
    assert events.Completed not in bus.wanted


def test_a_bus_knows_whether_anybody_wants_a_kind() -> None:
    bus = Events()
    assert events.Completed not in bus.wanted
    bus.subscribe(lambda event: None, events.Retried)
    assert events.Retried in bus.wanted
    assert events.Completed not in bus.wanted
    bus.subscribe(lambda event: None)
    assert events.Completed in bus.wanted


def test_who_counts_hears_of_completed_messages_and_wants_no_events(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counted: list[tuple[str, list[float]]] = []
    bus = Events()

    def fail(topic: str, seconds: list[float]) -> None:
        raise ValueError("no")

    bus.count_completed(fail)
    bus.count_completed(lambda topic, seconds: counted.append((topic, seconds)))
    bus.emit_completed("t", [0.1, 0.2])
    assert counted == [("t", [0.1, 0.2])]
    assert bus.wanted == frozenset()
    assert caplog.messages == ["a subscriber failed on completed messages"]


def test_a_subscriber_that_fails_hurts_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[Any] = []
    bus = Events()

    def fail(event: Any) -> None:
        raise ValueError

    bus.subscribe(fail)
    bus.subscribe(heard.append)
    bus.emit(DONE)
    assert heard == [DONE]
    assert "a subscriber failed on Completed" in caplog.text


def test_who_unsubscribes_while_he_is_called_is_not_called_again() -> None:
    heard: list[Any] = []
    bus = Events()

    def once(event: Any) -> None:
        heard.append(event)
        unsubscribe()

    unsubscribe = bus.subscribe(once)
    bus.emit(DONE)
    bus.emit(DONE)
    assert heard == [DONE]


@pytest.mark.parametrize(
    ("event", "level", "words"),
    [
        (
            events.WorkerStarted("w", ("a", "b"), 3),
            "INFO",
            "worker w started; topics: a, b; concurrency: 3",
        ),
        (events.WorkerStopping("w", 2, 30.0), "INFO", "2 running, 30 s"),
        (events.WorkerStopped("w", True), "INFO", "everything is settled or handed back"),
        (events.WorkerStopped("w", False), "WARNING", "other workers take over the rest"),
        (AGAIN, "WARNING", "t a: attempt 1 failed, retrying in 2 s: ValueError: x"),
        (events.Died("t", "a", 3, "exhausted"), "ERROR", ": exhausted"),
        (events.Quarantined("t", "a", "not JSON"), "ERROR", "quarantined: not JSON"),
        (events.Postponed("of-a-bus", "a", 1.5, "too new"), "WARNING", "upgrade this worker"),
        (events.LeaseLost("t", "a", 7, "app.f"), "WARNING", "lease lost, so the result of app.f"),
        (
            events.Aborted("t", "a", "app.f", 3.21),
            "WARNING",
            "t a: aborted; app.f was stopped after 3.2 s",
        ),
        (events.Aborted("t", "a", "app.f"), "WARNING", "t a: aborted; app.f had not begun"),
        (events.TakenOver("t", "a", "w9"), "WARNING", "taken over from w9"),
        (events.LoopBlocked("app.f", 1.25, "STACK"), "WARNING", "app.f blocks the event loop"),
        (
            events.ServerLost("refused"),
            "WARNING",
            "the server is unreachable; still trying: refused",
        ),
        (events.ServerBack(2.0), "WARNING", "the server is back after 2.0 s"),
        (events.CronFired("t", "cron-1", 1.0), "INFO", "t cron-1: cron fired"),
    ],
)
def test_every_event_that_is_logged_has_its_line(
    caplog: pytest.LogCaptureFixture, event: Any, level: str, words: str
) -> None:
    caplog.set_level(logging.INFO, "mx_rmq")
    assert isinstance(event, LOGGED)
    EventLog().log(event)
    (record,) = caplog.records
    assert record.levelname == level
    assert words in record.getMessage()


@pytest.mark.parametrize("error", [asyncio.CancelledError(), GeneratorExit(), BaseException()])
async def test_no_exception_of_a_subscriber_reaches_the_emitter(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[Any] = []
    bus = Events()

    def fail(event: Any) -> None:
        raise error

    bus.subscribe(fail)
    bus.subscribe(heard.append)
    bus.emit(DONE)
    await asyncio.sleep(0)
    assert heard == [DONE]
    assert "a subscriber failed on Completed" in caplog.text


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("error", [SystemExit(7), KeyboardInterrupt()])
def test_a_subscriber_may_end_the_program_but_not_in_the_middle_of_our_work(
    error: BaseException, factory: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    bus = Events()
    went_on: list[bool] = []

    def leave(event: Any) -> None:
        raise error

    async def work() -> None:
        bus.emit(DONE)
        went_on.append(True)
        await asyncio.sleep(60)

    bus.subscribe(leave)
    with pytest.raises(type(error)), asyncio.Runner(loop_factory=factory) as runner:
        runner.run(work())
    assert went_on == [True]
