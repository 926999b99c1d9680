"""doctor: what it finds wrong with a server and with a queue."""

from __future__ import annotations

import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from redis.asyncio import Redis

from mx_rmq.core.message import State
from mx_rmq.doctor import queue as queue_checks
from mx_rmq.doctor import server as health
from mx_rmq.net.caller import Caller
from mx_rmq.settings import Limits
from mx_rmq.store.store import Store
from tests.cli.calls import HOSTILE, harmless, run, run_json
from tests.lab.archives import archive, archived, corpse, fill
from tests.lab.messages import TOPIC, delayed, draft, drafts, leased, pending, take
from tests.lab.nodes import Node, until_true
from tests.lab.ports import free_port, free_ports
from tests.lab.servers import Kind, Server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tests.lab.clock import Clock


def one_kind(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Let a test run on one kind of server, which makes snapshots: else nothing else is as bad."""
    pytest.mark.usefixtures("snapshots")(test)
    pytest.mark.parametrize("kind", [Kind.VALKEY_9_1], indirect=True)(test)
    return test


@pytest.fixture
async def snapshots(raw: Redis) -> AsyncIterator[None]:
    await raw.config_set("save", "3600 1000000")
    yield
    await raw.config_set("save", "")


@pytest.fixture
async def own(short_path: Path) -> AsyncIterator[tuple[Server, Redis]]:
    """A server that a test may set up as badly as it likes. It calls nothing slow: its log goes by
    the clock, and on a busy machine any script may take 10 ms."""
    options = ("--appendonly", "yes", "--slowlog-log-slower-than", "-1")
    with Server(Kind.VALKEY_9_1, short_path, *options) as server:
        client = Redis.from_url(server.url)
        yield server, client
        await client.aclose()


async def serve(store: Store, *topics: str) -> None:
    """Let a worker say that it serves some topics."""
    await store.beat_worker("w1", msgspec.json.encode({"topics": topics}))


async def without(server: Server, client: Redis, command: str) -> str:
    """Make a user who may not run a command; return the URL by which that user comes."""
    await client.acl_setuser(
        "limited",
        enabled=True,
        passwords=["+secret"],
        keys=["*"],
        categories=["+@all"],
        commands=[f"-{command}"],
    )
    return f"unix://limited:secret@{server.socket}"


# the server


async def test_a_server_and_a_queue_that_are_well_get_a_clean_bill(
    own: tuple[Server, Redis],
) -> None:
    server, _ = own
    async with await Store.open(server.url) as store:
        await pending(store)
        await serve(store, TOPIC)
    told = await run(server, "doctor")
    assert told.exit_code == 0
    assert {line[:5] for line in told.stdout.splitlines()} == {"ok   "}
    assert "the server is Valkey 9." in told.stdout
    assert "topic orders: 1 message, each in exactly one state" in told.stdout
    found = await run_json(server, "doctor")
    assert (found["ok"], found["bad"]) == (True, False)
    assert {one["severity"] for one in found["findings"]} == {"ok"}


async def test_topics_that_nothing_watches_are_told_of(
    own: tuple[Server, Redis], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_checks, "MOST", 1)
    server, _ = own
    async with await Store.open(server.url) as store:
        await pending(store)
        await store.produce_normal_message("other", drafts(1))
    told = await run(server, "doctor", "--quick")
    (line,) = [line for line in told.stdout.splitlines() if "topics found" in line]
    assert line.startswith("warn")
    assert "leaving 1 unmonitored." in line


async def test_every_kind_of_server_can_be_examined(
    store: Store, server: Server, kind: Kind
) -> None:
    told = await run(server, "doctor")
    assert told.exit_code == 1
    old = kind in (Kind.REDIS_6_2, Kind.REDIS_7_0)  # whatever Debian has mended in the latter
    assert ("\nwarn Redis " in told.stdout) is old
    assert ("unless your distribution has backported the fix" in told.stdout) is old
    assert "ok   the server has every command that the scripts need" in told.stdout
    assert "bad  the server keeps no append-only file: when it stops, all messages" in told.stdout
    assert "Run CONFIG SET appendonly yes" in told.stdout


async def test_a_server_that_only_makes_snapshots_is_warned_of(own: tuple[Server, Redis]) -> None:
    server, client = own
    await client.config_set("appendonly", "no")
    await client.config_set("save", "3600 1")
    told = await run(server, "doctor")
    assert told.exit_code == 0
    assert (
        "warn the server keeps no append-only file: when it stops, all messages since"
        in told.stdout
    )
    url = await without(server, client, "config")
    told = await run(url, "doctor")
    assert "are lost, if it makes any" in told.stdout


async def test_an_evicting_server_is_a_finding_and_not_a_crash(own: tuple[Server, Redis]) -> None:
    server, client = own
    await client.config_set("maxmemory-policy", "allkeys-lru")
    told = await run(server, "doctor")
    assert (told.exit_code, told.stderr) == (1, "")
    assert "bad  maxmemory-policy is allkeys-lru" in told.stdout
    assert "Run CONFIG SET maxmemory-policy noeviction" in told.stdout
    assert "warn the topics were not checked. Fix the server first" in told.stdout


async def test_evicted_keys_are_told_of_after_the_policy_was_mended(
    own: tuple[Server, Redis],
) -> None:
    server, client = own
    used = (await client.info())["used_memory"]
    await client.config_set("maxmemory", used + 2_000_000)
    await client.config_set("maxmemory-policy", "allkeys-random")
    number = 0
    while not (await client.info())["evicted_keys"]:
        number += 1
        await client.set(f"foreign-{number}", "x" * 100_000)
    await client.config_set("maxmemory-policy", "noeviction")
    await client.config_set("maxmemory", 0)
    told = await run(server, "doctor")
    assert told.exit_code == 1
    assert "bad  the server has evicted" in told.stdout


@pytest.mark.parametrize(("share", "severity"), [(0.95, "bad "), (0.8, "warn"), (0.5, "ok  ")])
async def test_a_server_whose_memory_fills_is_told_of(
    own: tuple[Server, Redis], share: float, severity: str
) -> None:
    server, client = own
    await client.setrange("foreign", 50_000_000, "x")
    await client.config_set("maxmemory", round((await client.info())["used_memory"] / share))
    told = await run(server, "doctor")
    (line,) = (line for line in told.stdout.splitlines() if "of maxmemory" in line)
    assert line.startswith(severity)
    assert told.exit_code == (severity == "bad ")


async def test_a_replica_is_a_finding(short_path: Path) -> None:
    port = str(free_port())
    with Server(Kind.VALKEY_9_1, short_path, "--replicaof", "127.0.0.1", port) as server:
        told = await run(server, "doctor")
    assert told.exit_code == 1
    assert "bad  the server is a replica, so it refuses writes. Use the primary's" in told.stdout


async def test_a_user_without_the_rights_is_a_finding(own: tuple[Server, Redis]) -> None:
    server, client = own
    told = await run(await without(server, client, "zadd"), "doctor")
    assert told.exit_code == 1
    assert "bad  some scripts would fail halfway" in told.stdout


async def test_checks_that_a_user_may_not_make_are_told_as_such(
    own: tuple[Server, Redis],
) -> None:
    server, client = own
    await client.acl_setuser(
        "limited",
        enabled=True,
        passwords=["+secret"],
        keys=["*"],
        channels=["*"],
        categories=["+@all"],
        commands=["-slowlog", "-scan", "-acl", "-blpop"],
    )
    told = await run(f"unix://limited:secret@{server.socket}", "doctor")
    assert told.exit_code == 0
    assert "skip this user may not read the slow log" in told.stdout
    assert "Grant +slowlog|get (ACL SETUSER)" in told.stdout
    assert "skip this user may not run SCAN" in told.stdout
    assert "ok   this user may not run BLPOP, so workers cannot use this user" in told.stdout
    assert not [line for line in told.stdout.splitlines() if line.startswith(("warn", "bad"))]


async def test_a_user_who_may_not_listen_to_channels_is_a_finding(
    own: tuple[Server, Redis],
) -> None:
    server, client = own
    await client.acl_setuser(
        "deaf", enabled=True, passwords=["+secret"], keys=["*"], categories=["+@all"]
    )
    told = await run(f"unix://deaf:secret@{server.socket}", "doctor")
    (line,) = (line for line in told.stdout.splitlines() if "SUBSCRIBE" in line)
    assert line.startswith("warn user deaf may not SUBSCRIBE to channels")
    assert "Grant +subscribe and &mx-rmq:*" in line


async def test_an_operator_who_lacks_a_command_is_told_which(own: tuple[Server, Redis]) -> None:
    server, client = own
    told = await run(await without(server, client, "hkeys"), "doctor", "--strict")
    assert told.exit_code == 1
    assert "warn user limited may not run HKEYS, so parts of mq.admin" in told.stdout
    found = await run_json(await without(server, client, "hkeys"), "doctor", "--strict", code=1)
    assert (found["ok"], found["bad"]) == (False, False)
    assert "Grant +hkeys (ACL SETUSER)" in told.stdout
    producer = (Path(__file__).parents[2] / "deploy/acl/producer.acl").read_text().split()[2:]
    execute: Callable[..., Awaitable[Any]] = client.execute_command
    rules = " ".join(producer).replace("CHANGE-ME", "secret")
    await execute("ACL", "SETUSER", "producer", *re.findall(r"\([^)]*\)|\S+", rules))
    told = await run(f"unix://producer:secret@{server.socket}", "doctor")
    assert told.exit_code == 0
    assert "skip the topics were not checked: HKEYS: " in told.stdout


async def test_slow_scripts_are_told_of_by_name(own: tuple[Server, Redis]) -> None:
    server, client = own
    await client.config_set("slowlog-log-slower-than", 0)
    async with await Store.open(server.url) as store:
        await pending(store)
        await serve(store, TOPIC)
    told = await run(server, "doctor")
    assert told.exit_code == 0
    (line,) = (line for line in told.stdout.splitlines() if "slow log" in line)
    assert line.startswith("warn ")
    assert re.search(r"the slowest: \w+ on mx-rmq:\S+, [0-9,]+ ms, \d+ s ago", line)
    await client.config_set("slowlog-log-slower-than", -1)
    await client.slowlog_reset()
    told = await run(server, "doctor")
    assert "ok   none of our scripts was slow in the last hour" in told.stdout


async def test_replicas_are_told_of_with_how_far_they_are_behind(short_path: Path) -> None:
    ports = free_ports(2)
    places = [short_path / name for name in ("a", "b")]
    for place in places:
        place.mkdir()
    kind = Kind.VALKEY_9_1
    options = ("--appendonly", "yes", "--repl-diskless-sync-delay", "0")
    with (
        Node(kind, places[0], *options, port=ports[0]) as primary,
        Node(kind, places[1], "--replicaof", "127.0.0.1", str(ports[0]), port=ports[1]) as replica,
    ):
        await until_true(lambda: primary.is_followed(1), "the replica is in step")
        told = await run(primary, "doctor")
        assert told.exit_code == 0
        assert f"ok   replica 127.0.0.1:{ports[1]} is " in told.stdout
        replica.freeze()
        for _ in range(20):  # more than sockets hold
            await primary.ask("SET", "foreign", b"x" * 2_000_000)
        told = await run(primary, "doctor")
        replica.thaw()
    (line,) = (line for line in told.stdout.splitlines() if "replica 127" in line)
    assert re.match(r"warn replica \S+ is \d+ s and [0-9.]+ MiB behind: that much is lost", line)


async def test_messages_of_topics_that_are_not_listed_are_bad(own: tuple[Server, Redis]) -> None:
    server, client = own
    async with await Store.open(server.url) as store:
        await pending(store)
        for name in ("lost", f"{TOPIC}/3"):
            await store.produce_normal_message(name, drafts(1))
        await client.hdel(store.keys.topics, "lost")
        await client.hset("mx-rmq:{no topic}:payload", "x", "y")
    told = await run(server, "doctor", "--quick")
    assert told.exit_code == 1
    (line,) = (line for line in told.stdout.splitlines() if "missing from the registry" in line)
    assert line.startswith("bad  topics or partitions with messages are missing from the registry")
    assert "neither counted nor served: lost, orders/3. Start a worker" in line


async def test_a_topic_that_is_born_meanwhile_is_no_stray(
    own: tuple[Server, Redis], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, _ = own
    command = Caller.command

    async def late(self: Caller, name: str, *words: Any, at: str | None = None) -> Any:
        if name == "SCAN":
            async with await Store.open(server.url) as store:
                await pending(store)
        return await command(self, name, *words, at=at)

    monkeypatch.setattr(Caller, "command", late)
    told = await run(server, "doctor", "--quick")
    assert "ok   every topic with messages is in the registry\n" in told.stdout


async def test_a_user_who_may_not_ask_is_told_what_nobody_knows(own: tuple[Server, Redis]) -> None:
    server, client = own
    told = await run(await without(server, client, "info"), "doctor")
    assert told.exit_code == 0
    assert "warn the user may not run INFO" in told.stdout


@one_kind
async def test_a_skewed_clock_is_told_of(
    store: Store, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = SimpleNamespace(time=lambda: time.time() - 90)
    monkeypatch.setattr(health, "time", late)
    told = await run(server, "doctor")
    assert told.exit_code == 0
    assert "warn the clocks of this machine and of the server differ by 90." in told.stdout


# the queue


@one_kind
@pytest.mark.parametrize("held", [True, False])
async def test_messages_that_no_live_worker_serves_are_bad(
    store: Store, server: Server, held: bool
) -> None:
    await (leased(store) if held else pending(store))
    async with await Store.open(server.url) as now:
        await serve(now, "another")
        told = await run(server, "doctor")
        assert told.exit_code == 1
        words = "0 pending and 1 in processing" if held else "1 pending and 0 in processing"
        assert f"bad  topic orders: {words}, but no live worker serves the topic" in told.stdout
        await serve(now, "another", TOPIC)
        assert (await run(server, "doctor")).exit_code == 0


@one_kind
async def test_archived_messages_that_were_dropped_are_told_of(
    store: Store, server: Server, clock: Clock
) -> None:
    async with await Store.open(server.url, clock=clock, limits=Limits(dlq_max=2)) as full:
        await archived(full, State.DEAD, 5)
    told = await run(server, "doctor")
    assert (
        "warn topic orders: 3 archived messages dropped so far, because of their age" in told.stdout
    )


@one_kind
async def test_an_archive_that_has_nearly_used_up_its_bytes_is_told_of(
    store: Store, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    await archived(store, State.DEAD, 5)
    held = (await store.views.counts(TOPIC)).dead_bytes
    monkeypatch.setenv("MX_RMQ_DLQ_MAX_BYTES", str(2 * held))
    assert "beyond that" not in (await run(server, "doctor")).stdout
    monkeypatch.setenv("MX_RMQ_DLQ_MAX_BYTES", str(round(held / 0.85)))
    told = await run(server, "doctor")
    assert "warn topic orders: its dead messages use 1.7 KiB of 2.0 KiB; beyond that" in told.stdout
    assert "set a higher dlq_max_bytes" in told.stdout


@one_kind
async def test_an_archive_that_was_over_its_bytes_is_told_of(store: Store, server: Server) -> None:
    async with await Store.open(server.url, limits=Limits(quarantine_max_bytes=1500)) as full:
        await archived(full, State.QUARANTINED, 5)
    told = await run(server, "doctor")
    assert "warn topic orders: an archive exceeded its size limit" in told.stdout


async def test_what_holds_the_memory_of_a_server_that_fills_is_named(
    own: tuple[Server, Redis],
) -> None:
    server, client = own
    async with await Store.open(server.url) as filling:
        for _ in range(20):
            await filling.produce_normal_message(TOPIC, [draft("x" * 1_000_000)])
            for one in await take(filling):
                assert await archive(filling, State.DEAD, one)
    info = await client.info()
    used = info["used_memory"] - info["mem_clients_normal"]  # buffers that are still to be freed
    await client.config_set("maxmemory", round(used / 0.82))
    told = await run(server, "doctor")
    (line,) = (line for line in told.stdout.splitlines() if "of maxmemory" in line)
    assert line.startswith("warn")
    assert "dead letters of topic orders hold 19.1 MiB. Discard them" in line


@one_kind
async def test_archives_and_a_pause_are_worth_a_look(store: Store, server: Server) -> None:
    await archived(store, State.DEAD, 2)
    await archived(store, State.QUARANTINED, 1)
    await store.pause_topic(TOPIC)
    told = await run(server, "doctor")
    assert told.exit_code == 0
    assert "warn topic orders: 2 dead messages. List them with mx-rmq list orders" in told.stdout
    assert "warn topic orders: 1 quarantined message. List them with mx-rmq list" in told.stdout
    assert "; then requeue, edit or discard them\n" in told.stdout
    assert "warn topic orders: paused, 0 pending. Resume it" in told.stdout


@one_kind
async def test_delayed_messages_that_nobody_will_handle_are_worth_a_look(
    store: Store, server: Server
) -> None:
    await delayed(store, 1000, 2)
    told = await run(server, "doctor")
    assert told.exit_code == 0
    assert "warn topic orders: 2 delayed, but no live worker will handle them" in told.stdout
    assert (await run(server, "doctor", "--strict")).exit_code == 1


@one_kind
async def test_dead_letters_that_become_more_are_told_of(
    store: Store, server: Server, raw: Redis
) -> None:
    seconds, _ = await raw.time()
    now = seconds * 1000
    await fill(store, raw, [corpse(number) for number in range(48)], at=now - 90_000_000, apart=1)
    index = store.keys.of(TOPIC).dlq
    for number in range(48):
        await raw.zadd(index, {f"d-{number:06}": now - 7_000_000 - number * 1_600_000})
    told = await run(server, "doctor")
    assert "warn topic orders: 48 dead messages. List them with mx-rmq list" in told.stdout
    await fill(store, raw, [corpse(number) for number in range(100, 130)], at=now - 60_000)
    told = await run(server, "doctor")
    assert (
        "warn topic orders: dead messages are piling up: 30 in the last hour, compared to 2.0 per "
        "hour over the previous day. List them with mx-rmq list orders --state dead --since 1h"
        in told.stdout
    )


@one_kind
@pytest.mark.parametrize("others", [True, False])
async def test_a_worker_that_fell_silent_with_messages_is_told_of(
    store: Store, server: Server, clock: Clock, others: bool
) -> None:
    await delayed(store, 1000)
    about = {"topics": [TOPIC], "host": HOSTILE, "pid": 7, "held": 3}
    clock.now = int(time.time() * 1000) - 601_000  # others have its messages by now
    await store.beat_worker("w8", msgspec.json.encode(about))
    clock.now += 301_000
    await store.beat_worker("w9", msgspec.json.encode(about))
    await store.beat_worker("idle", msgspec.json.encode({**about, "held": 0}))
    if others:
        clock.now = int(time.time() * 1000)
        await serve(store, TOPIC)
    told = await run(server, "doctor")
    assert told.exit_code == (not others)
    (line,) = (line for line in told.stdout.splitlines() if "went silent" in line)
    assert harmless(line)
    assert line.startswith("warn worker w9 on " if others else "bad  worker w9 on ")
    assert "process 7, went silent 5 min " in line
    assert " ago with 3 messages" in line
    assert ("no other worker serves orders" in line) is not others


@one_kind
@pytest.mark.parametrize("served", [TOPIC, "another"])
async def test_leases_that_nobody_takes_over_are_bad(
    store: Store, server: Server, clock: Clock, served: str
) -> None:
    clock.now = int(time.time() * 1000) - 300_000
    await leased(store, 2, lease=1000)
    clock.now = int(time.time() * 1000)
    await serve(store, served)
    told = await run(server, "doctor")
    assert told.exit_code == 1
    assert "bad  topic orders: a lease expired " in told.stdout


@one_kind
@pytest.mark.parametrize("served", [TOPIC, "another"])
async def test_delayed_messages_that_stay_when_they_are_due_are_bad(
    store: Store, server: Server, clock: Clock, served: str
) -> None:
    clock.now = int(time.time() * 1000) - 300_000
    await delayed(store, 1000, 3)
    await delayed(store, 600_000)
    clock.now = int(time.time() * 1000)
    await serve(store, served)
    told = await run(server, "doctor")
    assert told.exit_code == 1
    assert "bad  topic orders: a delayed message was due " in told.stdout


@one_kind
@pytest.mark.corrupts
async def test_a_quick_look_leaves_the_audit_out(store: Store, server: Server, raw: Redis) -> None:
    await delayed(store, 1000)
    await raw.hset(store.keys.of(TOPIC).payload, "stray", "x")
    assert "1 violation" in (await run(server, "doctor")).stdout
    told = await run(server, "doctor", "--quick")
    assert (told.exit_code, "violation" in told.stdout) == (0, False)
    await raw.set(store.keys.of(TOPIC).pending, "x")
    told = await run(server, "doctor", "--quick")
    assert told.exit_code == 1
    assert "holds a string, not a list" in told.stdout


@one_kind
async def test_dropped_ids_are_worth_a_look(store: Store, server: Server, raw: Redis) -> None:
    await archived(store, State.DEAD)
    await raw.rpush(store.keys.of(TOPIC).pending, "ghost")
    await store.dispatch_message(TOPIC, "w1", count=1, lease=1000)
    told = await run(server, "doctor")
    assert "warn topic orders: 1 id dropped, because there was no message" in told.stdout


@one_kind
@pytest.mark.corrupts
async def test_violations_are_bad_and_harmless_to_read(
    store: Store, server: Server, raw: Redis
) -> None:
    await pending(store)
    await raw.hset(store.keys.of(TOPIC).payload, HOSTILE, "x")
    told = await run(server, "doctor")
    assert told.exit_code == 1
    assert "bad  topic orders: 1 violation, the first: " in told.stdout
    assert "See all of them with: mx-rmq audit orders" in told.stdout
    assert harmless(told.stdout)


@one_kind
@pytest.mark.corrupts
async def test_a_key_of_a_wrong_type_is_bad(store: Store, server: Server, raw: Redis) -> None:
    await archived(store, State.DEAD)
    await raw.set(store.keys.of(TOPIC).pending, "x")
    told = await run(server, "doctor")
    assert told.exit_code == 1
    assert "holds a string, not a list" in told.stdout


async def test_a_server_that_is_away_cannot_be_examined() -> None:
    failed = await run("redis://127.0.0.1:1", "doctor")
    assert (failed.exit_code, failed.stdout) == (2, "")
    assert failed.stderr.startswith("Error: ")


@one_kind
async def test_messages_of_a_newer_release_are_told_of(
    store: Store, server: Server, raw: Redis
) -> None:
    (id,) = await pending(store)
    await pending(store, 2)
    key = store.keys.of(TOPIC).payload
    record: Any = await raw.hget(key, id)
    await raw.hset(key, id, record.replace(b'"v":1', b'"v":3'))
    await serve(store, TOPIC)
    told = await run(server, "doctor")
    assert (
        "warn topic orders: 1 of the first 3 pending messages can be read only by a newer release. "
        "Upgrade the older workers" in " ".join(told.stdout.split())
    )


@one_kind
async def test_workers_of_several_releases_are_told_of(store: Store, server: Server) -> None:
    for name, version in (("w1", "2.1.0"), ("w2", "2.1.0"), ("w3", "2.0.0")):
        await store.beat_worker(name, msgspec.json.encode({"version": version}))
    told = " ".join((await run(server, "doctor")).stdout.split())
    assert "warn workers of different releases are running: 1 of 2.0.0, 2 of 2.1.0." in told
    await store.forget_worker("w3")
    assert "different releases" not in (await run(server, "doctor")).stdout


@one_kind
async def test_keys_of_a_newer_layout_are_bad_and_nothing_else_is_looked_at(
    server: Server, raw: Redis
) -> None:
    assert "ok this release supports the layout" in " ".join(
        (await run(server, "doctor")).stdout.split()
    )
    await raw.set("mx-rmq:layout", "2")
    told = await run(server, "doctor")
    assert told.exit_code == 1
    assert "bad  the keys under mx-rmq: have layout 2, and this release" in told.stdout
    assert "the topics were not checked" in told.stdout
