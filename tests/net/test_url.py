"""From a URL to a server, or to an error that helps and gives no password away."""

from __future__ import annotations

import logging
import socket
import time
import traceback
from typing import TYPE_CHECKING

import pytest

from mx_rmq.core.errors import (
    EmbeddedServerError,
    InvalidInput,
    MxRmqError,
    OutcomeUnknown,
    ServerUnavailable,
)
from mx_rmq.doctor.server import examine
from mx_rmq.net.url import SCHEMES, check_url, connect
from mx_rmq.store.store import Store
from tests.lab.messages import TOPIC, leased, settle
from tests.lab.ports import free_port
from tests.lab.servers import Kind, Server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

    from redis.asyncio import Redis

SECRET = "hunter2"


async def works(url: str) -> None:
    """Lead a message through its life."""
    async with await Store.open(url, patience=1) as store:
        (one,) = await leased(store)
        await settle(store, one, None)
        assert await store.audit.topic(TOPIC) == []


def everything_said(error: BaseException) -> str:
    """Return what a log with a traceback would show."""
    return "".join(traceback.format_exception(error))


# servers that are there


@pytest.fixture
def tcp(short_path: Path) -> Iterator[Server]:
    with Server(Kind.VALKEY_9_1, short_path, port=free_port()) as server:
        yield server


async def test_every_way_to_write_a_servers_address_works(tcp: Server) -> None:
    for url in (
        f"redis://127.0.0.1:{tcp.port}",
        f"redis://127.0.0.1:{tcp.port}/0",
        f"redis://127.0.0.1:{tcp.port}?db=1",
        f"valkey://127.0.0.1:{tcp.port}/2",
        f"unix://{tcp.socket}",
        f"unix://{tcp.socket}?db=3",
    ):
        await works(url)


async def test_a_database_is_the_one_in_the_url(tcp: Server) -> None:
    async with await Store.open(f"valkey://127.0.0.1:{tcp.port}/5") as store:
        await leased(store)
    async with await Store.open(f"redis://127.0.0.1:{tcp.port}/5") as store:
        assert await store.views.topics() == [TOPIC]
    async with await Store.open(f"redis://127.0.0.1:{tcp.port}/6") as store:
        assert await store.views.topics() == []


@pytest.mark.parametrize("scheme", ["valkey", "valkeys"])
async def test_valkey_is_another_word_for_redis_and_only_in_the_scheme(scheme: str) -> None:
    servers = await connect(f"{scheme}://valkey.example:7000/3")
    (node,) = servers.nodes()
    options = node.client.connection_pool.connection_kwargs
    assert (options["host"], options["port"], options["db"]) == ("valkey.example", 7000, 3)
    assert ("SSL" in repr(node.client)) is (scheme == "valkeys")
    await servers.close()


async def test_the_client_resends_nothing_and_decodes_nothing(tcp: Server) -> None:
    servers = await connect(f"redis://127.0.0.1:{tcp.port}")
    (node,) = servers.nodes()
    options = node.client.connection_pool.connection_kwargs
    assert options["retry"].get_retries() == 0
    assert options["retry_on_error"] == []
    assert options["decode_responses"] is False
    assert options["socket_timeout"] is None  # the caller bounds the wait for a reply
    assert 0 < options["socket_connect_timeout"] <= 60
    await servers.close()


async def test_an_embedded_server_starts_with_the_store_and_stops_with_it(
    short_path: Path,
) -> None:
    url = f"embedded://{short_path}/data"
    await works(url)
    assert not (short_path / "data" / "valkey.sock").exists()
    await works(url)


async def test_an_embedded_server_is_shared_and_its_data_stay(short_path: Path) -> None:
    url = f"embedded://{short_path}/100%20of my? data#1"
    async with await Store.open(url) as first, await Store.open(url) as second:
        await leased(first)
        assert await second.views.topics() == [TOPIC]
    assert [path.name for path in short_path.iterdir()] == ["100%20of my? data#1"]
    async with await Store.open(url) as third:
        assert await third.views.topics() == [TOPIC]
        assert third.warnings == ()


# addresses that are none


@pytest.mark.parametrize(
    "url",
    ["", "localhost", "localhost:6379", "http://localhost", "redis:localhost", "REDIS//x", "://x"],
)
async def test_a_url_of_another_scheme_is_refused_with_those_that_we_know(url: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        await connect(url)
    assert repr(url) in str(caught.value) or "has no scheme" in str(caught.value)
    for scheme in SCHEMES:
        assert f"{scheme}://" in str(caught.value)


async def test_an_embedded_server_without_a_directory_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"embedded:// names no directory"):
        await connect("embedded://")


async def test_an_embedded_server_that_cannot_start_says_why(short_path: Path) -> None:
    (short_path / "file").touch()
    with pytest.raises(EmbeddedServerError, match="is a file"):
        await Store.open(f"embedded://{short_path}/file")


@pytest.mark.parametrize(
    "url",
    [
        "redis://h:port",
        "redis://h:99999",
        "redis://[::1",
        "redis://h?db=x",
        "redis://h?socket_timeout=x",
        "redis://h?nonsense=1",
        "unix:///x?nonsense=1",
    ],
)
async def test_a_url_that_makes_no_sense_is_refused_at_once(url: str) -> None:
    with pytest.raises(InvalidInput, match=r"URL .(redis|unix)"):
        await Store.open(url, patience=0.1)


@pytest.mark.parametrize("url", ["redis://h/x", "rediss://me:x@h:1/0x", "valkey://h/1/2"])
def test_a_database_that_is_not_a_number_is_refused_as_such(url: str) -> None:
    with pytest.raises(
        InvalidInput, match="the database, after the host and a /, is not"
    ) as caught:
        check_url(url)
    assert "password" not in str(caught.value)
    assert url.rpartition("/")[2] not in str(caught.value).partition("example")[0]  # may be secret


@pytest.mark.parametrize("url", ["redis://:pass/word@h", "redis://:pass#word@h"])
def test_a_password_that_is_not_quoted_is_refused_with_advice(url: str) -> None:
    with pytest.raises(InvalidInput, match="in a password, write / as %2F"):
        check_url(url)


# several servers


@pytest.mark.parametrize(
    "url",
    [
        "redis+cluster://a",
        "redis+cluster://a:7000,b,[::1]:7002/0",
        "rediss+cluster://me:x@a,b/?ssl_cert_reqs=none",
        "valkey+cluster://a",
        "redis+sentinel://a,b:26380,c/main",
        "redis+sentinel://me:x@a/main/3?sentinel_username=me&sentinel_password=x",
        "valkeys+sentinel://a/my%20primary/",
    ],
)
async def test_a_cluster_or_a_primary_behind_sentinels_is_named_by_some_of_their_hosts(
    url: str,
) -> None:
    check_url(url)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis+cluster://h/1", "a cluster has only database 0"),
        ("redis+cluster://h:port", "is not valid"),
        ("redis+cluster://h?nonsense=1", "nonsense is not an option of"),
        ("redis+sentinel://h", "must name the primary"),
        ("redis+sentinel://h/", "must name the primary"),
        ("redis+sentinel://h/main/x", "must name the primary"),
        ("redis+sentinel://h/main?nonsense=1", "nonsense is not an option of"),
        ("redis://a:1,b:2", "is not valid"),
        ("redis+://h", "must start with one of"),
        ("redis+both://h", "must start with one of"),
        ("unix+cluster:///s.sock", "must start with one of"),
        ("embedded+cluster://d", "must start with one of"),
    ],
)
async def test_what_names_no_cluster_and_no_primary_is_refused_at_once(
    url: str, expected: str
) -> None:
    with pytest.raises(InvalidInput, match=expected):
        check_url(url)


# servers that are not there


@pytest.mark.parametrize(
    "url", ["unix:///nowhere/s.sock", "redis://127.0.0.1:{port}", "rediss://127.0.0.1:{port}"]
)
@pytest.mark.parametrize("use", [Store.open, examine])
async def test_a_server_that_is_not_there_is_given_up_within_the_patience(
    url: str, use: Callable[..., Awaitable[object]]
) -> None:
    url = url.format(port=free_port())
    began = time.monotonic()
    with pytest.raises(ServerUnavailable) as caught:
        await use(url, prefix="mx-rmq", patience=0.2)
    assert time.monotonic() - began < 8  # the usual patience is 10
    text = str(caught.value)
    assert text.startswith(f"cannot use {url}: no answer within 0.2 s (")
    assert text.endswith("); check that the server runs there and that the URL is right")
    assert "TIME" not in text
    assert "changed" not in text


@pytest.mark.parametrize("use", [Store.open, examine])
async def test_a_url_that_a_server_cannot_serve_is_refused_at_once(
    server: Server, use: Callable[..., Awaitable[object]]
) -> None:
    url = f"unix://{server.socket}?db=99"
    with pytest.raises(ServerUnavailable) as caught:
        await use(url, prefix="mx-rmq", patience=300)  # which the test would not survive
    text = str(caught.value)
    assert text.startswith(f"cannot use {url}: the server has no database with this number: ")
    assert text.endswith("DB index is out of range")


@pytest.mark.parametrize("use", [Store.open, examine])
async def test_who_does_not_answer_over_tls_may_not_speak_it(
    use: Callable[..., Awaitable[object]],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # as servers are to what has no newline
        url = f"rediss://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ServerUnavailable, match="if the server does not speak TLS"):
            await use(url, prefix="mx-rmq", patience=0.2)


@pytest.mark.parametrize("url", ["redis://h:99999", "redis+cluster://a:1,b:65536"])
def test_a_port_that_is_too_large_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="the highest port is 65535"):
        check_url(url)


# passwords


@pytest.fixture
async def guarded(raw: Redis, server: Server) -> AsyncIterator[Server]:
    """A server that wants a password."""
    await raw.config_set("requirepass", SECRET)
    yield server
    await raw.config_set("requirepass", "")


async def test_the_right_password_opens_and_appears_nowhere(
    guarded: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for url in (
        f"unix://:{SECRET}@{guarded.socket}",
        f"unix://{guarded.socket}?password={SECRET}",
        f"unix://default:{SECRET}@{guarded.socket}",
    ):
        await works(url)
        servers = await connect(url)
        (node,) = servers.nodes()
        await node.client.ping()
        assert SECRET not in repr((servers, node, node.name))
        await servers.close()
    assert SECRET not in caplog.text


async def test_a_password_may_stand_in_a_file_that_is_read_for_every_connection(
    guarded: Server, raw: Redis, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    file = tmp_path / "password"
    file.write_text(f"{SECRET}\n")
    url = f"unix://{guarded.socket}?password_file={file}"
    async with await Store.open(url, patience=5) as store:
        await leased(store)
        await raw.config_set("requirepass", "changed-" + SECRET)
        file.write_text("changed-" + SECRET)
        await raw.client_kill_filter(_type="normal", skipme=True)
        await leased(store)
    await works(f"unix://default@{guarded.socket}?password_file={file}")
    assert SECRET not in caplog.text


async def test_a_password_file_that_cannot_be_read_is_named(
    guarded: Server, tmp_path: Path
) -> None:
    (tmp_path / "odd").write_bytes(b"\xff" + SECRET.encode())
    for name in ("missing", "odd"):
        url = f"unix://{guarded.socket}?password_file={tmp_path / name}"
        with pytest.raises(ServerUnavailable, match=name) as caught:
            await Store.open(url, patience=300)  # which the test would not survive
        assert SECRET not in everything_said(caught.value)


@pytest.mark.parametrize("given", [":wrong-" + SECRET, "nobody:" + SECRET, ""])
async def test_a_wrong_password_is_an_error_at_once_that_says_so(
    guarded: Server, caplog: pytest.LogCaptureFixture, given: str
) -> None:
    caplog.set_level(logging.DEBUG)
    began = time.monotonic()
    with pytest.raises(MxRmqError, match=r"(?i)password|auth") as caught:
        await Store.open(f"unix://{given}@{guarded.socket}" if given else guarded.url, patience=30)
    assert not isinstance(caught.value, OutcomeUnknown), "nothing can have been done"
    assert time.monotonic() - began < 20, "no repetition cures a wrong password"
    assert SECRET not in everything_said(caught.value)
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    "url",
    [
        "rdis://:hunter2@h",
        "redis:/:hunter2@h",
        "redis//:hunter2@h",
        ":hunter2@h:6379",
        "user:hunter2@h:6379",
        "redis://:hunter2@h:port",
        "redis://[:hunter2@h",
        "redis://:hunter2/x@h",
        "redis://:hunter2#x@h",
        "redis://:hunter2?x@h",
        "redis://user:x/hunter2@h:port",
        "redis://:x@hunter2@h:port",
        "redis://h?db=x&password=hunter2",
        "unix:///s.sock?password=hunter2&db=x",
        "rdis://h?password=hunter2",
        "rdis://h?p%61ssword=hunter2",
        "redis://h?db=x&p%61ssword=hunter2",
        "redis+cluster://:hunter2@a,b/3",
        "redis+sentinel://:hunter2@a,b",
        "redis+sentinel://a/main/x?sentinel_password=hunter2",
        "hunter2",
        "rdis://hunter2@h",
        "redis://hunter2@h:port",
        "redis://user:hunter2",
        "redis://h/hunter2",
        "redis://h:x?hunter2",
        "redis://h?auth=hunter2",
        "redis://h?pwd=hunter2",
        "redis://h?token=hunter2&db=1",
        "redis://h?username=hunter2&db=x",
        "rediss://h?ssl_password=hunter2&db=x",
    ],
)
async def test_a_url_with_a_mistake_is_quoted_without_its_password(url: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        await connect(url)
    assert SECRET not in everything_said(caught.value)


@pytest.mark.parametrize("given", [f":{SECRET}@", ""])
async def test_a_server_that_is_not_there_is_no_reason_to_show_the_password(
    given: str, short_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(ServerUnavailable) as caught:
        await Store.open(f"unix://{given}{short_path}/s?password={SECRET}", patience=0.05)
    assert SECRET not in everything_said(caught.value)
    assert SECRET not in caplog.text
