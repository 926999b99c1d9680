"""Events -> numbers: subscribes to a queue's events and counts them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry

from mx_rmq.core import events
from mx_rmq.metrics.counters import Tally
from mx_rmq.metrics.worker_metrics import TallyFamilies

if TYPE_CHECKING:
    from collections.abc import Callable

    from mx_rmq.queue import MessageQueue


class Recorder:
    """Counts what happens in a queue, in a registry of its own."""

    def __init__(self, mq: MessageQueue) -> None:
        self._mq = mq
        self.tally = Tally()
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(TallyFamilies(self.tally))
        self._count: dict[type, Callable[[Any], None]] = {
            events.Completed: self._completed,  # the first one is found fastest
            events.Retried: self._retried,
            events.Died: self._died,
            events.Quarantined: self._quarantined,
            events.Released: self._released,
            events.Postponed: self._postponed,
            events.Due: self._due,
            events.LeaseLost: self._lease_lost,
            events.TakenOver: self._taken_over,
            events.LoopBlocked: self._loop_blocked,
            events.PartDied: self._part_died,
            events.ServerLost: self._server_lost,
            events.ServerBack: self._server_back,
            events.CronFired: self._cron_fired,
            events.CronMissed: self._cron_missed,
            events.WorkerStarted: self._worker_started,
        }

    def listen(self) -> Callable[[], None]:
        """Start counting; return a function that stops it."""
        return self._mq.events.subscribe(self.count, *self._count)

    def count(self, event: events.Event) -> None:
        """Count one event."""
        self._count[type(event)](event)

    def _completed(self, event: events.Completed) -> None:
        topic = self.tally.topics[event.topic]
        topic.completed += 1
        topic.handler.add(event.seconds)
        if event.waited is not None:
            topic.queue.add(event.waited)

    def _retried(self, event: events.Retried) -> None:
        self.tally.topics[event.topic].retried += 1
        self._time(event)

    def _died(self, event: events.Died) -> None:
        self.tally.topics[event.topic].dead += 1
        self._time(event)

    def _time(self, event: events.Retried | events.Died) -> None:
        topic = self.tally.topics[event.topic]
        if event.seconds is not None:
            topic.handler.add(event.seconds)
        if event.waited is not None:
            topic.queue.add(event.waited)

    def _quarantined(self, event: events.Quarantined) -> None:
        self.tally.topics[event.topic].quarantined += 1

    def _released(self, event: events.Released) -> None:
        self.tally.topics[event.topic].released += 1

    def _postponed(self, event: events.Postponed) -> None:
        self.tally.topics[event.topic].postponed += 1

    def _due(self, event: events.Due) -> None:
        self.tally.topics[event.topic].due += event.count

    def _lease_lost(self, event: events.LeaseLost) -> None:
        topic = self.tally.topics[event.topic]
        topic.lost += 1
        if event.refused:
            topic.refused[event.refused] += 1

    def _taken_over(self, event: events.TakenOver) -> None:
        self.tally.topics[event.topic].taken_over += 1

    def _loop_blocked(self, event: events.LoopBlocked) -> None:
        self.tally.blocks[event.handler] += 1

    def _part_died(self, event: events.PartDied) -> None:
        self.tally.deaths[event.part] += 1

    def _server_lost(self, _: events.ServerLost) -> None:
        self.tally.away = True

    def _server_back(self, event: events.ServerBack) -> None:
        self.tally.away = False
        self.tally.reconnects += 1
        self.tally.away_seconds += event.seconds

    def _cron_fired(self, event: events.CronFired) -> None:
        topic = self.tally.topics[event.topic]
        topic.is_cron = True
        topic.fired += 1

    def _cron_missed(self, event: events.CronMissed) -> None:
        topic = self.tally.topics[event.topic]
        topic.is_cron = True
        topic.missed += event.ticks

    def _worker_started(self, event: events.WorkerStarted) -> None:
        """Start every counter at 0: otherwise a rate misses the first increment."""
        self.tally.away = False
        for topic in event.topics:
            self.tally.topics[topic].is_cron = topic in self._mq.crons
            self.tally.blocks[self._mq.handlers[topic].name] += 0
