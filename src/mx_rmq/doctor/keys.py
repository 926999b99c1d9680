"""What is wrong with the keys and limits of a topic: stuck, paused for long, limited to 0.

Of a topic with many keys, only those with the most waiting are checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mx_rmq.core.message import State
from mx_rmq.core.text import count, duration
from mx_rmq.doctor.finding import Finding, bad, warn
from mx_rmq.doctor.topics import OVERDUE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mx_rmq.admin import Admin, KeyView, LimitsView, Stats

CHECKED: Final = 50  # keys of each topic
LONG: Final = 3600.0  # seconds that a message may wait for a paused key without a warning
NAMED: Final = 3  # keys named in one finding


async def check_keys(admin: Admin, stats: Stats, *, served: bool) -> list[Finding]:
    """Check the keys and the limits of a topic. `served`: whether it has a live worker."""
    if not stats.pending:
        return []
    topic = stats.topic
    found = await admin.keys(topic, limit=CHECKED)
    free = served and not (stats.paused or stats.processing or found.held_back)
    stuck = []
    for one in found.keys:
        if one.key is not None and _is_stuck(one, free=free):
            again = await admin.key(topic, one.key)  # it may have moved while we read
            if _is_stuck(again, free=free):
                stuck.append(again)
    limits = await admin.limits(topic)
    return [*_stuck(topic, stuck), *_held(topic, found.keys), *_check_share(stats, limits)]


def _is_stuck(key: KeyView, *, free: bool) -> bool:
    """`free`: nothing keeps the workers from checking it."""
    waited = (key.unattended or 0) > OVERDUE and key.limited_by is None
    return waited and (free or key.turnless)


def _stuck(topic: str, keys: Sequence[KeyView]) -> Iterator[Finding]:
    if keys:
        longest = max(one.unattended or 0 for one in keys)
        yield bad(
            f"{count(len(keys), 'key')} could start, but no worker has checked "
            f"{'it' if len(keys) == 1 else 'them'} for up to {duration(longest)}: {_names(keys)}",
            f"Check that its workers are alive, then run: mx-rmq audit {topic} --repair",
            topic,
            State.PENDING,
            "stuck keys",
        )


def _held(topic: str, keys: Sequence[KeyView]) -> Iterator[Finding]:
    paused = [
        one
        for one in keys
        if one.limited_by is not None and one.limited_by.by == "paused" and (one.oldest or 0) > LONG
    ]
    if paused:
        reasons = {one.limited_by.reason for one in paused if one.limited_by is not None} - {""}
        why = f" ({'; '.join(sorted(reasons)[:NAMED])})" if reasons else ""
        yield warn(
            f"{count(len(paused), 'key')} paused, with messages that have waited for up to "
            f"{duration(max(one.oldest or 0 for one in paused))}: {_names(paused)}{why}",
            f"Resume with: mx-rmq resume {topic} --key KEY; or cancel the messages",
            topic,
            State.PENDING,
            "keys paused",
        )
    none = [one for one in keys if one.waiting and one.running_limit == 0]
    if none:
        yield warn(
            f"{count(len(none), 'key')} limited to 0 running, with messages waiting: "
            f"{_names(none)}",
            f"None of them starts. Restore it with: mx-rmq limit {topic} --key KEY --running none",
            topic,
            State.PENDING,
            "keys limited to 0",
        )


def _check_share(stats: Stats, limits: LimitsView) -> Iterator[Finding]:
    """Check whether the partitions of a topic can share its running limit."""
    running = limits.in_force.running
    if running and 1 < stats.partitions >= running:
        yield warn(
            f"its running limit has reached its minimum: 1 in each of {stats.partitions:,} "
            f"partitions, so {stats.partitions:,} run at a time, even if it was set lower",
            "If fewer must run, limit each key (per_key) or use a topic with fewer partitions",
            stats.topic,
        )


def _names(keys: Sequence[KeyView]) -> str:
    names = [f"{one.key!r:.60}" for one in keys[:NAMED]]
    return ", ".join(names) + (", …" if len(keys) > NAMED else "")
