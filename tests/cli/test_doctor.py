"""doctor: what it finds wrong with a server and with a queue."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

import msgspec
import pytest
from redis.asyncio import Redis

from mx_rmq.core.message import State
from mx_rmq.store import health
from mx_rmq.store.store import Store
from tests.cli.calls import HOSTILE, harmless, run, run_json
from tests.lab.archives import archived
from tests.lab.messages import TOPIC, leased, pending
from tests.lab.servers import Kind, Server, free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

one_kind = pytest.mark.parametrize("kind", [Kind.VALKEY_9_1], indirect=True)


@pytest.fixture
async def own(short_path: Path) -> AsyncIterator[tuple[Server, Redis]]:
    """A server that a test may set up as badly as it likes."""
    with Server(Kind.VALKEY_9_1, short_path, "--appendonly", "yes") as server:
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
    assert found["bad"] is False
    assert {one["severity"] for one in found["findings"]} == {"ok"}


async def test_every_kind_of_server_can_be_examined(store: Store, server: Server) -> None:
    told = await run(server, "doctor")
    assert told.exit_code == 0
    assert "ok   the server has every command that the scripts need" in told.stdout
    assert "warn the server keeps no append-only file" in told.stdout
    assert "Run CONFIG SET appendonly yes" in told.stdout


async def test_an_evicting_server_is_a_finding_and_not_a_crash(own: tuple[Server, Redis]) -> None:
    server, client = own
    await client.config_set("maxmemory-policy", "allkeys-lru")
    told = await run(server, "doctor")
    assert (told.exit_code, told.stderr) == (1, "")
    assert "bad  maxmemory-policy is allkeys-lru" in told.stdout
    assert "Run CONFIG SET maxmemory-policy noeviction" in told.stdout
    assert "warn the topics were not looked at. Put the server right first" in told.stdout


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
    assert "bad  the server would stop some scripts in the middle" in told.stdout


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
        assert f"bad  topic orders: {words}, and no live worker serves it" in told.stdout
        await serve(now, "another", TOPIC)
        assert (await run(server, "doctor")).exit_code == 0


@one_kind
async def test_archives_and_a_pause_are_worth_a_look(store: Store, server: Server) -> None:
    await archived(store, State.DEAD, 2)
    await archived(store, State.QUARANTINED, 1)
    await store.pause_topic(TOPIC)
    told = await run(server, "doctor")
    assert told.exit_code == 0
    assert "warn topic orders: 2 dead messages. Look with: mx-rmq list orders" in told.stdout
    assert "warn topic orders: 1 quarantined message. Look with" in told.stdout
    assert "warn topic orders is paused, 0 pending. Let it go on with" in told.stdout


@one_kind
async def test_dropped_ids_are_worth_a_look(store: Store, server: Server, raw: Redis) -> None:
    await archived(store, State.DEAD)
    await raw.rpush(store.keys.of(TOPIC).pending, "ghost")
    await store.dispatch_message(TOPIC, "w1", count=1, lease=1000)
    told = await run(server, "doctor")
    assert "warn topic orders: 1 id without a message had to be dropped" in told.stdout


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
