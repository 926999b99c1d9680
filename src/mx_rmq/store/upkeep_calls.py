"""What a worker calls besides handling messages: as monitor, scheduler, expirer and janitor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mx_rmq.core.errors import ScriptFailed, WrongType
from mx_rmq.net.redis_errors import is_denied
from mx_rmq.store.arguments import MAX_BATCH, MAX_TOPICS, check_range, check_worker
from mx_rmq.store.results import (
    Expired,
    Leased,
    Survey,
    Surveyed,
    TimedOut,
    Undated,
    decoded,
    wait_of,
)
from mx_rmq.store.script import load

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.core.message import State
    from mx_rmq.net.connection import Value
    from mx_rmq.store.store import Store

WINDOW: Final = 1000  # places at the end of each list to search for expired messages

WALK: Final = 20_000
"""How far beyond them an expired message may be for LREM to remove it: about 0.3 ms of the server's
time."""

UNDATED: Final = 1000  # waiting messages to check for an expiry time in one call
LARGE_ENTRY: Final = 700
"""Bytes of a history entry with 25 generated ids: assumed if the server may not be asked."""

SPARE: Final = 1000  # expired messages that may keep their place in a list before LREM removes any


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
    named: dict[str, Value] = {
        "worker": monitor,
        "max_count": check_range("count", count, 1, MAX_BATCH),
        "recovery_ms": check_range("recovery", recovery, 1),
        "expected_ms": "" if expected is None else expected,
        "jump_ms": jump,
        "far_ms": "" if far is None else far,
        "grace_ms": check_range("grace", grace, 0),
    }
    fields = iter(await store.run("handle_timeout_message", topic, named))
    now, surprised, behind = (int(next(fields)) for _ in range(3))
    messages = [
        Leased(decoded(id), int(token), record, decoded(lost_by))
        for id, token, lost_by, record in zip(fields, fields, fields, fields, strict=True)
    ]
    return TimedOut(now, messages, bool(surprised), behind)


async def expire_message(
    store: Store, topic: str, monitor: str, *, count: int, recovery: int
) -> Expired:
    """Take up to `count` waiting messages whose time to live has passed, for `recovery` ms.

    The caller then dead-letters them with the tokens returned here.
    """
    named: dict[str, Value] = {
        "worker": monitor,
        "max_count": check_range("count", count, 1, MAX_BATCH),
        "recovery_ms": check_range("recovery", recovery, 1),
        "window": WINDOW,
        "walk": WALK,
        "spare": SPARE,
    }
    fields = iter(await store.run("expire_message", topic, named))
    now, wait = int(next(fields)), wait_of(next(fields))
    messages = zip(fields, fields, fields, strict=True)
    leased = [Leased(decoded(id), int(token), record) for id, token, record in messages]
    return Expired(now, leased, wait)


async def undated_messages(store: Store, topic: str, place: int, start: int) -> Undated:
    """Return some waiting messages without an expiry time. The first call begins at 1, 0."""
    named: dict[str, Value] = {"place": place, "from": start, "max_count": UNDATED}
    fields = iter(await store.run("undated_messages", topic, named))
    place, start = next(fields), next(fields)
    messages = [(decoded(id), record) for id, record in zip(fields, fields, strict=True)]
    return Undated(messages, (place, start) if place else None)


async def set_expiry(store: Store, topic: str, times: Sequence[tuple[str, int]]) -> int:
    """Give waiting messages their expiry time in ms, unless they have one; return how many."""
    items: list[Value] = []
    for id, expires in times:
        items += (id, check_range("expires", expires, 0))
    return int(await store.run("set_expiry", topic, {}, items)) if items else 0


async def get_next_delay_task(store: Store, topic: str) -> int | None:
    """Return the ms until the next due time, 0 if something is due, None if nothing waits."""
    return wait_of(await store.run("get_next_delay_task", topic, {}))


async def process_delay_message(store: Store, topic: str, *, count: int) -> list[str]:
    """Make due messages pending, up to `count` per priority; return their ids."""
    named: dict[str, Value] = {"max_count": check_range("count", count, 1, MAX_BATCH)}
    return [decoded(id) for id in await store.run("process_delay_message", topic, named)]


async def trim_archive(store: Store, topic: str, state: State) -> int:
    """Drop archived messages over the age, the cap or the budget, a bounded number per call.

    Return how many. If the script is recounting the bytes, call it until it has finished.
    """
    limits = await store.archive_limits(topic, state)
    while True:
        dropped, unfinished = await store.run("trim_archive", topic, {**limits}, archive=state)
        if dropped or not unfinished:
            return int(dropped)


async def trim_history(store: Store, topic: str) -> None:
    """Drop entries of a history over its count, its bytes or its age, and note how many fit.

    Each script that adds an entry drops the oldest if there are more than fit. Scripts count
    entries only, so their average size is measured here.
    """
    key, command = store.keys.of(topic).history, store.caller.command
    most, budget = store.share_of_history(topic), await store.history_budget(topic)
    dropped = 1
    while dropped:  # at most about 10,000 per call; those left may be larger than the average
        try:
            count = await command("XLEN", key)
        except WrongType:
            return  # readers skip it, too
        if count and budget:
            fits = budget * count // await _bytes_of(store, key, count)
            store.fits[topic] = most = min(most, max(1, fits))
        dropped = count and await command("XTRIM", key, "MAXLEN", "~", most)
    if count and store.limits.history_ttl:  # the ids of entries are the server's time
        oldest = await store.caller.time(key) - round(store.limits.history_ttl * 1000)
        while await command("XTRIM", key, "MINID", "~", max(0, oldest)):
            pass


async def _bytes_of(store: Store, key: str, count: int) -> int:
    """Return about how many bytes a history with `count` entries takes."""
    try:
        taken = await store.caller.command("MEMORY", "USAGE", key, at=key)
    except ScriptFailed as error:
        if not is_denied(error):
            raise
        return count * LARGE_ENTRY
    return max(1, int(taken or 0))


async def survey_topics(store: Store, topics: Sequence[str]) -> Surveyed:
    """Return what comes next in each topic. All topics must be of one site."""
    script = load("survey_topics")
    found: dict[str, Survey] = {}
    now = 0
    for start in range(0, max(1, len(topics)), MAX_TOPICS):
        chunk = topics[start : start + MAX_TOPICS]
        keys = [getattr(store.keys.of(topic), key) for topic in chunk for key in script.keys]
        reply = await store.caller.run(script, keys, [store.now()])
        now, fields = int(reply[0]), iter(reply[1:])
        each = zip(chunk, *[fields] * 5, strict=True)
        for topic, pending, *times, waiting in each:
            due, deadline, expires = map(wait_of, times)
            found[topic] = Survey(pending, due, deadline, expires, waiting)
    return Surveyed(now, found)


async def ring_doorbell(store: Store, topic: str, leaving: str = "") -> bool:
    """Give back a ring that the caller cannot use; return False if the doorbell already rang.

    `leaving`: a worker that will not ask again when a limit allows more.
    """
    return bool(await store.run("ring_doorbell", topic, {"leaving": leaving}))


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
    await store.caller.command("HDEL", store.keys.workers, check_worker(worker))
