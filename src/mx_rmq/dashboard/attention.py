"""What an operator should look at first: computed from one look at all topics."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mx_rmq.admin.view import OVERDUE
from mx_rmq.core.message import State
from mx_rmq.core.names import short_worker

if TYPE_CHECKING:
    from mx_rmq.admin import Stats
    from mx_rmq.dashboard.sampler import Round

SLOW: Final = 60.0
"""Seconds that a message may wait before somebody should know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that is not as it should be."""

    bad: bool
    """Messages are held up; else it can wait until morning."""
    topic: str = ""
    state: str = ""
    """Which messages to look at."""
    text: str
    hint: str


def findings(seen: Round) -> list[Finding]:
    """Return what is wrong, the worst first."""
    found = [*_topics(seen), *_workers(seen)]
    return sorted(found, key=lambda one: (not one.bad, one.topic))


def key_of(found: list[Finding]) -> str:
    """Return what changes when something else is wrong than before, and not with every count."""
    kinds = repr([(one.bad, one.topic, one.hint) for one in found])
    return hashlib.blake2b(kinds.encode("utf-8", "backslashreplace"), digest_size=8).hexdigest()


def _topics(seen: Round) -> list[Finding]:
    served = {topic for worker in seen.workers if worker.alive for topic in worker.topics}
    found = [
        Finding(bad=True, topic=topic, text="cannot be counted", hint=why)
        for topic, why in seen.away.items()
    ]
    for topic, stats in seen.stats.items():
        waiting = _waiting(stats, served=topic in served)
        found += filter(None, (waiting, *_overdue(stats), *_archived(stats)))
    return found


def _waiting(stats: Stats, *, served: bool) -> Finding | None:
    waiting = stats.pending + stats.delayed
    if stats.paused:
        return Finding(
            bad=waiting > 0,
            topic=stats.topic,
            text=f"is paused, {waiting:,} waiting",
            hint="Resume it on its page when the cause is gone.",
        )
    if (waiting or stats.processing) and not served:
        state = State.PENDING if stats.pending else State.DELAYED
        running = f"{stats.processing:,} in processing" if stats.processing else ""
        return Finding(
            bad=True,
            topic=stats.topic,
            state=state if waiting else State.PROCESSING,
            text=f"has {f'{waiting:,} waiting' if waiting else ''}"
            f"{', ' if waiting and running else ''}{running} and no live worker",
            hint="Start a worker that serves it: mx-rmq worker MODULE.",
        )
    if stats.oldest_pending is not None and stats.oldest_pending > SLOW:
        return Finding(
            bad=True,
            topic=stats.topic,
            state=State.PENDING,
            text=f"is behind: {stats.pending:,} pending",
            hint="Its workers do not keep up. Look for slow handlers, or add workers.",
        )
    return None


def _overdue(stats: Stats) -> list[Finding]:
    """Return what any worker of the queue should have fixed by now."""
    late = {
        State.PROCESSING: (stats.lease_overdue, "has expired leases that no worker takes over"),
        State.DELAYED: (stats.delayed_overdue, "has due messages that no worker makes pending"),
    }
    hint = "Any worker should fix this within a minute. Check the workers' logs."
    return [
        Finding(bad=True, topic=stats.topic, state=state, text=text, hint=hint)
        for state, (seconds, text) in late.items()
        if (seconds or 0) > OVERDUE
    ]


def _archived(stats: Stats) -> list[Finding]:
    hints = {
        State.DEAD: "Read the errors; requeue when their cause is gone.",
        State.QUARANTINED: "No handler could read them: look for a producer that changed.",
    }
    found = [
        Finding(bad=False, topic=stats.topic, state=state, text=f"has {count:,} {state}", hint=hint)
        for state, hint in hints.items()
        if (count := getattr(stats, state))
    ]
    if stats.dropped:
        found.append(
            Finding(
                bad=False,
                topic=stats.topic,
                text=f"lost {stats.dropped:,} ids that had no message",
                hint="Somebody else writes to the keys. Run mx-rmq audit.",
            )
        )
    return found


def _workers(seen: Round) -> list[Finding]:
    missed = [worker for worker in seen.workers if worker.missed]
    found = [
        Finding(
            bad=True,
            text=f"worker {short_worker(worker.name)}: {', '.join(worker.down)} down",
            hint="It restarts the part, and stops by itself if that does not help. Read its log.",
        )
        for worker in seen.workers
        if worker.alive and worker.down
    ]
    if not missed:
        return found
    return [
        *found,
        Finding(
            bad=True,
            text=f"{len(missed):,} silent worker{'s' if len(missed) > 1 else ''}: "
            + ", ".join(short_worker(worker.name) for worker in missed[:3])
            + ("…" if len(missed) > 3 else ""),
            hint="Killed, frozen or cut off. Others take over what they held when the leases end.",
        ),
    ]
