"""The recorder: events in, Prometheus' text out, read by Prometheus' own parser."""

from __future__ import annotations

from dataclasses import Field, fields, replace
from typing import Any, get_args

import pytest

from mx_rmq import MessageQueue
from mx_rmq.core import events
from mx_rmq.metrics import Recorder, render
from mx_rmq.metrics.recorder import BOUNDS
from tests.metrics.asking import Samples, parsed, rendered

QUEUE = MessageQueue("redis://nowhere")
DONE = events.Completed("t", "a", 1, 0.2, 0.003)


def counted(*happened: events.Event) -> Samples:
    """Return what is shown after these events."""
    recorder = Recorder(QUEUE)
    for event in happened:
        recorder.count(event)
    return rendered(recorder.registry)


@pytest.mark.parametrize(
    ("event", "outcome"),
    [
        (DONE, "completed"),
        (events.Retried("t", "a", 1, 5.0, "no"), "retried"),
        (events.Snoozed("t", "a", 1, 5.0), "snoozed"),
        (events.Parked("t", "a", None, "for signal approval"), "parked"),
        (events.Died("t", "a", 5, "no"), "dead"),
        (events.Quarantined("t", "a", "no"), "quarantined"),
        (events.Released("t", "a"), "released"),
        (events.Postponed("t", "a", 1.0, "newer"), "postponed"),
    ],
)
def test_each_outcome_is_counted_and_the_others_stay_0(event: events.Event, outcome: str) -> None:
    shown = counted(event, event)
    for one in events.OUTCOMES.values():
        expected = 2 if one == outcome else 0
        assert shown[f"mx_rmq_messages_total{{outcome={one},topic=t}}"] == expected


def test_times_fall_into_their_buckets() -> None:
    shown = counted(DONE, replace(DONE, seconds=BOUNDS[0]), replace(DONE, seconds=9e9))
    name = "mx_rmq_handler_seconds_bucket{{le={},topic=t}}"
    assert shown[name.format("0.001")] == 1  # a bound belongs to its bucket
    assert shown[name.format("0.1")] == 1
    assert shown[name.format("0.25")] == shown[name.format("1800.0")] == 2
    assert shown[name.format("+Inf")] == shown["mx_rmq_handler_seconds_count{topic=t}"] == 3
    assert shown["mx_rmq_handler_seconds_sum{topic=t}"] == 9e9 + 0.2 + BOUNDS[0]
    assert shown["mx_rmq_queue_seconds_bucket{le=0.005,topic=t}"] == 3
    assert shown["mx_rmq_queue_seconds_sum{topic=t}"] == pytest.approx(0.009)


def test_batches_fall_into_buckets_by_their_size() -> None:
    sizes = (1, 3, 500, 10_000)
    shown = counted(*(events.BatchHandled("t", size, 0, 0.1) for size in sizes))
    name = "mx_rmq_batch_size_bucket{{le={},topic=t}}"
    assert shown[name.format("1.0")] == 1
    assert shown[name.format("5.0")] == 2
    assert shown[name.format("500.0")] == 3
    assert shown[name.format("10000.0")] == shown["mx_rmq_batch_size_count{topic=t}"] == 4
    assert shown["mx_rmq_batch_size_sum{topic=t}"] == sum(sizes)
    assert not any("batch_size" in name for name in counted(DONE))


def test_a_time_that_nobody_knows_is_not_observed() -> None:
    crashed = events.Retried("t", "a", 1, 0, "its worker went silent")
    failed = replace(crashed, seconds=2.0, waited=7.0)
    shown = counted(
        crashed, failed, events.Died("t", "a", 5, "expired"), replace(DONE, waited=None)
    )
    assert shown["mx_rmq_handler_seconds_count{topic=t}"] == 2
    assert shown["mx_rmq_queue_seconds_count{topic=t}"] == 1
    assert shown["mx_rmq_queue_seconds_sum{topic=t}"] == 7


def test_a_lost_lease_is_one_thing_and_a_refused_outcome_another() -> None:
    lost = events.LeaseLost("t", "a", 7, "ship")
    shown = counted(lost, replace(lost, refused="completed"), events.TakenOver("t", "a", "w"))
    assert shown["mx_rmq_leases_lost_total{topic=t}"] == 2
    assert shown["mx_rmq_stale_settles_total{outcome=completed,topic=t}"] == 1
    assert shown["mx_rmq_stale_settles_total{outcome=dead,topic=t}"] == 0
    assert shown["mx_rmq_taken_over_total{topic=t}"] == 1


def test_messages_that_became_due_are_counted_not_calls() -> None:
    shown = counted(events.Due("t", 3), events.Due("t", 500), DONE)
    assert shown["mx_rmq_due_total{topic=t}"] == 503


def test_trouble_is_counted() -> None:
    lost = events.ServerLost("refused")
    assert counted()["mx_rmq_server_away"] == 0
    assert counted(lost)["mx_rmq_server_away"] == 1
    shown = counted(lost, events.ServerBack(2.5), events.LoopBlocked("app.slow", 1.2, "…"))
    assert shown["mx_rmq_server_away"] == 0
    assert shown["mx_rmq_reconnects_total"] == 1
    assert shown["mx_rmq_server_away_seconds_total"] == 2.5
    assert shown["mx_rmq_loop_blocks_total{handler=app.slow}"] == 1


def test_crons_are_counted_and_topics_without_one_are_not_shown_with_them() -> None:
    shown = counted(DONE, events.CronFired("c", "a", 60.0), events.CronMissed("c", 0.0, 5))
    assert shown["mx_rmq_crons_fired_total{topic=c}"] == 1
    assert shown["mx_rmq_crons_missed_total{topic=c}"] == 5
    assert "mx_rmq_crons_fired_total{topic=t}" not in shown


def test_ticks_of_schedules_are_counted_by_name_and_the_names_are_bounded() -> None:
    fired = [events.CronFired("c", "a", 60.0, f"s{number}") for number in range(300)]
    shown = counted(*fired, fired[0], events.CronMissed("c", 0.0, 5, "s1"))
    assert shown["mx_rmq_schedules_fired_total{schedule=s0}"] == 2
    assert shown["mx_rmq_schedules_missed_total{schedule=s1}"] == 5
    assert shown["mx_rmq_schedules_fired_total{schedule=(others)}"] == 100
    assert len([name for name in shown if name.startswith("mx_rmq_schedules_fired")]) == 201
    assert shown["mx_rmq_crons_fired_total{topic=c}"] == 301


def test_a_worker_that_starts_shows_a_0_for_whatever_may_come() -> None:
    mq = MessageQueue("redis://nowhere")

    @mq.handler("orders")
    async def ship(payload: int) -> None: ...

    @mq.cron("* * * * *")
    async def tidy() -> None: ...

    recorder = Recorder(mq)
    recorder.count(events.WorkerStarted("w", ("orders", "cron.tidy"), 10))
    shown = rendered(recorder.registry)
    for topic in ("orders", "cron.tidy"):
        assert shown[f"mx_rmq_messages_total{{outcome=dead,topic={topic}}}"] == 0
        assert shown[f"mx_rmq_queue_seconds_count{{topic={topic}}}"] == 0
    assert shown[f"mx_rmq_loop_blocks_total{{handler={mq.handlers['orders'].name}}}"] == 0
    assert shown["mx_rmq_crons_missed_total{topic=cron.tidy}"] == 0
    assert "mx_rmq_crons_missed_total{topic=orders}" not in shown


def test_it_counts_from_listen_until_it_is_told_to_stop() -> None:
    mq = MessageQueue("redis://nowhere")
    recorder = Recorder(mq)
    assert events.Completed not in mq.events.wanted
    stop = recorder.listen()
    mq.events.emit(DONE)
    stop()
    mq.events.emit(DONE)
    assert events.Completed not in mq.events.wanted
    assert recorder.topics["t"].outcomes["completed"] == 1


def test_every_kind_of_event_is_counted_but_the_end_of_a_worker_and_restarts() -> None:
    mq = MessageQueue("redis://nowhere")

    @mq.handler("t")
    async def handle(payload: int) -> None: ...

    ignored = set()
    for kind in get_args(events.Event):
        recorder = Recorder(mq)
        before = rendered(recorder.registry)
        recorder.count(kind(**{one.name: example(one) for one in fields(kind)}))
        if rendered(recorder.registry) == before:
            ignored.add(kind)
    assert ignored == {
        events.WorkerStopping,
        events.WorkerStopped,
        events.PartRestarted,
        events.WorkerFailed,
    }


def example(field: Field[Any]) -> object:
    """Return a value for a field of an event."""
    return ("t",) if field.name == "topics" else "t" if str(field.type).startswith("str") else 1


def test_two_recorders_share_nothing() -> None:
    one, other = Recorder(QUEUE), Recorder(QUEUE)
    one.count(DONE)
    assert "mx_rmq_messages_total{outcome=completed,topic=t}" in rendered(one.registry)
    assert "mx_rmq_messages_total{outcome=completed,topic=t}" not in rendered(other.registry)


# the text

OPENMETRICS = "application/openmetrics-text"
NEW = f"{OPENMETRICS};version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"


def test_who_prefers_openmetrics_gets_it_and_it_says_the_same() -> None:
    recorder = Recorder(QUEUE)
    recorder.count(DONE)
    plain, new = render(recorder.registry), render(recorder.registry, NEW)
    assert plain.content_type.startswith("text/plain; version=0.0.4")
    assert new.content_type.startswith(f"{OPENMETRICS}; version=1.0.0")
    assert new.body.endswith(b"# EOF\n")
    assert parsed(new.body.decode(), openmetrics=True) == parsed(plain.body.decode())


@pytest.mark.parametrize(
    "accept",
    [
        "",
        "*/*",
        ",;=,",
        f"{OPENMETRICS};version=new",
        f"{OPENMETRICS};version=1.x",
        f"{OPENMETRICS};version=1.0.0\x0b",
        f"{OPENMETRICS};version=1.0.0;escaping=no such thing",
    ],
)
def test_whatever_is_asked_for_the_answer_can_be_read(accept: str) -> None:
    recorder = Recorder(QUEUE)
    recorder.count(DONE)
    content_type, body = render(recorder.registry, accept)
    assert content_type.isprintable()
    shown = parsed(body.decode(), openmetrics=content_type.startswith(OPENMETRICS))
    assert shown["mx_rmq_messages_total{outcome=completed,topic=t}"] == 1
