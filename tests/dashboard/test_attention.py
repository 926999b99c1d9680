"""What an operator should look at first."""

from __future__ import annotations

from typing import Any

import pytest

from mx_rmq.admin import Stats, WorkerView
from mx_rmq.admin.view import OVERDUE
from mx_rmq.dashboard.attention import findings
from mx_rmq.dashboard.sampler import Round


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


def test_a_silent_worker_needs_somebody_only_while_others_may_lack_its_messages() -> None:
    random = "0123456789abcdef" * 2
    workers = [
        worker("alive", held=1, seen_ago=5),
        worker("idle", held=0, seen_ago=90),
        worker("long-gone", held=7, seen_ago=601),
        worker(f"host-17-{random}", held=7, seen_ago=90),
    ]
    (one,) = findings(Round(at=0.0, stats={}, points={}, all={}, away={}, workers=workers, known=0))
    assert (one.bad, one.text) == (True, "1 silent worker: host-17-01234567")


def stats(**fields: Any) -> Stats:
    counts = dict.fromkeys(("pending", "processing", "delayed", "dead", "quarantined"), 0)
    rest = {"oldest_pending": None, "paused": False, "dropped": 0}
    return Stats(**{"topic": "orders", **counts, **rest, **fields})


def found(one: Stats, *workers: WorkerView) -> list[tuple[str, str]]:
    """Return what is bad about a topic: the state to look at and the text."""
    seen = Round(
        at=0, stats={"orders": one}, points={}, all={}, away={}, workers=[*workers], known=1
    )
    return [(finding.state, finding.text) for finding in findings(seen) if finding.bad]


@pytest.mark.parametrize(
    ("counts", "state", "text"),
    [
        ({"processing": 2}, "processing", "has 2 in processing and no live worker"),
        ({"delayed": 3}, "delayed", "has 3 waiting and no live worker"),
        (
            {"pending": 1, "processing": 2},
            "pending",
            "has 1 waiting, 2 in processing and no live worker",
        ),
    ],
)
def test_a_topic_that_nobody_serves_needs_attention_whatever_state_its_messages_are_in(
    counts: dict[str, int], state: str, text: str
) -> None:
    assert found(stats(**counts)) == [(state, text)]
    assert found(stats(**counts), worker("alive", held=1, seen_ago=5)) == []


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
    assert [one for one in after if one not in before and one[0] == state]
