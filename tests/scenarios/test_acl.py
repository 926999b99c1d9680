"""The users of deploy/acl can do what they need, and nothing else."""

from __future__ import annotations

import asyncio
import logging
import re
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, ResponseError

from mx_rmq import Delivery, DuplicateMessage, Limit, MessageQueue, NotConfirmed, Reject, Worker
from mx_rmq.admin import Filter
from mx_rmq.core.errors import MxRmqError, ScriptFailed, ServerUnavailable, WrongType
from mx_rmq.core.message import UNSTARTED, State
from mx_rmq.doctor.acl import OPERATOR
from mx_rmq.doctor.finding import Finding, Severity
from mx_rmq.doctor.server import examine
from mx_rmq.metrics import Endpoint
from mx_rmq.net.script_loading import Loaded, load_scripts
from mx_rmq.store.script import load, names, sources
from mx_rmq.store.store import Store
from tests.lab.cases import CASES, Stage
from tests.lab.clock import Clock
from tests.lab.cluster import Cluster
from tests.lab.crew import until
from tests.lab.messages import TOPIC, bring, draft, leased, settle, take, take_in_turn
from tests.lab.nodes import Node
from tests.lab.ports import free_ports
from tests.lab.servers import USUAL, Kind, Server, chosen
from tests.metrics.asking import Samples, metrics

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Role = Callable[[MessageQueue], Awaitable[None]]
    Admit = Callable[[str, list[str]], Awaitable[str]]

one_kind = pytest.mark.parametrize("kind", [Kind.VALKEY_9_1], indirect=True)
FOLDER = Path(__file__).parents[2] / "deploy" / "acl"
PASSWORD = "s3cret"

PAYLOAD, DOORBELL = f"mx-rmq:{{{TOPIC}}}:payload", f"mx-rmq:{{{TOPIC}}}:doorbell"
DEAD_LETTERS = f"mx-rmq:{{{TOPIC}}}:dlq:payload"
HISTORY = f"mx-rmq:{{{TOPIC}}}:history"
LINE = f"mx-rmq:{{{TOPIC}}}"

CHANNELS = {"+ping", "+publish", "+subscribe", "+unsubscribe"}
"""Without these, workers learn later of aborts, and callers of results."""

COURTESY = {"+info", "+type", "+client|id", "+client|unblock", "+memory|usage", *CHANNELS}
"""Without these everything works, but less is known or it takes longer."""

OLDER = {"+hrandfield", "+hstrlen"}
"""What the audit needs where HSCAN has no NOVALUES."""

LONG = {"+lrem", "+scard", "+sadd", "+smismember", "+srem"}
"""What is needed when a message is cancelled or expires deep in a long list."""

WHOLE = {"+ltrim", "+pexpire", "+pttl", "+xtrim", "+zadd", "+zmscore"}
"""What an operator has so that no script which it might run is left half done."""

UNGRANTED = {"client|setinfo", "client", "hexpire"}
"""What is tried without having the right: the client's name, and a second net."""


def rules_of(role: str, kind: Kind) -> list[str]:
    """Read the rules of a user from the file that operators use."""
    old = "redis-6.2" if kind is Kind.REDIS_6_2 else ""
    text = (FOLDER / old / f"{role}.acl").read_text().replace("CHANGE-ME", PASSWORD)
    user, name, *rules = split(text)
    assert (user, name) == ("user", role)
    return rules


def split(text: str) -> list[str]:
    """Split rules; a selector in parentheses is one."""
    return re.findall(r"\([^)]*\)|\S+", text)


def commands_in(rules: list[str]) -> list[str]:
    """Return the commands that are granted on the keys of messages."""
    return [rule for rule in rules if rule.startswith("+")]


def without(rules: list[str], right: str) -> list[str]:
    return [rule for rule in rules if rule != right]


@pytest.fixture
async def admit(raw: Redis, server: Server) -> AsyncIterator[Admit]:
    """Give a user rules on a server that has a message in every state; return its URL."""
    run: Callable[..., Awaitable[Any]] = raw.execute_command
    async with await Store.open(server.url) as store:
        await leased(store, id=State.PROCESSING.value, worker="dead", lease=1)
        for state in (*(one for one in State if one.is_archive), *UNSTARTED[::-1]):
            await bring(store, state, id=state.value)

    async def admit(role: str, rules: list[str]) -> str:
        await run("ACL", "SETUSER", role, "reset", *rules)
        await run("ACL", "LOG", "RESET")
        await run("SCRIPT", "FLUSH")
        return f"unix://{role}:{PASSWORD}@{server.socket}"

    yield admit
    for role in ROLES:
        await run("ACL", "DELUSER", role)


async def denied(raw: Redis) -> set[str]:
    """Return what the server has refused to users."""
    found = await raw.acl_log()
    return {str(entry["object"]) for entry in found} - UNGRANTED


# what each of them does


async def produce(mq: MessageQueue) -> None:
    for priority in ("high", "normal", "low"):
        await mq.produce(TOPIC, 1, priority=priority)
        await mq.produce(TOPIC, 1, priority=priority, delay=60, ttl=600)
    for number in range(2):
        for id in (f"normal-{number}", State.DEAD.value):
            await mq.produce(TOPIC, 1, id=id)
        await mq.produce(TOPIC, 1, id=f"delayed-{number}", delay=60)
        await asyncio.sleep(0.06)  # until the server need not remember the ids any more
    await mq.produce_many("another", [1, 2, 3])
    for delay in (None, 60):
        await mq.produce("lines", 1, key="k", delay=delay)
        await mq.produce("lines", 1, cost=2, delay=delay)


async def work(mq: MessageQueue) -> None:
    handled: list[int] = []

    @mq.handler(TOPIC, max_attempts=2, retry=0.01)
    async def handle(number: int) -> None:
        handled.append(number)
        if number == 2:
            await mq.produce(TOPIC, 3, id="own")
            for delay in (60, None, None):
                await mq.produce("another", 8, id="newest", delay=delay, on_duplicate="replace")
        if number == 4:
            raise ValueError("again, please")
        if number == 5:
            raise Reject("never")
        if number == 6:
            await asyncio.sleep(2 * mq.settings.lease)

    @mq.handler("kept", result_ttl=60)
    async def keep(number: int, delivery: Delivery) -> int:
        delivery.progress(0.5)
        return number

    in_line: list[int] = []

    @mq.handler("lines", per_key=Limit(running=1, rate="100/s"), max_attempts=2, retry=0.01, ttl=99)
    async def take_turns(number: int) -> None:
        in_line.append(number)
        if number == 4 and in_line.count(4) == 1:
            raise ValueError("again, please")

    billed: list[int] = []

    @mq.handler("event", subscription="billing")
    async def bill(number: int) -> None:
        billed.append(number)

    @mq.handler("steps", result_ttl=60)
    async def walk(number: int, delivery: Delivery) -> int:
        doubled: int = await delivery.step("double", lambda: 2 * number)
        approved: int = await delivery.wait("approval", timeout=60, type=int)
        return doubled + approved

    @mq.cron("* * * * *", topic="tick")
    async def tick() -> None: ...

    async with Worker(mq):
        for number in (2, 4, 5, 6):
            await mq.produce(TOPIC, number)
        await mq.produce(TOPIC, "no number")
        await mq.produce(TOPIC, 7, delay=0.05)
        await until(lambda: {0, 2, 3, 4, 5, 6, 7} <= {*handled})
        await until(lambda: handled.count(4) == 2)
        await produce(mq)
        for number in (2, 3, 4, 5):
            await mq.produce("lines", number, key="k")
        await until(lambda: in_line.count(4) == 2 and in_line.count(5) == 1)
        assert await mq.result("kept", await mq.produce("kept", 1), timeout=20) == 1
        await mq.produce("event", 1)
        await mq.produce("event", 2, key="k")
        await until(lambda: {*billed} == {1, 2})
        id = await mq.produce("steps", 1)
        assert await mq.signal("steps", id, "approval", 3)
        assert await mq.result("steps", id, timeout=20) == 5
        async with mq.flow() as flow:
            first = flow.produce("kept", 1)
            last = flow.produce("kept", 2, after=[first])
        assert await mq.result("kept", last, timeout=20) == 2
        assert TOPIC in await mq.admin.topics()  # as /metrics/depth asks
        assert await mq.admin.workers()


async def operate(mq: MessageQueue) -> None:
    admin = mq.admin
    assert await admin.topics() == [TOPIC]
    assert (await admin.stats(TOPIC)).total == 6
    await admin.workers()
    assert [one.key for one in (await admin.keys(TOPIC)).keys] == [None]
    for state in State:
        await admin.list(TOPIC, state)
        await admin.list(TOPIC, state, filter=Filter(since=0, until=1, text="x"))
        assert await admin.get(TOPIC, state.value) or state is State.COMPLETED
    assert await admin.audit(TOPIC) == []
    assert await admin.history(TOPIC, State.DEAD.value)
    async for happening in admin.tail(since=0):
        assert happening.topic == TOPIC
        break
    assert await admin.pause(TOPIC)
    assert await admin.resume(TOPIC)
    assert await admin.cancel(TOPIC, State.DELAYED.value)
    assert await admin.cancel(TOPIC, State.PENDING.value)
    assert await admin.stuck_waits(TOPIC) == []
    assert await admin.requeue(TOPIC, State.DEAD.value)
    assert await admin.reschedule(TOPIC, State.DEAD.value, delay=60)
    assert await admin.abort(TOPIC, State.DEAD.value)
    assert await admin.abort(TOPIC, State.PROCESSING.value)
    assert await admin.requeue(TOPIC, State.DEAD.value)
    assert await admin.discard_all(TOPIC, State.QUARANTINED) == 1
    assert await admin.requeue_all(TOPIC, State.DEAD, dry_run=True) == 1
    assert await admin.cancel_all(TOPIC, State.PENDING, dry_run=True) == 1
    for key in ("k", None):
        await admin.limit(TOPIC, key, running=2, rate="50/s")
        await admin.limits(TOPIC, key)
        await admin.limit(TOPIC, key, running=None, rate=None)
        assert await admin.pause(TOPIC, key, seconds=60)
        assert await admin.resume(TOPIC, key)
    keys, command = mq.store.keys.of(TOPIC), mq.store.caller.command
    await mq.produce(TOPIC, 1, id="in-line", key="k")
    assert (await admin.key(TOPIC, "k")).waiting == 1
    assert "k" in [one.key for one in (await admin.keys(TOPIC)).keys]
    await command("ZREM", keys.ring, "k")
    assert [one.what for one in await admin.repair(TOPIC)] == ["key k: turn given"]
    assert [one.key for one in (await admin.keys(TOPIC)).keys if one.key] == ["k"]
    assert (await admin.key(TOPIC, "k")).waiting == 1
    await admin.limit(TOPIC, "k", running=2)
    assert await admin.pause(TOPIC, "k", seconds=60)
    assert (await admin.limits(TOPIC)).keys["k"].paused
    assert await admin.resume(TOPIC, "k")
    await admin.limit(TOPIC, "k", running=None)
    assert (await admin.stats(TOPIC)).keys_waiting == 1
    assert await admin.cancel_all(TOPIC, State.PENDING, filter=Filter(key="k"), dry_run=True) == 1
    assert await admin.reschedule(TOPIC, "in-line", delay=60)
    assert await admin.abort(TOPIC, "in-line")
    assert await admin.discard(TOPIC, "in-line")
    await mq.store.caller.command("HSET", PAYLOAD, "stray", "?")
    assert [one.id for one in await admin.repair(TOPIC, dry_run=True)] == ["stray"]
    assert [one.id for one in await admin.repair(TOPIC)] == ["stray"]
    assert await admin.cancel(TOPIC, "stray")
    await admin.schedule("nightly", TOPIC, "0 3 * * *")
    assert await admin.pause_schedule("nightly")
    assert await admin.resume_schedule("nightly")
    assert await admin.run_schedule("nightly")
    assert await admin.unschedule("nightly")
    await mq.store.declare_subscription(TOPIC, "billing")
    await mq.store.register_topics({f"{TOPIC}@billing": 1})
    assert [one.name for one in await admin.subscriptions(TOPIC)] == ["billing"]
    await admin.unsubscribe(TOPIC, "billing")
    assert await admin.subscriptions(TOPIC) == []
    assert await admin.grow(TOPIC, 2) == 2


ROLES: dict[str, Role] = {"producer": produce, "worker": work, "operator": operate}
each_role = pytest.mark.parametrize("role", ROLES)
with_selectors = pytest.mark.parametrize(
    "kind", [kind for kind in chosen(*USUAL) if kind is not Kind.REDIS_6_2]
)


def queue(url: str) -> MessageQueue:
    return MessageQueue(url, patience=3, lease=0.5, dedup=0.05)


async def play(role: str, url: str) -> None:
    async with queue(url) as mq:
        await ROLES[role](mq)


# the tests


@each_role
async def test_each_role_can_do_everything_that_it_needs(
    role: str, admit: Admit, kind: Kind, raw: Redis, server: Server
) -> None:
    await play(role, await admit(role, rules_of(role, kind)))
    assert await denied(raw) == set()
    async with MessageQueue(server.url) as mq:
        for topic in await mq.admin.topics():
            assert await mq.admin.audit(topic) == []


@with_selectors
@each_role
async def test_each_command_that_a_role_may_run_on_messages_is_used(
    role: str, admit: Admit, kind: Kind, raw: Redis
) -> None:
    rules = rules_of(role, kind)
    await raw.delete(DOORBELL)
    async with queue(await admit(role, rules)) as mq:
        await raw.config_resetstat()  # the preflight has tried every command
        await ROLES[role](mq)
        if role == "operator":  # the audit walks through lists only for what looks wrong
            await raw.hset(PAYLOAD, "stray", "?")
            (violation,) = await mq.admin.audit(TOPIC)
            assert violation.id == "stray"
        stats = await raw.info("commandstats")
    used = {f"+{name.removeprefix('cmdstat_')}" for name in stats}
    unused = set(commands_in(rules)) - used - COURTESY - OLDER - LONG
    assert unused <= (WHOLE if role == "operator" else set())


@each_role
async def test_a_role_without_one_of_its_commands_is_told_which(
    role: str, admit: Admit, kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    rules = rules_of(role, kind)
    for command in commands_in(rules):
        url = await admit(role, without(rules, command))
        if command == "+blpop":  # its messages are found by looking around
            async with queue(url) as mq:
                await hear(mq, caplog)
            assert "the 'blpop' command" in caplog.text
        elif command not in COURTESY:
            with pytest.raises(MxRmqError, match=rf"(?i)\b{command[1:]}\b"):
                await play(role, url)


async def told_by_a_worker(url: str) -> Samples:
    """Return what a worker tells Prometheus of the queue."""
    async with queue(url) as mq:

        @mq.handler(TOPIC)
        async def handle(number: int) -> None: ...

        worker = Worker(mq)
        async with Endpoint(worker, port=0) as endpoint, worker:
            await metrics(endpoint.port, "/metrics/depth")
            return await metrics(endpoint.port, "/metrics/depth")


async def test_a_worker_may_tell_how_full_every_topic_is_and_who_serves_it(
    admit: Admit, kind: Kind, raw: Redis, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async with MessageQueue(server.url) as mq:
        await mq.produce("unserved", 1)
    shown = await told_by_a_worker(await admit("worker", rules_of("worker", kind)))
    assert (shown["mx_rmq_depth_up"], shown["mx_rmq_workers{state=alive}"]) == (1, 1)
    assert shown[f"mx_rmq_topic_workers{{topic={TOPIC}}}"] == 1
    assert shown[f"mx_rmq_depth{{state=dead,topic={TOPIC}}}"] == 1
    assert shown["mx_rmq_topic_workers{topic=unserved}"] == 0
    assert shown["mx_rmq_depth{state=pending,topic=unserved}"] == 1
    assert await denied(raw) == set()
    assert "mx_rmq.metrics" not in [one.name.rpartition(".")[0] for one in warnings(caplog)]


@with_selectors
async def test_what_a_worker_may_not_tell_is_logged(
    admit: Admit, kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    rules = rules_of("worker", kind)
    shown = await told_by_a_worker(
        await admit("worker", without(rules, "(+hscan ~mx-rmq:workers)"))
    )
    assert shown["mx_rmq_depth_up"] == 1
    assert "mx_rmq_workers{state=alive}" not in shown
    texts = [one.getMessage() for one in warnings(caplog) if "workers" in one.getMessage()]
    assert len(texts) == 1
    assert re.match(r"cannot count the workers: HSCAN: .*permissions", texts[0])
    shown = await told_by_a_worker(await admit("worker", without(rules, "(+hkeys ~mx-rmq:topics)")))
    assert shown["mx_rmq_depth_up"] == 0
    assert re.search(r"cannot read the depth of the queue: HKEYS: .*permissions", caplog.text)


def warnings(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [one for one in caplog.records if one.levelno >= logging.WARNING]


def selectors_of(rules: list[str]) -> list[tuple[str, str, str]]:
    """Return each right of a selector on keys of messages, with the selector without it."""
    return [
        (right, selector, selector.replace(f"{right} ", ""))
        for selector in rules
        if selector.startswith("(") and "{*}" in selector
        for right in re.findall(r"\+\w+", selector)
    ]


SPARED = {"+hincrby", "+xadd", "+scard"}
"""What is only counted and written down, or asked for where there is a cap."""
SPARING = {
    "+zcount": ["delay_tasks"],
    "+hmget": ["archive_bytes"],
    "+get": ["layout"],
    "+zmscore": ["delay_tasks", "blocked"],
    "+hexists": ["processing"],
}
"""What is asked for only to spare a ring, to say what fills a server, to warn, to name the state of
a duplicate, and where keys are blocked."""


@with_selectors
async def test_a_producer_without_one_of_its_rights_on_some_keys_is_told_which(
    admit: Admit, kind: Kind, raw: Redis
) -> None:
    rules = rules_of("producer", kind)
    for right, selector, less in selectors_of(rules):
        if not (right in SPARED or any(one in selector for one in SPARING.get(right, ()))):
            url = await admit("producer", [less if rule == selector else rule for rule in rules])
            for key in await raw.keys("mx-rmq:{*"):  # ids that live already need fewer rights
                if b"dlq" not in key and b"error" not in key:
                    await raw.delete(key)
            with pytest.raises(MxRmqError, match=r"(?i)permission|access"):
                await play("producer", url)


async def test_a_producer_needs_no_right_on_subscriptions(
    admit: Admit, kind: Kind, raw: Redis, server: Server
) -> None:
    """It produces to the topic; a worker makes the copies."""
    async with await Store.open(server.url) as store:
        await store.declare_subscription("event", "billing")
    async with queue(await admit("producer", rules_of("producer", kind))) as mq:
        await mq.produce("event", 1)
        await mq.produce("event", 2, id="custom", key="k")
    assert await denied(raw) == set()
    billed: list[int] = []
    async with queue(await admit("worker", rules_of("worker", kind))) as mq:

        @mq.handler("event", subscription="billing")
        async def bill(number: int) -> None:
            billed.append(number)

        async with Worker(mq):
            await until(lambda: sorted(billed) == [1, 2])
    assert await denied(raw) == set()


@with_selectors
async def test_schedules_are_not_for_producers(admit: Admit, kind: Kind, server: Server) -> None:
    async with queue(await admit("producer", rules_of("producer", kind))) as mq:
        with pytest.raises(ScriptFailed, match=r"[Nn]o permissions|may not run"):
            await mq.admin.schedule("nightly", TOPIC, "0 3 * * *")
    async with MessageQueue(server.url) as mq:
        assert await mq.admin.schedules() == []


ONE_TOPIC = " ".join(
    f"~mx-rmq:{one}"
    for one in (
        *("{event}:*", "{event}@*", "{preflight*}:scratch", "topics", "layout", "workers"),
        *("caretaker:*", "schedule_topics"),
    )
)
"""Keys for a worker that serves one topic, as the README says."""


async def test_a_worker_may_be_limited_to_a_topic_and_its_subscriptions(
    admit: Admit, kind: Kind, raw: Redis, server: Server
) -> None:
    rules = " ".join(rules_of("worker", kind)).replace(" ~mx-rmq:*", f" {ONE_TOPIC}")
    assert ONE_TOPIC in (FOLDER / "README.md").read_text()
    billed: list[int] = []

    def bill(number: int) -> None:
        billed.append(number)

    async with queue(await admit("worker", split(rules))) as mq:
        mq.handler("event", subscription="billing")(bill)
        async with Worker(mq), MessageQueue(server.url) as other:
            await other.produce("event", 1)
            await until(lambda: billed == [1])
    others = f"mx-rmq:{{{TOPIC}}}:"  # which its caretaker may have tried to look after
    assert {one for one in await denied(raw) if not one.startswith(others)} == set()
    without_copies = split(rules.replace("~mx-rmq:{event}@* ", ""))
    async with queue(await admit("worker", without_copies)) as mq:
        mq.handler("event", subscription="billing")(bill)
        with pytest.raises(MxRmqError, match="event"):
            await Worker(mq).drain()


@with_selectors
async def test_a_producer_may_produce_for_a_key_that_is_blocked(
    admit: Admit, kind: Kind, raw: Redis, server: Server
) -> None:
    async with await Store.open(server.url) as store:
        await store.limit_key(TOPIC, "k", running=0)
        await store.produce_normal_message(TOPIC, [draft(key="k")])
        await take_in_turn(store, 9)
        assert await raw.zscore(store.keys.of(TOPIC).blocked, "k")
    async with queue(await admit("producer", rules_of("producer", kind))) as mq:
        await mq.produce(TOPIC, 1, key="k")
    assert await denied(raw) == set()
    less = [rule.replace("+zmscore +zscore", "+zscore") for rule in rules_of("producer", kind)]
    async with queue(await admit("producer", less)) as mq:
        with pytest.raises(ScriptFailed, match=r"may not run ZMSCORE .*blocked"):
            await mq.produce(TOPIC, 1, key="k")


@each_role
async def test_a_role_without_a_courtesy_works_all_the_same(
    role: str, admit: Admit, kind: Kind
) -> None:
    rules = [rule for rule in rules_of(role, kind) if rule not in COURTESY]
    await play(role, await admit(role, rules))


async def hear(mq: MessageQueue, caplog: pytest.LogCaptureFixture) -> None:
    @mq.handler(TOPIC)
    async def handle(number: int) -> None: ...

    async with Worker(mq):
        await until(lambda: "the doorbell listener failed" in caplog.text)


KEYS = [
    *("lines", "ring", "blocked", "keyed"),
    *("payload", "pending", "pending:*", "delay_tasks", "delay_tasks:*", "recent", "receipt:*"),
    "expiry",
    *("doorbell", "doorbell:delay", "dlq:payload", "error:parse:payload"),
]


@with_selectors
async def test_a_producer_without_one_of_its_keys_is_told_which_before_anything_is_stored(
    admit: Admit, kind: Kind, server: Server
) -> None:
    rules = " ".join(rules_of("producer", kind))
    for name in KEYS:
        pattern = f"mx-rmq:{{*}}:{name}"
        less, count = re.subn(rf" ~{re.escape(pattern)}(?=[ )])", "", rules)
        assert count == 1
        with pytest.raises(MxRmqError) as caught:
            await play("producer", await admit("producer", split(less)))
        named = re.findall(r"mx-rmq:[^ ,;]+", str(caught.value))
        assert any(fnmatchcase(key, pattern) for key in named), caught.value
        async with MessageQueue(server.url) as mq:
            assert await mq.admin.audit(TOPIC) == []


async def test_a_wrong_type_is_told_also_to_a_user_who_may_not_ask_for_it(
    admit: Admit, kind: Kind, raw: Redis
) -> None:
    rules = [rule.replace("+type ", "") for rule in rules_of("producer", kind) if rule != "+type"]
    url = await admit("producer", rules)
    await raw.set(DOORBELL, "not a list")
    async with queue(url) as mq:
        with pytest.raises(WrongType):
            await mq.produce(TOPIC, 1)


@with_selectors
async def test_a_producer_is_told_where_a_duplicate_is(admit: Admit, kind: Kind) -> None:
    rules = rules_of("producer", kind)
    async with queue(await admit("producer", rules)) as mq:
        for state in State:
            # A producer may not read `waiting`; a waiting message is among the delayed ones, too.
            told = State.DELAYED if state is State.WAITING else state
            with pytest.raises(DuplicateMessage, match=f"its message is {told.value}"):
                await mq.produce(TOPIC, 1, id=state.value, on_duplicate="error")
    for right in ("+zmscore ~mx-rmq:{*}:delay_tasks", "+hexists ~mx-rmq:{*}:processing"):
        less = split(" ".join(rules).replace(right, right.replace(right.split()[0], "+time")))
        async with queue(await admit("producer", less)) as mq:
            with pytest.raises(ScriptFailed, match="may not run"):
                await mq.produce(TOPIC, 1, id=State.DELAYED.value, on_duplicate="error")


@with_selectors
async def test_a_producer_may_not_replace_and_nothing_is_changed(
    admit: Admit, kind: Kind, server: Server
) -> None:
    async with queue(await admit("producer", rules_of("producer", kind))) as mq:
        for state in State:
            with pytest.raises(ScriptFailed, match=r"may not run HGET .*:processing"):
                await mq.produce(TOPIC, 1, id=state.value, on_duplicate="replace")
    async with MessageQueue(server.url) as mq:
        assert await mq.admin.audit(TOPIC) == []
        assert (await mq.admin.stats(TOPIC)).total == len(State) - 1  # a completed one is gone


@with_selectors
async def test_a_producer_may_send_a_flow_but_no_signal(
    admit: Admit, kind: Kind, server: Server
) -> None:
    async with queue(await admit("producer", rules_of("producer", kind))) as mq:
        async with mq.flow() as flow:
            first = flow.produce(TOPIC, 1)
            flow.produce(TOPIC, 2, after=[first])
        with pytest.raises(MxRmqError, match="may not run"):
            await mq.signal(TOPIC, State.WAITING.value, "approval", 1)
    async with MessageQueue(server.url) as mq:
        assert await mq.admin.audit(TOPIC) == []
        assert (await mq.admin.stats(TOPIC)).waiting == 1
        assert await mq.admin.get(TOPIC, first)


# what nobody may

FORBIDDEN = [
    *("FLUSHALL", "FLUSHDB", "KEYS *", "SCAN 0", "RANDOMKEY", "SHUTDOWN NOSAVE", "MONITOR"),
    *("CONFIG GET *", "CONFIG SET maxmemory 1", "ACL LIST", "ACL WHOAMI", "CLIENT LIST"),
    *("CLIENT KILL TYPE normal", "SCRIPT FLUSH", "SCRIPT KILL", "SAVE"),
    *("REPLICAOF NO ONE", "MODULE LIST", "SUBSCRIBE x", "PUBLISH x y", "DUMP x"),
    *(
        f"DEL {PAYLOAD}",
        f"UNLINK {PAYLOAD}",
        f"RENAME {PAYLOAD} mx-rmq:x",
        "GET other",
        "SET other x",
    ),
    "EVAL return(redis.call('GET',KEYS[1])) 1 other",
    "EVAL return(redis.call('FLUSHALL')) 0",
    f"EVAL return(redis.call('DEL',KEYS[1])) 1 {PAYLOAD}",
]
NOT_FOR_PRODUCERS = [
    *(f"HGET {DEAD_LETTERS} dead", f"HMGET {DEAD_LETTERS} dead", f"HGETALL {DEAD_LETTERS}"),
    *(f"HKEYS {DEAD_LETTERS}", f"HVALS {DEAD_LETTERS}", f"HSCAN {DEAD_LETTERS} 0"),
    *(f"HRANDFIELD {DEAD_LETTERS}", f"HDEL {DEAD_LETTERS} dead", f"HSET {DEAD_LETTERS} dead x"),
    f"EVAL return(redis.call('HGET',KEYS[1],'dead')) 1 {DEAD_LETTERS}",
    *(f"HGET {PAYLOAD} pending", f"HMGET {PAYLOAD} pending", f"HSTRLEN {PAYLOAD} pending"),
    f"EVAL return(redis.call('HMGET',KEYS[1],'pending')) 1 {PAYLOAD}",
    f"ZRANGE mx-rmq:{{{TOPIC}}}:delay_tasks 0 -1",
    f"ZRANGEBYSCORE mx-rmq:{{{TOPIC}}}:recent -inf +inf",
    f"ZREM mx-rmq:{{{TOPIC}}}:recent pending",
    f"XREVRANGE {HISTORY} + -",
    *(f"HGETALL {PAYLOAD}", f"HSCAN {PAYLOAD} 0", f"HKEYS {PAYLOAD}", f"HDEL {PAYLOAD} pending"),
    *(f"PEXPIRE {PAYLOAD} 1", f"SET {PAYLOAD} x", f"SET mx-rmq:{{{TOPIC}}}:pending x"),
    *(f"LRANGE mx-rmq:{{{TOPIC}}}:pending 0 -1", f"LPOP mx-rmq:{{{TOPIC}}}:pending"),
    f"ZREM mx-rmq:{{{TOPIC}}}:delay_tasks delayed",
    f"ZRANGE mx-rmq:{{{TOPIC}}}:dlq 0 -1",
    f"HGETALL mx-rmq:{{{TOPIC}}}:processing",
    *("HGETALL mx-rmq:topics", "HGETALL mx-rmq:workers"),
    *(f"ZRANGE {LINE}:{key} 0 -1" for key in ("lines", "blocked", "running", "buckets")),
    *(f"ZRANGEBYLEX {LINE}:{key} - +" for key in ("lines", "ring", "running")),
    *(f"ZREM {LINE}:{key} x" for key in ("lines", "ring", "blocked", "running", "buckets")),
    *(f"{command} {LINE}:keyed" for command in ("HGETALL", "HKEYS", "HVALS", "HRANDFIELD")),
    *(f"HSCAN {LINE}:keyed 0", f"HDEL {LINE}:keyed pending", f"HMGET {LINE}:keyed pending"),
    *(f"ZADD {LINE}:{key} 0 x" for key in ("blocked", "running", "buckets")),
    *(f"HSET {LINE}:limits k x", f"HGETALL {LINE}:limits", f"HGET {LINE}:limits k"),
    f"EVAL return(redis.call('ZRANGE',KEYS[1],0,-1)) 1 {LINE}:lines",
]
NOT_ON_6_2 = re.compile(
    r"payload|pending|topics|delay_tasks|recent|history|:lines|:ring|:blocked|:keyed"
)
"""What a producer may all the same where keys and commands cannot be granted together."""


@each_role
async def test_no_role_may_touch_the_server_or_the_keys_of_others(
    role: str, admit: Admit, kind: Kind, raw: Redis
) -> None:
    await raw.set("other", "x")
    async with Redis.from_url(await admit(role, rules_of(role, kind))) as client:
        for words in FORBIDDEN:
            await refused(client, words)
    await raw.delete("other")


async def test_a_producer_cannot_read_dead_letters_nor_take_messages_away(
    admit: Admit, kind: Kind, raw: Redis
) -> None:
    before = await raw.hgetall(DEAD_LETTERS)
    async with Redis.from_url(await admit("producer", rules_of("producer", kind))) as client:
        for words in NOT_FOR_PRODUCERS:
            if kind is not Kind.REDIS_6_2 or not NOT_ON_6_2.search(words):
                await refused(client, words)
    assert await raw.hgetall(DEAD_LETTERS) == before


SECRET = "4111-1111-1111-1111"
THEIRS = "theirs-"
"""How the ids of other producers begin."""

# Each command with the words that reveal most; ID stands for an id that the attacker has guessed.
PRYING: dict[str, list[tuple[str | int, ...]]] = {
    "get": [()],
    "set": [("x", "GET", "PX", 600_000)],
    "exists": [()],
    "pexpire": [(600_000,)],
    "pttl": [()],
    "type": [()],
    "hexists": [("ID",)],
    "hget": [("ID",)],
    "hgetall": [()],
    "hincrby": [("ID", 0), ("x", 0)],
    "hlen": [()],
    "hmget": [("ID", "x")],
    "hrandfield": [(5, "WITHVALUES")],
    "hscan": [(0, "COUNT", 100)],
    "hset": [("x", "y")],
    "hdel": [("x",)],
    "hstrlen": [("ID",)],
    "llen": [()],
    "lpos": [("ID",)],
    "lpush": [("x",)],
    "lrange": [(0, -1)],
    "lrem": [(1, "x")],
    "ltrim": [(0, -1)],
    "rpush": [("x",)],
    "sadd": [("x",)],
    "scard": [()],
    "sismember": [("ID",)],
    "smismember": [("ID",)],
    "srem": [("x",)],
    "xadd": [("*", "x", "y")],
    "xlen": [()],
    "xrevrange": [("+", "-")],
    "xtrim": [("MAXLEN", 1_000_000)],
    "zadd": [("GT", "INCR", 0, "ID"), (1, "x")],
    "zcard": [()],
    "zcount": [("-inf", "+inf")],
    "zlexcount": [("-", "+")],
    "zmscore": [("ID",)],
    "zrange": [(0, -1, "WITHSCORES")],
    "zrangebylex": [("-", "+")],
    "zrangebyscore": [("-inf", "+inf", "WITHSCORES")],
    "zrem": [("x",)],
    "zremrangebylex": [("-", "-")],
    "zremrangebyrank": [(1, 0)],
    "zscore": [("ID",)],
}


@with_selectors
async def test_a_producer_can_neither_read_a_foreign_payload_nor_list_foreign_ids(
    admit: Admit, kind: Kind, raw: Redis, server: Server
) -> None:
    """Every command that the file grants, on every key, straight and in a script of their own."""
    rules = rules_of("producer", kind)
    granted = set(re.findall(r"\+([a-z|]+)", " ".join(rules)))
    assert granted - {"eval", "evalsha", "info", "time"} == PRYING.keys()
    await raw.flushall()  # what `admit` has left there, whose ids are no secret
    async with await Store.open(server.url) as store:
        for state in sorted(State, key=lambda state: state is State.PENDING):
            await store.produce_normal_message(TOPIC, [draft(SECRET, id=THEIRS + state.value)])
            (one,) = await take(store)
            if state is not State.PROCESSING:
                await settle(store, one, state)
        declared = "- - - 1 - - 0"
        for state in (State.PROCESSING, State.DELAYED, State.PENDING):
            own = draft(SECRET, id=f"{THEIRS}{state.value}-in-line", key=f"k-{state.value}")
            await store.produce_normal_message(TOPIC, [own])
            if state is not State.PENDING:
                taken = {one.id: one for one in await take_in_turn(store, 9, declared)}
                if state is State.DELAYED:
                    await settle(store, taken[str(own.id)], state)
        await store.produce_normal_message(TOPIC, [draft(SECRET, id=f"{THEIRS}last")])
        await store.limit_key(TOPIC, "k-other", running=1)
    url = await admit("producer", rules)
    keys = [key.decode() for key in await raw.keys("*") if isinstance(key, bytes)]
    assert {key.rpartition("}:")[2] for key in keys} >= {
        *("payload", "pending", "delay_tasks", "recent", "processing", "history", "totals"),
        *("dlq", "dlq:payload", "error:parse:queue", "error:parse:payload"),
        *("lines", "ring", "keyed", "running", "limits"),
    }
    wanted = (SECRET.encode(), THEIRS.encode())
    answered = 0
    async with Redis.from_url(url) as client:
        execute: Callable[..., Awaitable[Any]] = client.execute_command
        for key in keys:
            for command, forms in PRYING.items():
                for form in forms:
                    guess = f"{THEIRS}pending" + "-in-line" * key.endswith(":keyed")
                    if key.endswith(":ring"):  # holds keys, which a producer may list
                        guess = "x"
                    words = [guess if word == "ID" else word for word in form]
                    script = "return redis.call(ARGV[1], KEYS[1], unpack(ARGV, 2))"
                    for call in (
                        (command, key, *words),
                        ("EVAL", script, 1, key, command, *words),
                    ):
                        try:
                            reply = flat(await execute(*call))
                        except ResponseError as error:
                            reply = str(error).encode()
                        else:
                            answered += 1
                        assert not any(one in reply for one in wanted), (call, reply)
    assert answered > 50
    kept = await raw.hgetall(PAYLOAD) | await raw.hgetall(DEAD_LETTERS)
    for state in (State.PENDING, State.DELAYED, State.DEAD):  # it was there to be found
        assert SECRET.encode() in kept[(THEIRS + state.value).encode()]


def flat(reply: Any) -> bytes:
    if isinstance(reply, dict):
        reply = [*reply.keys(), *reply.values()]
    if isinstance(reply, list | tuple | set):
        return b" ".join(flat(one) for one in reply)
    return reply if isinstance(reply, bytes) else str(reply).encode()


@with_selectors
async def test_a_producer_erases_no_history_once_it_may_not_write_any(
    admit: Admit, kind: Kind, raw: Redis
) -> None:
    """As the README says: XADD can trim, so a producer that is not trusted writes no history."""
    rules = without(rules_of("producer", kind), f"(+xadd ~{HISTORY.replace(TOPIC, '*')})")
    assert rules != rules_of("producer", kind)
    before = await raw.xrange(HISTORY)
    url = await admit("producer", rules)
    async with MessageQueue(url, patience=3, history=0) as mq:
        await mq.produce(TOPIC, 1)
    assert await denied(raw) == set()
    async with Redis.from_url(url) as client:
        for words in (
            f"XADD {HISTORY} MAXLEN 0 * a b",
            f"XTRIM {HISTORY} MAXLEN 0",
            f"DEL {HISTORY}",
            f"PEXPIRE {HISTORY} 1",
            f"EVAL return(redis.call('XADD',KEYS[1],'MAXLEN','0','*','a','b')) 1 {HISTORY}",
        ):
            await refused(client, words)
    assert await raw.xrange(HISTORY) == before


@with_selectors
async def test_a_producer_may_be_given_what_confirming_takes(
    admit: Admit, kind: Kind, raw: Redis
) -> None:
    more = "+wait", "(+pexpire ~mx-rmq:{*}:receipt:*)"
    assert all(f"`{right}`" in (FOLDER / "README.md").read_text() for right in more)
    url = await admit("producer", [*rules_of("producer", kind), *more])
    async with MessageQueue(url, patience=3, confirm="replicated", confirm_within=0.01) as mq:
        with pytest.raises(NotConfirmed):  # there is no replica
            await mq.produce(TOPIC, 1)
    assert await denied(raw) == set()


async def refused(client: Redis, words: str) -> None:
    execute: Callable[..., Awaitable[Any]] = client.execute_command
    with pytest.raises(ResponseError) as caught:
        await execute(*words.split())
    # A script says it in other words, each server in its own.
    no = r"(?i)no permissions|can't (run|access)|NOPERM"
    assert isinstance(caught.value, NoPermissionError) or re.search(no, str(caught.value)), words


# scripts that an operator has loaded


def without_eval(role: str, kind: Kind) -> list[str]:
    """Return the rules as the README says to change them."""
    (edit,) = re.findall(r"sed 's/(.+)//'", (FOLDER / "README.md").read_text())
    text = " ".join(rules_of(role, kind))
    assert text.count(edit) == 1
    return split(text.replace(edit, ""))


def all_loaded(server: Server) -> Loaded:
    return Loaded(str(server.socket), "primary", len(names()))


def command_load_scripts(url: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "mx_rmq.cli", "load-scripts", "--url", url]
    return subprocess.run(program, capture_output=True, text=True, check=False)


def loaded_only(url: str) -> MessageQueue:
    return MessageQueue(url, patience=0.5, lease=0.5, dedup=0.05, load_scripts=False)


async def test_each_role_can_do_without_scripts_of_its_own(
    admit: Admit, kind: Kind, raw: Redis, server: Server
) -> None:
    run: Callable[..., Awaitable[Any]] = raw.execute_command
    await run("ACL", "SETUSER", "loader", "reset", *rules_of("loader", kind))
    loader = f"unix://loader:{PASSWORD}@{server.socket}"
    try:
        for role, act in ROLES.items():
            url = await admit(role, without_eval(role, kind))  # with all scripts forgotten
            with pytest.raises(ServerUnavailable, match="run `mx-rmq load-scripts`") as caught:
                async with loaded_only(url):
                    pass
            assert PASSWORD not in str(caught.value)
            assert await load_scripts(loader, sources(), patience=3) == [all_loaded(server)]
            if role != "operator":  # who finds what the others have done
                async with loaded_only(url) as mq:
                    await act(mq)
            assert await denied(raw) == set()
            async with Redis.from_url(url) as client:
                for words in ("EVAL return(1) 0", "EVAL_RO return(1) 0", "SCRIPT LOAD return(1)"):
                    if not (kind is Kind.REDIS_6_2 and "_RO" in words):
                        await refused(client, words)
        async with Redis.from_url(loader) as client:  # who may load may not run
            for words in (f"HGETALL {PAYLOAD}", "EVAL return(1) 0", "SCRIPT FLUSH"):
                await refused(client, words)
            await refused(client, f"EVALSHA {load('preflight').sha} 0")
    finally:
        await run("ACL", "DELUSER", "loader")


@one_kind
async def test_a_worker_whose_scripts_are_forgotten_goes_on_when_they_are_loaded_again(
    admit: Admit, kind: Kind, raw: Redis, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    url = await admit("worker", without_eval("worker", kind))
    assert await load_scripts(server.url, sources(), patience=3) == [all_loaded(server)]
    handled: list[int] = []
    async with loaded_only(url) as mq, MessageQueue(server.url) as other:

        @mq.handler("fresh")
        async def handle(number: int) -> None:
            handled.append(number)

        async with Worker(mq):
            await other.produce("fresh", 1)
            await until(lambda: handled == [1])
            await raw.script_flush()
            with pytest.raises(ServerUnavailable, match=r"are not loaded on .*load-scripts"):
                await mq.produce("fresh", 2)
            await until(lambda: "load-scripts" in caplog.text)  # the log names the cure, too
            assert await load_scripts(server.url, sources(), patience=3) == [all_loaded(server)]
            await mq.produce("fresh", 3)
            await until(lambda: handled == [1, 3])
    async with MessageQueue(server.url) as mq:
        assert await mq.admin.audit("fresh") == []


async def test_scripts_are_loaded_on_every_node_of_a_cluster_and_on_its_replicas(
    short_path: Path,
) -> None:
    users = [
        f"loader {' '.join(rules_of('loader', Kind.VALKEY_9_1))} +cluster|slots +asking",
        f"producer {' '.join(without_eval('producer', Kind.VALKEY_9_1))} +cluster|slots +asking",
    ]
    async with Cluster(short_path, password="admin", users=users, replicas=1) as cluster:
        _, at, hosts = cluster.url.rpartition("@")
        done = command_load_scripts(f"redis+cluster://loader:{PASSWORD}{at}{hosts}")
        assert done.returncode == 0, done
        roles = [line.split()[0] for line in done.stdout.splitlines()]
        assert sorted(roles) == ["primary"] * 3 + ["replica"] * 3
        every = [load(name).sha for name in names()]
        for node in cluster.nodes:
            assert await node.ask("SCRIPT", "EXISTS", *every) == [1] * len(every)
        async with loaded_only(f"redis+cluster://producer:{PASSWORD}{at}{hosts}") as mq:
            for number in range(20):
                await mq.produce(f"topic-{number}", number)


async def test_a_server_that_cannot_be_loaded_is_an_error() -> None:
    done = command_load_scripts("redis://loader:secret@127.0.0.1:1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: cannot use redis://***@127.0.0.1:1: Error 111 connecting")


# what the doctor says of it

MORE = ["+slowlog|get", "+scan", "+acl|whoami"]
"""What the README offers to operators for the doctor."""


async def findings(url: str) -> list[Finding]:
    return list((await examine(url, prefix="mx-rmq", patience=3)).findings)


@one_kind
async def test_the_doctor_names_every_right_that_an_operator_lacks(
    admit: Admit, kind: Kind
) -> None:
    rules = rules_of("operator", kind)
    granted = {right[1:].upper() for right in commands_in(rules)}
    assert granted >= {one.split()[0] for one in OPERATOR.split(", ")}
    courtesy = {
        "TYPE",
        "SADD",
        "SREM",
        "PING",
        "UNSUBSCRIBE",
    }  # SADD, SREM: only where very many are pending
    for command in granted - courtesy - {"TIME"}:  # without the time, nothing can be examined
        found = await findings(await admit("operator", without(rules, f"+{command.lower()}")))
        worse = [str(one) for one in found if one.severity in (Severity.WARN, Severity.BAD)]
        assert any(re.search(rf"\b{command}\b", one, re.IGNORECASE) for one in worse), command


@one_kind
async def test_the_doctor_finds_no_fault_with_an_operator(
    admit: Admit, kind: Kind, raw: Redis
) -> None:
    await raw.config_set("appendonly", "yes")
    await raw.config_set("slowlog-log-slower-than", -1)  # a busy machine is no fault of theirs
    await raw.slowlog_reset()
    try:
        shipped = rules_of("operator", kind)
        found = await findings(await admit("operator", shipped))
        assert {one.severity for one in found} == {Severity.OK, Severity.SKIP}
        skipped = [one.what for one in found if one.severity is Severity.SKIP]
        assert [re.findall("slow log|SCAN", one) for one in skipped] == [["slow log"], ["SCAN"]]
        found = await findings(await admit("operator", [*shipped, *MORE]))
        assert {one.severity for one in found} == {Severity.OK}
    finally:
        await raw.config_set("appendonly", "no")
        await raw.config_set("slowlog-log-slower-than", 10_000)


# the files


async def test_a_server_starts_with_the_files_and_lets_nobody_else_in(
    kind: Kind, short_path: Path
) -> None:
    (port,) = free_ports(1)
    users = short_path / "users.acl"
    lines = [f"user {role} {' '.join(rules_of(role, kind))}" for role in ROLES]
    users.write_text("\n".join(("user default off", *lines, "")))
    with Node(kind, short_path, "--aclfile", str(users), port=port) as node:
        url = f"redis://operator:{PASSWORD}@{node.address}"
        program = [sys.executable, "-m", "mx_rmq.cli", "doctor", "--url", url]
        done = subprocess.run(program, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done
        async with MessageQueue(f"redis://producer:{PASSWORD}@{node.address}") as mq:
            await mq.produce(TOPIC, 1)
        for login in ("", "producer:wrong@"):
            with pytest.raises(ServerUnavailable, match=r"refused this user|requires a login"):
                async with MessageQueue(f"redis://{login}{node.address}", patience=30):
                    pass


@pytest.mark.parametrize("kind", [kind for kind in chosen(*USUAL) if kind.has_hexpire])
async def test_a_worker_may_be_given_the_second_net(admit: Admit, kind: Kind, raw: Redis) -> None:
    url = await admit("worker", [*rules_of("worker", kind), "+hexpire"])
    async with queue(url) as mq:
        await work(mq)
    assert "hexpire" not in {str(entry["object"]) for entry in await raw.acl_log()}


async def test_in_a_cluster_each_role_needs_two_rights_more(short_path: Path) -> None:
    rules = {role: " ".join(rules_of(role, Kind.VALKEY_9_1)) for role in ROLES}
    users = [f"{role} {rules[role]} +cluster|slots +asking" for role in ROLES]
    async with Cluster(short_path, password="admin", users=users) as cluster:
        _, at, hosts = cluster.url.rpartition("@")
        for role in ("producer", "worker"):
            async with queue(f"redis+cluster://{role}:{PASSWORD}{at}{hosts}") as mq:
                await produce(mq)
        async with queue(f"redis+cluster://operator:{PASSWORD}{at}{hosts}") as mq:
            for topic in await mq.admin.topics():
                assert await mq.admin.audit(topic) == []
        for role in ROLES:
            async with Redis.from_url(
                f"redis://{role}:{PASSWORD}@{cluster.nodes[0].address}"
            ) as one:
                execute: Callable[..., Awaitable[Any]] = one.execute_command
                assert await execute("ASKING")
                await refused(one, "CLUSTER RESET")


@pytest.mark.parametrize("role", ["producer", "worker", "operator"])
async def test_what_a_user_may_not_do_is_not_half_done(
    role: str, kind: Kind, raw: Redis, server: Server
) -> None:
    """Redis does not roll back: a script that lacks a right must lack it before its first write."""
    run: Callable[..., Awaitable[Any]] = raw.execute_command
    await run("ACL", "SETUSER", role, "reset", *rules_of(role, kind))
    try:
        for case in CASES:
            await raw.flushall()
            clock = Clock()
            async with (
                await Store.open(server.url, clock=clock) as store,
                await Store.open(
                    f"unix://{role}:{PASSWORD}@{server.socket}", clock=clock
                ) as theirs,
            ):
                seeded = await case.seed(Stage(store, clock, TOPIC))
                before = await store.views.counts(TOPIC)
                try:
                    await case.act(theirs, TOPIC, seeded)
                except ScriptFailed:
                    assert await store.views.counts(TOPIC) == before, case
                    if case.script.startswith("repair"):  # what it would repair is still there
                        continue
                if await store.views.topics():
                    assert await store.audit.topic(TOPIC) == [], case
    finally:
        await run("ACL", "DELUSER", role)
