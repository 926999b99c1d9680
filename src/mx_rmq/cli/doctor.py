"""`mx-rmq doctor`: is the server fit to hold messages, and is the queue well?"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from mx_rmq.cli.connection import on_queue
from mx_rmq.cli.output import as_json, count, print_json, say
from mx_rmq.core.errors import OutcomeUnknown, ServerUnavailable, WrongType
from mx_rmq.core.partition import number_of
from mx_rmq.store.health import Finding, Severity, examine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mx_rmq.admin import Admin, Stats
    from mx_rmq.cli.connection import Queue
    from mx_rmq.store.audit import Violation

COLOURS = {Severity.OK: "green", Severity.WARN: "yellow", Severity.BAD: "red"}


@click.command(short_help="Examine the server and the queue; say what to do.")
@as_json
@on_queue
async def doctor(queue: Queue, as_json: bool) -> int:
    """Examine the server and every topic; say what is wrong and what to do about it.

    Exit code 0: nothing is bad. 1: something is. 2: the server could not be examined.
    """
    queue.check()
    settings = queue.settings
    health = await examine(settings.address, prefix=settings.prefix, patience=settings.patience)
    findings = [*health.findings]
    if health.usable:
        try:
            async with queue.open() as admin:
                findings += await _queue(admin)
        except (ServerUnavailable, OutcomeUnknown) as error:
            findings.append(Finding(Severity.BAD, f"the topics cannot be listed: {error}"))
    else:
        findings.append(
            Finding(Severity.WARN, "the topics were not looked at", "Put the server right first")
        )
    bad = any(one.severity is Severity.BAD for one in findings)
    if as_json:
        print_json({"bad": bad, "findings": [asdict(one) for one in findings]})
    else:
        for one in findings:
            click.secho(f"{one.severity:<5}", fg=COLOURS[one.severity], nl=False)
            say(str(one))
    return int(bad)


async def _queue(admin: Admin) -> list[Finding]:
    topics = await admin.topics()
    served = {topic for worker in await admin.workers() if worker.alive for topic in worker.topics}
    findings = [Finding(Severity.OK, f"{count(len(topics), 'topic')} found")]
    for topic in topics:
        try:
            violations = await admin.audit(topic)
        except (ServerUnavailable, OutcomeUnknown) as error:
            findings.append(Finding(Severity.BAD, f"topic {topic}: its server is away: {error}"))
            continue
        if violations:
            findings.append(
                Finding(
                    Severity.BAD,
                    f"topic {topic}: {count(len(violations), 'violation')}, the first: "
                    f"{_first(violations)}",
                    f"See all of them with: mx-rmq audit {topic}",
                )
            )
        try:
            stats = await admin.stats(topic)
        except WrongType:  # of which the audit has told
            continue
        found = list(_topic(stats, served=topic in served))
        if not found and not violations:
            waiting = count(stats.total, "message")
            if stats.partitions > 1:
                waiting += f" in {count(stats.partitions, 'partition')}"
            found = [Finding(Severity.OK, f"topic {topic}: {waiting}, each in exactly one state")]
        findings += found
    return findings


def _first(violations: list[Violation]) -> str:
    first = violations[0]
    number = number_of(first.topic)
    where = f"partition {number}: " if number else ""
    return f"{where}{first.id or '(topic)'}: {first.what}"


def _topic(stats: Stats, *, served: bool) -> Iterator[Finding]:
    topic = stats.topic
    if (stats.pending or stats.processing) and not served:
        yield Finding(
            Severity.BAD,
            f"topic {topic}: {stats.pending:,} pending and {stats.processing:,} in processing, "
            "and no live worker serves it",
            "Start a worker that has a handler for it",
        )
    if stats.paused:
        yield Finding(
            Severity.WARN,
            f"topic {topic} is paused, {stats.pending:,} pending",
            f"Let it go on with: mx-rmq resume {topic}",
        )
    for state, number in (("dead", stats.dead), ("quarantined", stats.quarantined)):
        if number:
            yield Finding(
                Severity.WARN,
                f"topic {topic}: {count(number, f'{state} message')}",
                f"Look with: mx-rmq list {topic} --state {state}; then requeue or discard",
            )
    if stats.dropped:
        yield Finding(
            Severity.WARN,
            f"topic {topic}: {count(stats.dropped, 'id')} without a message had to be dropped",
            "Find out who else writes to the keys, or what the server lost",
        )
