"""The queues to compare, and how many messages each gets: enough for two seconds, not minutes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class System:
    """A queue with its settings."""

    key: str
    """Its name in `--only`."""
    name: str
    adapter: str
    """The file in `adapters/`."""
    environment: str
    """The entry in `pins.toml`; Node's are npm packages."""
    drained: int
    """Messages of a drain, and of a bulk."""
    produced: int
    """Messages produced one by one; many callers at once produce twice as many."""
    promise: str
    """What happens to the messages of a killed worker, by its documentation and source."""
    node: bool = False


OURS = "ours"
THREADS = "ours-def"

SYSTEMS = (
    System(
        OURS,
        "mx-rmq",
        "ours",
        "ours",
        drained=200_000,
        produced=8_000,
        promise="at least once: when the lease of 30 s is over",
    ),
    System(
        THREADS,
        "mx-rmq, def handlers",
        "ours_threads",
        "ours",
        drained=20_000,
        produced=8_000,
        promise="the same",
    ),
    System(
        "repid",
        "repid",
        "repid",
        "repid",
        drained=20_000,
        produced=6_000,
        promise="none at defaults; with claim_interval, after a minute without a keep-alive",
    ),
    System(
        "bullmq-node",
        "BullMQ on Node",
        "bullmq_node",
        "bullmq",
        drained=30_000,
        produced=6_000,
        promise="at least once: lock of 30 s, looked for every 30 s; a second crash fails the job",
        node=True,
    ),
    System(
        "bullmq",
        "BullMQ Python",
        "bullmq",
        "bullmq",
        drained=4_000,
        produced=5_000,
        promise="as BullMQ on Node",
    ),
    System(
        "streaq",
        "streaQ",
        "streaq",
        "streaq",
        drained=3_000,
        produced=4_000,
        promise="at least once: after idle_timeout, 60 s",
    ),
    System(
        "saq",
        "SAQ",
        "saq",
        "saq",
        drained=5_000,
        produced=6_000,
        promise="swept and aborted; run again only if retries is set",
    ),
    System(
        "arq",
        "arq",
        "arq",
        "arq",
        drained=4_000,
        produced=4_000,
        promise="at least once: after job_timeout + 10 s, by default 310 s",
    ),
    System(
        "taskiq",
        "Taskiq",
        "taskiq",
        "taskiq",
        drained=6_000,
        produced=5_000,
        promise="at least once: after idle_timeout, 600 s",
    ),
    System(
        "dramatiq",
        "Dramatiq",
        "dramatiq",
        "dramatiq",
        drained=6_000,
        produced=6_000,
        promise="at least once: heartbeat of 60 s, then by chance (one command in 1,000 looks)",
    ),
    System(
        "huey",
        "Huey",
        "huey",
        "huey",
        drained=8_000,
        produced=8_000,
        promise="none: a popped task is gone",
    ),
    System(
        "celery",
        "Celery",
        "celery",
        "celery",
        drained=2_000,
        produced=3_000,
        promise="none at defaults; with acks_late, after visibility_timeout, 1 hour",
    ),
    System(
        "rq",
        "RQ",
        "rq",
        "rq",
        drained=800,
        produced=4_000,
        promise="marked as failed after its timeout, 180 s; run again only if Retry is set",
    ),
)


def chosen(only: str | None) -> list[System]:
    """Return those that `--only` names, or all."""
    if only is None:
        return list(SYSTEMS)
    keys = [key.strip() for key in only.split(",")]
    known = {system.key: system for system in SYSTEMS}
    unknown = [key for key in keys if key not in known]
    if unknown:
        raise SystemExit(f"there is no {', '.join(unknown)}; there are {', '.join(known)}")
    return [known[key] for key in keys]
