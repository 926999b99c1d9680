"""The audit names what is wrong about waits and signals, and a repair fixes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from mx_rmq.admin import Admin
from mx_rmq.core.message import State
from mx_rmq.core.outcome import Park
from mx_rmq.store.results import Settled, Signal, Signalled
from tests.lab.messages import TOPIC, bring, leased, message, take
from tests.lab.snapshot import snapshot

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.store.keys import TopicKeys
    from mx_rmq.store.store import Store
    from tests.lab.clock import Clock


class Fault(NamedTuple):
    """What is broken in a topic where `w` waits for x and y, and z came for it."""

    breaks: tuple[tuple[str, ...], ...]
    """Commands, with the name of the key."""
    id: str
    wrongs: tuple[str, ...]
    state: State | None
    """Where the message is after the repair."""


FAULTS = {
    "it waits, but is due at no time": Fault(
        (("ZREM", "delay_tasks", "w"), ("LPUSH", "pending", "w")),
        "w",
        ("waits for signals, but is not delayed",),
        State.PENDING,
    ),
    "it waits for nothing": Fault(
        (("ZREM", "awaited", "w\tx", "w\ty"),),
        "w",
        ("is waiting, but awaits no signal",),
        State.DELAYED,
    ),
    "it is not listed": Fault(
        (("ZREM", "waiting", "w"),),
        "w",
        ("awaits signals, but is not waiting",),
        State.WAITING,
    ),
    "one that came is missed": Fault(
        (("ZADD", "signals", "0", "w\tx\t1"),),
        "w",
        ("awaits signals that have arrived",),
        State.WAITING,
    ),
    "all that came are missed": Fault(
        (("ZADD", "signals", "0", "w\tx\t1", "0", "w\ty\t1"),),
        "w",
        ("awaits signals that have arrived", "is waiting, but awaits no signal"),
        State.DELAYED,
    ),
    "a pending message awaits signals": Fault(
        (("ZADD", "awaited", "0", "pending\tx"),),
        "pending",
        ("awaits signals, but is not waiting",),
        State.PENDING,
    ),
    "a message in processing waits": Fault(
        (("ZADD", "waiting", "1", "processing"), ("ZADD", "awaited", "0", "processing\tx")),
        "processing",
        ("waits for signals, but is not delayed",),
        State.PROCESSING,
    ),
    "a message that is gone waits": Fault(
        (("ZADD", "waiting", "1", "gone"), ("ZADD", "awaited", "0", "gone\tx")),
        "gone",
        ("waits for signals, but is not delayed",),
        None,
    ),
    "a message that is gone has signals": Fault(
        (("ZADD", "signals", "0", "gone\tx\t1", "0", "gone\ty\t1"),),
        "gone",
        ("has signals, but is gone",),
        None,
    ),
}


async def seed(store: Store) -> None:
    """Let a message wait, and bring others with signals into each state."""
    (one,) = await leased(store, id="w")
    park = Park(message(one), ("x", "y"), None, "x, y")
    assert await store.park_message(TOPIC, "w1", [(one, park)]) == [Settled.DONE]
    for state in (State.DELAYED, State.PROCESSING, State.DEAD, State.QUARANTINED, State.PENDING):
        await bring(store, state, id=str(state))
    ids = ("w", "delayed", "processing", "dead", "quarantined", "pending")
    answers = await store.signal_message(TOPIC, [Signal(id, "z", b"1") for id in ids])
    assert answers == [Signalled.KEPT] * 6


def _key(keys: TopicKeys, name: str) -> str:
    key: str = getattr(keys, name)
    return key


async def test_signals_in_every_state_and_waits_are_right(store: Store) -> None:
    await seed(store)
    assert await store.audit.topic(TOPIC) == []
    assert await Admin(store).repair(TOPIC) == []


@pytest.mark.parametrize("how", FAULTS)
async def test_each_fault_is_named_and_repaired(store: Store, raw: Redis, how: str) -> None:
    await seed(store)
    breaks, id, wrongs, state = FAULTS[how]
    for command, name, *words in breaks:
        await store.caller.command(command, _key(store.keys.of(TOPIC), name), *words)
    found = await store.audit.topic(TOPIC)
    assert [(one.id, one.what) for one in found] == [(id, wrong) for wrong in wrongs]
    admin = Admin(store)
    before = await snapshot(raw, TOPIC)
    plan = await admin.repair(TOPIC, dry_run=True)
    assert await snapshot(raw, TOPIC) == before, "a dry run has changed something"
    assert {one.id for one in plan} == {id}
    assert await admin.repair(TOPIC) == plan
    assert await admin.audit(TOPIC) == []
    assert await admin.repair(TOPIC) == []
    there = await admin.get(TOPIC, id)
    assert (there and there.state) == state
    assert {one.partition("\t")[0] for one in (await snapshot(raw, TOPIC)).signals} == {
        *("w", "delayed", "processing", "dead", "quarantined", "pending")
    }


async def test_a_message_that_waited_for_nothing_runs_again(
    store: Store, raw: Redis, clock: Clock
) -> None:
    await seed(store)
    await raw.delete(store.keys.of(TOPIC).awaited, store.keys.of(TOPIC).doorbell_delay)
    await Admin(store).repair(TOPIC)
    found = await snapshot(raw, TOPIC)
    assert (found.delayed["w"], found.waiting, found.rung_delay) == (clock.now, {}, True)
    await store.process_delay_message(TOPIC, count=9)
    assert {"w"} <= {one.id for one in await take(store, 9)}


async def test_a_message_in_two_states_waits_in_neither_after_its_repair(
    store: Store, raw: Redis, clock: Clock
) -> None:
    await seed(store)
    keys = store.keys.of(TOPIC)
    await raw.hset(keys.processing, "w", "1:w1")
    await raw.zadd(keys.expire_monitor, {"w": clock.now})
    await Admin(store).repair(TOPIC)
    assert await store.audit.topic(TOPIC) == []
    found = await snapshot(raw, TOPIC)
    assert (found.waiting, found.awaited) == ({}, set())


async def test_many_signals_are_read_in_steps(store: Store) -> None:
    await leased(store, 450)
    held = await snapshot_ids(store)
    await store.signal_message(TOPIC, [Signal(id, "x", b"1") for id in held])
    await store.signal_message(TOPIC, [Signal(id, "y", b"1") for id in held])
    assert await store.audit._signalled(store.keys.of(TOPIC)) == {id.encode() for id in held}
    assert await store.audit.topic(TOPIC) == []


async def snapshot_ids(store: Store) -> list[str]:
    fields = await store.caller.command("HKEYS", store.keys.of(TOPIC).payload)
    return [field.decode() for field in fields]
