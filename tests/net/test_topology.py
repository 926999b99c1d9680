"""One server behind a URL: which keys it has, and two ways to speak to it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from redis import exceptions as redis_errors

from mx_rmq.net.caller import Caller
from mx_rmq.net.topology import OneServer
from mx_rmq.net.url import connect
from mx_rmq.store.keys import Keys
from tests.store.contracts import ONE_SERVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from tests.lab.servers import Server

pytestmark = ONE_SERVER


@pytest.fixture
async def one(raw: Redis, server: Server) -> AsyncIterator[OneServer]:
    servers = await connect(server.url)
    assert isinstance(servers, OneServer)
    yield servers
    await servers.close()


async def test_every_key_is_at_the_same_site_on_the_same_server(one: OneServer) -> None:
    keys = Keys()
    sites = {one.site_of(keys.of(f"t{number}").payload) for number in range(100)}
    assert sites == {0}
    assert one.nodes() == [one.node_at(0)]
    assert one.key_of_each(keys.scratch) == ["mx-rmq:{preflight}:scratch"]


async def test_a_server_is_shown_by_its_address(one: OneServer, server: Server) -> None:
    assert one.node.name == str(server.socket)
    tcp = await connect("redis://me:hunter2@queue.example:7000/3")
    assert tcp.node_at(0).name == "queue.example:7000"
    await tcp.close()


async def test_scripts_go_by_wires_and_commands_by_the_client(one: OneServer) -> None:
    assert await one.node.send(("EVAL", "return ARGV[1]", 0, "x"), 5.0) == b"x"
    assert len(one.node.wires._all) == 1
    assert await one.node.execute(("CONFIG GET", "port"), 5.0) == {"port": "0"}
    assert len(one.node.wires._all) == 1


async def test_a_command_has_a_time_limit(one: OneServer) -> None:
    began = time.monotonic()
    with pytest.raises(redis_errors.TimeoutError, match=r"no reply within 0\.1 s"):
        await one.node.execute(("BLPOP", "nothing", 30), 0.1)
    assert time.monotonic() - began < 5


async def test_another_has_connections_of_its_own(one: OneServer, server: Server) -> None:
    other = one.another()
    await one.close()
    assert await other.node.send(("PING",), 5.0) == b"PONG"
    assert other.node.name == str(server.socket)
    again = other.another()
    await other.close()
    assert await again.node.send(("PING",), 5.0) == b"PONG"
    await again.close()


@pytest.mark.parametrize(
    "error",
    [redis_errors.MovedError("1 h:7000"), redis_errors.AskError("1 h:7000")],
    ids=["moved", "ask"],
)
async def test_a_node_of_a_cluster_is_not_taken_for_a_server(
    one: OneServer, error: redis_errors.AskError
) -> None:
    with pytest.raises(redis_errors.ResponseError, match="use redis\\+cluster:// for it"):
        one.redirected(error)


async def test_looking_again_changes_nothing(one: OneServer) -> None:
    node = one.node_at(0)
    await one.find_servers()
    assert one.node_at(0) is node


async def test_a_caller_tells_its_link_that_the_server_answers(one: OneServer) -> None:
    caller = Caller(one, patience=0)
    link = caller.links[0]
    link.failed(OSError("refused"))
    await caller.command("EXISTS", "key")
    assert link._failing_since is None


async def test_each_caller_has_its_own_links(one: OneServer) -> None:
    first, second = (Caller(one, patience=0) for _ in range(2))
    assert first.links is not second.links


async def test_a_command_goes_to_the_server_of_its_key(
    one: OneServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def site_of(key: str) -> int:
        asked.append(key)
        return 0

    monkeypatch.setattr(one, "site_of", site_of)
    caller = Caller(one, patience=0)
    await caller.command("EXISTS", "own")
    await caller.command("TIME", at="other")
    await caller.command("HGET", "own", "field", at="other")
    assert asked == ["own", "other", "other"]
