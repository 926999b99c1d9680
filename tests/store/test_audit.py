"""The audit finds every violation of G2, raises no false alarm, and reads in small steps."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pytest
from redis.asyncio import Redis

from mx_rmq.core.message import State
from mx_rmq.net.caller import Caller
from mx_rmq.net.topology import Node, OneServer
from mx_rmq.settings import Limits
from mx_rmq.store.audit import STEP, SUSPECTS, Audit, Violation
from mx_rmq.store.keys import Keys
from mx_rmq.store.preflight import Preflight
from mx_rmq.store.results import HandedBack, RetryRequest
from mx_rmq.store.script import load, names
from mx_rmq.store.store import Store
from tests.conftest import assert_clean
from tests.lab.archives import ARCHIVES, archive, archived, list_archived
from tests.lab.broken import broken, wrong_type
from tests.lab.messages import (
    FAILURE,
    TOPIC,
    Priority,
    bring,
    delayed,
    draft,
    drafts,
    leased,
    leased_in_turn,
    message,
    pending,
    settle,
    take,
    take_in_turn,
)
from tests.lab.servers import Server
from tests.lab.snapshot import snapshot

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from mx_rmq.store.keys import TopicKeys
    from mx_rmq.store.results import Leased
    from tests.lab.clock import Clock
    from tests.lab.servers import Kind

    Break = Callable[[Any, TopicKeys, "Ids"], list[Awaitable[object]]]
    LineBreak = Callable[[Any, TopicKeys, "Ids", str], list[Awaitable[object]]]


class Ids(NamedTuple):
    """A message in each state."""

    pending: str
    delayed: str
    processing: str
    dead: str
    quarantined: str


async def one_of_each(store: Store) -> Ids:
    (held,) = await leased(store)
    dead = await bring(store, State.DEAD)
    quarantined = await bring(store, State.QUARANTINED)
    (waits,) = await pending(store)
    (later,) = await delayed(store, 1000)
    return Ids(waits, later, held.id, dead.id, quarantined.id)


async def test_a_clean_topic_has_no_violation(store: Store) -> None:
    assert await store.audit.topic("unused") == []
    for priority in Priority:
        await pending(store, 3, priority=priority)
        await delayed(store, 1000, 3, priority=priority)
    await one_of_each(store)
    await store.pause_topic(TOPIC)
    assert await store.audit.topic(TOPIC) == []


# Each way to break a clean topic, and exactly what the audit says then.
BREAKS: dict[str, tuple[Break, list[tuple[str, str]]]] = {
    "pending twice": (
        lambda raw, keys, ids: [raw.rpush(keys.pending, ids.pending)],
        [("pending", "2 times pending")],
    ),
    "pending in two levels": (
        lambda raw, keys, ids: [raw.rpush(keys.pending_low, ids.pending)],
        [("pending", "2 times pending")],
    ),
    "delayed in two levels": (
        lambda raw, keys, ids: [raw.zadd(keys.delay_tasks_high, {ids.delayed: 1})],
        [("delayed", "2 times delayed")],
    ),
    "delayed in three levels": (
        lambda raw, keys, ids: [
            raw.zadd(key, {ids.delayed: 1}) for key in (keys.delay_tasks_high, keys.delay_tasks_low)
        ],
        [("delayed", "3 times delayed")],
    ),
    "a time of expiry that nothing waits for": (
        lambda raw, keys, ids: [raw.zadd(keys.expiry, {ids.processing: 10**14})],
        [("processing", "an expiry time, but it is not waiting")],
    ),
    "pending and delayed": (
        lambda raw, keys, ids: [raw.lpush(keys.pending_high, ids.delayed)],
        [("delayed", "in several states: pending, delayed")],
    ),
    "pending and in processing": (
        lambda raw, keys, ids: [raw.lpush(keys.pending, ids.processing)],
        [("processing", "in several states: pending, processing")],
    ),
    "delayed and in processing": (
        lambda raw, keys, ids: [raw.zadd(keys.delay_tasks_low, {ids.processing: 1})],
        [("processing", "in several states: delayed, processing")],
    ),
    "pending and dead": (
        lambda raw, keys, ids: [
            raw.zadd(keys.dlq, {ids.pending: 2_000_000_000_000}),
            raw.hset(keys.dlq_payload, ids.pending, "x"),
        ],
        [("pending", "in several states: pending, dead")],
    ),
    "in processing and quarantined": (
        lambda raw, keys, ids: [
            raw.zadd(keys.error_parse_queue, {ids.processing: 2_000_000_000_000}),
            raw.hset(keys.error_parse_payload, ids.processing, "x"),
        ],
        [("processing", "in several states: processing, quarantined")],
    ),
    "dead and quarantined": (
        lambda raw, keys, ids: [
            raw.zadd(keys.error_parse_queue, {ids.dead: 2_000_000_000_000}),
            raw.hset(keys.error_parse_payload, ids.dead, "x"),
        ],
        [("dead", "in several states: dead, quarantined")],
    ),
    "pending without a record": (
        lambda raw, keys, ids: [raw.hdel(keys.payload, ids.pending)],
        [("pending", "a state without a record: pending")],
    ),
    "delayed without a record": (
        lambda raw, keys, ids: [raw.hdel(keys.payload, ids.delayed)],
        [("delayed", "a state without a record: delayed")],
    ),
    "in processing without a record": (
        lambda raw, keys, ids: [raw.hdel(keys.payload, ids.processing)],
        [("processing", "a state without a record: processing")],
    ),
    "dead and pending without a record": (
        lambda raw, keys, ids: [raw.lpush(keys.pending, ids.dead)],
        [
            ("dead", "in several states: pending, dead"),
            ("dead", "a state without a record: pending, dead"),
        ],
    ),
    "a record that is not pending": (
        lambda raw, keys, ids: [raw.lrem(keys.pending, 0, ids.pending)],
        [("pending", "a record without a state")],
    ),
    "a record that is not delayed": (
        lambda raw, keys, ids: [raw.zrem(keys.delay_tasks, ids.delayed)],
        [("delayed", "a record without a state")],
    ),
    "a record of a dead message": (
        lambda raw, keys, ids: [raw.hset(keys.payload, ids.dead, "x")],
        [("dead", "a record without a state")],
    ),
    "a lease without a deadline": (
        lambda raw, keys, ids: [raw.zrem(keys.expire_monitor, ids.processing)],
        [("processing", "a lease without a deadline")],
    ),
    "a deadline without a lease": (
        lambda raw, keys, ids: [raw.zadd(keys.expire_monitor, {ids.pending: 1})],
        [("pending", "a deadline without a lease")],
    ),
    "neither lease nor state": (
        lambda raw, keys, ids: [raw.hdel(keys.processing, ids.processing)],
        [
            ("processing", "a record without a state"),
            ("processing", "a deadline without a lease"),
        ],
    ),
    "a dead letter without its contents": (
        lambda raw, keys, ids: [raw.hdel(keys.dlq_payload, ids.dead)],
        [("dead", "dead letters: index and contents disagree")],
    ),
    "a dead letter that is not listed": (
        lambda raw, keys, ids: [raw.zrem(keys.dlq, ids.dead)],
        [("dead", "dead letters: index and contents disagree")],
    ),
    "a quarantined message without its bytes": (
        lambda raw, keys, ids: [raw.hdel(keys.error_parse_payload, ids.quarantined)],
        [("quarantined", "quarantine: index and contents disagree")],
    ),
    "a quarantined message that is not listed": (
        lambda raw, keys, ids: [raw.zrem(keys.error_parse_queue, ids.quarantined)],
        [("quarantined", "quarantine: index and contents disagree")],
    ),
    "a lease that is no lease": (
        lambda raw, keys, ids: [raw.hset(keys.processing, ids.processing, "nonsense")],
        [("", "the lease of {processing} is b'nonsense', not token:worker")],
    ),
    "a lease without a worker": (
        lambda raw, keys, ids: [raw.hset(keys.processing, ids.processing, "12")],
        [("", "the lease of {processing} is b'12', not token:worker")],
    ),
    "a lease without a token": (
        lambda raw, keys, ids: [raw.hset(keys.processing, ids.processing, b"\xff:w1")],
        [("", "the lease of {processing} is b'\\xff:w1', not token:worker")],
    ),
    "a counter behind a lease": (
        lambda raw, keys, ids: [raw.hset(keys.meta, "token", "7")],
        [("", "the token counter is 7, behind the lease of {processing}")],
    ),
    "a counter that is gone": (
        lambda raw, keys, ids: [raw.hdel(keys.meta, "token")],
        [("", "the token counter is 0, behind the lease of {processing}")],
    ),
    "a doorbell rung twice": (
        lambda raw, keys, ids: [raw.rpush(keys.doorbell, "1", "1")],
        [("", "{keys.doorbell} holds 3 rings")],
    ),
    "the scheduler's doorbell rung twice": (
        lambda raw, keys, ids: [raw.rpush(keys.doorbell_delay, "1")],
        [("", "{keys.doorbell_delay} holds 2 rings")],
    ),
}


async def one_of_each_in_line(store: Store) -> Ids:
    """A message with a key in each state; the first one is also the only one that waits."""
    held, dead, odd = await leased_in_turn(store, "kkk")
    await settle(store, dead, State.DEAD)
    await settle(store, odd, State.QUARANTINED)
    (waits,) = await pending(store, key="k")
    (later,) = await delayed(store, 1000, key="k")
    return Ids(waits, later, held.id, dead.id, odd.id)


NOT_ITS_PLACE = "in the line of its key, but its place is another"
NO_TURN = "messages wait in its line, but it has no turn"
NOTHING_WAITS = "has a turn or is blocked, but nothing waits in its line"
NOT_RUNNING = "takes up a place of its key, but is neither in processing nor delayed"
RUNS_ELSEWHERE = "takes up a place of its key, but not under its own place in line"
NO_RECORD = "has a place in line, but no record"

# The same for lines. {place} is that of the one that waits.
LINE_BREAKS: dict[str, tuple[LineBreak, list[tuple[str, str]]]] = {
    "in line and in a list": (
        lambda raw, keys, ids, place: [raw.rpush(keys.pending, ids.pending)],
        [("{pending}", "2 times pending")],
    ),
    "in its line twice": (
        lambda raw, keys, ids, place: [raw.zadd(keys.lines, {f"k\t{7:017} 1 {ids.pending}": 0})],
        [("{pending}", NOT_ITS_PLACE)],
    ),
    "in two lines": (
        lambda raw, keys, ids, place: [raw.zadd(keys.lines, {f"m\t{7:017} 1 {ids.pending}": 0})],
        [("", f"key m: {NO_TURN}"), ("{pending}", NOT_ITS_PLACE)],
    ),
    "in a line that nobody knows": (
        lambda raw, keys, ids, place: [raw.zadd(keys.lines, {"nonsense": 0})],
        [("nonsense", NOT_ITS_PLACE)],
    ),
    "in no line": (
        lambda raw, keys, ids, place: [raw.zrem(keys.lines, place + ids.pending)],
        [("{pending}", "a record without a state"), ("", f"key k: {NOTHING_WAITS}")],
    ),
    "in line without a place": (
        lambda raw, keys, ids, place: [raw.hdel(keys.keyed, ids.pending)],
        [("{pending}", "in the line of its key, but no place is noted")],
    ),
    "in line and in processing": (
        lambda raw, keys, ids, place: [
            raw.hset(keys.keyed, ids.processing, place),
            raw.zadd(keys.lines, {place + ids.processing: 0}),
        ],
        [
            ("{processing}", "in several states: pending, processing"),
            ("{processing}", RUNS_ELSEWHERE),
        ],
    ),
    "in line and delayed": (
        lambda raw, keys, ids, place: [
            raw.hset(keys.keyed, ids.delayed, place),
            raw.zadd(keys.lines, {place + ids.delayed: 0}),
        ],
        [("{delayed}", "in several states: pending, delayed")],
    ),
    "in line without a record": (
        lambda raw, keys, ids, place: [raw.hdel(keys.payload, ids.pending)],
        [("{pending}", "a state without a record: pending"), ("{pending}", NO_RECORD)],
    ),
    "running without a record": (
        lambda raw, keys, ids, place: [raw.hdel(keys.payload, ids.processing)],
        [("{processing}", "a state without a record: processing"), ("{processing}", NO_RECORD)],
    ),
    "a key without a turn": (
        lambda raw, keys, ids, place: [raw.zrem(keys.ring, "k")],
        [("", f"key k: {NO_TURN}")],
    ),
    "a key with a turn that is blocked": (
        lambda raw, keys, ids, place: [raw.zadd(keys.blocked, {"k": 9e15})],
        [("", "key k: has a turn and is blocked")],
    ),
    "a turn for nothing": (
        lambda raw, keys, ids, place: [raw.zadd(keys.ring, {b"x\xff": 1})],
        [("", f"key x\\xff: {NOTHING_WAITS}")],
    ),
    "blocked for nothing": (
        lambda raw, keys, ids, place: [raw.zadd(keys.blocked, {"x": 9e15})],
        [("", f"key x: {NOTHING_WAITS}")],
    ),
    "a place taken up by what is gone": (
        lambda raw, keys, ids, place: [raw.zadd(keys.running, {"k\t20000000000000001 1 gone": 0})],
        [("gone", NOT_RUNNING)],
    ),
    "a place taken up by what waits": (
        lambda raw, keys, ids, place: [
            raw.zadd(keys.running, {f"k\t20000000000000001 1 {ids.pending}": 0})
        ],
        [("{pending}", NOT_RUNNING)],
    ),
    "running under a place that is not its own": (
        lambda raw, keys, ids, place: [
            raw.zadd(keys.running, {f"k\t20000000000000001 1 {ids.processing}": 0})
        ],
        [("{processing}", RUNS_ELSEWHERE)],
    ),
    "running without a place that is noted": (
        lambda raw, keys, ids, place: [raw.hdel(keys.keyed, ids.processing)],
        [("{processing}", RUNS_ELSEWHERE)],
    ),
    "a place in line of what is gone": (
        lambda raw, keys, ids, place: [raw.hset(keys.keyed, "gone", "k\t2 1 ")],
        [("gone", NO_RECORD)],
    ),
    "a place in line of what is dead": (
        lambda raw, keys, ids, place: [raw.hset(keys.keyed, ids.dead, "k\t2 1 ")],
        [("{dead}", NO_RECORD)],
    ),
    "a place for a record that nobody gave": (
        lambda raw, keys, ids, place: [raw.hset(keys.keyed, f"!{ids.processing}", "k\t2 1 ")],
        [("{processing}", NO_RECORD)],
    ),
}


async def break_a_line(store: Store, raw: Redis, how: str) -> Ids:
    ids, keys = await one_of_each_in_line(store), store.keys.of(TOPIC)
    assert await store.audit.topic(TOPIC) == []
    place = (await snapshot(raw, TOPIC)).keyed[ids.pending]
    for step in LINE_BREAKS[how][0](raw, keys, ids, place):
        await step
    return ids


@pytest.mark.corrupts
@pytest.mark.parametrize("how", LINE_BREAKS)
async def test_each_way_to_break_a_line_is_named_and_nothing_else(
    store: Store, raw: Redis, how: str
) -> None:
    ids = await break_a_line(store, raw, how)
    assert await store.audit.topic(TOPIC) == [
        Violation(TOPIC, who.format(**ids._asdict()), what) for who, what in LINE_BREAKS[how][1]
    ]


async def test_a_line_that_waits_for_a_retry_or_a_replacement_is_no_violation(
    store: Store, clock: Clock
) -> None:
    strict = "- - - 1 - - 0"
    (failed,) = await leased_in_turn(store, "k", limits=strict, waiting="kk")
    await settle(store, failed, State.DELAYED)
    assert await store.audit.topic(TOPIC) == []
    await store.produce_normal_message(TOPIC, [draft(id="own", key="m")])
    await store.dispatch_in_turn(TOPIC, "w1", count=9, lease=9, limits=strict)
    await store.replace_message(TOPIC, draft("new", id="own", key="n"))
    assert await store.audit.topic(TOPIC) == []
    clock.advance(10)
    await store.handle_timeout_message(TOPIC, "w2", count=9, recovery=1000)
    assert await store.audit.topic(TOPIC) == []


@pytest.mark.corrupts
@pytest.mark.parametrize("how", BREAKS)
async def test_each_way_to_break_a_topic_is_named_and_nothing_else(
    store: Store, raw: Redis, how: str
) -> None:
    ids, keys = await one_of_each(store), store.keys.of(TOPIC)
    await pending(store, 3)
    assert await store.audit.topic(TOPIC) == []
    steps, expected = BREAKS[how]
    for step in steps(raw, keys, ids):
        await step
    assert await store.audit.topic(TOPIC) == [
        Violation(TOPIC, getattr(ids, who) if who else "", what.format(keys=keys, **ids._asdict()))
        for who, what in expected
    ]


@pytest.mark.corrupts
async def test_a_counter_that_is_no_number_is_reported(store: Store, raw: Redis) -> None:
    await leased(store)
    await raw.hset(store.keys.of(TOPIC).meta, "token", "nonsense")
    (found,) = await store.audit.topic(TOPIC)
    assert "token counter" in found.what


async def test_a_key_of_a_wrong_type_is_named(store: Store, raw: Redis) -> None:
    await one_of_each(store)
    keys = store.keys.of(TOPIC)
    for key, wanted in keys.types().items():
        async with broken(raw, key):
            found = await store.audit.topic(TOPIC)
        held = wrong_type(key)
        assert found == [Violation(TOPIC, "", f"key {key} holds a {held}, not a {wanted}")]
    assert str(found[0]).startswith(f"{TOPIC}: (topic): key mx-rmq:")


async def test_all_keys_of_a_wrong_type_are_named(store: Store, raw: Redis) -> None:
    await one_of_each(store)
    keys = store.keys.of(TOPIC)
    await raw.delete(keys.recent, keys.pending_low)
    await raw.sadd(keys.recent, "x")
    await raw.set(keys.pending_low, "x")
    assert {found.what for found in await store.audit.topic(TOPIC)} == {
        f"key {keys.recent} holds a set, not a zset",
        f"key {keys.pending_low} holds a string, not a list",
    }
    await raw.delete(keys.recent, keys.pending_low)


@pytest.mark.corrupts
async def test_an_id_that_is_not_utf8_is_shown(store: Store, raw: Redis) -> None:
    keys = store.keys.of(TOPIC)
    await raw.hset(keys.payload, b"\xff\n", "x")
    await raw.hset(keys.processing, b"\xfe", "x")
    found = await store.audit.topic(TOPIC)
    assert Violation(TOPIC, "\\xff\n", "a record without a state") in found
    assert Violation(TOPIC, "", "the lease of \\xfe is b'x', not token:worker") in found
    assert Violation(TOPIC, "\\xfe", "a lease without a deadline") in found


@pytest.mark.corrupts
async def test_every_one_of_many_violations_is_reported(store: Store, raw: Redis) -> None:
    await pending(store, 10)
    ghosts = [f"ghost-{number}" for number in range(2 * SUSPECTS + 50)]
    await raw.hset(store.keys.of(TOPIC).payload, mapping=dict.fromkeys(ghosts, "x"))
    found = await store.audit.topic(TOPIC)
    assert {violation.id for violation in found} == set(ghosts)
    assert {violation.what for violation in found} == {"a record without a state"}


@pytest.mark.corrupts
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (0, 1),
        (STEP - 2, STEP - 1),
        (STEP - 1, STEP),
        (STEP - 1, STEP + 250),
        (STEP - 1, 2 * STEP - 1),
        (STEP - 1, 2 * STEP),
        (STEP, 2 * STEP - 1),
    ],
)
async def test_an_id_pending_twice_is_found_wherever_the_steps_end(
    store: Store, raw: Redis, first: int, second: int
) -> None:
    key = store.keys.of(TOPIC).pending
    ids = [id for _ in range(2) for id in await pending(store, STEP + 100)][::-1]
    ids.insert(second, ids[first])
    await raw.delete(key)
    await raw.rpush(key, *ids)
    twice = Violation(TOPIC, ids[first], "2 times pending")
    assert await store.audit.topic(TOPIC) == [twice]


# archived messages over their age


@pytest.mark.corrupts
@pytest.mark.parametrize("state", ARCHIVES)
@pytest.mark.parametrize(("ttl", "quiet"), [(60, True), (61, False), (0, False)])
async def test_an_entry_over_its_age_whose_bytes_the_server_dropped_is_no_violation(
    raw: Redis, server: Server, clock: Clock, state: State, ttl: int, quiet: bool
) -> None:
    limits = Limits(dlq_ttl=ttl, quarantine_ttl=ttl, dedup=0)
    async with await Store.open(server.url, clock=clock, limits=limits) as store:
        (id,) = await archived(store, state, id="own")
        _, payload = store.keys.of(TOPIC).archive_of(state)
        clock.advance(60_000)
        assert await store.audit.topic(TOPIC) == []
        if store.hexpire:
            await raw.hpexpireat(payload, 1, id)
        else:
            await raw.hdel(payload, id)
        found = [violation.id for violation in await store.audit.topic(TOPIC)]
        assert found == ([] if quiet else [id])
        if quiet:
            await pending(store, id=id)
            assert await store.audit.topic(TOPIC) == [], "the id is free again"
            await raw.lpush(store.keys.of(TOPIC).pending, id)
            (twice,) = await store.audit.topic(TOPIC)
            assert twice.what == "2 times pending"


# small steps


class Recorder:
    """A client that notes what it is asked and what comes back."""

    def __init__(self, client: Redis) -> None:
        self._execute: Callable[..., Awaitable[Any]] = client.execute_command
        self.connection_pool = client.connection_pool
        self.calls: list[tuple[str, tuple[Any, ...], int]] = []

    async def execute_command(self, *words: Any) -> Any:
        reply = await self._execute(*words)
        name = words[0]
        if name in ("EVAL", "EVALSHA"):
            name = SCRIPTS[words[1]]
        self.calls.append((name, words, _elements(reply)))
        return reply

    def count(self, name: str) -> int:
        return sum(called == name for called, _, _ in self.calls)


SCRIPTS = {text: name for name in names() for text in (load(name).sha, load(name).source)}


def _elements(reply: Any) -> int:
    if isinstance(reply, dict):
        return len(reply)
    return sum(map(_elements, reply)) if isinstance(reply, list) else 1


@pytest.fixture
async def recorder(raw: Redis, server: Server) -> AsyncIterator[Recorder]:
    async with Redis.from_url(server.url) as client:
        yield Recorder(client)


class RecordedNode(Node):
    """Sends scripts by its client, too, where the recorder sees them."""

    async def send(self, words: tuple[Any, ...], within: float, check: object = None) -> Any:
        return await self.execute(words, within)


@pytest.fixture
def audit(recorder: Recorder) -> Audit:
    """An audit on the server's own clock, under observation."""
    caller = Caller(OneServer(RecordedNode(cast("Redis", recorder))), patience=5)
    return Store(caller, Keys(), Preflight(hexpire=False, warnings=())).audit


async def crowd(store: Store) -> int:
    """Fill a topic with thousands of messages in all states; return how many."""
    for priority in Priority:
        for _ in range(2):
            await pending(store, 1000, priority=priority)
    await delayed(store, 100_000, 900)
    for one in await leased(store, 300):
        await archive(store, random.Random(one.id).choice(ARCHIVES), one)
    await leased(store, 900)
    return 6 * 1000 + 900 + 300 + 900


async def test_the_audit_reads_in_small_steps(
    store: Store, raw: Redis, audit: Audit, recorder: Recorder
) -> None:
    total = await crowd(store)
    await raw.config_resetstat()
    assert await audit.topic(TOPIC) == []
    for name, words, elements in recorder.calls:
        short = {"TIME", "HGET", "HMGET", "LLEN", "ZCARD", "HLEN", "XLEN"}
        steps = {"scan_fields", "scan_signals", "weigh_fields", "LRANGE", "ZSCAN", "HSCAN", "SSCAN"}
        assert name in short | steps
        assert elements <= 3 * STEP, words
        if name == "LRANGE":
            assert 0 <= words[3] - words[2] < STEP
        if name in ("ZSCAN", "HSCAN"):
            assert words[-2:] == ("COUNT", STEP)
    assert total / STEP < len(recorder.calls) < 6 * total / STEP + 40
    stats = await raw.info("commandstats")
    asked = {name.removeprefix("cmdstat_") for name in stats}
    assert asked & {"keys", "hgetall", "smembers", "hkeys", "hvals", "zrange", "lpos"} == set()


@pytest.mark.corrupts
async def test_suspects_are_looked_at_in_groups_and_the_lists_walked_for_few(
    store: Store, raw: Redis, audit: Audit, recorder: Recorder
) -> None:
    ids = await pending(store, 1000)
    keys = store.keys.of(TOPIC)
    await raw.hdel(keys.payload, *ids[:3])
    await raw.zadd(keys.expire_monitor, dict.fromkeys(ids[500:750], 1))
    found = await audit.topic(TOPIC)
    assert len(found) == 253
    looks = [words for name, words, _ in recorder.calls if name == "inspect_message"]
    fixed = 3 + len(load("inspect_message").keys) + 1  # EVALSHA sha count keys… walk
    assert max(len(words) - fixed for words in looks) <= SUSPECTS
    walks = [words for words in looks if words[fixed - 1] == 1]
    assert {len(words) - fixed for words in walks} == {1}


async def test_large_records_are_not_carried_along(kind: Kind, short_path: Path) -> None:
    count, size = 64, 1_000_000
    with Server(kind, short_path) as server:
        async with await Store.open(server.url) as store, Redis.from_url(server.url) as raw:
            for _ in range(count):
                await store.produce_normal_message(TOPIC, [draft("x" * size)])
            before = (await raw.info("memory"))["used_memory"]
            assert await store.audit.topic(TOPIC) == []
            grown = (await raw.info("memory"))["used_memory_peak"] - before
    assert grown < 16 * size, f"{grown / size:.0f} MB on top of {count} in one step"


# beside live traffic


class Traffic:
    """A worker and a producer at once, on the same topic as everybody else."""

    def __init__(self, store: Store, seed: int, limits: str | None) -> None:
        self.store = store
        self.limits = limits
        """Of the handler, if the messages have keys."""
        self.worker = f"w{seed}"
        self.rounds = 0
        self._random = random.Random(seed)
        self._held: list[Leased] = []

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self._round()
            self.rounds += 1

    async def _round(self) -> None:
        store, chance = self.store, self._random
        key = None if self.limits is None else chance.choice([None, *"abcdef"])
        made = await store.produce_normal_message(
            TOPIC, drafts(12, priority=chance.choice(list(Priority)), key=key)
        )
        await store.produce_delay_message(TOPIC, drafts(5, delay=chance.randrange(5), key=key))
        await store.cancel_message(TOPIC, chance.choice(made).id)
        if self.limits is None:
            self._held += await take(store, 20, worker=self.worker)
        else:
            self._held += await take_in_turn(store, 20, self.limits, worker=self.worker)
        chance.shuffle(self._held)
        lots = [self._held[at : at + 4] for at in range(0, len(self._held), 4)]
        self._held = [one for lot in lots[5:] for one in lot]
        done, again, back, dead, odd = (*lots, [], [], [], [], [])[:5]
        await store.complete_message(TOPIC, self.worker, done)
        await store.retry_message(
            TOPIC,
            self.worker,
            [RetryRequest(one, message(one).failed(FAILURE), chance.randrange(5)) for one in again],
        )
        await store.release_message(
            TOPIC, self.worker, [HandedBack(one, message(one).priority) for one in back]
        )
        for state, lot in zip(ARCHIVES, (dead, odd), strict=True):
            for one in lot:
                await archive(store, state, one, self.worker)
        await store.process_delay_message(TOPIC, count=20)
        await store.trim_archive(TOPIC, State.DEAD)
        for entry in await list_archived(store, TOPIC, State.QUARANTINED, count=1):
            await store.discard_message(TOPIC, State.QUARANTINED, entry.id, archived=entry.at)


@pytest.mark.parametrize("declared", [None, "", "- - - 3 - - 0", "- - - 1 - - 0"])
async def test_live_traffic_raises_no_false_alarm(
    raw: Redis, server: Server, audit: Audit, recorder: Recorder, declared: str | None
) -> None:
    stop = asyncio.Event()
    limits = Limits(dlq_max=20)
    async with (
        await Store.open(server.url, limits=limits) as first,
        await Store.open(server.url, limits=limits) as second,
    ):
        await crowd(first)
        busy = [Traffic(first, 1, declared), Traffic(second, 2, declared)]
        async with asyncio.TaskGroup() as group:
            for traffic in busy:
                group.create_task(traffic.run(stop))
            reports = [await audit.topic(TOPIC) for _ in range(3)]
            stop.set()
        assert reports == [[]] * 3
        assert min(traffic.rounds for traffic in busy) > 5
        assert recorder.count("inspect_message") > 0, "nothing ever looked wrong: no traffic?"
        await assert_clean(first, raw)
