"""The transitions that workers make, and their heartbeats.

These functions do not decode ids or records. Callers do, and pass what they cannot decode to
`handle_parse_error`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mx_rmq.core import codec
from mx_rmq.core.message import Message, State
from mx_rmq.core.names import check_worker
from mx_rmq.core.text import brief
from mx_rmq.store.arguments import (
    MAX_BATCH,
    MAX_TOPICS,
    SETTLED,
    check_batch,
    check_level,
    check_range,
    check_same,
    id_of,
    wait_of,
)
from mx_rmq.store.results import (
    Claim,
    Dispatched,
    Expired,
    HandedBack,
    Held,
    Leased,
    RetryRequest,
    Settled,
    Survey,
    Surveyed,
    TakenMessage,
    TimedOut,
)
from mx_rmq.store.script import load

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.core.outcome import Postpone
    from mx_rmq.net.connection import Value
    from mx_rmq.store.quarantine import QuarantineReason
    from mx_rmq.store.store import Store

WINDOW: Final = 1000
"""Places at the end of each list to search for expired messages."""

WALK: Final = 20_000
"""How far beyond them an expired message may be for LREM to remove it: about 0.3 ms of the server's
time."""

SPARE: Final = 1000
"""Expired messages that may keep their place in a list before LREM removes any."""


# pending -> processing


async def dispatch_message(
    store: Store, topic: str, worker: str, *, count: int, lease: int, alone: bool = False
) -> Dispatched:
    """Lease up to `count` pending messages to a worker for `lease` ms.

    `alone`: only if no worker has a message of the topic in processing.
    """
    keys = store.keys.of(topic)
    check_worker(worker)
    check_range("count", count, 1, MAX_BATCH)
    check_range("lease", lease, 1)
    with store.lanes.lane(topic) as lane:
        lane.number += 1
        reply = await store.run(
            "dispatch_message",
            keys,
            {
                "now_ms": store.now(),
                "call": lane.number,
                "worker": worker,
                "max_count": count,
                "lease_ms": lease,
                "alone": int(alone),
            },
            lane=lane,
        )
    fields = iter(reply)
    now = int(next(fields))
    return Dispatched(
        now,
        [
            Leased(id_of(id), int(token), record)
            for id, token, record in zip(fields, fields, fields, strict=True)
        ],
    )


# processing -> gone, delayed, pending, processing


async def complete_message(
    store: Store, topic: str, worker: str, held: Sequence[Held]
) -> list[Settled]:
    """Remove handled messages."""
    items: list[Value] = []
    for one in held:
        items += (one.id, one.token)
    return await _settle(store, "complete_message", topic, worker, items)


async def retry_message(
    store: Store, topic: str, worker: str, retries: Sequence[RetryRequest]
) -> list[Settled]:
    """Delay failed messages until their next attempt, each with its updated record."""
    items: list[Value] = []
    for claim, message, delay in retries:
        check_same(message, topic, claim.id)
        check_range("delay", delay, 0)
        record = codec.encode(message)
        items += (claim.id, claim.token, record, check_level(message.priority), delay)
        items.append("" if message.expires_at is None else message.expires_at)
        items.append(brief(message.errors[-1].summary if message.errors else message.reason))
    return await _delay(store, topic, worker, items, what="retried")


async def postpone_message(
    store: Store, topic: str, worker: str, postponed: Sequence[tuple[Held, Postpone]]
) -> list[Settled]:
    """Delay messages of a newer release, each with its unchanged bytes."""
    items: list[Value] = []
    for claim, (record, priority, delay, expires, why) in postponed:
        check_range("delay", delay, 0)
        items += (claim.id, claim.token, record, check_level(priority), delay)
        items += ("" if expires is None else expires, brief(why))
    return await _delay(store, topic, worker, items, what="postponed")


async def _delay(
    store: Store, topic: str, worker: str, items: list[Value], *, what: str
) -> list[Settled]:
    named: dict[str, Value] = {"now_ms": store.now(), "what": what}
    return await _settle(store, "retry_message", topic, worker, items, **named)


async def release_message(
    store: Store, topic: str, worker: str, handed_back: Sequence[HandedBack]
) -> list[Settled]:
    """Hand unfinished messages back to the front of the queue, in the given order."""
    items: list[Value] = []
    for claim, priority, expires in handed_back:
        items += (claim.id, claim.token, check_level(priority))
        items.append("" if expires is None else expires)
    return await _settle(store, "release_message", topic, worker, items)


async def extend_lease(
    store: Store, topic: str, worker: str, held: Sequence[Held], *, lease: int
) -> list[Claim]:
    """Extend leases to `lease` ms from now; return the claims that are lost."""
    keys = store.keys.of(topic)
    check_worker(worker)
    check_range("lease", lease, 1)
    if not check_batch(held):
        return []
    items: list[Value] = []
    for one in held:
        items += (one.id, one.token)
    answer = await store.run(
        "extend_lease",
        keys,
        {"now_ms": store.now(), "worker": worker, "lease_ms": lease},
        items,
    )
    lost = [one for one, code in zip(held, answer, strict=True) if chr(code) == "0"]
    return [Claim(one.id, one.token) for one in lost]


async def _settle(
    store: Store,
    name: str,
    topic: str,
    worker: str,
    items: list[Value],
    **named: Value,
) -> list[Settled]:
    keys = store.keys.of(topic)
    named["worker"] = check_worker(worker)
    if not check_batch(items, len(load(name).each)):
        return []
    with store.lanes.lane(topic) as lane:
        lane.number += 1
        answer = await store.run(name, keys, {"call": lane.number, **named}, items, lane=lane)
    return [SETTLED[code] for code in answer]


# processing -> dead, quarantined


async def move_to_dlq(
    store: Store, topic: str, worker: str, claim: Held, message: Message
) -> Settled:
    """Dead-letter a message that gets no further attempt. Its `reason` says why."""
    check_same(message, topic, claim.id)
    return await _archive(
        store,
        "move_to_dlq",
        topic,
        State.DEAD,
        worker=check_worker(worker),
        id=claim.id,
        token=claim.token,
        record=codec.encode(message),
        why=brief(message.reason),
    )


async def handle_parse_error(
    store: Store, topic: str, worker: str, claim: Held, error: QuarantineReason
) -> Settled:
    """Quarantine a message that cannot be decoded."""
    return await _archive(
        store,
        "handle_parse_error",
        topic,
        State.QUARANTINED,
        worker=check_worker(worker),
        id=claim.id,
        token=claim.token,
        info=error.line(),
        max_bytes=store.limits.quarantine_bytes,
        why=brief(f"{error.error_type}: {error.error}"),
    )


async def _archive(store: Store, name: str, topic: str, state: State, **named: Value) -> Settled:
    keys = store.keys.of(topic)
    keep, ttl_ms = store.caps(state)
    budget = await store.budget(topic, state)
    with store.lanes.lane(topic) as lane:
        lane.number += 1
        answer = await store.run(
            name,
            keys,
            {
                "now_ms": store.now(),
                "call": lane.number,
                "keep": keep,
                "ttl_ms": ttl_ms,
                "budget": budget,
                "hexpire_s": store.hexpire_s(ttl_ms),
                **named,
            },
            lane=lane,
            archive=state,
        )
    return Settled(answer.decode())


async def trim_archive(store: Store, topic: str, state: State) -> int:
    """Drop archived messages over the age, the cap or the budget, a bounded number per call.

    Return how many. If the script is recounting the bytes, call it until it has finished.
    """
    keys = store.keys.of(topic)
    keep, ttl_ms = store.caps(state)
    budget = await store.budget(topic, state)
    while True:
        dropped, unfinished = await store.run(
            "trim_archive",
            keys,
            {"now_ms": store.now(), "keep": keep, "ttl_ms": ttl_ms, "budget": budget},
            archive=state,
        )
        if dropped or not unfinished:
            return int(dropped)


# what the monitor and the scheduler call


async def handle_timeout_message(
    store: Store,
    topic: str,
    monitor: str,
    *,
    count: int,
    recovery: int,
    expected: int | None = None,
    jump: int = 0,
    far: int | None = None,
    grace: int = 0,
) -> TimedOut:
    """Take over messages whose lease ran out at least `grace` ms ago, for `recovery` ms.

    The caller decides what happens to them. Nothing is taken over if the server's time differs from
    `expected` by more than `jump` ms. With `far`, if the clock was set back by more than `jump` ms,
    messages with deadlines more than `far` ms ahead are taken over, too.
    """
    check_range("count", count, 1, MAX_BATCH)
    reply = await store.run(
        "handle_timeout_message",
        store.keys.of(topic),
        {
            "now_ms": store.now(),
            "worker": check_worker(monitor),
            "max_count": count,
            "recovery_ms": check_range("recovery", recovery, 1),
            "expected_ms": "" if expected is None else expected,
            "jump_ms": jump,
            "far_ms": "" if far is None else far,
            "grace_ms": check_range("grace", grace, 0),
        },
    )
    fields = iter(reply)
    now, surprised, behind = (int(next(fields)) for _ in range(3))
    messages = [
        TakenMessage(id_of(id), int(token), id_of(lost_by), record)
        for id, token, lost_by, record in zip(fields, fields, fields, fields, strict=True)
    ]
    return TimedOut(now, messages, bool(surprised), behind)


async def expire_message(
    store: Store, topic: str, monitor: str, *, count: int, recovery: int
) -> Expired:
    """Take up to `count` waiting messages whose time to live has passed, for `recovery` ms.

    The caller then dead-letters them with the tokens returned here.
    """
    reply = await store.run(
        "expire_message",
        store.keys.of(topic),
        {
            "now_ms": store.now(),
            "worker": check_worker(monitor),
            "max_count": check_range("count", count, 1, MAX_BATCH),
            "recovery_ms": check_range("recovery", recovery, 1),
            "window": WINDOW,
            "walk": WALK,
            "spare": SPARE,
        },
    )
    fields = iter(reply)
    now, wait = int(next(fields)), wait_of(next(fields))
    messages = [
        Leased(id_of(id), int(token), record)
        for id, token, record in zip(fields, fields, fields, strict=True)
    ]
    return Expired(now, messages, wait)


async def get_next_delay_task(store: Store, topic: str) -> int | None:
    """Return the ms until the next due time, 0 if something is due, None if nothing waits."""
    return wait_of(
        await store.run("get_next_delay_task", store.keys.of(topic), {"now_ms": store.now()})
    )


async def process_delay_message(store: Store, topic: str, *, count: int) -> list[str]:
    """Make due messages pending, up to `count` per priority; return their ids."""
    moved = await store.run(
        "process_delay_message",
        store.keys.of(topic),
        {"now_ms": store.now(), "max_count": check_range("count", count, 1, MAX_BATCH)},
    )
    return [id_of(id) for id in moved]


async def survey_topics(store: Store, topics: Sequence[str]) -> Surveyed:
    """Return what comes next in each topic. All topics must be of one site."""
    script = load("survey_topics")
    found: dict[str, Survey] = {}
    now = 0
    for start in range(0, max(1, len(topics)), MAX_TOPICS):
        chunk = topics[start : start + MAX_TOPICS]
        keys = [getattr(store.keys.of(topic), key) for topic in chunk for key in script.keys]
        reply = await store.caller.run(script, keys, script.arguments({"now_ms": store.now()}))
        now, fields = int(reply[0]), iter(reply[1:])
        for topic, waiting, *waits in zip(chunk, fields, fields, fields, fields, strict=True):
            found[topic] = Survey(waiting, *map(wait_of, waits))
    return Surveyed(now, found)


# what workers call for themselves


async def ring_doorbell(store: Store, topic: str) -> bool:
    """Give back a ring that the caller cannot use; return False if the doorbell already rang."""
    return bool(await store.run("ring_doorbell", store.keys.of(topic), {}))


async def beat_worker(store: Store, worker: str, info: bytes, *, forget: int = 0) -> int:
    """Record a worker's heartbeat and info; return the server's time.

    Workers that were silent for `forget` ms are removed; 0: none is.
    """
    script = load("beat_worker")
    named: dict[str, Value] = {
        "now_ms": store.now(),
        "worker": check_worker(worker),
        "info": info,
        "forget_ms": check_range("forget", forget, 0),
    }
    return int(await store.caller.run(script, [store.keys.workers], script.arguments(named)))


async def forget_worker(store: Store, worker: str) -> None:
    """Remove a worker that stops."""
    await store.caller.command("HDEL", store.keys.workers, check_worker(worker))
