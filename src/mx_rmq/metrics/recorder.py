"""Counts a queue's events, and shows the counts as Prometheus metrics.

They are plain numbers, so that counting costs a busy worker next to nothing: adding to one is
several times cheaper than a client library's counter with its lock. Nearly all events come from one
event loop. Another thread that renders them meanwhile sees numbers that are a moment old at worst.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from mx_rmq.core import events
from mx_rmq.core.events import OUTCOMES, Completed
from mx_rmq.metrics.exposition import counter, gauge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client import Metric

    from mx_rmq.queue import MessageQueue

BOUNDS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0),
)
"""Upper bounds of the buckets, in seconds; above the last one there is one more."""

# By metric name; the part after "mx_rmq_" is the field of TopicTally.

HISTOGRAMS: Final = {
    "mx_rmq_handler_seconds": "How long handlers took, however they ended.",
    "mx_rmq_queue_seconds": "Time from when a message was due until its handler started.",
}
TOPIC_COUNTERS: Final = {
    "mx_rmq_leases_lost": "Messages whose lease this worker could not extend in time.",
    "mx_rmq_taken_over": "Messages that this worker took over from one that went silent.",
    "mx_rmq_due": "Delayed messages that this worker made pending when they were due.",
}
CRON_COUNTERS: Final = {
    "mx_rmq_crons_fired": "Ticks for which this worker produced the message.",
    "mx_rmq_crons_missed": "Ticks that no worker fired in time.",
}
SCHEDULE_COUNTERS: Final = {
    "mx_rmq_schedules_fired": "Ticks of a schedule for which this worker produced the message.",
    "mx_rmq_schedules_missed": "Ticks of a schedule that no worker fired in time.",
}
OUTBOX_GAUGES: Final = {
    "mx_rmq_outbox_waiting": ("waiting", "Rows of an outbox to send; at most 100,000 are counted."),
    "mx_rmq_outbox_oldest_seconds": ("oldest", "How long the first of them has waited; 0: none."),
    "mx_rmq_outbox_parked": ("parked", "Rows that can never be sent as they are."),
}
"""By metric name: a field of OutboxMeasured, and the help text."""
MOST_SCHEDULES: Final = 200  # further ones are counted together
OTHERS: Final = "(others)"

SIZES: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
"""Upper bounds of the buckets for batches, in messages: no batch is larger than the last one."""

_LE: Final = [*map(str, BOUNDS), "+Inf"]
_LE_SIZES: Final = [*(f"{size:.1f}" for size in SIZES), "+Inf"]


@dataclass(slots=True)
class Durations:
    """A histogram of seconds."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        self.buckets[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds


@dataclass(slots=True)
class BatchSizes:
    """A histogram of the messages per call of a batch handler."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(SIZES) + 1))
    total: int = 0

    def add(self, size: int) -> None:
        self.buckets[bisect_left(SIZES, size)] += 1
        self.total += size


@dataclass(slots=True)
class TopicTally:
    """What has happened in one topic, as far as this process knows."""

    outcomes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES.values(), 0))
    refused: Counter[str] = field(default_factory=Counter)  # by outcome: the lease was lost
    handler_seconds: Durations = field(default_factory=Durations)
    queue_seconds: Durations = field(default_factory=Durations)
    batch_size: BatchSizes | None = None  # None: it has had no batch
    leases_lost: int = 0
    taken_over: int = 0
    due: int = 0
    is_cron: bool = False
    crons_fired: int = 0
    crons_missed: int = 0


class Recorder(Collector):
    """Counts what happens in a queue, in its own registry."""

    def __init__(self, mq: MessageQueue) -> None:
        self._mq = mq
        self.topics: defaultdict[str, TopicTally] = defaultdict(TopicTally)
        self._blocks: Counter[str] = Counter()  # by handler
        self._schedules: dict[str, Counter[str]] = {}  # what has happened to each schedule
        self._outboxes: dict[str, events.OutboxMeasured] = {}  # the latest of each
        self._deaths = Counter(dict.fromkeys(events.PARTS, 0))
        self._away = False
        self._reconnects = 0
        self._away_seconds = 0.0
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)

    def listen(self) -> Callable[[], None]:
        """Start counting; return a function that stops it."""
        return self._mq.events.subscribe(self.count)

    def count(self, event: events.Event) -> None:
        """Count one event."""
        if isinstance(event, Completed):  # nearly all of them, and this is cheaper than `match`
            topic = self.topics[event.topic]
            topic.outcomes["completed"] += 1
            topic.handler_seconds.add(event.seconds)
            if event.waited is not None:
                topic.queue_seconds.add(event.waited)
            return
        match event:
            case (
                events.Retried()
                | events.Snoozed()
                | events.Parked()
                | events.Died()
                | events.Replaced()
            ):
                topic = self.topics[event.topic]
                topic.outcomes[OUTCOMES[type(event)]] += 1
                if event.seconds is not None:
                    topic.handler_seconds.add(event.seconds)
                if event.waited is not None:
                    topic.queue_seconds.add(event.waited)
            case events.Quarantined() | events.Released() | events.Postponed():
                self.topics[event.topic].outcomes[OUTCOMES[type(event)]] += 1
            case events.Aborted():
                topic = self.topics[event.topic]
                topic.outcomes["aborted"] += 1
                if event.seconds is not None:
                    topic.handler_seconds.add(event.seconds)
            case events.Due():
                self.topics[event.topic].due += event.count
            case events.BatchHandled():
                topic = self.topics[event.topic]
                topic.batch_size = topic.batch_size or BatchSizes()
                topic.batch_size.add(event.size)
            case events.LeaseLost():
                topic = self.topics[event.topic]
                topic.leases_lost += 1
                if event.refused:
                    topic.refused[event.refused] += 1
            case events.TakenOver():
                self.topics[event.topic].taken_over += 1
            case events.LoopBlocked():
                self._blocks[event.handler] += 1
            case events.PartDied():
                self._deaths[event.part] += 1
            case events.ServerLost():
                self._away = True
            case events.ServerBack():
                self._away = False
                self._reconnects += 1
                self._away_seconds += event.seconds
            case events.CronFired():
                topic = self.topics[event.topic]
                topic.is_cron = True
                topic.crons_fired += 1
                self._count_schedule(event.schedule, "mx_rmq_schedules_fired", 1)
            case events.CronMissed():
                topic = self.topics[event.topic]
                topic.is_cron = True
                topic.crons_missed += event.ticks
                self._count_schedule(event.schedule, "mx_rmq_schedules_missed", event.ticks)
            case events.OutboxMeasured():
                self._outboxes[event.outbox] = event
            case events.WorkerStarted():
                self._start_at_zero(event)

    def _count_schedule(self, name: str, what: str, ticks: int) -> None:
        """Count ticks of a schedule by its name; crons in code have none."""
        if not name:
            return
        if name not in self._schedules and len(self._schedules) >= MOST_SCHEDULES:
            name = OTHERS
        counts = self._schedules.setdefault(name, Counter(dict.fromkeys(SCHEDULE_COUNTERS, 0)))
        counts[what] += ticks

    def _start_at_zero(self, event: events.WorkerStarted) -> None:
        """Show every counter from the start: otherwise a rate misses the first increment."""
        self._away = False
        for topic in event.topics:
            self.topics[topic].is_cron = topic in self._mq.crons
            if self._mq.handlers[topic].batch is not None:
                self.topics[topic].batch_size = self.topics[topic].batch_size or BatchSizes()
            self._blocks[self._mq.handlers[topic].name] += 0

    def collect(self) -> Iterator[Metric]:
        topics = sorted(self.topics.items())
        outcomes = OUTCOMES.values()
        yield counter(
            "mx_rmq_messages",
            "Messages that this worker held, by outcome.",
            ["topic", "outcome"],
            [([topic, one], tally.outcomes[one]) for topic, tally in topics for one in outcomes],
        )
        yield counter(
            "mx_rmq_stale_settles",
            "Outcomes that the server refused, because another worker had the message by then.",
            ["topic", "outcome"],
            [([topic, one], tally.refused[one]) for topic, tally in topics for one in outcomes],
        )
        for name, what in HISTOGRAMS.items():
            histogram = HistogramMetricFamily(name, what, labels=["topic"])
            for topic, tally in topics:
                times: Durations = _field(tally, name)
                counts = accumulate(times.buckets.copy())
                histogram.add_metric([topic], list(zip(_LE, counts, strict=True)), times.total)
            yield histogram
        yield _batch_sizes(topics)
        crons = [(topic, tally) for topic, tally in topics if tally.is_cron]
        for table, shown in ((TOPIC_COUNTERS, topics), (CRON_COUNTERS, crons)):
            for name, what in table.items():
                samples = [([topic], _field(tally, name)) for topic, tally in shown]
                yield counter(name, what, ["topic"], samples)
        schedules = sorted(self._schedules.items())
        for name, what in SCHEDULE_COUNTERS.items():
            yield counter(name, what, ["schedule"], [([one], had[name]) for one, had in schedules])
        yield counter(
            "mx_rmq_loop_blocks",
            "How often a handler blocked the event loop for more than a second.",
            ["handler"],
            [([handler], count) for handler, count in sorted(self._blocks.items())],
        )
        yield counter(
            "mx_rmq_parts_died",
            "How often a part of the worker ended unexpectedly and was restarted.",
            ["part"],
            [([part], count) for part, count in sorted(self._deaths.items())],
        )
        outboxes = sorted(self._outboxes.items())
        for name, (field_name, what) in OUTBOX_GAUGES.items():
            samples = [([one], getattr(measured, field_name)) for one, measured in outboxes]
            yield gauge(name, what, ["outbox"], samples)
        yield GaugeMetricFamily(
            "mx_rmq_server_away",
            "1 while the server, or a node of a cluster, is unreachable.",
            self._away,
        )
        yield CounterMetricFamily(
            "mx_rmq_reconnects", "How often the server came back.", self._reconnects
        )
        yield CounterMetricFamily(
            "mx_rmq_server_away_seconds",
            "For how long the server was unreachable, counted when it comes back.",
            self._away_seconds,
        )


def _batch_sizes(topics: list[tuple[str, TopicTally]]) -> Metric:
    histogram = HistogramMetricFamily(
        "mx_rmq_batch_size", "Messages per call of a batch handler.", labels=["topic"]
    )
    for topic, tally in topics:
        if (sizes := tally.batch_size) is not None:
            counts = accumulate(sizes.buckets.copy())
            histogram.add_metric([topic], list(zip(_LE_SIZES, counts, strict=True)), sizes.total)
    return histogram


def _field(tally: TopicTally, name: str) -> Any:
    return getattr(tally, name.removeprefix("mx_rmq_"))
