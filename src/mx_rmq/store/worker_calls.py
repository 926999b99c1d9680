"""The transitions that workers make: pending -> processing -> settled.

These functions do not decode records. Callers do, and pass what they cannot decode to
`handle_parse_error`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mx_rmq.core import codec
from mx_rmq.core.message import Message, State
from mx_rmq.core.steps import MAX_AFTER, is_child
from mx_rmq.core.text import brief
from mx_rmq.store.arguments import (
    MAX_BATCH,
    check_level,
    check_range,
    check_same,
)
from mx_rmq.store.results import (
    SETTLED,
    Claim,
    Dispatched,
    HandedBack,
    Held,
    Leased,
    RetryRequest,
    Settled,
    Signal,
    Signalled,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.core.outcome import Park, Postpone, SnoozeLater
    from mx_rmq.net.connection import Value
    from mx_rmq.store.quarantine import QuarantineReason
    from mx_rmq.store.store import Store

MAX_SIGNALS: Final = 10_000  # kept for one message
SIGNALS_PER_PAGE: Final = 100

INLINE: Final = 4096
"""Bytes of the longest result that is published. Those who wait for a longer one read it."""


# pending -> processing


async def dispatch_message(
    store: Store, topic: str, worker: str, *, count: int, lease: int, alone: bool = False
) -> Dispatched:
    """Lease up to `count` pending messages to a worker for `lease` ms.

    `alone`: only if no worker has a message of the topic in processing.
    """
    named = _take(worker, count, lease, alone=alone)
    return _dispatched(await store.run("dispatch_message", topic, named), in_turn=False)


async def dispatch_in_turn(
    store: Store,
    topic: str,
    worker: str,
    *,
    count: int,
    lease: int,
    limits: str = "",
    alone: bool = False,
) -> Dispatched:
    """Lease messages in the turn of their keys and within the limits.

    `limits`: what the handler declares, as `core.limits.declared` writes it.
    """
    named = {**_take(worker, count, lease, alone=alone), "declared": limits}
    return _dispatched(await store.run("dispatch_in_turn", topic, named), in_turn=True)


def _take(worker: str, count: int, lease: int, *, alone: bool) -> dict[str, Value]:
    return {
        "worker": worker,
        "max_count": check_range("count", count, 1, MAX_BATCH),
        "lease_ms": check_range("lease", lease, 1),
        "alone": int(alone),
    }


def _dispatched(reply: list[Any], *, in_turn: bool) -> Dispatched:
    fields = iter(reply)
    now, wait = int(next(fields)), int(next(fields))
    messages = [
        Leased(id.decode("utf-8", "surrogateescape"), int(token), record)
        for id, token, record in zip(fields, fields, fields, strict=True)
    ]
    other_script = wait == -2
    return Dispatched(now, messages, None if wait < 0 else wait, in_turn != other_script)


# processing -> gone, delayed, pending, processing


async def complete_message(
    store: Store, topic: str, worker: str, held: Sequence[Held]
) -> list[Settled]:
    items: list[Value] = []
    for one in held:
        items += (one.id, one.token)
    return await _settle(store, "complete_message", topic, {"worker": worker}, items)


async def complete_with_result(
    store: Store, topic: str, worker: str, kept: Sequence[tuple[Held, bytes]], *, ttl: int
) -> list[Settled]:
    """Complete messages and keep their results for `ttl` ms; `Kept` says what is stored."""
    if not kept:
        return []
    named: dict[str, Value] = {
        "worker": worker,
        "keep": store.limits.results_max,
        "ttl_ms": check_range("ttl", ttl, 1),
        "budget": await store.budget(topic, State.COMPLETED),
        "hexpire_s": store.field_ttl(ttl),
        "inline": INLINE,
    }
    items: list[Value] = []
    for claim, result in kept:
        items += (claim.id, claim.token, result)
    answers = await store.run("complete_with_result", topic, named, items, archive=State.COMPLETED)
    return [SETTLED[code] for code in answers]


async def note_progress(
    store: Store, topic: str, worker: str, reports: Sequence[tuple[Held, bytes]], *, keep: int
) -> list[Settled]:
    """Keep what handlers report about their progress for `keep` ms."""
    if not reports:
        return []
    named: dict[str, Value] = {"worker": worker, "keep_ms": check_range("keep", keep, 1)}
    items: list[Value] = []
    for claim, report in reports:
        items += (claim.id, claim.token, report)
    keys = [store.keys.of(topic).progress(claim.id) for claim, _ in reports]
    answers = await store.run("note_progress", topic, named, items, makers=keys)
    return [SETTLED[code] for code in answers]


async def retry_message(
    store: Store, topic: str, worker: str, retries: Sequence[RetryRequest]
) -> list[Settled]:
    """Delay failed messages until their next attempt, each with its updated record."""
    items: list[Value] = []
    for claim, message, delay in retries:
        check_same(message, topic, claim.id)
        why = message.errors[-1].summary if message.errors else message.reason
        items += (claim.id, claim.token, codec.encode(message))
        items += (*_due(message.priority, delay, message.expires_at, why), "", "")
    return await _settle(
        store, "retry_message", topic, {"worker": worker, "what": "retried"}, items
    )


async def snooze_message(
    store: Store, topic: str, worker: str, snoozed: Sequence[tuple[Held, SnoozeLater]]
) -> list[Settled]:
    """Delay messages whose handler wants them later."""
    items: list[Value] = []
    for claim, later in snoozed:
        message = later.message
        check_same(message, topic, claim.id)
        items += (claim.id, claim.token, codec.encode(message))
        items += _due(message.priority, later.delay, message.expires_at, later.reason)
        items += (later.delay if later.key else "", "")
    return await _settle(
        store, "retry_message", topic, {"worker": worker, "what": "snoozed"}, items
    )


async def postpone_message(
    store: Store, topic: str, worker: str, postponed: Sequence[tuple[Held, Postpone]]
) -> list[Settled]:
    """Delay messages of a newer release, each with its unchanged bytes."""
    items: list[Value] = []
    for claim, (record, priority, delay, expires, why) in postponed:
        items += (claim.id, claim.token, record, *_due(priority, delay, expires, why), "", "")
    return await _settle(
        store, "retry_message", topic, {"worker": worker, "what": "postponed"}, items
    )


async def park_message(
    store: Store, topic: str, worker: str, parked: Sequence[tuple[Held, Park]]
) -> list[Settled]:
    """Let messages wait for signals."""
    items: list[Value] = []
    for claim, park in parked:
        message = park.message
        check_same(message, topic, claim.id)
        items += (claim.id, claim.token, codec.encode(message))
        items += _due(message.priority, park.delay, message.expires_at, park.reason)
        items += ("", "\n".join(park.awaits))
    return await _settle(store, "retry_message", topic, {"worker": worker, "what": "parked"}, items)


async def note_record(
    store: Store, topic: str, worker: str, notes: Sequence[tuple[Held, Message, str]]
) -> list[Settled]:
    """Give messages in processing new records; the texts tell the history what was noted."""
    items: list[Value] = []
    for claim, message, about in notes:
        check_same(message, topic, claim.id)
        items += (claim.id, claim.token, codec.encode(message), brief(about))
    return await _settle(store, "note_record", topic, {"worker": worker}, items)


async def signal_message(
    store: Store, topic: str, signals: Sequence[Signal], *, by: str = ""
) -> list[Signalled]:
    """Send signals to messages of a topic or partition: all from callers, or all from messages.

    Those of callers leave room for those from other messages, without which it would wait forever.
    """
    items: list[Value] = []
    for id, name, value, wake in signals:
        items += (id, name, value, int(wake))
    if not items:
        return []
    most = MAX_SIGNALS + (2 * MAX_AFTER if is_child(signals[0].name) else 0)
    named: dict[str, Value] = {"most": most, "by": brief(by)}
    return [Signalled(chr(code)) for code in await store.run("signal_message", topic, named, items)]


async def signals_of(store: Store, topic: str, id: str) -> dict[str, bytes]:
    """Return the signals that have arrived for a message, by their names."""
    found: dict[str, bytes] = {}
    start = prefix = f"{id}\t".encode()
    while True:
        page = await store.caller.command(
            "ZRANGEBYLEX",
            store.keys.of(topic).signals,
            (b"[" if start == prefix else b"(") + start,
            b"(" + prefix[:-1] + b"\n",
            "LIMIT",
            0,
            SIGNALS_PER_PAGE,
        )
        for member in page:
            name, _, value = member[len(prefix) :].partition(b"\t")
            found[name.decode("utf-8", "surrogateescape")] = value
        if len(page) < SIGNALS_PER_PAGE:
            return found
        start = page[-1]


def _due(priority: str, delay: int | None, expires: int | None, why: str) -> tuple[Value, ...]:
    until = "" if delay is None else check_range("delay", delay, 0)
    return check_level(priority), until, "" if expires is None else expires, brief(why)


async def release_message(
    store: Store, topic: str, worker: str, handed_back: Sequence[HandedBack]
) -> list[Settled]:
    """Hand unfinished messages back to the front of the queue, in the given order."""
    items: list[Value] = []
    for claim, priority, expires in handed_back:
        items += (claim.id, claim.token, check_level(priority))
        items.append("" if expires is None else expires)
    return await _settle(store, "release_message", topic, {"worker": worker}, items)


async def release_replaced(store: Store, topic: str, worker: str, claim: Held) -> Settled:
    """Let go of a message that was replaced while the worker held it: its new record waits."""
    named: dict[str, Value] = {"worker": worker, "id": claim.id, "token": claim.token}
    return Settled((await store.run("release_replaced", topic, named)).decode())


async def _settle(
    store: Store, name: str, topic: str, named: dict[str, Value], items: list[Value]
) -> list[Settled]:
    if not items:
        return []
    return [SETTLED[code] for code in await store.run(name, topic, named, items)]


async def extend_lease(
    store: Store, topic: str, worker: str, held: Sequence[Held], *, lease: int
) -> list[Claim]:
    """Extend leases to `lease` ms from now; return the claims that are lost."""
    named: dict[str, Value] = {"worker": worker, "lease_ms": check_range("lease", lease, 1)}
    items: list[Value] = []
    for one in held:
        items += (one.id, one.token)
    settled = zip(held, await _settle(store, "extend_lease", topic, named, items), strict=True)
    return [Claim(one.id, one.token) for one, done in settled if not done]


# processing -> dead, quarantined


async def move_to_dlq(
    store: Store, topic: str, worker: str, claim: Held, message: Message
) -> Settled:
    """Dead-letter a message that gets no further attempt. Its `reason` says why."""
    check_same(message, topic, claim.id)
    named: dict[str, Value] = {"record": codec.encode(message), "why": brief(message.reason)}
    return await _archive(store, "move_to_dlq", topic, worker, claim, State.DEAD, named)


async def handle_parse_error(
    store: Store, topic: str, worker: str, claim: Held, error: QuarantineReason
) -> Settled:
    """Quarantine a message that cannot be decoded."""
    named: dict[str, Value] = {
        "info": error.line(),
        "max_bytes": store.limits.quarantine_bytes,
        "why": brief(f"{error.error_type}: {error.error}"),
    }
    state = State.QUARANTINED
    return await _archive(store, "handle_parse_error", topic, worker, claim, state, named)


async def _archive(
    store: Store,
    name: str,
    topic: str,
    worker: str,
    claim: Held,
    state: State,
    named: dict[str, Value],
) -> Settled:
    limits = await store.archive_limits(topic, state)
    hexpire = store.field_ttl(limits["ttl_ms"])
    named |= {"worker": worker, "id": claim.id, "token": claim.token, "hexpire_s": hexpire}
    answer = await store.run(name, topic, {**named, **limits}, archive=state)
    return Settled(answer.decode())
