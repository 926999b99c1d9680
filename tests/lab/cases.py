"""Every transition that changes something, once each: how to get there, and its reply.

The tests that say "for every script" are tables over these.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mx_rmq.core import codec, steps
from mx_rmq.core.errors import DecodeError
from mx_rmq.core.message import Priority, State
from mx_rmq.core.outcome import Park, SnoozeLater
from mx_rmq.core.schedule import Schedule
from mx_rmq.store.quarantine import QuarantineReason
from mx_rmq.store.results import (
    Claim,
    FannedOut,
    HandedBack,
    Placed,
    RetryRequest,
    Settled,
    Signal,
    Signalled,
    Ticked,
)
from tests.lab.archives import find_archived
from tests.lab.clock import Clock
from tests.lab.messages import FAILURE, LEASE, RESULT_TTL, draft, kept, renamed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mx_rmq.core.message import Message
    from mx_rmq.store.results import Leased
    from mx_rmq.store.store import Store
    from tests.lab.archives import Archived

WORKER: Final = "w1"
MONITOR: Final = "m1"
DELAY: Final = 60_000
RECOVERY: Final = 10_000
DAY: Final = 86_400_000
START: Final = Clock().now
MIXED: Final = (Priority.NORMAL, Priority.HIGH, Priority.LOW)
STALE: Final = Claim("a", 1)
TWO_PER_KEY: Final = "- - - 2 - - 0"
"""What the handler of keyed messages declares: see `keys.py`."""


@dataclass(frozen=True)
class Stage:
    """A topic of a store, and ways to move its messages a, b, c into a state."""

    store: Store
    clock: Clock
    topic: str
    keyed: bool = False
    """Whether the messages have keys: a and b the same one, c another."""

    def drafts(self, **fields: Any) -> list[Message]:
        new = drafts(own=True, **fields)
        return with_keys(new) if self.keyed else new

    async def pending(self) -> None:
        await self.store.produce_normal_message(self.topic, self.drafts())

    async def delayed(self) -> None:
        await self.store.produce_delay_message(self.topic, self.drafts(delay=DELAY))

    async def due(self) -> None:
        await self.delayed()
        self.clock.advance(DELAY)

    async def leased(self) -> list[Leased]:
        """Lease b, a, c; if they have keys, a fourth waits because two of its key run."""
        await self.pending()
        if not self.keyed:
            return (
                await self.store.dispatch_message(self.topic, WORKER, count=3, lease=LEASE)
            ).messages
        await self.store.produce_normal_message(self.topic, [draft("d", id="d", key="k")])
        taken = await self.store.dispatch_in_turn(
            self.topic, WORKER, count=9, lease=LEASE, limits=TWO_PER_KEY
        )
        own = [one for one in taken.messages if one.id in "bac"]
        return sorted(own, key=lambda one: "bac".index(one.id))

    async def late(self) -> None:
        await self.leased()
        self.clock.advance(LEASE + 1)

    async def expiring(self) -> None:
        new = self.drafts(ttl=DELAY)
        await self.store.produce_normal_message(self.topic, new[:2])
        later = msgspec.structs.replace(new[2], delay=2 * DELAY)
        await self.store.produce_delay_message(self.topic, [later])
        self.clock.advance(DELAY)

    async def dead(self) -> Archived:
        return await self._archived(State.DEAD)

    async def quarantined(self) -> Archived:
        return await self._archived(State.QUARANTINED)

    async def aged(self) -> None:
        await self.dead()
        self.clock.advance(91 * DAY)

    async def _archived(self, state: State) -> Archived:
        taken = await self.leased()
        bury = die if state is State.DEAD else set_aside
        assert await bury(self.store, self.topic, taken)
        found = await find_archived(self.store, self.topic, state, taken[0].id)
        assert found is not None
        return found


@dataclass(frozen=True)
class Case:
    """One transition: `seed` brings the topic into its state, `act` is the one call."""

    name: str
    script: str
    seed: Callable[[Stage], Awaitable[Any]]
    act: Callable[[Store, str, Any], Awaitable[Any]]
    done: object
    """The reply."""
    again: object
    """The reply if it is sent a second time because its first reply was lost."""

    def __str__(self) -> str:
        return self.name


def drafts(*, own: bool, **fields: Any) -> list[Message]:
    """Return a message of each priority, with ids a, b, c or with none."""
    return [
        draft(id, id=id if own else None, priority=priority, **fields)
        for id, priority in zip("abc", MIXED, strict=True)
    ]


def with_keys(messages: list[Message]) -> list[Message]:
    """Return the same messages with keys: the first two with the same one."""
    return [
        msgspec.structs.replace(one, key=key, cost=2)
        for one, key in zip(messages, "kkl", strict=True)
    ]


async def die(store: Store, topic: str, taken: list[Leased]) -> Settled:
    """Move the first one to the dead letters."""
    message = codec.decode(taken[0].record, topic, taken[0].id).failed(FAILURE)
    return await store.move_to_dlq(topic, WORKER, taken[0], message)


async def set_aside(store: Store, topic: str, taken: list[Leased]) -> Settled:
    """Quarantine the first one."""
    id, token, record, _ = taken[0]
    error = DecodeError("no", record)
    about = QuarantineReason.of(id=id, topic=topic, error=error, data=record, worker=WORKER)
    return await store.handle_parse_error(topic, WORKER, Claim(id, token), about)


async def abort(store: Store, topic: str, id: str, *, by: str = "") -> Settled:
    """Abort a live message."""
    record = await store.views.record(topic, id) or b""
    final = msgspec.structs.replace(codec.decode(record), reason="aborted: enough")
    return await store.abort_message(topic, message=final, seen=record, by=by)


def _produce(*, delay: bool, own: bool, keyed: bool = False) -> Case:
    name = "produce_delay_message" if delay else "produce_normal_message"

    async def act(store: Store, topic: str, _: None) -> list[Placed]:
        new = drafts(own=own, delay=DELAY) if delay else drafts(own=own)
        produced = await getattr(store, name)(topic, with_keys(new) if keyed else new)
        return [placed for _, placed in produced]

    ids = ("own ids" if own else "generated ids") + ", keyed" * keyed
    return _case(f"{name}, {ids}", _nothing, act, [Placed.STORED] * 3, [Placed.REPEATED] * 3)


def _archived(
    name: str,
    state: State,
    *,
    keyed: bool = False,
    seed: Callable[[Stage], Awaitable[Any]] | None = None,
) -> Case:
    async def act(store: Store, topic: str, found: Archived) -> Settled:
        if name == "discard_message":
            return await store.discard_message(topic, state, found.id, archived=found.at)
        message = codec.decode(found.data.partition(b"\n")[2] or found.data).revived()
        return await store.requeue_message(
            topic, state, found.id, archived=found.at, message=message
        )

    if seed is not None:
        return _case(f"{name}, {state}, signalled", seed, act)
    seed = Stage.dead if state is State.DEAD else Stage.quarantined
    if keyed:
        return _case(f"{name}, {state}, keyed", _keyed(seed), act)
    return _case(f"{name}, {state}", seed, act)


def _keyed(seed: Callable[[Stage], Awaitable[Any]]) -> Callable[[Stage], Awaitable[Any]]:
    """Seed messages with keys."""
    return lambda stage: seed(replace(stage, keyed=True))


async def _nothing(_: Stage) -> None:
    pass


async def _two_wait(stage: Stage) -> None:
    """Make two messages pending; with the tick's there are three, as in all cases."""
    await stage.store.produce_normal_message(stage.topic, drafts(own=True)[:2])


async def _cron(store: Store, topic: str, _: None) -> Ticked:
    return await store.produce_cron_message(topic, START, draft("c", priority=Priority.LOW))


def _definition(topic: str) -> Schedule:
    return Schedule(name="s", topic=topic, expression="* * * * *")


async def _scheduled(stage: Stage) -> None:
    """Make two messages pending, and store a schedule."""
    await _two_wait(stage)
    await stage.store.store_schedule(_definition(stage.topic), "g1")
    stage.clock.advance(1)


async def _tick(store: Store, topic: str, _: None) -> Ticked:
    new = draft("c", id="own")
    return await store.produce_cron_message(topic, START + 1, new, name="s", generation="g1")


async def _store_schedule(store: Store, topic: str, _: None) -> Settled:
    return await store.store_schedule(_definition(topic), "g2")


async def _remove_schedule(store: Store, topic: str, _: None) -> bool:
    return await store.remove_schedule(topic, "s")


async def _pause_schedule(store: Store, topic: str, _: None) -> bool:
    return await store.pause_schedule(topic, "s", reason="why")


async def _schedule_paused(stage: Stage) -> None:
    await _scheduled(stage)
    await stage.store.pause_schedule(stage.topic, "s")


async def _resume_schedule(store: Store, topic: str, _: None) -> bool:
    return await store.resume_schedule(topic, "s")


async def _silent(stage: Stage) -> None:
    """Take the ring for the pending messages."""
    await stage.pending()
    await stage.store.caller.command("DEL", stage.store.keys.of(stage.topic).doorbell)


async def _ring(store: Store, topic: str, _: None) -> bool:
    return await store.ring_doorbell(topic)


def _claims(taken: list[Leased]) -> list[Claim]:
    return [Claim(one.id, one.token) for one in taken]


async def _dispatch(store: Store, topic: str, _: None) -> list[Claim]:
    dispatched = await store.dispatch_message(topic, WORKER, count=2, lease=LEASE)
    return _claims(dispatched.messages)


async def _dispatch_alone(store: Store, topic: str, _: None) -> list[Claim]:
    dispatched = await store.dispatch_message(topic, WORKER, count=2, lease=LEASE, alone=True)
    return _claims(dispatched.messages)


async def _dispatch_in_turn(store: Store, topic: str, _: None) -> list[Claim]:
    dispatched = await store.dispatch_in_turn(
        topic, WORKER, count=2, lease=LEASE, limits="3 100 4 2 100 2 0"
    )
    return _claims(dispatched.messages)


async def _limit(store: Store, topic: str, _: Any) -> Settled:
    return await store.limit_key(topic, "k", running=3, weight=2.0, by="ann")


async def _strict(stage: Stage) -> list[Leased]:
    """Only one message of a key runs at a time: a waits behind b."""
    await stage.pending()
    taken = await stage.store.dispatch_in_turn(
        stage.topic, WORKER, count=3, lease=LEASE, limits="- - - 1 - - 0"
    )
    return taken.messages


async def _snooze_key(store: Store, topic: str, taken: list[Leased]) -> list[Settled]:
    later = SnoozeLater(codec.decode(taken[0].record), DELAY, "later", key=True)
    return await store.snooze_message(topic, WORKER, [(taken[0], later)])


async def _retry_strict(store: Store, topic: str, taken: list[Leased]) -> list[Settled]:
    message = codec.decode(taken[0].record).failed(FAILURE)
    return await store.retry_message(topic, WORKER, [RetryRequest(taken[0], message, DELAY)])


async def _held_up(stage: Stage) -> None:
    """A failed message is due again, and its line waited for it."""
    await _retry_strict(stage.store, stage.topic, await _strict(stage))
    stage.clock.advance(DELAY)


async def _complete(store: Store, topic: str, taken: list[Leased]) -> list[Settled]:
    return await store.complete_message(topic, WORKER, [*taken[1:], STALE])


async def _complete_with_result(store: Store, topic: str, taken: list[Leased]) -> list[Settled]:
    results = [(one, kept()) for one in taken[1:]]
    return await store.complete_with_result(
        topic, WORKER, [*results, (STALE, kept())], ttl=RESULT_TTL
    )


async def _note_progress(store: Store, topic: str, taken: list[Leased]) -> list[Settled]:
    reports = [(one, b"{}") for one in taken[1:]]
    return await store.note_progress(topic, WORKER, [*reports, (STALE, b"{}")], keep=DELAY)


async def _retry(store: Store, topic: str, taken: list[Leased]) -> list[Settled]:
    messages = [codec.decode(one.record).failed(FAILURE) for one in taken]
    retries = [
        RetryRequest(one, message, DELAY) for one, message in zip(taken, messages, strict=True)
    ]
    return await store.retry_message(
        topic,
        WORKER,
        [*retries[1:], RetryRequest(STALE, renamed(messages[0], STALE.id, topic), DELAY)],
    )


async def _note_record(store: Store, topic: str, taken: list[Leased]) -> list[Settled]:
    done = steps.Steps(done={"charge": msgspec.Raw(b"1")})
    notes = [(one, steps.write(codec.decode(one.record), done), "charge") for one in taken]
    stale = renamed(notes[0][1], STALE.id, topic)
    return await store.note_record(topic, WORKER, [*notes[1:], (STALE, stale, "charge")])


async def _park(store: Store, topic: str, taken: list[Leased]) -> list[Settled]:
    parks = [
        (one, Park(codec.decode(one.record), ("approval", "payment"), None, "approval, payment"))
        for one in taken
    ]
    stale = replace(parks[0][1], message=renamed(parks[0][1].message, STALE.id, topic))
    return await store.park_message(topic, WORKER, [*parks[1:], (STALE, stale)])


async def _waiting(stage: Stage) -> None:
    """Two messages wait for two signals each."""
    await _park(stage.store, stage.topic, await stage.leased())


async def _waiting_signalled(stage: Stage) -> None:
    """Two messages wait, and one signal has arrived for each of them."""
    await _waiting(stage)
    signals = [Signal(id, "payment", b"9") for id in "ac"]
    assert await stage.store.signal_message(stage.topic, signals)


async def _wait_over(stage: Stage) -> None:
    """The wait of a message has timed out."""
    taken = await stage.leased()
    park = Park(codec.decode(taken[1].record), ("approval",), DELAY, "approval")
    await stage.store.park_message(stage.topic, WORKER, [(taken[1], park)])
    stage.clock.advance(DELAY)


async def _waiting_expiring(stage: Stage) -> None:
    """A message that waits has expired."""
    await _waiting(stage)
    await stage.store.set_expiry(stage.topic, [("a", stage.clock.now)])


async def _leased_signalled(stage: Stage) -> list[Leased]:
    """Signals have arrived for messages that run."""
    taken = await stage.leased()
    await stage.store.signal_message(stage.topic, [Signal(id, "early", b"1") for id in "abc"])
    return taken


async def _dead_signalled(stage: Stage) -> Archived:
    found = await stage.dead()
    await stage.store.signal_message(stage.topic, [Signal(found.id, "late", b"1")])
    return found


async def _signal(store: Store, topic: str, _: Any) -> list[Signalled]:
    names = [("a", "approval"), ("c", "approval"), ("a", "approval"), ("gone", "approval")]
    return await store.signal_message(topic, [Signal(id, name, b"1") for id, name in names])


async def _release(store: Store, topic: str, taken: list[Leased]) -> list[Settled]:
    back = [HandedBack(one, codec.decode(one.record).priority) for one in taken[1:]]
    return await store.release_message(topic, WORKER, [*back, HandedBack(STALE, Priority.LOW)])


async def _extend(store: Store, topic: str, taken: list[Leased]) -> list[Claim]:
    return await store.extend_lease(topic, WORKER, [*taken, STALE], lease=2 * LEASE)


async def _handle_timeout(store: Store, topic: str, _: None) -> list[Claim]:
    late = await store.handle_timeout_message(topic, MONITOR, count=10, recovery=RECOVERY)
    return _claims(late.messages)


async def _expire(store: Store, topic: str, _: None) -> list[Claim]:
    expired = await store.expire_message(topic, MONITOR, count=10, recovery=RECOVERY)
    return _claims(expired.messages)


async def _set_expiry(store: Store, topic: str, _: None) -> int:
    return await store.set_expiry(topic, [("a", START + DAY), ("b", START), ("gone", START)])


async def _process_delay(store: Store, topic: str, _: None) -> list[str]:
    return await store.process_delay_message(topic, count=10)


async def _cancel(store: Store, topic: str, _: None) -> Settled:
    return await store.cancel_message(topic, "a")


def _seen(seed: Callable[[Stage], Awaitable[Any]]) -> Callable[[Stage], Awaitable[bytes]]:
    """Seed, and read the record of a message."""

    async def seen(stage: Stage) -> bytes:
        await seed(stage)
        return await stage.store.views.record(stage.topic, "a") or b""

    return seen


async def _abort(store: Store, topic: str, record: bytes) -> Settled:
    final = msgspec.structs.replace(codec.decode(record), reason="aborted: enough")
    return await store.abort_message(topic, message=final, seen=record)


async def _reschedule(store: Store, topic: str, record: bytes) -> Settled:
    return await store.reschedule_message(
        topic, message=codec.decode(record), seen=record, delay=DELAY // 2
    )


def _replace(
    seed: Callable[[Stage], Awaitable[Any]], where: str, *, delay: int = 0, key: str | None = None
) -> Case:
    async def act(store: Store, topic: str, _: Any) -> Placed:
        new = draft("new", id="a", priority=Priority.HIGH, delay=delay, key=key)
        return (await store.replace_message(topic, new)).placed

    new = seed is _nothing
    done, again = (Placed.STORED, Placed.REPEATED) if new else (Placed.REPLACED, Placed.REPLACED)
    if key is not None:
        return _case(f"replace_message, {where}, keyed", _keyed(seed), act, done, again)
    return _case(f"replace_message, {where}", seed, act, done, again)


async def _replaced(stage: Stage) -> list[Leased]:
    """The message that was taken second has been replaced."""
    taken = await stage.leased()
    key = "m" if stage.keyed else None
    await stage.store.replace_message(stage.topic, draft("new", id="a", key=key))
    return taken


async def _release_replaced(store: Store, topic: str, taken: list[Leased]) -> Settled:
    return await store.release_replaced(topic, WORKER, taken[1])


async def _pause(store: Store, topic: str, _: None) -> bool:
    return await store.pause_topic(topic)


async def _paused(stage: Stage) -> None:
    await stage.pending()
    await stage.store.pause_topic(stage.topic)


async def _resume(store: Store, topic: str, _: None) -> bool:
    return await store.resume_topic(topic)


async def _torn(stage: Stage) -> None:
    """The first one has a lease without a deadline."""
    await stage.leased()
    keys = stage.store.keys.of(stage.topic)
    await stage.store.caller.command("ZREM", keys.expire_monitor, "a")


async def _out_of_line(stage: Stage) -> None:
    """A message is in no line."""
    await stage.pending()
    keys = stage.store.keys.of(stage.topic)
    place = await stage.store.caller.command("HGET", keys.keyed, "a")
    await stage.store.caller.command("ZREM", keys.lines, place + b"a")


async def _repair(store: Store, topic: str, _: None) -> list[str]:
    return await store.repair_message(topic, b"a")


async def _rung_twice(stage: Stage) -> None:
    await stage.pending()
    await stage.store.caller.command("RPUSH", stage.store.keys.of(stage.topic).doorbell, "1")


async def _lines_broken(stage: Stage) -> None:
    """A key has no turn, another is also blocked, and ended messages still take places."""
    await stage.pending()
    keys, command = stage.store.keys.of(stage.topic), stage.store.caller.command
    await command("ZREM", keys.ring, "k")
    await command("ZADD", keys.blocked, 1, "l")
    await command("ZADD", keys.ring, 1, "m")
    await command("ZADD", keys.running, 0, "k\t20000000000000001 1 gone")
    await command("ZADD", keys.lines, 0, "k\t22 1 a")
    await command("HSET", keys.keyed, "gone", "k\t2 1 ")


async def _repair_lines(store: Store, topic: str, _: None) -> list[int]:
    return await store.repair_lines(topic, LINE_SUSPECTS)


LINE_SUSPECTS: Final = (
    ("key", b"k"),
    ("key", b"l"),
    ("key", b"m"),
    ("running", b"k\t20000000000000001 1 gone"),
    ("place", b"k\t22 1 a"),
    ("keyed", b"gone"),
)


async def _waits_broken(stage: Stage) -> None:
    """One message waits for nothing, one missed its signal, and signals of a third are left."""
    await _waiting_signalled(stage)
    keys, command = stage.store.keys.of(stage.topic), stage.store.caller.command
    await command("ZREM", keys.awaited, "a\tapproval")
    await command("ZADD", keys.awaited, 0, "c\tpayment")
    await command("ZADD", keys.awaited, 0, "b\tapproval")
    await command("ZADD", keys.signals, 0, "gone\tapproval\t1")


async def _repair_waits(store: Store, topic: str, _: None) -> list[int]:
    return await store.repair_waits(topic, [b"a", b"b", b"c", b"gone", b"fine"])


async def _repair_topic(store: Store, topic: str, _: None) -> list[str]:
    return await store.repair_topic(topic, least=0)


async def _trim(store: Store, topic: str, _: None) -> int:
    return await store.trim_archive(topic, State.DEAD)


async def _subscribed(stage: Stage) -> None:
    await stage.pending()
    assert await stage.store.declare_subscription(stage.topic, "s")


async def _declare(store: Store, topic: str, _: None) -> bool:
    return await store.declare_subscription(topic, "s")


async def _unsubscribe(store: Store, topic: str, _: None) -> Settled:
    return await store.remove_subscription(topic, "s")


async def _fan_out(store: Store, topic: str, _: None) -> FannedOut:
    return await store.fan_out(topic, ["s"], count=9)


def _case(
    name: str,
    seed: Callable[[Stage], Awaitable[Any]],
    act: Callable[[Store, str, Any], Awaitable[Any]],
    done: object = Settled.DONE,
    again: object = Settled.REPEATED,
) -> Case:
    return Case(name, name.partition(",")[0], seed, act, done, again)


_DONE: Final = [Settled.DONE, Settled.DONE, Settled.LOST]
_REPEATED: Final = [Settled.REPEATED, Settled.REPEATED, Settled.LOST]
_KEPT: Final = [Signalled.KEPT, Signalled.KEPT, Signalled.THERE, Signalled.UNKNOWN]
_KEPT_AGAIN: Final = [Signalled.REPEATED, Signalled.REPEATED, *_KEPT[2:]]
_TAKEN: Final = [Claim("b", START * 1000), Claim("a", START * 1000 + 1)]
_LATE: Final = [Claim(id, (START + LEASE + 1) * 1000 + n) for n, id in enumerate("abc")]
_IN_TURN: Final = [Claim("b", START * 1000), Claim("c", START * 1000 + 1)]
_EXPIRED: Final = [Claim(id, (START + DELAY) * 1000 + n) for n, id in enumerate("abc")]

_WATCHED: Final = "deadline set to now, so a monitor takes it over"

_LISTED: Final = "put in front of the pending ones"

_FIRED: Final = Ticked(START, START, f"cron-{START}")
_TICKED: Final = Ticked(START + 1, START + 1, "own")

_FANNED_OUT: Final = FannedOut(("s",), 3, 0)
_NOTHING_LEFT: Final = FannedOut(("s",), 0, 0)

CASES: Final = (
    _produce(delay=False, own=False),
    _produce(delay=False, own=True),
    _produce(delay=True, own=False),
    _produce(delay=True, own=True),
    _case("produce_cron_message", _two_wait, _cron, _FIRED, _FIRED._replace(id=None)),
    _case("produce_cron_message, schedule", _scheduled, _tick, _TICKED, _TICKED._replace(id=None)),
    _case("store_schedule", _two_wait, _store_schedule),
    _case("store_schedule, again", _scheduled, _store_schedule),
    _case("remove_schedule", _scheduled, _remove_schedule, True, True),
    _case("pause_schedule", _scheduled, _pause_schedule, True, True),
    _case("resume_schedule", _schedule_paused, _resume_schedule, True, True),
    _case("dispatch_message", Stage.pending, _dispatch, _TAKEN, _TAKEN),
    _case("dispatch_message, alone", Stage.pending, _dispatch_alone, _TAKEN, _TAKEN),
    _case("complete_message", Stage.leased, _complete, _DONE, _REPEATED),
    _case("complete_with_result", Stage.leased, _complete_with_result, _DONE, _REPEATED),
    _case("note_progress", Stage.leased, _note_progress, _DONE, _DONE),
    _case("retry_message", Stage.leased, _retry, _DONE, _REPEATED),
    _case("release_message", Stage.leased, _release, _DONE, _REPEATED),
    _case("note_record", Stage.leased, _note_record, _DONE, _REPEATED),
    _case("extend_lease", Stage.leased, _extend, [STALE], [STALE]),
    _case("move_to_dlq", Stage.leased, die),
    _case("handle_parse_error", Stage.leased, set_aside),
    # No worker learns of these takeovers; the recovery deadline brings the messages back.
    _case("handle_timeout_message", Stage.late, _handle_timeout, _LATE, []),
    _case("expire_message", Stage.expiring, _expire, _EXPIRED, []),
    _case("set_expiry", Stage.pending, _set_expiry, 2, 0),
    _case("process_delay_message", Stage.due, _process_delay, ["b", "a", "c"], []),
    _archived("requeue_message", State.DEAD),
    _archived("requeue_message", State.QUARANTINED),
    _archived("discard_message", State.DEAD),
    _archived("discard_message", State.QUARANTINED),
    _case("cancel_message, pending", Stage.pending, _cancel),
    _case("cancel_message, delayed", Stage.delayed, _cancel),
    _case("abort_message, pending", _seen(Stage.pending), _abort),
    _case("abort_message, delayed", _seen(Stage.delayed), _abort),
    _case("abort_message, processing", _seen(Stage.leased), _abort),
    _case("reschedule_message, pending", _seen(Stage.pending), _reschedule),
    _case("reschedule_message, delayed", _seen(Stage.delayed), _reschedule),
    _replace(_nothing, "new"),
    _replace(Stage.pending, "pending"),
    _replace(Stage.delayed, "delayed", delay=DELAY),
    _replace(Stage.leased, "in processing"),
    _replace(Stage.dead, "dead"),
    _replace(Stage.quarantined, "quarantined"),
    _case("release_replaced", _replaced, _release_replaced),
    _case("pause_topic", Stage.pending, _pause, True, True),
    _case("resume_topic", _paused, _resume, True, True),
    _case("ring_doorbell", _silent, _ring, True, False),
    _case("trim_archive", Stage.aged, _trim, 1, 0),
    _case("repair_message", _torn, _repair, [_WATCHED], []),
    _case("repair_topic", _rung_twice, _repair_topic, ["doorbell left with one ring"], []),
    _case("declare_subscription", Stage.pending, _declare, True, True),
    _case("remove_subscription", _subscribed, _unsubscribe),
    _case("fan_out", _subscribed, _fan_out, _FANNED_OUT, _NOTHING_LEFT),
    # messages with keys
    _case("fan_out, keyed", _keyed(_subscribed), _fan_out, _FANNED_OUT, _NOTHING_LEFT),
    _produce(delay=False, own=False, keyed=True),
    _produce(delay=False, own=True, keyed=True),
    _produce(delay=True, own=True, keyed=True),
    _case("dispatch_in_turn", _keyed(Stage.pending), _dispatch_in_turn, _IN_TURN, _IN_TURN),
    _case("dispatch_in_turn, without keys", Stage.pending, _dispatch_in_turn, _TAKEN, _TAKEN),
    _case("complete_message, keyed", _keyed(Stage.leased), _complete, _DONE, _REPEATED),
    _case(
        "complete_with_result, keyed",
        _keyed(Stage.leased),
        _complete_with_result,
        _DONE,
        _REPEATED,
    ),
    _case("retry_message, keyed", _keyed(Stage.leased), _retry, _DONE, _REPEATED),
    _case("retry_message, strict", _keyed(_strict), _retry_strict, _DONE[:1], _REPEATED[:1]),
    _case("retry_message, snoozed key", _keyed(_strict), _snooze_key, _DONE[:1], _REPEATED[:1]),
    _case("release_message, keyed", _keyed(Stage.leased), _release, _DONE, _REPEATED),
    _case("move_to_dlq, keyed", _keyed(Stage.leased), die),
    _case("handle_parse_error, keyed", _keyed(Stage.leased), set_aside),
    _case("handle_timeout_message, keyed", _keyed(Stage.late), _handle_timeout, _LATE, []),
    _case("expire_message, keyed", _keyed(Stage.expiring), _expire, _EXPIRED, []),
    _case("process_delay_message, keyed", _keyed(Stage.due), _process_delay, ["b", "a", "c"], []),
    _case("process_delay_message, strict", _keyed(_held_up), _process_delay, ["b"], []),
    _archived("requeue_message", State.DEAD, keyed=True),
    _archived("requeue_message", State.QUARANTINED, keyed=True),
    _case("cancel_message, pending, keyed", _keyed(Stage.pending), _cancel),
    _case("cancel_message, delayed, keyed", _keyed(Stage.delayed), _cancel),
    _case("abort_message, pending, keyed", _keyed(_seen(Stage.pending)), _abort),
    _case("abort_message, processing, keyed", _keyed(_seen(Stage.leased)), _abort),
    _case("reschedule_message, pending, keyed", _keyed(_seen(Stage.pending)), _reschedule),
    _case("reschedule_message, delayed, keyed", _keyed(_seen(Stage.delayed)), _reschedule),
    _replace(_nothing, "new", key="k"),
    _replace(Stage.pending, "pending", key="k"),
    _replace(Stage.delayed, "delayed", delay=DELAY, key="k"),
    _replace(Stage.leased, "in processing", key="l"),
    _replace(Stage.dead, "dead", key="k"),
    _case("release_replaced, keyed", _keyed(_replaced), _release_replaced),
    _case("ring_doorbell, keyed", _keyed(_silent), _ring, True, False),
    _case("limit_key", _keyed(Stage.leased), _limit),
    _case("repair_lines", _keyed(_lines_broken), _repair_lines, [1, 2, 3, 1, 1, 1], [0] * 6),
    # messages that wait for signals
    _case("retry_message, parked", Stage.leased, _park, _DONE, _REPEATED),
    _case("retry_message, parked, signals first", _leased_signalled, _park, _DONE, _REPEATED),
    _case("retry_message, parked, keyed", _keyed(Stage.leased), _park, _DONE, _REPEATED),
    _case("signal_message, in processing", Stage.leased, _signal, _KEPT, _KEPT_AGAIN),
    _case("signal_message, waiting", _waiting, _signal, _KEPT, _KEPT_AGAIN),
    _case("signal_message, the last one", _waiting_signalled, _signal, _KEPT, _KEPT_AGAIN),
    _case("complete_message, signalled", _leased_signalled, _complete, _DONE, _REPEATED),
    _case("process_delay_message, waiting", _wait_over, _process_delay, ["a"], []),
    _case(
        "expire_message, waiting", _waiting_expiring, _expire, [Claim("a", START * 1000 + 3)], []
    ),
    _case("cancel_message, waiting", _waiting_signalled, _cancel),
    _case("abort_message, waiting", _seen(_waiting_signalled), _abort),
    _case("reschedule_message, waiting", _seen(_waiting_signalled), _reschedule),
    _replace(_waiting_signalled, "waiting"),
    _archived("discard_message", State.DEAD, seed=_dead_signalled),
    _case("repair_waits", _waits_broken, _repair_waits, [8, 2, 4, 16, 0], [0] * 5),
    _case("repair_message, keyed", _keyed(_out_of_line), _repair, [_LISTED], []),
)
