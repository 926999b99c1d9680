"""The queue's part of `mx-rmq doctor`: the checks of an overview, and those that read messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mx_rmq.admin.stats import MOST
from mx_rmq.core.errors import OutcomeUnknown, ServerUnavailable, WrongType
from mx_rmq.core.message import FAILED, UNSTARTED
from mx_rmq.core.partition import number_of
from mx_rmq.core.text import count
from mx_rmq.doctor.finding import Finding, bad, ok, warn
from mx_rmq.doctor.keys import check_keys
from mx_rmq.doctor.schedules import check_schedules
from mx_rmq.doctor.topics import (
    check_stats,
    check_subscriptions,
    check_workers,
    served_topics,
    unreachable,
)
from mx_rmq.doctor.waiting import check_waiting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from mx_rmq.admin import Admin, Stats
    from mx_rmq.store.audit import Violation

HOUR: Final = 3600

FEW: Final = 10
GROWTH: Final = 3
"""An archive grows too fast if at least FEW messages came in the last hour, and more than GROWTH
times the hourly average of the day before."""

SAMPLE: Final = 100  # waiting messages of each topic and state whose records are read


async def check_queue(admin: Admin, *, audit: bool) -> list[Finding]:
    """Check the workers and every topic; with `audit`, every message as well."""
    overview = await admin.overview(most=None)
    workers = await admin.workers()
    served = served_topics(workers)
    findings = [check_topic_count(overview.known, MOST), *check_workers(workers)]
    for topic in sorted([*overview.topics, *overview.away]):
        found: list[Finding] = []
        stats, why = overview.topics.get(topic), overview.away.get(topic)
        try:
            if audit and (why is None or isinstance(why, WrongType)):
                found += _audited(topic, await admin.audit(topic))
            if why is not None:
                found = found or [unreachable(topic, why)]
            elif stats is not None:
                found += check_stats(stats, served=topic in served, now=await admin.now())
                found += check_subscriptions(stats, workers)
                found += await check_keys(admin, stats, served=topic in served)
                found += [one async for one in _newer(admin, stats)]
                found += await check_waiting(admin, stats)
                found += [one async for one in _growing(admin, stats)]
                found = found or [_well(stats, audited=audit)]
        except (ServerUnavailable, OutcomeUnknown) as error:
            found.append(unreachable(topic, error))
        findings += found
    found_schedules = await admin.schedules()
    if found_schedules:
        findings += check_schedules(found_schedules, served=served, now=await admin.now())
    return findings


def check_topic_count(topics: int, most: int) -> Finding:
    """Report topics that metrics and dashboard leave out."""
    found = f"{count(topics, 'topic')} found"
    if topics <= most:
        return ok(found)
    return warn(
        f"{found}, but metrics and dashboard show at most {most:,}, leaving {topics - most:,} "
        "unmonitored. A worker's metrics show the topics that it serves first",
        "Run workers that serve fewer topics each and scrape them, or use fewer topics",
    )


def _well(stats: Stats, *, audited: bool) -> Finding:
    where = f" in {count(stats.partitions, 'partition')}" if stats.partitions > 1 else ""
    each = ", each in exactly one state" if audited else ""
    return ok(f"{count(stats.total, 'message')}{where}{each}", topic=stats.topic)


def _audited(topic: str, violations: list[Violation]) -> Iterator[Finding]:
    for first in violations[:1]:
        number = number_of(first.topic)
        where = f"partition {number}: " if number else ""
        yield bad(
            f"{count(len(violations), 'violation')}, the first: "
            f"{where}{first.id or '(topic)'}: {first.what}",
            f"See all of them with: mx-rmq audit {topic}; fix them with --repair",
            topic,
        )


async def _newer(admin: Admin, stats: Stats) -> AsyncIterator[Finding]:
    """Report waiting messages that this release cannot read; its workers cannot either."""
    for state in UNSTARTED:
        if not getattr(stats, state):
            continue
        page = await admin.list(stats.topic, state, limit=SAMPLE)
        if newer := sum(one.newer for one in page.messages):
            yield warn(
                f"{newer:,} of the first {len(page.messages):,} {state} messages "
                "can be read only by a newer release",
                "Upgrade the older workers; until then these messages wait for newer ones",
                stats.topic,
                state,
            )


async def _growing(admin: Admin, stats: Stats) -> AsyncIterator[Finding]:
    """Report archives that grow faster than before."""
    topic = stats.topic
    for state in FAILED:
        if not getattr(stats, state):
            continue
        now = await admin.now()
        latest = await admin.count(topic, state, since=now - HOUR, until=now)
        day = await admin.count(topic, state, since=now - 25 * HOUR, until=now - HOUR)
        if latest >= FEW and latest > GROWTH * day / 24:
            yield warn(
                f"{state} messages are piling up: {latest:,} in the last hour, compared to "
                f"{day / 24:,.1f} per hour over the previous day",
                f"List them with mx-rmq list {topic} --state {state} --since 1h",
                topic,
                state,
            )
