"""What the worker says about what it handled: lines while they are few, else summaries."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq.cli.handled_log import FEW, SUMMARY_EVERY, TOPICS, HandledLog
from mx_rmq.core.events import Completed, Died, Parked, Released, Retried, Snoozed, WorkerStopped
from mx_rmq.logs import JsonFormatter
from mx_rmq.runtime.event_bus import Events

if TYPE_CHECKING:
    from collections.abc import Callable


class Stage:
    """A bus with a clock and a loop of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bus = Events()
        self.now = 100.0
        self.calls: list[tuple[float, Callable[[], None]]] = []
        monkeypatch.setattr("mx_rmq.cli.handled_log.time.monotonic", lambda: self.now)
        monkeypatch.setattr(asyncio, "get_running_loop", lambda: self)
        HandledLog(self.bus).listen()

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        self.calls.append((self.now + seconds, callback))

    def wait(self, seconds: float) -> None:
        """Let time pass, second by second."""
        for _ in range(round(seconds)):
            self.now += 1
            due = [one for one in self.calls if one[0] <= self.now]
            self.calls = [one for one in self.calls if one[0] > self.now]
            for _, callback in due:
                callback()

    def complete(
        self, count: int = 1, topic: str = "t", seconds: float = 0.003, **more: Any
    ) -> None:
        """Do as the lifecycle does."""
        self.bus.emit_completed(topic, [seconds] * count)
        if Completed in self.bus.wanted:
            for number in range(count):
                self.bus.emit(Completed(topic, str(number), more.get("attempt", 1), seconds))


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Stage:
    caplog.set_level(logging.INFO)
    return Stage(monkeypatch)


def test_each_of_a_few_has_a_line(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.complete()
    stage.complete(seconds=1.24, attempt=2)
    stage.bus.emit(Released("t", "a"))
    stage.bus.emit(Snoozed("t", "b", 1, 30.0))
    stage.bus.emit(Snoozed("t", "c", 1, 1.5, "429"))
    stage.bus.emit(Parked("t", "d", None, "for signal approval"))
    stage.bus.emit(Parked("t", "e", 7 * 86_400, "for signal approval"))
    assert caplog.messages == [
        "t 0: completed in 3 ms",
        "t 0: completed in 1.2 s (attempt 2)",
        "t a: released, another worker may take it",
        "t b: snoozed for 30 s",
        "t c: snoozed for 1.5 s: 429",
        "t d: waits for signal approval",
        "t e: waits for signal approval, at most 7 d 0 h",
    ]


def test_many_snoozes_are_summed_up(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(500):
        stage.bus.emit(Snoozed("t", str(number), 1, 5.0))
    stage.wait(SUMMARY_EVERY)
    assert len(caplog.messages) == FEW + 1
    assert caplog.messages[-1].startswith(f"t: {500 - FEW} snoozed in ")


def test_failures_have_a_line_elsewhere(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.bus.emit(Retried("t", "a", 1, 2.0, "ValueError: x"))
    stage.bus.emit(Died("t", "a", 1, "x"))
    assert caplog.messages == []


def test_as_many_as_are_few_in_every_second_have_a_line_each(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        stage.complete(FEW)
        stage.wait(1)
    assert len(caplog.messages) == 5 * FEW
    assert Completed in stage.bus.wanted


def test_many_are_summed_up_every_ten_seconds_and_make_no_events(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    for second in range(round(2 * SUMMARY_EVERY)):
        stage.complete(500)
        assert Completed not in stage.bus.wanted
        stage.complete(1, "other", seconds=0.2)
        if not second % 10:
            stage.complete(1, seconds=1.5)
            stage.bus.emit(Retried("t", "a", 1, 2.0, "ValueError: x"))
            stage.bus.emit(Died("t", "b", 3, "x"))
        stage.wait(1)
    assert caplog.messages == 2 * [
        "t: 5,001 completed, 1 retried, 1 dead in 10 s; p50 3 ms, longest 1.5 s",
        "other: 10 completed in 10 s; p50 200 ms, longest 200 ms",
    ]


def test_after_many_few_have_lines_again(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.complete(50)
    stage.wait(1)
    assert Completed not in stage.bus.wanted
    stage.wait(1)
    stage.complete()
    stage.wait(60)
    assert caplog.messages == [
        "t: 50 completed in 2 s; p50 3 ms, longest 3 ms",
        "t 0: completed in 3 ms",
    ]
    assert not stage.calls


def test_each_is_in_a_line_or_in_a_summary_never_in_both(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(FEW + 5):
        stage.bus.emit(Released("t", str(number)))
    stage.wait(2)
    assert len(caplog.messages) == FEW + 1
    assert caplog.messages[-1] == "t: 5 released in 2 s"


def test_a_worker_that_stops_says_what_was_not_summed_up_yet(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.complete(50)
    stage.bus.emit(WorkerStopped("w", clean=True))
    stage.bus.emit(WorkerStopped("w", clean=True))
    assert caplog.messages == ["t: 50 completed in 0 s; p50 3 ms, longest 3 ms"]


def test_of_very_many_topics_the_busiest_are_named(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.complete(20, "first")
    for number in range(50):
        stage.complete(number + 1, f"t{number}")
    stage.wait(2)
    assert len(caplog.messages) == TOPICS + 1
    assert caplog.messages[0].startswith("t49: 50 completed in 2 s")
    assert caplog.messages[-1].startswith("41 other topics: 840 completed in 2 s")


def test_lines_and_summaries_have_fields(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.complete(attempt=2)
    stage.complete(50)
    stage.wait(2)
    line, summary = (json.loads(JsonFormatter().format(one)) for one in caplog.records)
    assert (line["event"], line["topic"], line["message_id"]) == ("Completed", "t", "0")
    assert (line["attempt"], line["seconds"]) == (2, 0.003)
    assert (summary["event"], summary["topic"], summary["completed"]) == ("Handled", "t", 50)
    assert (summary["within"], summary["p50"], summary["longest"]) == (2.0, 0.003, 0.003)
