"""What `mx-rmq worker` logs about the messages that it handled.

While there are few, each message that is completed, snoozed, parked or released gets a line;
`EventLog` has one for every other outcome. When there are many, each topic gets a line every ten
seconds that counts all outcomes. Completed messages are then counted per call, because an event for
each would slow the worker down.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Final, get_args

from mx_rmq.core import events
from mx_rmq.core.events import OUTCOMES
from mx_rmq.core.text import count, duration, took
from mx_rmq.safe_log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from mx_rmq.core.events import Event
    from mx_rmq.runtime.event_bus import Events

logger = get_logger("mx_rmq")

FEW: Final = 10  # messages per second that get a line each
SUMMARY_EVERY: Final = 10.0  # seconds
SAMPLE: Final = 20  # durations kept of the messages that one call completed, for the median
TOPICS: Final = 10  # topics that get a separate line in a summary: the busiest

UNCOUNTED: Final = [kind for kind in OUTCOMES if kind is not events.Completed]
"""Outcomes that need an event each; completed messages are counted per call."""

_Line = events.Completed | events.Snoozed | events.Parked | events.Released
_LINES: Final = get_args(_Line)


@dataclass(slots=True)
class _Tally:
    """What was handled since the last summary, in one topic or in several."""

    outcomes: Counter[str] = field(default_factory=Counter)
    sample: list[float] = field(default_factory=list)
    longest: float = 0.0

    def add(self, other: _Tally) -> None:
        self.outcomes += other.outcomes
        self.sample += other.sample
        self.longest = max(self.longest, other.longest)


class HandledLog:
    """Logs what the workers of one process handle. Runs in their event loop."""

    def __init__(self, bus: Events) -> None:
        self._bus = bus
        self._topics: dict[str, _Tally] = {}  # since the last summary; empty while there are few
        self._since = 0.0  # when the last summary was written, or the first one began
        self._second_at = 0.0  # when the current second began
        self._in_second = 0  # messages handled in it
        self._end_lines: Callable[[], None] | None = None  # None: there are many

    def listen(self) -> None:
        """Start logging."""
        self._bus.count_completed(self._count_completed)
        self._bus.subscribe(self._count, *UNCOUNTED)
        self._bus.subscribe(lambda _: self._summarise(), events.WorkerStopped)
        self._start_lines()

    def _start_lines(self) -> None:
        self._end_lines = self._bus.subscribe(self._line, *_LINES)

    def _line(self, event: _Line) -> None:
        if self._end_lines is not None:  # else it was one too many, and is counted
            _log_line(event)

    def _count_completed(self, topic: str, seconds: list[float]) -> None:
        self._see(len(seconds))
        if self._end_lines is None and seconds:
            tally = self._tally(topic)
            tally.outcomes["completed"] += len(seconds)
            tally.sample += seconds[:SAMPLE]
            tally.longest = max(tally.longest, *seconds)

    def _count(self, event: Event) -> None:
        self._see(1)
        if self._end_lines is None:
            tally = self._tally(event.topic)  # type: ignore[union-attr] # those in OUTCOMES have one
            tally.outcomes[OUTCOMES[type(event)]] += 1

    def _tally(self, topic: str) -> _Tally:
        return self._topics.setdefault(topic, _Tally())

    def _see(self, number: int) -> None:
        """Count messages, and switch to summaries if there are many in a second."""
        now = time.monotonic()
        if self._end_lines is not None and now - self._second_at >= 1:
            self._second_at, self._in_second = now, 0
        self._in_second += number
        if self._end_lines is not None and self._in_second > FEW:
            self._end_lines()
            self._end_lines, self._since = None, now
            asyncio.get_running_loop().call_later(1.0, self._after_second)

    def _after_second(self) -> None:
        """Write a summary if it is time, or if there are few messages again."""
        calm, self._in_second = self._in_second <= FEW, 0
        if calm or time.monotonic() - self._since >= SUMMARY_EVERY:
            self._summarise()
        if calm:
            self._start_lines()
        else:
            asyncio.get_running_loop().call_later(1.0, self._after_second)

    def _summarise(self) -> None:
        now = time.monotonic()
        seconds, self._since = now - self._since, now
        topics, self._topics = self._topics, {}
        busiest = sorted(topics.items(), key=lambda one: -one[1].outcomes.total())
        for topic, tally in busiest[:TOPICS]:
            _log_summary(topic, tally, seconds, {"topic": topic})
        if others := busiest[TOPICS:]:
            rest = _Tally()
            for _, tally in others:
                rest.add(tally)
            _log_summary(count(len(others), "other topic"), rest, seconds, {"topics": len(others)})


def _log_line(event: _Line) -> None:
    about = {"event": type(event).__name__, "topic": event.topic, "message_id": event.id}
    if isinstance(event, events.Released):
        log = logger.about({"mx_rmq": about})
        log.info("%s %s: released, another worker may take it", event.topic, event.id)
        return
    if isinstance(event, events.Snoozed):
        why = f": {event.reason}" if event.reason else ""
        log = logger.about({"mx_rmq": about})
        log.info("%s %s: snoozed for %g s%s", event.topic, event.id, event.delay, why)
        return
    if isinstance(event, events.Parked):
        most = "" if event.timeout is None else f", at most {duration(event.timeout)}"
        log = logger.about({"mx_rmq": about})
        log.info("%s %s: waits %s%s", event.topic, event.id, event.reason, most)
        return
    again = f" (attempt {event.attempt})" if event.attempt > 1 else ""
    log = logger.about(
        {"mx_rmq": {**about, "attempt": event.attempt, "seconds": round(event.seconds, 6)}}
    )
    log.info("%s %s: completed in %s%s", event.topic, event.id, took(event.seconds), again)


def _log_summary(title: str, tally: _Tally, seconds: float, about: dict[str, str | int]) -> None:
    counts = {word: tally.outcomes[word] for word in OUTCOMES.values() if tally.outcomes[word]}
    line = (
        f"{', '.join(f'{number:,} {word}' for word, number in counts.items())} in {seconds:.0f} s"
    )
    fields: dict[str, object] = {"event": "Handled", **about, **counts, "within": seconds}
    if tally.sample:
        fields["p50"], fields["longest"] = median(tally.sample), tally.longest
        line += f"; p50 {took(median(tally.sample))}, longest {took(tally.longest)}"
    logger.about({"mx_rmq": fields}).info("%s: %s", title, line)
