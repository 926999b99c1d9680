"""What an operator should look at first."""

from __future__ import annotations

from mx_rmq.admin import WorkerView
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
