"""Checks for messages that wait for ones that will not complete on their own, or for very long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mx_rmq.core.message import State
from mx_rmq.core.text import count, duration
from mx_rmq.doctor.finding import Finding, bad, warn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mx_rmq.admin import Admin, MessageView, Stats, StuckWait

LONG: Final = 86_400.0  # seconds that a message may wait for a signal before it is reported
SAMPLE: Final = 100  # of the messages that wait longest, in each partition


async def check_waiting(admin: Admin, stats: Stats) -> list[Finding]:
    """Check the waiting messages of a topic."""
    if not stats.waiting:
        return []
    topic = stats.topic
    stuck = await admin.stuck_waits(topic, most=SAMPLE)
    found = list(_lost([one for one in stuck if one.is_lost]))
    found += _held_up([one for one in stuck if not one.is_lost])
    page = await admin.list(topic, State.WAITING, limit=SAMPLE)
    return [*found, *_long(topic, page.messages, await admin.now())]


def _lost(stuck: list[StuckWait]) -> Iterator[Finding]:
    for first in stuck[:1]:
        yield bad(
            f"{_number(stuck)} for messages that are gone, the first: message {first.id} {first}",
            f"Cancel it with mx-rmq cancel {first.topic} {first.id}, or abort it, and send the "
            "flow again",
            first.topic,
            State.WAITING,
            "waits for lost messages",
        )


def _held_up(stuck: list[StuckWait]) -> Iterator[Finding]:
    for first in stuck[:1]:
        source = first.source
        yield warn(
            f"{_number(stuck)} for failed messages, the first: message {first.id} {first}",
            f"Requeue that one with mx-rmq requeue {source.topic} {source.id}: the flow "
            "continues when it completes",
            first.topic,
            State.WAITING,
            "waits for failed messages",
        )


def _long(topic: str, messages: list[MessageView], now: float) -> Iterator[Finding]:
    long = [
        (one, one.wait.since, [*one.steps.ends][-1])
        for one in messages
        if one.wait is not None
        and one.wait.since is not None
        and now - one.wait.since > LONG
        and one.steps is not None
        and one.steps.ends  # its handler waits for a signal
    ]
    for first, since, name in long[:1]:
        yield warn(
            f"{count(len(long), 'message')} waiting for a signal for more than a day, the first: "
            f"message {first.id} for {name!r}, for {duration(now - since)}",
            f"Send it with mx-rmq signal {topic} {first.id} NAME VALUE, cancel the message, or "
            "give its wait a timeout",
            topic,
            State.WAITING,
            "waits long",
        )


def _number(stuck: list[StuckWait]) -> str:
    return f"{count(len(stuck), 'message')} waiting"
