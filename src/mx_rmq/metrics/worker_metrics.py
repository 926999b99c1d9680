"""The metrics of one worker: its counters and its load, as Prometheus metric families."""

from __future__ import annotations

from importlib.metadata import version
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.registry import Collector

from mx_rmq.metrics.counters import BOUNDS, OUTCOMES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from mx_rmq.metrics.counters import Tally, Times, TopicTally

_LE: Final = [*map(str, BOUNDS), "+Inf"]


class TallyFamilies(Collector):
    """What a tally has counted."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def collect(self) -> Iterator[Metric]:
        topics = sorted(self._tally.topics.items())
        yield from _outcomes(topics)
        yield from _times(topics)
        yield from _leases(topics)
        yield from _crons(topics)
        yield from self._trouble()

    def _trouble(self) -> Iterator[Metric]:
        tally = self._tally
        blocks = CounterMetricFamily(
            "mx_rmq_loop_blocks",
            "How often a handler kept the event loop from running for more than a second.",
            labels=["handler"],
        )
        for handler, count in sorted(tally.blocks.items()):
            blocks.add_metric([handler], count)
        yield blocks
        deaths = CounterMetricFamily(
            "mx_rmq_parts_died",
            "How often a part of the worker ended unexpectedly and was restarted.",
            labels=["part"],
        )
        for part, count in sorted(tally.deaths.items()):
            deaths.add_metric([part], count)
        yield deaths
        yield GaugeMetricFamily(
            "mx_rmq_server_away",
            "1 while the server, or one of a cluster, is away.",
            tally.away,
        )
        yield CounterMetricFamily(
            "mx_rmq_reconnects",
            "How often the server has come back.",
            tally.reconnects,
        )
        yield CounterMetricFamily(
            "mx_rmq_server_away_seconds",
            "For how long the server was away, until it came back.",
            tally.away_seconds,
        )


class WorkerLoad(NamedTuple):
    """What a worker is doing at this moment."""

    name: str
    concurrency: int
    running: int
    held: int
    ready: bool


class LoadFamilies(Collector):
    """The worker's load at the last scrape; set from its own thread, read from another."""

    def __init__(self) -> None:
        self.load: WorkerLoad | None = None
        self._version = version("mx-rmq")

    def collect(self) -> Iterator[Metric]:
        if self.load is None:
            return
        name, concurrency, running, held, ready = self.load
        yield InfoMetricFamily(
            "mx_rmq_worker",
            "The worker, as it is called in leases and lists.",
            {"worker": name, "version": self._version},
        )
        yield GaugeMetricFamily(
            "mx_rmq_ready", "1 while the worker takes messages; what /readyz says.", ready
        )
        yield GaugeMetricFamily("mx_rmq_running", "Handlers that run.", running)
        yield GaugeMetricFamily(
            "mx_rmq_held", "Messages leased to this worker, running or not.", held
        )
        yield GaugeMetricFamily(
            "mx_rmq_concurrency", "Handlers that may run at the same time.", concurrency
        )


_Topics = list[tuple[str, "TopicTally"]]


def _outcomes(topics: _Topics) -> Iterator[Metric]:
    messages = CounterMetricFamily(
        "mx_rmq_messages",
        "What became of messages that this worker held.",
        labels=["topic", "outcome"],
    )
    refused = CounterMetricFamily(
        "mx_rmq_stale_settles",
        "Outcomes that the server refused: somebody else had the message meanwhile.",
        labels=["topic", "outcome"],
    )
    for topic, tally in topics:
        for outcome in OUTCOMES:
            messages.add_metric([topic, outcome], getattr(tally, outcome))
            refused.add_metric([topic, outcome], tally.refused[outcome])
    yield messages
    yield refused


def _times(topics: _Topics) -> Iterator[Metric]:
    handler = HistogramMetricFamily(
        "mx_rmq_handler_seconds", "How long handlers took, however they ended.", labels=["topic"]
    )
    queue = HistogramMetricFamily(
        "mx_rmq_queue_seconds",
        "How long after it was due a message came to a handler.",
        labels=["topic"],
    )
    for topic, tally in topics:
        _add(handler, topic, tally.handler)
        _add(queue, topic, tally.queue)
    yield handler
    yield queue


def _add(family: HistogramMetricFamily, topic: str, times: Times) -> None:
    counts = accumulate(times.buckets.copy())
    family.add_metric([topic], list(zip(_LE, counts, strict=True)), times.total)


def _leases(topics: _Topics) -> Iterator[Metric]:
    lost = CounterMetricFamily(
        "mx_rmq_leases_lost",
        "Messages that this worker held too long without a sign of life.",
        labels=["topic"],
    )
    taken_over = CounterMetricFamily(
        "mx_rmq_taken_over",
        "Messages that this worker took over from one that went silent.",
        labels=["topic"],
    )
    due = CounterMetricFamily(
        "mx_rmq_due",
        "Delayed messages that this worker made pending, because they were due.",
        labels=["topic"],
    )
    for topic, tally in topics:
        lost.add_metric([topic], tally.lost)
        taken_over.add_metric([topic], tally.taken_over)
        due.add_metric([topic], tally.due)
    yield lost
    yield taken_over
    yield due


def _crons(topics: _Topics) -> Iterator[Metric]:
    fired = CounterMetricFamily(
        "mx_rmq_crons_fired", "Ticks for which this worker produced the message.", labels=["topic"]
    )
    missed = CounterMetricFamily(
        "mx_rmq_crons_missed", "Ticks that no worker fired in time.", labels=["topic"]
    )
    for topic, tally in topics:
        if tally.is_cron:
            fired.add_metric([topic], tally.fired)
            missed.add_metric([topic], tally.missed)
    yield fired
    yield missed
