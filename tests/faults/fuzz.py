"""Fuzz: what others may write to the server, and what callers may pass to us.

Junk is written straight into the keys of a topic while a worker serves it. Each piece must be
quarantined, dropped and counted, refused with a clear error, or reported by the audit. The good
messages among the junk must all be handled, once, with unchanged bytes.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from redis.asyncio import Redis

from mx_rmq import Delivery, MessageQueue, MxRmqError, Worker
from mx_rmq.core import codec, events
from mx_rmq.core.codec import MAX_DEPTH
from mx_rmq.core.errors import DecodeError, InvalidInput, NewerRecord
from mx_rmq.core.message import Failure, Message, Priority, State
from mx_rmq.store.quarantine import read
from tests.faults.trial import Fault, Trial
from tests.lab.broken import broken
from tests.lab.servers import Kind, Server

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from mx_rmq.store.keys import TopicKeys

TOPIC: Final = "fuzz"
CALM: Final = "calm"
"""A topic without junk: it must not be held up by the fuzzed one."""
DOOR: Final = "door"
BATCH: Final = 1000
GOOD: Final = 20
"""Good messages in a batch, on each of the two topics."""
LEASE: Final = 3.0
PROMPT: Final = 30.0
"""Seconds in which a good message must be handled, whatever precedes it."""
WAIT: Final = 60.0
HUGE: Final = 50 * 1_048_576
MAX_PAYLOAD: Final = 1_048_576
KEPT: Final = 4 * 1_048_576

PAST: Final = (float("-inf"), -1e300, -1.0, 0.0, 1.0, 1e9)
FUTURE: Final = (float("inf"), 1e300, 1e18, 9.3e15)
LEASES: Final = (b"", b":", b"abc", b"1:w", b"-5:w", b"nan:w", b"1e308:\xff\xfe", b"9" * 40 + b":w")


class Junk(NamedTuple):
    """A piece of junk, and how it may end."""

    id: bytes
    kind: str
    ends: frozenset[str]
    data: bytes | None = None
    drops: int = 0
    """How many of its ids must be dropped and counted."""
    lease: bytes = b""


@dataclass
class Scene:
    """A server with a worker on it."""

    trial: Trial
    raw: Any
    """A plain client; its type hints are wrong for our calls."""
    mq: MessageQueue
    keys: TopicKeys
    good: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Id of a good message -> the digest of its body, and when it was produced."""
    runs: Counter[str] = field(default_factory=Counter)
    unwell: set[str] = field(default_factory=set)
    """Good messages whose bytes changed."""
    doing: str = "at first"
    stall: tuple[float, str] = (0.0, "")
    """How long a good message waited at most, and what the lab did then."""
    causes: Counter[str] = field(default_factory=Counter)
    """How often the lease of a message was lost."""
    ended: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """How the junk of each kind has ended."""
    number: int = 0

    async def produce_good(self, topic: str) -> str:
        """Produce a message that the lab can recognise."""
        body = self.trial.random.randbytes(self.trial.random.randrange(300)).hex()
        digest = hashlib.sha256(body.encode()).hexdigest()
        id = f"good-{len(self.good)}"
        self.good[id] = (digest, time.monotonic())
        await self.mq.produce(topic, {"body": body}, id=id)
        self.good[id] = (digest, time.monotonic())
        return id

    async def until_handled(self, ids: list[str], what: str) -> None:
        """Wait for good messages; they must be handled soon."""
        deadline = time.monotonic() + WAIT
        missing = ids
        while missing and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
            missing = [id for id in missing if not self.runs[id]]
        self.trial.expect(not missing, f"{what}: good messages are not handled: {missing[:5]}")


async def _run(trial: Trial) -> None:
    figures = ("records", "quarantined", "dropped and counted", "handled anyway", "dead")
    more = ("left for the audit to report", "refused by produce", "accepted by produce")
    trial.figures.update(dict.fromkeys((*figures, *more, "unaccounted", "worker deaths"), 0))
    with Server(Kind.VALKEY_9_1, trial.directory / "s") as server:
        mq = MessageQueue(server.url, lease=LEASE, max_payload=MAX_PAYLOAD, dedup=5)
        async with mq, Redis.from_url(server.url) as raw:
            scene = Scene(trial, raw, mq, mq.store.keys.of(TOPIC))
            _declare(scene)
            async with Worker(mq):
                await scene.until_handled([await scene.produce_good(CALM)], "at first")
                duties = _duties()
                await _batches(scene)
                for duty in duties - _duties():
                    trial.violated(f"the worker's {duty} has ended")
                    trial.count("worker deaths")
                await scene.until_handled(
                    [await scene.produce_good(one) for one in (TOPIC, CALM)], "at last"
                )
            await _judge(scene)


def _duties() -> set[str]:
    """Return the long-lived tasks of the worker."""
    named = (
        "doorbell listener",
        "survey",
        "scheduler",
        "expirer",
        "monitor",
        "janitor",
        "caretaker",
    )
    tasks = {task.get_name().removeprefix("mx-rmq ") for task in asyncio.all_tasks()}
    return tasks & set(named)


def _declare(scene: Scene) -> None:
    async def handle(payload: dict[str, Any], delivery: Delivery) -> None:
        scene.runs[delivery.id] += 1
        known = scene.good.get(delivery.id)
        if known is not None:
            digest, produced = known
            scene.stall = max(scene.stall, (time.monotonic() - produced, scene.doing))
            if hashlib.sha256(str(payload.get("body")).encode()).hexdigest() != digest:
                scene.unwell.add(delivery.id)

    async def take(payload: Any, delivery: Delivery) -> None:
        scene.runs[delivery.id] += 1

    def note(event: Any) -> None:
        scene.causes[event.id] += 1

    scene.mq.handler(TOPIC, retry=0.02, max_attempts=20, max_crashes=20)(handle)
    scene.mq.handler(CALM)(handle)
    scene.mq.handler(DOOR)(take)
    scene.mq.events.subscribe(note, events.TakenOver, events.LeaseLost)


async def _batches(scene: Scene) -> None:
    trial = scene.trial
    doors = max(100, trial.size // 50)
    archives = trial.size // 25
    left = trial.size - doors - archives
    rounds = max(2, -(-left // BATCH))
    huge = 1 if trial.size < 50_000 else 6
    troubles = _troubles(scene, all_of_them=trial.size >= 50_000)
    for turn in range(rounds):
        count = left // (rounds - turn)
        left -= count
        await _batch(scene, count, huge=turn < huge, leases=turn % 4 == 0)
        await _archives(scene, archives // rounds + (turn < archives % rounds))
        for trouble in troubles[turn::rounds]:
            await trouble()
        await _doors(scene, doors // rounds + (turn < doors % rounds), first=turn == 0)
        trial.say(f"{trial.figures['records']:,} records")


# junk in the keys of a topic


async def _batch(scene: Scene, count: int, *, huge: bool, leases: bool) -> None:
    """Write junk and good messages, and account for all of it."""
    trial, raw, keys = scene.trial, scene.raw, scene.keys
    before = await _dropped(scene)
    scene.doing = "a batch with 50 MB" if huge else "a batch"
    junk: list[Junk] = []
    good: list[str] = []
    for start in range(0, count, 200):
        pipe = raw.pipeline(transaction=False)
        size = min(200, count - start)
        junk += [_write(scene, pipe, leases=leases) for _ in range(size)]
        if huge and start == 0:
            junk.append(_write_huge(scene, pipe))
        await pipe.delete(keys.doorbell_delay).rpush(keys.doorbell_delay, "1").execute()
        for _ in range(max(1, GOOD * 200 // BATCH)):
            good += [await scene.produce_good(topic) for topic in (TOPIC, CALM)]
    trial.count("records", len(junk))
    await _quiet(scene, junk, good)
    await _account(scene, junk, before)
    await _clean(scene, junk)


async def _dropped(scene: Scene) -> int:
    found: Any = await scene.raw.hget(scene.keys.meta, "dropped")
    return int(found or 0)


def _id(scene: Scene) -> bytes:
    """Draw a unique id, now and then one that no caller could pass."""
    chance = scene.trial.random
    scene.number += 1
    plain = b"f%d" % scene.number
    if chance.random() < 0.7:
        return plain
    strange = (
        b"\xff\xfe",
        b"\n",
        b"{x}",
        b":",
        b" ",
        b"\x00",
        b"'\"",
        b"\r\n$1\r\n",
        "ü€".encode(),
    )
    if chance.random() < 0.05:
        return plain + b"-" + b"y" * chance.randrange(1000, 20_000)
    return plain + b"-" + chance.choice(strange)


def _record(scene: Scene, id: str, topic: str = TOPIC) -> bytes:
    """Return a record like the codec's, with a bit of everything in it."""
    chance = scene.trial.random
    drawn: dict[str, Any] = {}
    if chance.random() < 0.5:
        drawn["headers"] = {"trace": chance.randbytes(4).hex(), "ü": '\\"'}
    if chance.random() < 0.3:
        drawn |= {"ttl": 10**9, "max_attempts": 3, "priority": chance.choice(list(Priority))}
    if chance.random() < 0.2:
        drawn["retry"] = {"type": "delays", "delays": [1.0, 2.0]}
    payload = codec.encode_payload({"body": chance.randbytes(20).hex(), "n": [1, None]}, 2**20)
    message = Message.new(payload, topic=topic, **drawn)  # which refuses a strange id
    message = msgspec.structs.replace(message, id=id, created_at=round(time.time() * 1000))
    if chance.random() < 0.3:
        message = message.failed(Failure(type="ValueError", text="no", at=1))
    return codec.encode(message)


def _data(scene: Scene, id: bytes) -> tuple[str, frozenset[str], bytes]:
    """Draw a value for an id: how it was made, and where it may end."""
    chance = scene.trial.random
    text = id.decode("utf-8", "replace")
    whole = _record(scene, text)
    drawn = chance.randrange(12)
    ends = frozenset(("quarantined",))
    if drawn < 3:
        return "random bytes", ends, chance.randbytes(chance.choice((0, 1, 7, 100, 3000)))
    if drawn < 5:
        return "truncated", ends, whole[: chance.randrange(len(whole))]
    if drawn < 9:
        flipped = bytearray(whole)
        for _ in range(chance.choice((1, 1, 2, 8))):
            flipped[chance.randrange(len(flipped))] ^= 1 << chance.randrange(8)
        if _is_newer(flipped):  # it would wait for a newer release, forever
            flipped[:] = whole[1:]
        return "bits flipped", frozenset(("quarantined", "handled", "dead")), bytes(flipped)
    if drawn == 9:
        other = _record(scene, f"{text}x") if chance.random() < 0.5 else _record(scene, text, CALM)
        return "of another message", ends, other
    return "strange JSON", ends, chance.choice(STRANGE)


def _is_newer(record: bytearray) -> bool:
    """Whether a record looks like a newer release's."""
    try:
        codec.decode(bytes(record))
    except NewerRecord:
        return True
    except DecodeError:
        return False
    return False


STRANGE: Final = (
    b"null",
    b"[]",
    b"{}",
    b'"text"',
    b"1e999",
    b"NaN",
    b'{"v":1e400}',
    b'{"v":1,"id":5,"topic":null,"payload":1}',
    b"[" * 10_000,
    b"[" * 10_000 + b"]" * 10_000,
    b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    b'{"v":' + b"9" * 5000 + b"}",
    b"\xef\xbb\xbf{}",
    b'{"v":1,"id":"\\ud800"}',
)


def _write(scene: Scene, pipe: Any, *, leases: bool) -> Junk:
    """Write one piece of junk."""
    chance, keys, id = scene.trial.random, scene.keys, _id(scene)
    waiting = chance.choice((keys.pending, keys.pending, keys.pending_high, keys.pending_low))
    delayed = chance.choice((keys.delay_tasks, keys.delay_tasks_high, keys.delay_tasks_low))
    kind, ends, data = _data(scene, id)
    drawn = chance.random()
    if drawn < 0.62:
        pipe.hset(keys.payload, id, data)
        pipe.lpush(waiting, id)
        return Junk(id, f"pending, {kind}", ends, data)
    if drawn < 0.70:
        pipe.lpush(waiting, id)
        return Junk(id, "pending, no record", frozenset(("gone",)), drops=1)
    if drawn < 0.76:
        pipe.hset(keys.payload, id, data)
        pipe.lpush(waiting, id, id)
        return Junk(id, f"pending twice, {kind}", ends, data, drops=1)
    if drawn < 0.80:
        pipe.hset(keys.payload, id, data)
        pipe.zadd(delayed, {id: chance.choice(PAST)})
        return Junk(id, f"due, {kind}", ends, data)
    if drawn < 0.82:
        pipe.zadd(delayed, {id: chance.choice(PAST)})
        return Junk(id, "due, no record", frozenset(("gone",)), drops=1)
    if drawn < 0.84:
        pipe.hset(keys.payload, id, data)
        pipe.lpush(waiting, id)
        pipe.zadd(delayed, {id: chance.choice(PAST)})
        return Junk(id, f"pending and due, {kind}", ends, data, drops=1)
    if drawn < 0.86:
        pipe.hset(keys.payload, id, data)
        return Junk(id, "record without a state", frozenset(("flagged",)), data)
    if drawn < 0.88:
        pipe.zadd(delayed, {id: chance.choice(FUTURE)})
        return Junk(id, "delayed forever, no record", frozenset(("flagged",)))
    if drawn < 0.90:
        pipe.hset(keys.payload, id, data)
        pipe.zadd(delayed, {id: chance.choice(FUTURE)})
        return Junk(id, "delayed forever", frozenset(("stays",)), data)
    if not leases:
        pipe.zadd(keys.recent, {id: chance.choice(PAST + FUTURE)})
        pipe.zadd(keys.expire_monitor, {id: chance.choice(FUTURE)})
        return Junk(id, "deadline forever, no lease", frozenset(("flagged", "gone")))
    return _write_lease(scene, pipe, id, (kind, ends, data))


def _write_lease(
    scene: Scene, pipe: Any, id: bytes, drawn: tuple[str, frozenset[str], bytes]
) -> Junk:
    """Write junk that looks as if a worker held it."""
    chance, keys = scene.trial.random, scene.keys
    kind, ends, data = drawn
    lease = chance.choice((*LEASES, chance.randbytes(10)))
    way = chance.randrange(7)
    if way < 5:
        pipe.hset(keys.processing, id, lease)
    if way in (0, 1, 3, 4, 5):
        pipe.hset(keys.payload, id, data)
    if way in (0, 1, 2, 5, 6):
        pipe.zadd(keys.expire_monitor, {id: chance.choice(PAST)})
    if way == 4:
        pipe.zadd(keys.expire_monitor, {id: chance.choice(FUTURE)})
    match way:
        case 0:
            return Junk(id, f"lease ran out, {kind}", ends, data)
        case 1:
            pipe.lpush(keys.pending, id)
            return Junk(id, f"lease ran out, and pending, {kind}", ends, data, drops=1)
        case 2:
            return Junk(id, "lease ran out, no record", frozenset(("gone",)), drops=1)
        case 3:
            return Junk(id, "lease without a deadline", frozenset(("flagged",)), data, lease=lease)
        case 4:
            return Junk(id, "lease forever", ends | {"stays"}, data, lease=lease)
        case 5:
            return Junk(id, "deadline and record, no lease", frozenset(("flagged",)), data)
    return Junk(id, "deadline without a lease", frozenset(("gone",)))


def _write_huge(scene: Scene, pipe: Any) -> Junk:
    chance, keys, id = scene.trial.random, scene.keys, _id(scene)
    data = chance.choice((b'{"v":1,"id":"', b"[" * 1000, b"\xff")) + b"x" * HUGE
    pipe.hset(keys.payload, id, data)
    pipe.lpush(keys.pending, id)
    return Junk(id, "50 MB", frozenset(("quarantined",)), data)


async def _quiet(scene: Scene, junk: list[Junk], good: list[str]) -> None:
    """Wait until the worker has done all that it can."""
    keys, deadline = scene.keys, time.monotonic() + WAIT
    await scene.until_handled(good, "a batch")
    waiting = sum(one.kind.startswith("delayed forever") for one in junk)
    held = {one.id: one.lease for one in junk if one.kind in LASTING}
    found = (-1, -1, True)
    while found != (0, waiting, False) and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
        pipe = scene.raw.pipeline(transaction=False)
        for key in (keys.pending_high, keys.pending, keys.pending_low):
            pipe.llen(key)
        for key in (keys.delay_tasks_high, keys.delay_tasks, keys.delay_tasks_low):
            pipe.zcard(key)
        pipe.hgetall(keys.processing)
        *counts, leases, deadlines = await pipe.zrange(keys.expire_monitor, 0, -1).execute()
        busy = not leases.items() <= held.items() or not held.keys() >= set(deadlines)
        found = (sum(counts[:3]), sum(counts[3:]), busy)
    scene.trial.expect(
        found == (0, waiting, False),
        f"pending, delayed, busy are {found} after {WAIT} s, not 0, {waiting}, False",
    )


LASTING: Final = ("lease without a deadline", "lease forever", "deadline forever, no lease")
"""Junk that looks like a held message, and may stay: it has no deadline that could pass."""


async def _account(scene: Scene, junk: list[Junk], before: int) -> None:
    """Check how each piece ended."""
    trial, raw, keys = scene.trial, scene.raw, scene.keys
    hashes = (keys.error_parse_payload, keys.dlq_payload, keys.payload, keys.processing)
    quarantined, dead, records, leases = [await raw.hgetall(key) for key in hashes]
    members: set[bytes] = set()
    for key in (keys.delay_tasks_high, keys.delay_tasks, keys.delay_tasks_low, keys.expire_monitor):
        members.update(await raw.zrange(key, 0, -1))
    flagged = {violation.id for violation in await scene.mq.admin.audit(TOPIC)}
    for one in junk:
        text = one.id.decode("utf-8", "surrogateescape")
        shown = one.id.decode("utf-8", "backslashreplace")
        times = scene.runs[text]
        ends = ["handled"] * (times - min(max(0, times - 1), scene.causes[text]))
        ends += ["quarantined"] * (one.id in quarantined) + ["dead"] * (one.id in dead)
        if shown in flagged:
            ends.append("flagged")
        elif one.id in records or one.id in leases or one.id in members:
            ends.append("stays")
        ends = ends or ["gone"]
        if len(ends) != 1 or ends[0] not in one.ends:
            trial.count("unaccounted")
            trial.violated(f"{one.kind}: {one.id[:80]!r} ended as {ends}, not {set(one.ends)}")
        scene.ended[one.kind][ends[0]] += 1
        if ends != ["gone"] or not one.drops:  # the server's own counter has the dropped ones
            trial.count(_FIGURES[ends[0]])
        if ends == ["quarantined"]:
            about, kept = read(quarantined[one.id])
            whole = one.data is not None and kept == one.data[:KEPT]
            exact = whole and about.length == len(one.data or b"")
            trial.expect(exact, f"{one.kind}: the quarantine of {one.id[:80]!r} is not exact")
        del scene.runs[text]
    dropped, drops = await _dropped(scene) - before, sum(one.drops for one in junk)
    trial.count("dropped and counted", dropped)
    trial.expect(dropped == drops, f"{dropped} ids were dropped and counted, not {drops}")


_FIGURES: Final = {
    "handled": "handled anyway",
    "quarantined": "quarantined",
    "dead": "dead",
    "flagged": "left for the audit to report",
    "stays": "left for the audit to report",
    "gone": "deadlines without a message, removed",
}


_ENDS: Final = {
    "quarantined": "quarantined",
    "handled": "handled",
    "dead": "dead",
    "gone": "dropped",
    "flagged": "in the audit",
    "stays": "waits",
}


async def _clean(scene: Scene, junk: list[Junk]) -> None:
    """Remove what was left; then nothing may be wrong any more."""
    keys = scene.keys
    sets = (keys.delay_tasks_high, keys.delay_tasks, keys.delay_tasks_low, keys.expire_monitor)
    pipe = scene.raw.pipeline(transaction=False)
    for start in range(0, len(junk), 200):
        ids = [one.id for one in junk[start : start + 200]]
        for key in (*sets, keys.recent, keys.expiry):
            pipe.zrem(key, *ids)
        pipe.hdel(keys.payload, *ids)
        pipe.hdel(keys.processing, *ids)
    for state in (State.DEAD, State.QUARANTINED):
        pipe.delete(*keys.archive_of(state))
    await pipe.execute()
    for violation in await scene.mq.admin.audit(TOPIC):
        scene.trial.violated(f"audit after a batch: {violation}")


# junk in the archives


async def _archives(scene: Scene, count: int) -> None:
    """Write junk into the archives; every operator action must get an answer."""
    scene.doing = "archives"
    trial, keys, admin, chance = scene.trial, scene.keys, scene.mq.admin, scene.trial.random
    junk: dict[bytes, State] = {}
    pipe = scene.raw.pipeline(transaction=False)
    for _ in range(count):
        id, state = _id(scene), chance.choice((State.DEAD, State.QUARANTINED))
        index, contents = keys.archive_of(state)
        data = _data(scene, id)[2]
        if state is State.QUARANTINED and chance.random() < 0.5:
            data = b'{"id":"","topic":"","error_type":"","error":"","length":1}\n' + data
        way = chance.randrange(10)
        if way:
            pipe.hset(contents, id, data)
        if way != 1:
            pipe.zadd(index, {id: chance.choice((*PAST, *FUTURE, time.time() * 1000))})
        junk[id] = state
    await pipe.execute()
    trial.count("records", count)
    seen = 0
    for state in (State.DEAD, State.QUARANTINED):
        cursor: str | None = None
        while True:
            page = await _asked(scene, "list", admin.list(TOPIC, state, cursor=cursor))
            if page is None:
                break
            seen += len(page.messages)
            cursor = page.cursor
            if cursor is None:
                break
    for id, state in junk.items():
        text = id.decode("utf-8", "surrogateescape")
        found = await _asked(scene, "get", admin.get(TOPIC, text))
        if found is not None:
            trial.expect(found.state is state, f"get of {id!r} says {found.state}, not {state}")
        if chance.random() < 0.5:
            done = await _asked(scene, "requeue", admin.requeue(TOPIC, text, state=state))
            trial.count("handled anyway", bool(done))
            if done:
                continue
        done = await _asked(scene, "discard", admin.discard(TOPIC, text, state=state))
        gone = not await scene.raw.hexists(keys.archive_of(state)[1], id)
        trial.expect(gone or not done, f"discard of {id!r} says {done}, and it is there")
        trial.count("discarded by an operator" if done else "left for the audit to report")
    await scene.until_handled([await scene.produce_good(TOPIC)], "archives")
    await _clean(scene, [Junk(id, "", frozenset()) for id in junk])


async def _asked(scene: Scene, what: str, call: Awaitable[Any]) -> Any:
    """Return an operator's answer; a clear error of ours is one, too."""
    try:
        return await call
    except MxRmqError as error:
        scene.trial.expect(20 < len(str(error)) < 3000, f"{what} says only: {str(error)[:3000]!r}")
    except Exception as error:  # noqa: BLE001 - any error is a finding
        scene.trial.violated(f"{what} fails by {type(error).__name__}: {error}"[:500])
    return None


# keys that are wrong for a while


def _troubles(scene: Scene, *, all_of_them: bool) -> list[Callable[[], Awaitable[None]]]:
    """Return other things that can be wrong with a topic for a while."""
    chance, keys = scene.trial.random, scene.keys
    names = list(keys.types())
    chance.shuffle(names)
    metas = [
        (name, value)
        for name in ("token", "turn", "dropped", "tick")
        for value in (b"abc", b"", b"-5", b"nan", b"inf", b"1e300", b"\xff\x00", b"9" * 30)
    ]
    chance.shuffle(metas)
    last: list[str] = []
    if not all_of_them:  # a broken doorbell is ignored for a minute, so that comes last
        last = [keys.doorbell]
        names = [name for name in names if "doorbell" not in name][:3]
        metas = [("token", b"nan"), ("turn", b"inf"), *metas[:6]]  # both were found here

    def typed(name: str) -> Callable[[], Awaitable[None]]:
        return lambda: _wrong_type(scene, name)

    def meta(name: str, value: bytes) -> Callable[[], Awaitable[None]]:
        return lambda: _wrong_meta(scene, name, value)

    return [
        *(typed(name) for name in names),
        *(meta(*one) for one in metas),
        lambda: _wrong_receipts(scene),
        lambda: _wrong_registry(scene),
        *(typed(name) for name in last),
    ]


async def _wrong_type(scene: Scene, name: str) -> None:
    """Give a key another type for a while: the other topic continues, and later this one."""
    what = scene.doing = f"{name} holds a set"
    scene.trial.count("keys of the wrong type")
    async with broken(scene.raw, name):
        calm = [await scene.produce_good(CALM) for _ in range(3)]
        await _asked(scene, what, scene.mq.produce(TOPIC, {"body": "x"}))
        await scene.until_handled(calm, what)
        for call in (scene.mq.admin.stats(TOPIC), scene.mq.admin.audit(TOPIC)):
            await _asked(scene, what, call)
    await scene.until_handled([await scene.produce_good(TOPIC)], f"after {what}")


async def _wrong_meta(scene: Scene, name: str, value: bytes) -> None:
    """Overwrite a field of the topic with nonsense; messages must still be handled."""
    raw, keys = scene.raw, scene.keys
    what = scene.doing = f"{name} is {value!r}"
    scene.trial.count("fields with a wrong value")
    kept = await raw.hget(keys.meta, name)
    await raw.hset(keys.meta, name, value)
    try:
        good = [await scene.produce_good(topic) for topic in (TOPIC, CALM)]
        await scene.until_handled(good, what)
        await _asked(scene, what, scene.mq.admin.stats(TOPIC))
        await _asked(scene, what, scene.mq.admin.audit(TOPIC))
    finally:
        if kept is None:
            await raw.hdel(keys.meta, name)
        else:
            await raw.hset(keys.meta, name, kept)


async def _wrong_receipts(scene: Scene) -> None:
    """Overwrite every receipt; a call that is sent once must still take effect once."""
    raw, chance = scene.raw, scene.trial.random
    async for key in raw.scan_iter(scene.keys.receipt("*"), count=1000):
        await raw.set(key, chance.choice((b"", b"x", b"-1 1", chance.randbytes(20), b"1" * 400)))
        scene.trial.count("receipts overwritten")
    await scene.until_handled([await scene.produce_good(TOPIC) for _ in range(5)], "receipts")


async def _wrong_registry(scene: Scene) -> None:
    """List topics and workers that do not exist."""
    raw, keys, admin = scene.raw, scene.mq.store.keys, scene.mq.admin
    names = (b"\xff\xfe", b"", b"a b", b"{x}", b"x" * 500, b"odd-1", b"odd-2", b"odd-3", b"odd-4")
    counts = (b"", b"abc", b"-1", b"0", b"1e9", b"9" * 30, b"\xff", b"1", b"nan")
    for name, count in zip(names, counts, strict=True):
        await raw.hset(keys.topics, name, count)
        await raw.hset(keys.workers, name, count + b" {")
    await _asked(scene, "workers", admin.workers())
    for topic in await _asked(scene, "topics", admin.topics()) or []:
        await _asked(scene, "stats", admin.stats(topic))
    await raw.hdel(keys.topics, *names)
    await raw.hdel(keys.workers, *names)
    await scene.until_handled([await scene.produce_good(TOPIC)], "the registry")


# the front door


async def _doors(scene: Scene, count: int, *, first: bool) -> None:
    """Produce hostile input; each piece is refused with a reason, or handled."""
    offers = [*_offers(), *_random_offers(scene, count)] if first else _random_offers(scene, count)
    taken: list[str] = []
    for what, refused, offer in offers:
        scene.trial.count("records")
        try:
            id = await scene.mq.produce(**{"topic": DOOR, "payload": 1, **offer})
        except InvalidInput as error:
            scene.trial.count("refused by produce")
            text = str(error)
            scene.trial.expect(10 < len(text) < 1000, f"{what}: refused with {text[:200]!r}")
            scene.trial.expect(refused is not False, f"{what}: refused: {text[:200]}")
        except Exception as error:  # noqa: BLE001 - any error is a finding
            scene.trial.violated(f"{what}: {type(error).__name__}: {error}"[:500])
        else:
            scene.trial.count("accepted by produce")
            scene.trial.expect(refused is not True, f"{what}: accepted as {id}")
            taken.append(id)
    await scene.until_handled(taken, "what produce accepted")


Offer = tuple[str, bool | None, dict[str, Any]]
"""What it is, whether it must be refused (None: either is fine), and the produce."""


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def _offers() -> Iterator[Offer]:
    """Yield input that is known to be hostile."""
    for topic in ("", "a b", "a@b", "{x}", "a\n", "é", "\ud800", "x" * 129, None, 5, b"x", ".x"):
        yield f"topic {topic!r:.40}", True, {"topic": topic}
    for topic in ("-x", "../x", "x/1", "x\x00", "*", "x" * 10**6):
        yield f"topic {topic!r:.40}", True, {"topic": topic}
    for id in ("", "a b", "a!b", "{x}", "a\n", "é", "\ud800", "x" * 129, 5, b"x", "x" * 10**6):
        yield f"id {id!r:.40}", True, {"id": id}
    for key in (5, b"x", "\ud800", ["x"]):
        yield f"key {key!r:.40}", True, {"key": key}
    wrong: tuple[Any, ...] = (5, "x", ["x"], {"x": 5}, {5: "x"}, {"x": None}, {"\ud800": "x"})
    for headers in (*wrong, {"x": "\udfff"}, {"x": "y" * 70_000}, {"x" * 70_000: ""}):
        yield f"headers {headers!r:.40}", True, {"headers": headers}
    yield "payload at the limit", False, {"payload": "x" * (MAX_PAYLOAD - 2)}
    yield "payload over the limit", True, {"payload": "x" * (MAX_PAYLOAD - 1)}
    yield "payload of 50 MB", True, {"payload": "x" * HUGE}
    yield "nested as deeply as may be", False, {"payload": _nested(MAX_DEPTH)}
    for depth in (MAX_DEPTH + 1, 1000, 10_000, 100_000):
        yield f"nested {depth} deep", True, {"payload": _nested(depth)}
        yield f"raw, {depth} deep", True, {"payload": msgspec.Raw(b"[" * depth + b"]" * depth)}
    circle: list[Any] = []
    circle.append(circle)
    nan, inf = float("nan"), float("inf")
    for payload in (circle, nan, inf, [-inf], {"x": nan}, "\ud800", {"\udfff": 1}, object(), 1j):
        yield f"payload {payload!r:.40}", True, {"payload": payload}
    for payload in (msgspec.Raw(b"junk"), msgspec.Raw(b""), msgspec.Raw(b'"\xff"'), lambda: 1):
        yield f"payload {payload!r:.40}", True, {"payload": payload}
    for payload in (10**400, -(10**4000), b"bytes", {1, 2}, {1: 2}, None, True, 2**64, 1e308):
        yield f"payload of type {type(payload).__name__}", None, {"payload": payload}
    for seconds in (nan, inf, -inf, -1, 1e300, 10**400, "1", None.__class__, True, 1j):
        for option in ("delay", "ttl", "at"):
            yield f"{option} of type {type(seconds).__name__}", True, {option: seconds}
    for number in (0, -1, 1.5, "3", nan, 10**400, True):
        yield f"max_attempts of type {type(number).__name__}", True, {"max_attempts": number}
    for level in ("", "HIGH ", 5, None, "urgent", "\ud800", ["high"]):
        yield f"priority {level!r:.40}", True, {"priority": level}
    for retry in ("x", -1, nan, [], [-1], [nan], {"type": "?"}, {"\ud800": 1}, object(), [inf]):
        yield f"retry {retry!r:.40}", True, {"retry": retry}
    for confirm in ("", "x", 5, "\ud800", ["stored"]):
        yield f"confirm {confirm!r:.40}", True, {"confirm": confirm}


def _random_offers(scene: Scene, count: int) -> Iterator[Offer]:
    """Yield random names, headers and payloads."""
    chance = scene.trial.random

    def text(most: int) -> str:
        letters = chr(chance.choice((chance.randrange(128), chance.randrange(0x11000))))
        return "".join(
            chance.choice((letters, chr(chance.randrange(32, 127)), "a", "0"))
            for _ in range(chance.randrange(most))
        )

    def value(depth: int = 0) -> Any:
        drawn = chance.randrange(9 if depth < 5 else 6)
        plain = (None, True, chance.getrandbits(70), chance.gauss(0, 1e200), text(30), b"\xff\x00")
        if drawn < 6:
            return plain[drawn]
        some = [value(depth + 1) for _ in range(chance.randrange(4))]
        return some if drawn < 8 else {text(8): one for one in some}

    for number in range(count):
        match chance.randrange(4):
            case 0:
                topic = text(8) + chance.choice("{}@* \n/é\ud800\x00")
                yield f"topic {topic!r}", True, {"topic": topic}
            case 1:
                id = text(20) + chance.choice("{}!* \n,é\ud800\x00")
                yield f"id {id!r}", True, {"id": id}
            case 2:
                headers = {text(10): chance.choice((text(10), value()))}
                yield f"headers {headers!r:.80}", None, {"headers": headers}
            case _:
                payload = value()
                yield f"payload {number} {payload!r:.80}", None, {"payload": payload}


async def _judge(scene: Scene) -> None:
    """Check that every good message was handled once, unchanged."""
    trial = scene.trial
    for id in scene.good:
        runs = scene.runs[id]
        trial.expect(1 <= runs <= 1 + scene.causes[id], f"{id} was handled {runs} times")
    trial.expect(not scene.unwell, f"the bytes of {sorted(scene.unwell)[:5]} have changed")
    trial.figures["good messages handled"] = sum(1 for id in scene.good if scene.runs[id])
    longest, doing = scene.stall
    trial.figures["longest stall of a good message, s"] = round(longest, 2)
    trial.figures["… while testing"] = doing
    trial.expect(longest <= PROMPT, f"a good message waited {longest:.1f} s: {doing}")
    trial.tables["Junk in the keys of a topic, and how it ended"] = [
        ["junk", "written", *_ENDS.values()],
        *(
            [kind, f"{ends.total():,}", *(f"{ends[end]:,}" for end in _ENDS)]
            for kind, ends in sorted(scene.ended.items())
        ),
    ]
    for topic in (TOPIC, CALM, DOOR):
        for violation in await scene.mq.admin.audit(topic):
            trial.violated(f"audit at the end: {violation}")


FAULT: Final = Fault(
    "fuzz",
    "fuzzed records, written straight into the server, and hostile input",
    _run,
    unit="records",
    short=1000,
    full=200_000,
)
