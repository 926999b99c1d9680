"""The transitions that an operator makes; rescheduling is also for producers."""

from __future__ import annotations

import hashlib
from enum import Enum
from math import inf
from typing import TYPE_CHECKING, Final

import msgspec

from mx_rmq.core import codec
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.message import State
from mx_rmq.core.text import brief
from mx_rmq.store.arguments import MAX_BATCH, check_level, check_range, check_same, place_of
from mx_rmq.store.lanes import maker_of
from mx_rmq.store.results import Settled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.core.message import Message
    from mx_rmq.net.connection import Value
    from mx_rmq.store.store import Store


class Keep(Enum):
    """A setting that stays as it is."""

    KEEP = "keep"

    def __repr__(self) -> str:
        return self.name


KEEP: Final = Keep.KEEP

WALK: Final = 10_000
"""How far from either end of a list a cancelled message is removed at once: about 0.2 ms of the
server's time."""


async def requeue_message(
    store: Store,
    topic: str,
    state: State,
    id: str,
    *,
    archived: int,
    message: Message,
    why: str = "",
    by: str = "",
) -> Settled:
    """Requeue an archived message, if it is still the one archived at that time."""
    check_same(message, topic, id)
    unstamped = codec.encode(msgspec.structs.replace(message, due=None, requeued=None))[1:]
    return await _operate(
        store,
        "requeue_message",
        topic,
        by,
        archive=state,
        id=id,
        archived_ms=archived,
        priority=check_level(message.priority),
        record=unstamped,
        expires_ms="" if message.expires_at is None else message.expires_at,
        own_place=place_of(message.key, message.priority, message.cost),
        why=why,
    )


async def discard_message(
    store: Store, topic: str, state: State, id: str, *, archived: int, by: str = ""
) -> Settled:
    """Delete an archived message, if it is still the one archived at that time.

    Its id can be produced again at once.
    """
    return await _operate(
        store,
        "discard_message",
        topic,
        by,
        archive=state,
        maker=maker_of(id),
        id=id,
        archived_ms=archived,
    )


async def cancel_message(store: Store, topic: str, id: str, *, by: str = "") -> Settled:
    """Remove a pending or delayed message. Its id can be produced again at once."""
    if not isinstance(id, str):
        raise InvalidInput(f"message id {id!r} is not a str")
    return await _operate(
        store,
        "cancel_message",
        topic,
        by,
        maker=maker_of(id),
        id=id,
        walk=WALK,
    )


async def abort_message(
    store: Store, topic: str, *, message: Message, seen: bytes, by: str = ""
) -> Settled:
    """Dead-letter a live message, unless its record is no longer the one that was `seen`.

    `message`: that record's, with the reason.
    """
    check_same(message, topic, message.id)
    limits = await store.archive_limits(topic, State.DEAD)
    return await _operate(
        store,
        "abort_message",
        topic,
        by,
        archive=State.DEAD,
        id=message.id,
        seen=_hash(seen),
        record=codec.encode(message),
        why=brief(message.reason),
        walk=WALK,
        aborts=store.keys.of(topic).aborts_channel,
        keep=limits["keep"],
        ttl_ms=limits["ttl_ms"],
        budget=limits["budget"],
        hexpire_s=store.field_ttl(limits["ttl_ms"]),
    )


async def reschedule_message(
    store: Store,
    topic: str,
    *,
    message: Message,
    seen: bytes,
    delay: int = 0,
    at: int | None = None,
) -> Settled:
    """Give a waiting message another due time, `delay` ms from now or `at`.

    Not if its record is no longer the one that was `seen`. `message`: that record's.
    """
    check_same(message, topic, message.id)
    moved = msgspec.structs.replace(message, delay=0, due=None)
    named: dict[str, Value] = {
        "id": message.id,
        "seen": _hash(seen),
        "priority": check_level(message.priority),
        "record": codec.encode(moved)[1:],
        "delay_ms": check_range("delay", delay, 0),
        "at_ms": "" if at is None else check_range("at", at, 0),
        "walk": WALK,
    }
    return Settled((await store.run("reschedule_message", topic, named)).decode())


def _hash(record: bytes) -> str:
    return hashlib.sha1(record, usedforsecurity=False).hexdigest()


async def pause_topic(store: Store, topic: str, *, by: str = "") -> bool:
    """Stop dispatch; return whether that changed anything."""
    return bool(await _operate(store, "pause_topic", topic, by))


async def resume_topic(store: Store, topic: str, *, by: str = "") -> bool:
    """Resume dispatch; return whether that changed anything."""
    return bool(await _operate(store, "resume_topic", topic, by))


async def limit_key(
    store: Store,
    topic: str,
    key: str | None,
    *,
    running: int | Keep | None = KEEP,
    interval: tuple[float, float] | Keep | None = KEEP,
    weight: float | Keep | None = KEEP,
    pause: float | Keep | None = KEEP,
    reason: str = "",
    by: str = "",
    about: str = "",
) -> Settled:
    """Set what is given for a key, or for the topic; None restores what the handler declares.

    `interval`: ms per unit of cost, and the burst. `pause`: ms from now, `inf` until resumed.
    `about`: the change in words, for the history.
    """
    ms, burst = interval if isinstance(interval, tuple) else (interval, interval)
    named: dict[str, Value] = {
        "key": key or "",
        "running": _setting(running),
        "interval": _setting(ms),
        "burst": _setting(burst),
        "weight": _setting(weight),
        "pause_ms": "on" if pause == inf else _setting(pause),
        "reason": brief(reason),
        "by": brief(by),
        "about": brief(about),
    }
    return Settled((await store.run("limit_key", topic, named)).decode())


def _setting(value: float | Keep | None) -> Value:
    if value is KEEP:
        return ""
    return "-" if value is None else f"{value:.17g}"


async def repair_message(
    store: Store, topic: str, id: bytes, *, dry_run: bool = False, by: str = ""
) -> list[str]:
    """Bring a message back into exactly one state; return what was done, in words.

    Does nothing if the message is fine by now. `dry_run`: only say what would be done.
    """
    record = await store.caller.command("HGET", store.keys.of(topic).payload, id)
    created_at, priority, ttl, key, cost = codec.glance(record or b"")
    named: dict[str, Value] = {
        "id": id,
        "priority": priority,
        "expires_ms": "" if ttl is None else created_at + ttl,
        "own_place": place_of(key, priority, cost),
        "dry": int(dry_run),
        "by": brief(by),
    }
    return [words.decode() for words in await store.run("repair_message", topic, named)]


async def repair_topic(
    store: Store, topic: str, *, least: int, recount: bool = False, dry_run: bool = False
) -> list[str]:
    """Fix the token counter (to `least` or above), the doorbells, and the bytes of archives."""
    named: dict[str, Value] = {
        "least": least,
        "recount": int(recount),
        "dry": int(dry_run),
    }
    return [words.decode() for words in await store.run("repair_topic", topic, named)]


async def repair_lines(
    store: Store, topic: str, suspects: Sequence[tuple[str, bytes]], *, dry_run: bool = False
) -> list[int]:
    """Fix members of the keys for lines; return what was wrong with each, in codes.

    See repair_lines.lua. `dry_run`: only say what is wrong.
    """
    codes: list[int] = []
    for start in range(0, len(suspects), MAX_BATCH):
        items = [word for one in suspects[start : start + MAX_BATCH] for word in one]
        codes += await store.run("repair_lines", topic, {"dry": int(dry_run)}, items)
    return codes


async def repair_waits(
    store: Store, topic: str, suspects: Sequence[bytes], *, dry_run: bool = False
) -> list[int]:
    """Fix the waits and signals of messages; return what was wrong with each, in codes.

    See repair_waits.lua. `dry_run`: only say what is wrong.
    """
    codes: list[int] = []
    for start in range(0, len(suspects), MAX_BATCH):
        items = suspects[start : start + MAX_BATCH]
        codes += await store.run("repair_waits", topic, {"dry": int(dry_run)}, items)
    return codes


async def _operate(
    store: Store,
    name: str,
    topic: str,
    by: str,
    archive: State | None = None,
    maker: str | None = None,
    **named: Value,
) -> Settled:
    if archive is State.COMPLETED:
        raise InvalidInput("a completed message cannot be requeued or discarded")
    named["by"] = brief(by)
    answer = await store.run(name, topic, named, archive=archive, maker=maker)
    return Settled(answer.decode())
