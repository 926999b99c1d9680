"""The transitions that create messages."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import replace

from mx_rmq.core import codec
from mx_rmq.core.errors import (
    InvalidInput,
    NotConfirmed,
    OutcomeUnknown,
    PayloadTooLarge,
    ProduceUnknown,
    QueueFull,
    ServerFull,
)
from mx_rmq.core.message import Message, Priority
from mx_rmq.core.names import check_topic
from mx_rmq.core.partition import topic_of
from mx_rmq.net.caller import RECEIPT_MS
from mx_rmq.store import operator_calls
from mx_rmq.store.arguments import MAX_BATCH, check_range, too_many
from mx_rmq.store.lanes import maker_of
from mx_rmq.store.results import PLACED, Produced, Ticked
from mx_rmq.store.script import load

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.core.confirm import Confirm
    from mx_rmq.core.duplicates import DuplicatePolicy
    from mx_rmq.net.connection import Check, Value
    from mx_rmq.store.lanes import Lane
    from mx_rmq.store.store import Store

MAX_ENVELOPE: Final = 65_536  # the most bytes of a record in addition to its payload

_CLOSED: Final = b"9007199254740992 full 9007199254740992"
"""The receipt that closes an unused lane: no call has a higher number, and the answer to all of
them is that the queue is full."""


class Prepared(NamedTuple):
    """A produce that is ready to be sent."""

    name: str
    topic: str
    lane: Lane
    ids: list[str]
    items: list[Value]
    makers: list[str]
    """Further keys: the receipts of lanes whose generated ids callers pass as custom ids, and
    `processing` for callers that want to know the state of a duplicate."""


def draft(store: Store, payload: Any, **fields: Any) -> Message:
    """Return a message to produce, with its payload encoded; refuse one over the limit."""
    return Message.new(codec.encode_payload(payload, store.limits.max_payload), **fields)


# new -> pending, new -> delayed


async def produce_normal_message(
    store: Store, topic: str, messages: Sequence[Message]
) -> list[Produced]:
    """Store new messages and append them to the pending ones."""
    return await store.produce(store.prepare("produce_normal_message", topic, messages))


async def produce_delay_message(
    store: Store, topic: str, messages: Sequence[Message]
) -> list[Produced]:
    """Store new messages that wait for their due time."""
    return await store.produce(store.prepare("produce_delay_message", topic, messages))


# any -> pending, delayed; processing -> processing


async def replace_message(
    store: Store,
    topic: str,
    message: Message,
    policy: DuplicatePolicy | None = None,
    confirm: Confirm | None = None,
) -> Produced:
    """Store a message under its custom id, in place of the one that has the id."""
    call = store.prepare("replace_message", topic, [message], [policy])
    (produced,) = await store.produce(call, confirm)
    return produced


def prepare(
    store: Store,
    name: str,
    topic: str,
    messages: Sequence[Message],
    policies: Sequence[DuplicatePolicy | None] = (),
) -> Prepared:
    """Prepare a call of one of the three scripts above, without asking the server.

    `policies`: what each message does if its id is taken; empty: the default for all.
    """
    if len(messages) > MAX_BATCH:
        raise too_many(len(messages))
    if "@" in topic:
        check_topic(topic_of(topic))  # refuses a subscription
    script = load(name)
    delayed = "delay_ms" in script.each
    makers: list[str] = []
    ids: list[str] = []
    items: list[Value] = []
    processing = 0  # its place among the keys, if a caller wants to know a duplicate's state
    lane = store.lanes.lane(topic)
    try:
        for offset, message in enumerate(messages, 1):
            if not delayed and (message.delay or message.due is not None):
                raise InvalidInput("a message with delay or at goes to produce_delay_message")
            id, how = message.id, ""  # how: see produce_normal_message.lua
            cost = "" if message.cost == 1 else message.cost
            if not id:
                id = lane.id_at(offset)
                if message.priority != Priority.NORMAL or message.ttl is not None or cost:
                    how = f"0 0 {message.priority}"
            else:
                maker = 0
                if lane_name := maker_of(id):
                    makers.append(store.keys.of(topic).receipt(lane_name))
                    maker = len(script.keys) + len(makers)
                how = f"1 {maker} {message.priority}"
            if message.id and policies and (policy := policies[offset - 1]) is not None:
                ttl = "" if message.ttl is None else message.ttl
                dedup = "" if policy.dedup is None else policy.dedup
                if policy.refuses and not processing:
                    makers.append(store.keys.of(topic).processing)
                    processing = len(script.keys) + len(makers)
                how = f"{how} {ttl} {dedup} {processing if policy.refuses else ''} {cost}"
            elif cost:
                how = f"{how} {'' if message.ttl is None else message.ttl}   {cost}"
            elif message.ttl is not None:
                how = f"{how} {message.ttl}"
            if cost or message.key is not None:
                how = f"{how}\t{message.key or ''}"
            ids.append(id)
            items += (id, how, _record(store, message, topic, id))
            if delayed:
                items += (message.delay, "" if message.due is None else message.due)
    except BaseException:
        lane.give_back()
        raise
    lane.number += len(messages)
    return Prepared(name, topic, lane, ids, items, makers)


async def produce(
    store: Store,
    call: Prepared,
    confirm: Confirm | None = None,
    check: Check | None = None,
    *,
    limited: bool = True,
) -> list[Produced]:
    """Send a prepared call; with `confirm`, wait until the messages are that safe.

    `check` may raise Withdrawn until the call was sent once. `limited`: refuse the messages if the
    topic has `max_pending`.
    """
    name, part, lane, ids, items, makers = call
    if not ids:
        lane.give_back()
        return []
    topic, limits = topic_of(part), store.limits
    try:
        if topic not in store.partitions:
            await store.register(topic)
        named: dict[str, Value] = {
            "dedup_ms": round(limits.dedup * 1000),
            "max_pending": ceil(limits.max_pending / store.partitions[topic]) if limited else 0,
        }
        if name == "replace_message":
            named["walk"] = operator_calls.WALK
        answer = await store.run(
            name, part, named, items, lane=lane, makers=makers, confirm=confirm, check=check
        )
    except OutcomeUnknown as error:
        raise ProduceUnknown(str(error), ids) from error
    except ServerFull as error:
        why = await store.memory.explain(part, store.partitions)
        raise ServerFull(f"{name}: {why}") from error
    missing = ""
    if confirm is not None:
        answer, missing = answer
    if answer == b"s":
        raise InvalidInput(
            f"topic {topic!r} has subscriptions, so on_duplicate='replace' is not possible: they "
            "may have copies of the message already. Produce the update under another id"
        )
    if answer.startswith(b"full"):
        raise QueueFull(topic, limits.max_pending)
    produced = [Produced(id, PLACED[code]) for id, code in zip(ids, answer, strict=True)]
    if missing and confirm is not None:
        taken = [one.placed.state if one.placed.duplicate else "" for one in produced]
        raise NotConfirmed(missing, confirm.level, confirm.within, ids, taken)
    return produced


async def has_made_ids(store: Store, topic: str, lane: str) -> bool:
    """Return whether a lane made ids for a topic or partition in the last ten minutes.

    If not, this closes the lane: a first call that is still on its way will be refused.
    """
    receipt = store.keys.of(topic).receipt(lane)
    if await store.caller.command("SET", receipt, _CLOSED, "NX", "PX", RECEIPT_MS):
        return False
    return bool(await store.caller.command("GET", receipt) != _CLOSED)


async def produce_cron_message(
    store: Store,
    topic: str,
    tick: int,
    message: Message | None = None,
    *,
    name: str = "",
    generation: str = "",
) -> Ticked:
    """Produce the message of a tick, once, when it is due. It is safe to repeat.

    Without a message, this only returns the last tick. `name` and `generation` say which schedule
    it is; without them it is the topic's cron, which is declared in code.
    """
    check_range("tick", tick, 0)
    id, record, priority, ttl = f"cron-{tick}", b"", Priority.NORMAL, None
    if message is not None:
        if message.is_delayed:
            raise InvalidInput("a cron message cannot have delay or at")
        id = message.id or id
        record, priority, ttl = _record(store, message, topic, id), message.priority, message.ttl
    if topic not in store.partitions:
        await store.register(topic)
    now, last, fired, state = await store.run(
        "produce_cron_message",
        topic,
        {
            "id": id,
            "tick_ms": tick,
            "record": record,
            "priority": priority,
            "live_ms": "" if ttl is None else ttl,
            "name": name,
            "generation": generation,
        },
    )
    return Ticked(int(now), int(last) if last else None, id if fired else None, state.decode())


def check_size(store: Store, message: Message, topic: str) -> None:
    """Refuse a message that could not be produced because of its size."""
    _record(store, message, topic, message.id)


def _record(store: Store, message: Message, topic: str, id: str) -> bytes:
    """Return a new record without its first brace: the script adds it, with the server's time."""
    record = codec.encode(replace(message, topic=topic_of(topic), id=id))
    if len(record) > min(store.limits.max_payload, MAX_ENVELOPE):  # else it is within both limits
        size = len(message.payload)
        if size > store.limits.max_payload:
            raise PayloadTooLarge(size, store.limits.max_payload)
        settings = len(record) - size - len(message.steps)
        if settings > MAX_ENVELOPE:
            raise InvalidInput(
                f"headers and settings take {settings:,} bytes; the limit is {MAX_ENVELOPE:,}"
            )
    return record[1:]
