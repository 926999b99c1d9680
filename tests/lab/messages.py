"""Short ways to make messages and to move them into a state."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from mx_rmq.core import codec
from mx_rmq.core.message import Failure, Message, Priority, State
from mx_rmq.core.outcome import Park
from mx_rmq.core.status import Kept
from mx_rmq.store.quarantine import QuarantineReason
from mx_rmq.store.results import HandedBack, Leased, Placed, RetryRequest

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.store.store import Store

TOPIC = "orders"
LEASE = 30_000
RESULT_TTL = 3_600_000
FAILURE = Failure(type="ValueError", text="no", at=1)


def kept(result: bytes = b"0", ttl: int = RESULT_TTL) -> bytes:
    """Return a result as it is stored."""
    return Kept(attempt=1, created_at=1, ttl=ttl, worker="w1").with_result(result)


def draft(payload: Any = 1, **fields: Any) -> Message:
    return Message.new(codec.encode_payload(payload, 2**30), **fields)


def drafts(count: int, **fields: Any) -> list[Message]:
    return [draft(number, **fields) for number in range(count)]


def message(leased: Leased) -> Message:
    return codec.decode(leased.record, TOPIC, leased.id)


def renamed(message: Message, id: str, topic: str = TOPIC) -> Message:
    """Return a message with another topic and id: a record must match its place."""
    return msgspec.structs.replace(message, id=id, topic=topic)


async def rewrite(raw: Redis, key: str, id: str, **fields: Any) -> bytes:
    """Write fields into a stored record, as another release would; return the bytes."""
    known = json.loads(await raw.hget(key, id) or b"")
    data = json.dumps({**known, **fields}).encode()
    await raw.hset(key, id, data)
    return data


async def pending(store: Store, count: int = 1, **fields: Any) -> list[str]:
    """Produce messages; return their ids."""
    produced = await store.produce_normal_message(TOPIC, drafts(count, **fields))
    assert all(placed is Placed.STORED for _, placed in produced)
    return [id for id, _ in produced]


async def delayed(store: Store, delay: int, count: int = 1, **fields: Any) -> list[str]:
    """Produce delayed messages; return their ids."""
    produced = await store.produce_delay_message(TOPIC, drafts(count, delay=delay, **fields))
    assert all(placed is Placed.STORED for _, placed in produced)
    return [id for id, _ in produced]


async def leased(
    store: Store, count: int = 1, *, worker: str = "w1", lease: int = LEASE, **fields: Any
) -> list[Leased]:
    """Produce messages and dispatch them to a worker."""
    await pending(store, count, **fields)
    taken = (await store.dispatch_message(TOPIC, worker, count=count, lease=lease)).messages
    assert len(taken) == count
    return taken


async def leased_in_turn(
    store: Store, keys: str, *, limits: str = "", waiting: str = "", worker: str = "w1"
) -> list[Leased]:
    """Produce one message for each key and dispatch them; those of `waiting` cannot start."""
    new = [draft(key, key=key) for key in keys + waiting]
    await store.produce_normal_message(TOPIC, new)
    taken = (
        await store.dispatch_in_turn(TOPIC, worker, count=len(new), lease=LEASE, limits=limits)
    ).messages
    assert len(taken) == len(keys)
    return taken


async def take_in_turn(
    store: Store, count: int = 1, limits: str = "", *, worker: str = "w1", lease: int = LEASE
) -> list[Leased]:
    """Dispatch up to `count` messages to a worker, in the turn of their keys."""
    taken = await store.dispatch_in_turn(TOPIC, worker, count=count, lease=lease, limits=limits)
    return taken.messages


async def take(
    store: Store, count: int = 1, *, worker: str = "w1", lease: int = LEASE, alone: bool = False
) -> list[Leased]:
    """Dispatch up to `count` messages to a worker."""
    taken = await store.dispatch_message(TOPIC, worker, count=count, lease=lease, alone=alone)
    return taken.messages


async def settle(store: Store, one: Leased, state: State | None) -> None:
    """Move a message that w1 holds into a state; None: ended."""
    if state is None:
        assert await store.complete_message(TOPIC, "w1", [one]) == ["1"]
    elif state is State.PENDING:
        assert await store.release_message(TOPIC, "w1", [HandedBack(one)]) == ["1"]
    elif state is State.DELAYED:
        again = RetryRequest(one, message(one).failed(FAILURE), 1000)
        assert await store.retry_message(TOPIC, "w1", [again]) == ["1"]
    elif state is State.WAITING:
        park = Park(message(one), ("approval",), None, "approval")
        assert await store.park_message(TOPIC, "w1", [(one, park)]) == ["1"]
    elif state is State.DEAD:
        assert await store.move_to_dlq(TOPIC, "w1", one, message(one).failed(FAILURE))
    elif state is State.QUARANTINED:
        why = QuarantineReason.of(id=one.id, topic=TOPIC, error=ValueError("no"), data=one.record)
        assert await store.handle_parse_error(TOPIC, "w1", one, why)
    elif state is State.COMPLETED:
        done = await store.complete_with_result(TOPIC, "w1", [(one, kept())], ttl=RESULT_TTL)
        assert done == ["1"]


async def bring(store: Store, state: State | None, **fields: Any) -> Leased:
    """Produce a message, dispatch it to w1 and move it into a state; return the dispatched one."""
    (one,) = await leased(store, **fields)
    await settle(store, one, state)
    return one


async def dead(store: Store, count: int = 1, **fields: Any) -> list[str]:
    """Move messages into the dead letters; return their ids."""
    taken = await leased(store, count, **fields)
    for one in taken:
        assert await store.move_to_dlq(TOPIC, "w1", one, message(one).failed(FAILURE))
    return [one.id for one in taken]


__all__ = [
    "FAILURE",
    "LEASE",
    "RESULT_TTL",
    "TOPIC",
    "Priority",
    "bring",
    "dead",
    "delayed",
    "draft",
    "drafts",
    "kept",
    "leased",
    "leased_in_turn",
    "message",
    "pending",
    "renamed",
    "rewrite",
    "settle",
    "take",
    "take_in_turn",
]
