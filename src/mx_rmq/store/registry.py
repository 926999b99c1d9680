"""The registry of topics: how many partitions each has, and its default time to live."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from mx_rmq.core.errors import OutcomeUnknown, ScriptFailed, ServerFull, ServerUnavailable
from mx_rmq.core.names import LISTED, check_listed
from mx_rmq.core.partition import check_partitions, partitions_of
from mx_rmq.store.arguments import MAX_TOPICS, check_range, check_worker
from mx_rmq.store.keys import LAYOUT
from mx_rmq.store.results import decoded
from mx_rmq.store.script import load

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mx_rmq.net.connection import Value
    from mx_rmq.store.store import Store


class Registered(NamedTuple):
    """Every topic of the registry."""

    partitions: dict[str, int]
    ttls: dict[str, int]  # the default times to live, in ms


async def register_topics(
    store: Store, topics: Mapping[str, int], ttls: Mapping[str, int] | None = None
) -> None:
    """Register topics and the number of partitions each must have at least.

    A worker passes `ttls` too, the default time to live of each topic in ms; 0: none. Afterwards
    `store.partitions` and `store.ttls` hold what the server knows: of partitions the largest number
    ever requested, of ttls what a worker declared last, or else our own default.
    """
    declared = ttls or {}
    wanted: list[tuple[str, int, int | str]] = [
        (check_listed(topic), check_partitions(topics[topic]), declared.get(topic, ""))
        for topic in topics
    ]
    script = load("register_topics")
    for start in range(0, len(wanted), MAX_TOPICS):
        chunk = wanted[start : start + MAX_TOPICS]
        args = script.arguments({}, [word for one in chunk for word in one])
        reply = iter(await store.caller.run(script, [store.keys.topics], args))
        for (topic, *_), count, ttl in zip(chunk, reply, reply, strict=True):
            store.partitions[topic] = count
            if known := ttl or store.own_ttl(topic):
                store.ttls[topic] = known
            else:
                store.ttls.pop(topic, None)


async def tend_topics(store: Store, worker: str, *, turn: int) -> Registered | int:
    """Try to become the worker that looks after topics that it does not serve, for `turn` ms.

    Return what the registry says, or for how many ms it is another worker's turn.
    """
    script = load("tend_topics")
    named: dict[str, Value] = {
        "worker": check_worker(worker),
        "turn_ms": check_range("turn", turn, 1),
    }
    keys = [store.keys.caretaker, store.keys.topics]
    reply = await store.caller.run(script, keys, script.arguments(named))
    if isinstance(reply, int):
        return reply
    fields = iter(reply)
    found = {decoded(name): value for name, value in zip(fields, fields, strict=True)}
    topics = {name: partitions_of(count) for name, count in found.items() if LISTED.fullmatch(name)}
    declared = {name: found.get(f"!{name}", b"") for name in topics}
    ttls = {name: int(ttl) for name, ttl in declared.items() if ttl.isdigit() and int(ttl)}
    return Registered(topics, ttls)


async def give_up_turn(store: Store, worker: str) -> bool:
    """Let another worker look after topics at once; return False if it was not our turn."""
    script = load("give_up_turn")
    args = script.arguments({"worker": check_worker(worker)})
    return bool(await store.caller.run(script, [store.keys.caretaker], args))


async def note_result_ttl(store: Store, part: str, ttl: int) -> None:
    """Note for how long a partition's results are kept, ms, before there are any."""
    if await store.views.result_ttl(part) != ttl:
        await store.caller.command("HSET", store.keys.of(part).meta, "result_ttl", ttl)


async def claim_layout(store: Store) -> None:
    """Store the layout number, unless it is set. A later release recognises old keys by it."""
    with suppress(ScriptFailed, ServerFull):  # another worker may be permitted, or find memory
        if await store.caller.command("GET", store.keys.layout) is None:
            await store.caller.command("SET", store.keys.layout, LAYOUT, "NX")


async def register(store: Store, topic: str, count: int = 1) -> None:
    """Register a topic before it holds anything, with at least `count` partitions."""
    try:
        await (store.grow(topic, count) if count > 1 else store.register_topics({topic: count}))
    except OutcomeUnknown as error:
        raise ServerUnavailable(
            f"the server did not answer; no message was sent: {error.__cause__}"
        ) from error
