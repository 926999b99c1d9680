"""What the store finds out about a server before it trusts it with a message."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq.core.errors import MissingRights, NewerLayout, UnsafeServer
from mx_rmq.core.message import State
from mx_rmq.store.preflight import OPTIONAL
from mx_rmq.store.results import RetryRequest, Settled
from mx_rmq.store.script import load, names
from mx_rmq.store.store import Store
from tests.lab.archives import archived
from tests.lab.messages import FAILURE, TOPIC, delayed, leased, message, pending, settle, take

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from redis.asyncio import Redis

    from tests.lab.clock import Clock
    from tests.lab.servers import Server

    Run = Callable[..., Awaitable[Any]]
    Limited = Callable[..., Awaitable[str]]

COMMANDS = sorted(set().union(*(load(name).commands for name in names())) - {OPTIONAL})
"""Everything that any script asks of the server."""

POLICIES = [
    *("allkeys-lru", "allkeys-lfu", "allkeys-random"),
    *("volatile-lru", "volatile-lfu", "volatile-random", "volatile-ttl"),
]


@pytest.fixture
async def run(raw: Redis) -> AsyncIterator[Run]:
    """Run any command on the server, whose settings and users are put right afterwards."""
    changed = ("maxmemory-policy", "maxmemory", "appendonly")
    before = {name: str((await raw.config_get(name))[name]) for name in changed}
    execute: Run = raw.execute_command
    yield execute
    await execute("REPLICAOF", "NO", "ONE")
    for name, value in before.items():
        await raw.config_set(name, value)
    await execute("ACL", "DELUSER", "limited")


@pytest.fixture
def limited(run: Run, server: Server) -> Limited:
    """Make a user with exactly the rights that the scripts need, but for some; return its URL."""

    async def make(*without: str, keys: str = "~mx-rmq:*") -> str:
        rights = {"EVAL", "EVALSHA", "INFO", *COMMANDS} - {*without}
        if not server.kind.has_hexpire:
            rights.discard("HEXPIRE")  # unknown, and so no right to give
        rules = [f"+{name.lower()}" for name in sorted(rights)]
        await run("ACL", "SETUSER", "limited", "reset", "on", ">secret", keys, *rules)
        return f"unix://limited:secret@{server.socket}"

    return make


# settings


@pytest.mark.parametrize("policy", POLICIES)
async def test_a_server_that_evicts_is_refused_with_the_reason_and_the_cure(
    run: Run, raw: Redis, server: Server, policy: str
) -> None:
    await run("CONFIG", "SET", "maxmemory-policy", policy)
    with pytest.raises(UnsafeServer) as caught:
        await Store.open(server.url)
    text = str(caught.value)
    assert f"maxmemory-policy is {policy}: " in text
    assert "the server deletes whole keys" in text
    assert "Run CONFIG SET maxmemory-policy noeviction" in text
    assert not isinstance(caught.value, MissingRights)
    assert await raw.dbsize() == 0


@pytest.mark.parametrize("appendonly", ["no", "yes"])
async def test_a_server_without_an_append_only_file_is_warned_of(
    run: Run,
    server: Server,
    caplog: pytest.LogCaptureFixture,
    appendonly: str,
) -> None:
    await run("CONFIG", "SET", "appendonly", appendonly)
    async with await Store.open(server.url) as store:
        logged = [
            record.getMessage()
            for record in caplog.records
            if record.name == "mx_rmq.store.store" and record.levelno == logging.WARNING
        ]
        assert tuple(logged) == store.warnings
    if appendonly == "yes":
        assert store.warnings == ()
    else:
        (warning,) = store.warnings
        assert "no append-only file" in warning
        assert "CONFIG SET appendonly yes" in warning


async def test_a_replica_is_warned_of_and_nothing_is_written(
    run: Run, raw: Redis, server: Server
) -> None:
    await run("REPLICAOF", "127.0.0.1", "1")
    async with await Store.open(server.url) as store:
        assert "the server is a replica, so it refuses writes: use the primary's address" in (
            store.warnings
        )
        assert store.hexpire is server.kind.has_hexpire
    assert await raw.dbsize() == 0


async def test_a_full_server_is_looked_over_too_and_nothing_is_left_behind(
    run: Run, raw: Redis, server: Server
) -> None:
    await run("CONFIG", "SET", "maxmemory", "1")
    async with await Store.open(server.url) as store:
        assert store.hexpire is server.kind.has_hexpire
    assert await raw.keys() == []


async def test_a_scratch_key_that_somebody_left_behind_is_no_obstacle(
    run: Run, server: Server, raw: Redis
) -> None:
    await run("HSET", "mx-rmq:{preflight}:scratch", "f", "1")
    async with await Store.open(server.url) as store:
        assert store.hexpire is server.kind.has_hexpire


async def test_features_are_found_by_trying(store: Store, server: Server, raw: Redis) -> None:
    assert store.hexpire is server.kind.has_hexpire
    assert await raw.dbsize() == 0


# rights


async def live(store: Store, clock: Clock) -> None:
    """Lead messages through every transition."""
    first, second = await leased(store, 2)
    await store.extend_lease(TOPIC, "w1", [first], lease=1000)
    assert await store.retry_message(
        TOPIC, "w1", [RetryRequest(first, message(first).failed(FAILURE), 10)]
    ) == [Settled.DONE]
    assert await store.get_next_delay_task(TOPIC) == 10
    clock.advance(10)
    assert await store.process_delay_message(TOPIC, count=10) == [first.id]
    (again,) = await take(store)
    await settle(store, again, State.DEAD)
    assert await store.requeue_message(
        TOPIC, State.DEAD, again.id, archived=clock.now, message=message(again).revived()
    )
    clock.advance(100_000)
    ((id, token, _, _),) = (
        await store.handle_timeout_message(TOPIC, "monitor", count=10, recovery=1000)
    ).messages
    assert (id, token > second.token) == (second.id, True)
    await settle(store, (await take(store))[0], State.QUARANTINED)
    assert await store.discard_message(TOPIC, State.QUARANTINED, first.id, archived=clock.now)
    (later,) = await delayed(store, 1000, id="own")
    (waits,) = await pending(store)
    for id in (later, waits):
        assert await store.cancel_message(TOPIC, id)
    await settle(store, (await leased(store))[0], State.PENDING)
    await settle(store, (await take(store))[0], None)
    await archived(store, State.DEAD)
    assert await store.trim_archive(TOPIC, State.DEAD) == 0
    assert await store.pause_topic(TOPIC)
    assert await store.resume_topic(TOPIC)
    counts = await store.views.counts(TOPIC)
    assert (counts.processing, counts.dead, counts.pending) == (1, 1, 0)


async def test_a_user_with_exactly_the_needed_rights_can_do_everything(
    limited: Limited, clock: Clock, store: Store
) -> None:
    async with await Store.open(await limited(), clock=clock) as own:
        assert own.hexpire is store.hexpire
        await live(own, clock)


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "HEXPIRE"])
async def test_a_missing_right_is_named_with_the_scripts_that_need_it_and_nothing_is_touched(
    limited: Limited, raw: Redis, command: str
) -> None:
    url = await limited(command)
    with pytest.raises(MissingRights) as caught:
        await Store.open(url)
    users = sorted(name for name in names() if command in load(name).commands)
    text = str(caught.value)
    assert f"{command} (needed by {', '.join(users)}): " in text
    assert "ACL SETUSER" in text
    assert len(re.findall(r"needed by", text)) == 1, "only the one that is missing"
    assert await raw.keys() == []


async def test_several_missing_rights_are_named_at_once(
    limited: Limited,
) -> None:
    with pytest.raises(MissingRights) as caught:
        await Store.open(await limited("HSET", "LTRIM", "TIME"))
    assert re.findall(r"(\w+) \(needed by", str(caught.value)) == ["HSET", "LTRIM", "TIME"]


@pytest.mark.parametrize("command", ["EVALSHA", "EVAL"])
async def test_a_user_who_may_not_run_scripts_is_told_so(
    limited: Limited, raw: Redis, command: str
) -> None:
    with pytest.raises(MissingRights, match=rf"(?i)\b{command}\b"):
        await Store.open(await limited(command))
    assert await raw.dbsize() == 0


@pytest.mark.parametrize("keys", ["~other:*", "~mx-rmq", "resetkeys"])
async def test_a_user_whose_keys_do_not_cover_the_prefix_is_told_so(
    limited: Limited, raw: Redis, keys: str
) -> None:
    with pytest.raises(MissingRights) as caught:
        await Store.open(await limited(keys=keys))
    assert "mx-rmq" in str(caught.value)
    assert await raw.dbsize() == 0


async def test_the_rights_are_asked_for_under_the_stores_own_prefix(
    limited: Limited, clock: Clock, raw: Redis
) -> None:
    url = await limited(keys="~shop:*")
    async with await Store.open(url, prefix="shop", clock=clock) as store:
        await live(store, clock)
    assert await raw.keys("mx-rmq*") == []
    assert await raw.exists("shop:topics") == 1


async def test_a_user_who_may_not_run_info_is_warned(
    limited: Limited,
) -> None:
    async with await Store.open(await limited("INFO")) as store:
        (warning,) = store.warnings
    assert "may not run INFO" in warning


async def test_hexpire_denied_is_like_hexpire_absent(
    limited: Limited, clock: Clock, raw: Redis
) -> None:
    async with await Store.open(await limited("HEXPIRE"), clock=clock) as store:
        assert not store.hexpire
        await live(store, clock)


# the layout of the keys


@pytest.mark.parametrize("layout", [None, "1"])
async def test_a_layout_that_is_known_costs_one_read(
    raw: Redis, server: Server, layout: str | None
) -> None:
    if layout is not None:
        await raw.set("mx-rmq:layout", layout)
    await (await Store.open(server.url)).close()
    await raw.config_resetstat()
    async with await Store.open(server.url):
        stats = await raw.info("commandstats")
    assert stats["cmdstat_get"]["calls"] == 2  # one is the preflight's own try
    assert await raw.get("mx-rmq:layout") == (layout and layout.encode())


@pytest.mark.parametrize("layout", ["2", "99", "1.5", "new", "-1", ""])
async def test_keys_that_a_newer_release_laid_out_are_refused_and_left_alone(
    raw: Redis, server: Server, layout: str
) -> None:
    await raw.set("mx-rmq:layout", layout)
    with pytest.raises(NewerLayout, match="release knows layouts up to 1"):
        await Store.open(server.url)
    assert await raw.keys("*") == [b"mx-rmq:layout"]
    async with await Store.open(server.url, prefix="another"):
        pass


async def test_a_user_who_may_not_read_the_layout_is_warned(
    limited: Limited, server: Server
) -> None:
    url = await limited(keys="~mx-rmq:{*")
    async with await Store.open(url) as store:
        (warning,) = [one for one in store.warnings if "layout" in one]
    assert warning.endswith("Grant +get ~mx-rmq:layout")


# the list of commands


def test_every_command_of_a_script_is_tried_in_the_preflight() -> None:
    source = load("preflight").source
    forms = source[source.index("local forms = {") : source.index("\n}\n")]
    tried = set(re.findall(r"\b([A-Z]+) = ", forms)) | {"SADD", "SREM"}
    assert tried == set(COMMANDS)


def test_every_command_is_spelled_where_the_loader_finds_it() -> None:
    for name in set(names()) - {"preflight"}:
        calls = re.findall(r"redis\.p?call\b", load(name).source)
        found = re.findall(r"redis\.p?call\('[A-Z]+'", load(name).source)
        assert len(calls) == len(found), name
