"""What is wrong with topics and workers, as far as an overview shows it.

No I/O: command line, dashboard and metrics use these findings and thresholds, each with the
overview it has.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from mx_rmq.core.errors import OutcomeUnknown, ServerUnavailable
from mx_rmq.core.message import State
from mx_rmq.core.partition import base_topic
from mx_rmq.core.text import count, duration, size
from mx_rmq.doctor.finding import Finding, Severity, bad, warn
from mx_rmq.store.memory_use import ARCHIVES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from mx_rmq.admin import Overview, Stats, WorkerView

SLOW: Final = 60.0  # seconds that a message may wait before its topic counts as behind
STUCK: Final = 300.0  # and before that is bad; the alert MxRmqOldestPending uses it, too

OVERDUE: Final = 60.0
"""Seconds after which a delayed message that is due should be pending, and an expired lease taken
over, whether the topic has workers of its own or not. The alerts use it, too."""

NEARLY: Final = 0.8  # share of its budget from which on an archive is nearly full
RECENT: Final = 24 * 3600  # seconds for which an archive that overflowed is reported


def check_overview(
    overview: Overview[Stats], workers: Sequence[WorkerView] | None, *, now: float
) -> list[Finding]:
    """Return everything that is wrong, the worst first. `workers` None: they are unknown."""
    served = served_topics(workers or ())
    found = [*check_workers(workers or ())]
    found += [unreachable(topic, why) for topic, why in overview.away.items()]
    for topic, stats in overview.topics.items():
        found += check_stats(stats, served=workers is None or topic in served, now=now)
        if workers is not None:
            found += check_subscriptions(stats, workers)
    return sorted(found, key=lambda one: (not one.bad, one.topic))


def served_topics(workers: Iterable[WorkerView]) -> set[str]:
    """Return the topics that a live worker serves; of a subscription, also those of its topic."""
    served = {topic for worker in workers if worker.alive for topic in worker.topics}
    return served | {base_topic(topic) for topic in served}


def unreachable(topic: str, why: Exception) -> Finding:
    """Return the finding about a topic that could not be counted."""
    if isinstance(why, ServerUnavailable | OutcomeUnknown | TimeoutError):
        return bad(f"its server is unreachable: {str(why) or 'no answer in time'}", topic=topic)
    return bad(str(why), topic=topic)


def check_workers(workers: Sequence[WorkerView]) -> Iterator[Finding]:
    """Check for parts that are down, workers that went silent, and several releases at once."""
    served = served_topics(workers)
    for worker in workers:
        name = f"worker {worker.name} on {worker.host}, process {worker.pid}"
        for part, why in worker.down.items() if worker.alive else ():
            yield bad(
                f"{name}: its {part} is down: {why}",
                "It restarts the part, and stops if that does not help: check its log",
            )
        if not worker.missed:
            continue
        alone = [topic for topic in worker.topics if topic not in served]
        yield Finding(
            Severity.BAD if alone else Severity.WARN,
            f"{name}, went silent {duration(worker.seen_ago)} ago with "
            f"{count(worker.held or 0, 'message')}"
            + (f"; no other worker serves {', '.join(alone)}" if alone else ""),
            "Check whether it was killed, is frozen or is cut off; other workers take over its "
            "messages when the leases expire" + (", so start another worker" if alone else ""),
        )
    alive = Counter(worker.version or "before 2.0" for worker in workers if worker.alive)
    if len(alive) > 1:
        each = ", ".join(f"{number} of {release}" for release, number in sorted(alive.items()))
        yield warn(
            f"workers of different releases are running: {each}",
            "Finish the upgrade: messages that only the newer release can read wait for its "
            "workers (docs/upgrading.md)",
        )


def check_stats(stats: Stats, *, served: bool, now: float) -> Iterator[Finding]:
    """Check one topic. `served`: a live worker serves it; `now`: the server's time."""
    yield from _waiting(stats, served=served)
    yield from _overdue(stats)
    yield from _archives(stats, now)
    if stats.dropped:
        yield warn(
            f"{count(stats.dropped, 'id')} dropped, because there was no message",
            "Check whether something else writes to the keys, or the server lost data. "
            "Run mx-rmq audit",
            stats.topic,
            note=f"{count(stats.dropped, 'id')} dropped",
        )


def check_subscriptions(stats: Stats, workers: Sequence[WorkerView]) -> Iterator[Finding]:
    """Check a topic for subscriptions without a worker, and for other handlers beside them."""
    alive = [worker for worker in workers if worker.alive]
    served = {topic for worker in alive for topic in worker.topics}
    for name in stats.subscriptions:
        if f"{stats.topic}@{name}" not in served:
            yield warn(
                f"subscription {name} has no live worker, so copies pile up",
                f"Start a worker that has it, or end it: mx-rmq unsubscribe {stats.topic} {name}",
                stats.topic,
                note=f"no worker for {name}",
            )
    without = [worker.name for worker in alive if stats.topic in worker.topics]
    if stats.subscriptions and without:
        yield bad(
            f"it has subscriptions, and {count(len(without), 'worker')} with a handler without "
            f"one, which gets nothing, such as {without[0]}",
            "Give that handler a subscription",
            stats.topic,
            note="handler without a subscription",
        )


def _waiting(stats: Stats, *, served: bool) -> Iterator[Finding]:
    topic, waited = stats.topic, stats.oldest_pending or 0
    start = "Start a worker that has a handler for it"
    if stats.subscriptions and not served:
        pass  # each subscription gets its own finding
    elif (stats.pending or stats.processing) and not served:
        yield bad(
            f"{stats.pending:,} pending and {stats.processing:,} in processing, but no live worker "
            "serves the topic",
            start,
            topic,
            State.PENDING if stats.pending else State.PROCESSING,
            "no worker",
        )
    elif stats.delayed and not served:
        what = f"{stats.delayed:,} delayed, but no live worker will handle them when they are due"
        yield warn(what, start, topic, State.DELAYED, "no worker")
    elif stats.waiting and not served:
        what = f"{stats.waiting:,} waiting, but no live worker will handle them afterwards"
        yield warn(what, start, topic, State.WAITING, "no worker")
    elif waited > SLOW and not stats.paused:
        cure = "Its workers do not keep up. Look for slow handlers, or add workers"
        if stats.held_back or stats.keys_blocked:
            held = "the topic" if stats.held_back else count(stats.keys_blocked, "key")
            cure = f"Limits hold back {held}: see mx-rmq keys {topic}. Raise them, or wait"
        yield Finding(
            Severity.BAD if waited > STUCK else Severity.WARN,
            f"behind: {stats.pending:,} pending, the oldest for {duration(waited)}",
            cure,
            topic,
            State.PENDING,
            "behind",
        )
    if stats.paused:
        why = f" ({stats.pause_reason})" if stats.pause_reason else ""
        cure = f"Resume it on its page of the dashboard, or with: mx-rmq resume {topic}"
        yield warn(f"paused{why}, {stats.pending:,} pending", cure, topic, State.PENDING, "paused")
    if stats.running_limit == 0 and stats.pending:
        yield warn(
            f"limited to 0 running, {stats.pending:,} pending",
            f"No message starts. Restore it with: mx-rmq limit {topic} --running none",
            topic,
            State.PENDING,
            "limited to 0",
        )


def _overdue(stats: Stats) -> Iterator[Finding]:
    """Report what any worker of the queue should have moved by now."""
    lease = (State.PROCESSING, stats.lease_overdue, "a lease expired", "taken over the message")
    delayed = (State.DELAYED, stats.delayed_overdue, "a delayed message was due", "moved it")
    for state, seconds, happened, done in (lease, delayed):
        if (seconds or 0) > OVERDUE:
            yield bad(
                f"{happened} {duration(seconds)} ago, and no worker has {done}",
                "Any worker does this within a minute: check the workers' logs; if no worker is "
                "alive, start one",
                stats.topic,
                state,
                f"{state} overdue",
            )


def _archives(stats: Stats, now: float) -> Iterator[Finding]:
    topic = stats.topic
    for state, (_, setting) in ARCHIVES.items():
        number, held = getattr(stats, state), getattr(stats, f"{state}_bytes")
        budget = getattr(stats, f"{state}_budget")
        if number:
            cure = (
                f"List them with mx-rmq list {topic} --state {state}; "
                "then requeue, edit or discard them"
            )
            yield warn(count(number, f"{state} message"), cure, topic, state)
        if budget and held >= NEARLY * budget:
            yield warn(
                f"its {state} messages use {size(held)} of {size(budget)}; beyond that, the oldest "
                "are dropped",
                f"Requeue or discard some, or set a higher {setting}",
                topic,
                state,
                f"{state} nearly full",
            )
    if stats.overflowed_at is not None and now - stats.overflowed_at < RECENT:
        yield warn(
            "an archive exceeded its size limit "
            f"{duration(max(0.0, now - stats.overflowed_at))} ago and dropped its oldest messages",
            "If you need them, set a higher dlq_max_bytes, quarantine_max_bytes or results_bytes, "
            "or give the server more memory",
            topic,
        )
    if stats.totals.trimmed and (stats.dead or stats.quarantined):
        yield warn(
            f"{count(stats.totals.trimmed, 'archived message')} dropped so far, because of "
            "their age or because the archive was full",
            "If you need them, raise dlq_max, dlq_max_bytes, quarantine_max, quarantine_max_bytes "
            "or their ttl",
            topic,
        )
