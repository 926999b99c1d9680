"""The dead letters and the quarantine: how messages get in, caps, contents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from mx_rmq.core import codec
from mx_rmq.core.message import Message, State
from mx_rmq.settings import Limits
from mx_rmq.store.quarantine import QuarantineReason
from mx_rmq.store.results import Leased, Settled
from tests.lab.messages import FAILURE, TOPIC, leased, message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.asyncio import Redis

    from mx_rmq.store.store import Store
    from tests.lab.clock import Clock
    from tests.lab.snapshot import Snapshot

ARCHIVES = (State.DEAD, State.QUARANTINED)


def limits(state: State, *, keep: int = 0, ttl: float = 0) -> Limits:
    """Cap one archive; 0 is off."""
    if state is State.DEAD:
        return Limits(dlq_max=keep, dlq_ttl=ttl)
    return Limits(quarantine_max=keep, quarantine_ttl=ttl)


def key_name(state: State, name: str) -> str:
    """Return the name in keys.py of a key that both archives' scripts name the same."""
    own = ("dlq", "dlq_payload")
    if state is State.QUARANTINED:
        own = ("error_parse_queue", "error_parse_payload")
    return dict(zip(("archive", "archive_payload"), own, strict=True)).get(name, name)


async def archive(store: Store, state: State, one: Leased, worker: str = "w1") -> Settled:
    """Try to move a message from its worker into an archive."""
    if state is State.DEAD:
        final = message(one).failed(FAILURE)
        return await store.move_to_dlq(TOPIC, worker, one, final)
    error = QuarantineReason.of(id=one.id, topic=TOPIC, error=ValueError("no"), data=one.record)
    return await store.handle_parse_error(TOPIC, worker, one, error)


async def archived(
    store: Store, state: State, count: int = 1, *, clock: Clock | None = None, **fields: Any
) -> list[str]:
    """Move new messages into an archive, a millisecond apart if a clock is given."""
    taken = await leased(store, count, **fields)
    for one in taken:
        if clock is not None:
            clock.advance(1)
        assert await archive(store, state, one) is Settled.DONE
    return [one.id for one in taken]


class Archived(NamedTuple):
    """A dead letter or a quarantined message."""

    id: str
    at: int
    """When it was archived, in ms of server time. Requeue and discard need it."""
    data: bytes


async def find_archived(store: Store, topic: str, state: State, id: str) -> Archived | None:
    """Return one message of an archive."""
    found = await store.views.pages.find_archived(topic, state, id)
    return None if found is None else Archived(id, found.archived or 0, found.data)


async def list_archived(
    store: Store, topic: str, state: State, *, start: int = 0, count: int = 100
) -> list[Archived]:
    """Return a page of an archive, newest first."""
    pages = store.views.pages
    entries = await pages.entries(topic, state, [start], count)
    found = await pages.read(topic, state, entries)
    return [Archived(one.id, one.archived or 0, one.data) for one in found if one is not None]


def index(found: Snapshot, state: State) -> dict[str, int]:
    """Return the times of an archive, oldest first."""
    return found.dead if state is State.DEAD else found.quarantine


def contents(found: Snapshot, state: State) -> dict[str, bytes]:
    """Return what an archive holds, oldest first; its index and its contents must agree."""
    kept = found.dead_letters if state is State.DEAD else found.quarantined
    assert kept.keys() == index(found, state).keys()
    return {id: kept[id] for id in index(found, state)}


async def fill(
    store: Store, raw: Redis, messages: Sequence[Message], *, at: int, apart: int = 1
) -> None:
    """Quickly put thousands of messages into the dead letters, as the script would."""
    keys = store.keys.of(TOPIC)
    await raw.hset(store.keys.topics, TOPIC, 1)
    for start in range(0, len(messages), 1000):
        chunk = messages[start : start + 1000]
        times = {one.id: at + apart * number for number, one in enumerate(chunk, start)}
        await raw.zadd(keys.dlq, times)
        await raw.hset(keys.dlq_payload, mapping={one.id: codec.encode(one) for one in chunk})


def corpse(number: int, **fields: Any) -> Message:
    """Return a message that can become a dead letter."""
    payload = codec.encode_payload(fields.pop("payload", {"number": number}), 2**30)
    return Message(v=1, id=f"d-{number:06}", topic=TOPIC, payload=payload, **fields)
