"""The queue's part of the doctor: what is wrong with topics and workers, and what to do."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from mx_rmq.admin.view import OVERDUE
from mx_rmq.cli.output import count, duration
from mx_rmq.core.errors import OutcomeUnknown, ServerUnavailable, WrongType
from mx_rmq.core.message import State
from mx_rmq.core.partition import number_of
from mx_rmq.core.text import size
from mx_rmq.store.finding import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from mx_rmq.admin import Admin, Stats, WorkerView
    from mx_rmq.store.audit import Violation

WATCHED: Final = 1000
"""Topics that metrics and dashboard look at (`metrics.depth.MOST`, `dashboard.source.MOST`)."""

HOUR: Final = 3600
DAY: Final = 24 * HOUR

FEW: Final = 10
GROWTH: Final = 3
"""FEW deaths or more in an hour are no accident, if over GROWTH times as many as before."""

NEARLY: Final = 0.8
"""Share of an archive's bytes from which on it is nearly full."""

SAMPLE: Final = 100
"""Waiting messages of a topic and state whose records are read."""


async def look_at_queue(admin: Admin, *, audit: bool) -> list[Finding]:
    """Look at the workers, then at every topic; with `audit`, at every message, too."""
    topics = await admin.topics()
    workers = await admin.workers()
    served = {topic for worker in workers if worker.alive for topic in worker.topics}
    findings = [_number(len(topics))]
    findings += _workers(workers, served)
    findings += _releases(workers)
    for topic in topics:
        try:
            findings += await _look_at_topic(admin, topic, served=topic in served, audit=audit)
        except (ServerUnavailable, OutcomeUnknown) as error:
            findings.append(Finding(Severity.BAD, f"topic {topic}: its server is away: {error}"))
    return findings


def _number(topics: int) -> Finding:
    found = f"{count(topics, 'topic')} found"
    if topics <= WATCHED:
        return Finding(Severity.OK, found)
    return Finding(
        Severity.WARN,
        f"{found}; metrics and dashboard show at most {WATCHED:,}; not monitored: "
        f"{topics - WATCHED:,}. A worker's metrics show the topics that it serves first",
        "Run workers that serve fewer topics each and scrape them, or use fewer topics",
    )


def _workers(workers: Sequence[WorkerView], served: set[str]) -> Iterator[Finding]:
    for worker in workers:
        for part, why in worker.down.items() if worker.alive else ():
            yield Finding(
                Severity.BAD,
                f"worker {worker.name} on {worker.host}, process {worker.pid}: its {part} is down: "
                f"{why}",
                "It restarts the part, and stops by itself if that does not help: read its log",
            )
        if not worker.missed:
            continue
        alone = [topic for topic in worker.topics if topic not in served]
        yield Finding(
            Severity.BAD if alone else Severity.WARN,
            f"worker {worker.name} on {worker.host}, process {worker.pid}, fell silent "
            f"{duration(worker.seen_ago)} ago and held {count(worker.held or 0, 'message')} then"
            + (f"; nobody else serves {', '.join(alone)}" if alone else ""),
            "See whether it is frozen or cut off; others take its messages over when the leases "
            "end" + (", so start another worker" if alone else ""),
        )


def _releases(workers: Sequence[WorkerView]) -> Iterator[Finding]:
    """Say if an upgrade is under way, or was left half done."""
    alive = Counter(worker.version or "before 2.0" for worker in workers if worker.alive)
    if len(alive) > 1:
        each = ", ".join(f"{number} of {release}" for release, number in sorted(alive.items()))
        yield Finding(
            Severity.WARN,
            f"workers of several releases are alive: {each}",
            "Finish the upgrade: messages that only the newer release can read wait for its "
            "workers (docs/upgrading.md)",
        )


async def _look_at_topic(admin: Admin, topic: str, *, served: bool, audit: bool) -> list[Finding]:
    findings = []
    if audit and (violations := await admin.audit(topic)):
        findings.append(
            Finding(
                Severity.BAD,
                f"topic {topic}: {count(len(violations), 'violation')}, the first: "
                f"{_first(violations)}",
                f"See all of them with: mx-rmq audit {topic}; fix them with --repair",
            )
        )
    try:
        stats = await admin.stats(topic)
    except WrongType as error:
        # Of which the audit has told, if there was one.
        return findings or [Finding(Severity.BAD, f"topic {topic}: {error}")]
    findings += _waiting(stats, served=served)
    findings += [one async for one in _newer(admin, stats)]
    findings += [one async for one in _archives(admin, stats)]
    findings += [one async for one in _overdue(admin, stats)]
    if not findings:
        where = f" in {count(stats.partitions, 'partition')}" if stats.partitions > 1 else ""
        each = ", each in exactly one state" if audit else ""
        what = f"topic {topic}: {count(stats.total, 'message')}{where}{each}"
        findings.append(Finding(Severity.OK, what))
    return findings


def _first(violations: list[Violation]) -> str:
    first = violations[0]
    number = number_of(first.topic)
    where = f"partition {number}: " if number else ""
    return f"{where}{first.id or '(topic)'}: {first.what}"


def _waiting(stats: Stats, *, served: bool) -> Iterator[Finding]:
    topic = stats.topic
    if (stats.pending or stats.processing) and not served:
        yield Finding(
            Severity.BAD,
            f"topic {topic}: {stats.pending:,} pending and {stats.processing:,} in processing, "
            "and no live worker serves it",
            "Start a worker that has a handler for it",
        )
    elif stats.delayed and not served:
        yield Finding(
            Severity.WARN,
            f"topic {topic}: {stats.delayed:,} delayed, and no live worker will handle them when "
            "they are due",
            "Start a worker that has a handler for it",
        )
    if stats.paused:
        yield Finding(
            Severity.WARN,
            f"topic {topic} is paused, {stats.pending:,} pending",
            f"Let it go on with: mx-rmq resume {topic}",
        )
    if stats.dropped:
        yield Finding(
            Severity.WARN,
            f"topic {topic}: {count(stats.dropped, 'id')} without a message had to be dropped",
            "Find out who else writes to the keys, or what the server lost",
        )


async def _newer(admin: Admin, stats: Stats) -> AsyncIterator[Finding]:
    """Say if messages wait that this release cannot read; its workers cannot either."""
    waiting = ((State.PENDING, stats.pending), (State.DELAYED, stats.delayed))
    for state, number in waiting:
        if not number:
            continue
        page = await admin.list(stats.topic, state, limit=SAMPLE)
        if newer := sum(one.newer for one in page.messages):
            yield Finding(
                Severity.WARN,
                f"topic {stats.topic}: messages of a newer release wait here: {newer:,} of the "
                f"first {len(page.messages):,} {state} ones",
                "Upgrade the workers of this release; until then newer ones handle them",
            )


async def _archives(admin: Admin, stats: Stats) -> AsyncIterator[Finding]:
    """Say what lies in the archives, and whether it is becoming more."""
    for state, number in ((State.DEAD, stats.dead), (State.QUARANTINED, stats.quarantined)):
        if not number:
            continue
        topic, now = stats.topic, await admin.now()
        lately = await admin.count(topic, state, since=now - HOUR, until=now)
        before = await admin.count(topic, state, since=now - HOUR - DAY, until=now - HOUR)
        growing = lately >= FEW and lately > GROWTH * before / 24
        more = (
            f", growing: {lately:,} of them in the last hour, {before / 24:,.1f} an hour in the "
            "day before"
        )
        yield Finding(
            Severity.WARN,
            f"topic {topic}: {count(number, f'{state} message')}{more if growing else ''}",
            f"Look with: mx-rmq list {topic} --state {state}{' --since 1h' if growing else ''}; "
            "then requeue, edit or discard",
        )
    for finding in _bytes(stats, await admin.now()):
        yield finding
    if stats.totals.trimmed and (stats.dead or stats.quarantined):
        yield Finding(
            Severity.WARN,
            f"topic {stats.topic}: {count(stats.totals.trimmed, 'archived message')} dropped so "
            "far, for their age or because the archive was full",
            "If they were wanted, raise dlq_max, dlq_max_bytes, quarantine_max, "
            "quarantine_max_bytes or their ttl",
        )


def _bytes(stats: Stats, now: float) -> Iterator[Finding]:
    """Say if an archive has nearly used up its bytes, or has dropped messages for them."""
    for state, setting, held, budget in (
        (State.DEAD, "dlq_max_bytes", stats.dead_bytes, stats.dead_budget),
        (
            State.QUARANTINED,
            "quarantine_max_bytes",
            stats.quarantined_bytes,
            stats.quarantined_budget,
        ),
    ):
        if budget and held >= NEARLY * budget:
            yield Finding(
                Severity.WARN,
                f"topic {stats.topic}: its {state} messages take {size(held)} of the "
                f"{size(budget)} that they may; over it the oldest are dropped",
                f"Requeue or discard some, or set a higher {setting}",
            )
    if stats.overflowed_at is not None and now - stats.overflowed_at < DAY:
        yield Finding(
            Severity.WARN,
            f"topic {stats.topic}: an archive was over its bytes "
            f"{duration(max(0.0, now - stats.overflowed_at))} ago and dropped its oldest messages",
            "If they were wanted, set a higher dlq_max_bytes or quarantine_max_bytes, or give the "
            "server more memory",
        )


async def _overdue(admin: Admin, stats: Stats) -> AsyncIterator[Finding]:
    """Report stuck messages: any worker of the queue should have moved them by now."""
    leases = (State.PROCESSING, stats.lease_overdue, "lease", "ran out", "taken the message over")
    delayed = (State.DELAYED, stats.delayed_overdue, "delayed message", "became due", "moved it")
    for state, seconds, one, happened, done in (leases, delayed):
        if (seconds or 0) > OVERDUE:
            late = await admin.count(stats.topic, state, until=await admin.now() - OVERDUE)
            yield Finding(
                Severity.BAD,
                f"topic {stats.topic}: {count(late, one)} {happened} over {OVERDUE:g} s ago and "
                f"no worker has {done}",
                "Check the workers' logs; if no worker is alive, start one",
            )
