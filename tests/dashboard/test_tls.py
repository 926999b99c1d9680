"""`mx-rmq dashboard` with its own TLS: strangers who do not finish a handshake keep nobody out."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections import Counter
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import uvicorn
from uvicorn.server import ServerState

from mx_rmq.dashboard import server as dashboard_server
from tests.dashboard.test_command import COMMAND, Running, running
from tests.lab.tls import Authority, Pair
from tests.runtime.stage import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mx_rmq.store.store import Store
    from tests.lab.servers import Server

FEW = ("prlimit", "--nofile=256", *COMMAND)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.issue("127.0.0.1", "localhost")


@pytest.fixture(scope="module")
def trusting(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority.file))


@pytest.fixture
async def one(store: Store, server: Server, pair: Pair) -> AsyncIterator[Running]:
    own = ("--tls-cert", str(pair.certificate), "--tls-key", str(pair.key))
    with running("--url", server.url, *own, command=FEW) as one:
        yield one
        assert one.end() == 0
        assert one.process.stderr is not None
        assert one.process.stderr.read().count("\n") == 1  # that it has no append-only file


def port_of(one: Running) -> int:
    return int(one.url.rstrip("/").rpartition(":")[2])


async def test_it_speaks_tls_and_asks_browsers_for_no_less(
    one: Running, trusting: ssl.SSLContext
) -> None:
    with httpx.Client(verify=trusting, timeout=30) as client:
        assert one.url.startswith("https://127.0.0.1:")
        page = client.get(one.url)
        assert page.status_code == 200
        assert page.headers["set-cookie"].startswith("__Host-mx_rmq")
        with client.stream("GET", f"{one.url}live") as stream:
            assert next(stream.iter_lines()) == "retry: 3000"
        with suppress(httpx.TransportError):
            httpx.get(one.url.replace("https", "http"), timeout=30)
        assert client.get(f"{one.url}healthz").text == "ok\n"
    for _ in range(3):
        assert _asked_at_once(trusting, port_of(one)).endswith(b"ok\n")


def _asked_at_once(trusting: ssl.SSLContext, port: int) -> bytes:
    """Send the end of the handshake and a request in one go; return the answer."""
    into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = trusting.wrap_bio(into, out, server_hostname="127.0.0.1")
    with socket.create_connection(("127.0.0.1", port), 30) as plain:
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                plain.sendall(out.read())
                into.write(plain.recv(65536))
        tls.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        plain.sendall(out.read())
        answer = b""
        while b"ok\n" not in answer:
            into.write(plain.recv(65536))
            with suppress(ssl.SSLWantReadError):
                answer += tls.read(65536)
    return answer


async def test_handshakes_that_nobody_finishes_do_not_keep_others_out(
    one: Running, trusting: ssl.SSLContext
) -> None:
    with ExitStack() as stack:
        address = ("127.0.0.1", port_of(one))
        idle = [stack.enter_context(socket.create_connection(address)) for _ in range(300)]
        with httpx.Client(verify=trusting, timeout=20) as client:
            assert client.get(f"{one.url}healthz").text == "ok\n"
            began = time.monotonic()
            idle[-1].settimeout(60)
            with suppress(ConnectionResetError):
                assert idle[-1].recv(1) == b""  # it was given five seconds, not asyncio's sixty
            assert time.monotonic() - began < 40
            assert client.get(f"{one.url}healthz").text == "ok\n"


async def _app(scope: Any, receive: Any, send: Any) -> None: ...


async def test_of_too_many_handshakes_those_of_the_peer_with_the_most_are_dropped(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard_server, "HANDSHAKES", 5)
    monkeypatch.setattr(dashboard_server, "HANDSHAKE", 60.0)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.certificate, pair.key)
    tls, config = (
        dashboard_server.Tls(context),
        uvicorn.Config(_app, lifespan="off", log_config=None),
    )
    of_uvicorn = {"config": config, "server_state": ServerState(), "app_state": {}}
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: tls(**of_uvicorn), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    connect = partial(asyncio.open_connection, "127.0.0.1", port)
    few = await connect(local_addr=("127.0.0.2", 0))
    await until(lambda: tls._open)
    many = [await connect() for _ in range(20)]
    for reader, _ in many[:16]:
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
    assert Counter(tls._open.values()) == {"127.0.0.2": 1, "127.0.0.1": 4}
    for _, writer in (few, *many):
        writer.close()
    await until(lambda: not tls._open)
    server.close()
    await server.wait_closed()
