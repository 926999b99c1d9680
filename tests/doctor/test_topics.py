"""What an overview shows to be wrong: the findings of command line, dashboard and metrics."""

from __future__ import annotations

from typing import Any

import pytest

from mx_rmq.admin import Overview, Stats, WorkerView
from mx_rmq.core.errors import MxRmqError, ServerUnavailable
from mx_rmq.doctor.finding import Finding, Severity
from mx_rmq.doctor.topics import OVERDUE, SLOW, STUCK, check_overview, check_stats


def worker(name: str, *, held: int, seen_ago: float) -> WorkerView:
    return WorkerView(
        name=name,
        host="h",
        pid=1,
        topics=("orders",),
        concurrency=10,
        running=0,
        held=held,
        started_at=0.0,
        seen_ago=seen_ago,
    )


@pytest.mark.parametrize("served", [True, False])
def test_a_silent_worker_needs_attention_only_while_others_may_lack_its_messages(
    served: bool,
) -> None:
    workers = [
        worker("idle", held=0, seen_ago=90),
        worker("long-gone", held=7, seen_ago=601),
        worker("silent", held=7, seen_ago=90),
    ]
    if served:
        workers.append(worker("alive", held=1, seen_ago=5))
    (one,) = check_overview(Overview({}, {}, 0), workers, now=0)
    assert one.bad is not served
    assert "worker silent on h" in one.what


def stats(**fields: Any) -> Stats:
    counts = dict.fromkeys(("pending", "processing", "delayed", "dead", "quarantined"), 0)
    rest = {"oldest_pending": None, "paused": False, "dropped": 0}
    return Stats(**{"topic": "orders", **counts, **rest, **fields})


def found(one: Stats, *workers: WorkerView) -> list[tuple[str, str]]:
    """Return what is wrong with a topic: how bad it is, and the state to look at."""
    findings = check_overview(Overview({"orders": one}, {}, 1), workers, now=0)
    return [(finding.severity, finding.state) for finding in findings]


@pytest.mark.parametrize(
    ("counts", "state", "severity"),
    [
        ({"processing": 2}, "processing", Severity.BAD),
        ({"delayed": 3}, "delayed", Severity.WARN),
        ({"pending": 1, "processing": 2}, "pending", Severity.BAD),
    ],
)
def test_a_topic_without_workers_needs_attention_whatever_state_its_messages_are_in(
    counts: dict[str, int], state: str, severity: Severity
) -> None:
    assert found(stats(**counts)) == [(severity, state)]
    assert found(stats(**counts), worker("alive", held=1, seen_ago=5)) == []


@pytest.mark.parametrize(
    ("waited", "severity"), [(SLOW, None), (SLOW + 1, Severity.WARN), (STUCK + 1, Severity.BAD)]
)
def test_a_topic_that_is_behind_needs_attention_unless_it_is_paused(
    waited: float, severity: Severity | None
) -> None:
    alive = worker("alive", held=1, seen_ago=5)
    wanted = [(severity, "pending")] if severity else []
    assert found(stats(pending=1, oldest_pending=waited), alive) == wanted
    paused = found(stats(pending=1, oldest_pending=waited, paused=True), alive)
    assert paused == [(Severity.WARN, "pending")]


def test_where_the_workers_are_unknown_nothing_is_said_about_them() -> None:
    overview = Overview({"orders": stats(pending=1, paused=True)}, {}, 1)
    assert [one.note for one in check_overview(overview, (), now=0)] == ["no worker", "paused"]
    assert [one.note for one in check_overview(overview, None, now=0)] == ["paused"]


def test_a_topic_that_cannot_be_reached_comes_first() -> None:
    away: dict[str, MxRmqError | TimeoutError]
    away = {"b": ServerUnavailable("gone"), "c": TimeoutError()}
    overview = Overview({"orders": stats(dead=1)}, away, 3)
    first, second, last = check_overview(overview, (), now=0)
    assert first.title == "topic b: its server is unreachable: gone"
    assert second.title == "topic c: its server is unreachable: no answer in time"
    assert last.title == "topic orders: 1 dead message"


@pytest.mark.parametrize("paused", [True, False])
@pytest.mark.parametrize(
    ("figure", "state"), [("lease_overdue", "processing"), ("delayed_overdue", "delayed")]
)
def test_what_is_overdue_for_a_minute_needs_attention_whoever_serves_it(
    figure: str, state: str, paused: bool
) -> None:
    alive = worker("alive", held=1, seen_ago=5)
    some: dict[str, Any] = {state: 1, "paused": paused}
    before = found(stats(**some, **{figure: OVERDUE}), alive)
    after = found(stats(**some, **{figure: OVERDUE + 1}), alive)
    assert (Severity.BAD, state) in after
    assert (Severity.BAD, state) not in before


def test_a_topic_that_limits_hold_back_is_not_told_to_add_workers() -> None:
    behind = {"pending": 9, "oldest_pending": SLOW + 1}

    def one(**fields: Any) -> Finding:
        (found,) = check_stats(stats(**behind, **fields), served=True, now=0)
        return found

    assert "add workers" in one().cure
    assert one(keys_blocked=3).cure == (
        "Limits hold back 3 keys: see mx-rmq keys orders. Raise them, or wait"
    )
    assert "Limits hold back the topic" in one(held_back=True).cure
    assert one(paused=True, pause_reason="later").what == "paused (later), 9 pending"
