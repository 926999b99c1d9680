"""The small HTTP server: what it refuses, and that nothing keeps it from answering the next one."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING

import pytest

from mx_rmq.core.errors import InvalidInput
from mx_rmq.metrics import http
from mx_rmq.metrics.http import Answer, HttpServer
from tests.lab.growth import grows_gently
from tests.metrics.asking import get, say, understood
from tests.runtime.stage import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

LARGE = b"x" * 8_000_000
"""More than any socket's buffers hold."""


async def _plain(headers: Mapping[str, str]) -> Answer:
    return Answer(HTTPStatus.OK, f"hello {headers.get('accept', 'nobody')}\n".encode())


async def _large(_: Mapping[str, str]) -> Answer:
    return Answer(HTTPStatus.OK, LARGE)


async def _broken(_: Mapping[str, str]) -> Answer:
    raise ValueError("a secret")


@pytest.fixture
async def server() -> AsyncIterator[HttpServer]:
    server = HttpServer({"/plain": _plain, "/large": _large, "/broken": _broken})
    yield server
    await server.stop()
    assert not server._open
    assert not server._silent


@pytest.fixture
async def port(server: HttpServer) -> int:
    return await server.start("127.0.0.1", 0)


async def test_a_page_is_served_and_the_connection_closed(port: int) -> None:
    reply = await get(port, "/plain?x=1", accept="me")
    assert (reply.status, reply.body) == (200, "hello me\n")
    assert reply.headers["content-length"] == "9"
    assert reply.headers["connection"] == "close"
    assert reply.headers["x-content-type-options"] == "nosniff"


async def test_head_says_how_long_the_page_would_be_and_sends_none(port: int) -> None:
    reply = await get(port, "/plain", method="HEAD")
    assert (reply.status, reply.body) == (200, "")
    assert reply.headers["content-length"] == "13"


async def test_a_large_page_arrives_whole(port: int) -> None:
    answer = await say(port, b"GET /large HTTP/1.0\r\n\r\n")
    assert answer.endswith(b"\r\n\r\n" + LARGE)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /plain HTTP/1.1\r\nHost: a\r\n\r\n", 200),
        (b"GET /other HTTP/1.1\r\nHost: a\r\n\r\n", 404),
        (b"GET /../plain HTTP/1.1\r\n\r\n", 404),
        (b"GET http://elsewhere/plain HTTP/1.1\r\n\r\n", 404),
        (b"POST /plain HTTP/1.1\r\nContent-Length: 100000\r\n\r\n" + b"x" * 100_000, 405),
        (b"get /plain HTTP/1.1\r\n\r\n", 405),
        (b"GET /plain HTTP/2.0\r\n\r\n", 400),
        (b"GET /plain\r\n\r\n", 400),
        (b"GET  /plain HTTP/1.1\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),  # TLS
        (b"GET /plain HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET /plain HTTP/1.1\r\nA: b\r\n folded\r\n\r\n", 400),
        (b"GET /plain HTTP/1.1\r\nAccept: a\nX: b\r\n\r\n", 400),
        (b"GET /plain HTTP/1.1\r\nAccept: \xff\r\n\r\n", 400),
        (b"GET /plain HTTP/1.1\r\nAccept : a\r\n\r\n", 400),
        (b"GET /plain HTTP/1.1\r\nA: " + b"b" * http.MAX_HEAD + b"\r\n\r\n", 431),
        (b"x" * 100_000, 431),
        (b"GET /broken HTTP/1.1\r\n\r\n", 500),
        (b"GET /plain HTTP/1.9\r\n\r\n", 400),
        (b"GET /plain\x7f HTTP/1.1\r\n\r\n", 400),
        (b"GET /plain HTTP/1.1\r\n: a\r\n\r\n", 400),
        (b"GET /plain HTTP/1.1\r\nAccept:\ta\tb\t\r\n\r\n", 200),
    ],
    ids=range(23),
)
async def test_a_request_gets_the_answer_that_it_deserves(
    port: int, request_: bytes, status: int
) -> None:
    reply = understood(await say(port, request_))
    assert reply.status == status
    assert "secret" not in reply.body
    if status == 405:
        assert reply.headers["allow"] == "GET, HEAD"
    assert (await get(port, "/plain")).status == 200


@pytest.mark.parametrize(
    ("before", "again", "after"),
    [
        (b"GET /plain HTTP/1.1\r\nA:", b" ", b"\x00"),  # froze a worker for 28 s
        (b"GET /plain HTTP/1.1\r\nA:", b"\t \t", b"\xff"),
        (b"GET /plain HTTP/1.1\r\nA: ", b"a ", b"\x00"),
        (b"GET /plain HTTP/1.1\r\n", b"a", b""),
        (b"GET /plain HTTP/1.1\r\n", b"a:\r\n", b"a"),
        (b"GET /plain HTTP/1.1\r\n", b":", b""),
        (b"GET ", b" ", b"HTTP/1.1"),
        (b"GET ", b"/", b" HTTP/1.1\x00"),
        (b"", b"G", b""),
        (b"", b"\r\n", b""),
    ],
    ids=range(10),
)
def test_no_request_takes_long_to_understand(before: bytes, again: bytes, after: bytes) -> None:
    def understand(head: bytes) -> None:
        with suppress(ValueError):
            http._parse(head)

    grows_gently(understand, lambda size: before + again * (size // len(again)) + after)


async def test_who_asks_half_a_question_or_reads_half_an_answer_is_left(
    server: HttpServer, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "ASK_WITHIN", 0.1)
    monkeypatch.setattr(http, "WITHIN", 0.2)
    writers: list[asyncio.StreamWriter] = []
    seen: set[asyncio.Task[None]] = set()  # the first may have been left when the last comes
    for request in (b"", b"GET /plain HTTP/1.1\r\nHos", b"GET /large HTTP/1.1\r\n\r\n"):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        writers.append(writer)
        while len(seen) < len(writers):
            seen.update(server._open)
            await asyncio.sleep(0)
    await until(lambda: not server._open)
    for writer in writers:
        writer.close()


async def test_who_says_nothing_keeps_nobody_else_away(
    server: HttpServer, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "ASK_WITHIN", 60)
    monkeypatch.setattr(http, "WITHIN", 60)
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(http.MAX_OPEN)]
    await until(lambda: len(server._open) == http.MAX_OPEN)
    for _ in range(5):
        assert (await get(port, "/plain")).status == 200
    (first, _), (last, _) = silent[0], silent[-1]
    assert await first.read() == b""
    assert not last.at_eof(), "one place was enough for all that came one by one"
    for _, writer in silent:
        writer.close()


async def test_who_does_not_read_keeps_nobody_else_away(
    server: HttpServer, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "MAX_OPEN", 2)
    writers = [(await asyncio.open_connection("127.0.0.1", port))[1] for _ in range(2)]
    for writer in writers:
        writer.write(b"GET /large HTTP/1.1\r\n\r\n")
    await until(lambda: len(server._open) == 2 and not server._silent)
    assert (await get(port, "/plain")).status == 200
    assert len(server._open) == 1
    for writer in writers:
        writer.close()


async def test_stopping_ends_what_is_open_and_frees_the_port(server: HttpServer, port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await until(lambda: server._open)
    await server.stop()
    assert await reader.read() == b""
    writer.close()
    assert await server.start("127.0.0.1", port) == port


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host", "a" * 70])
async def test_an_address_that_cannot_be_had_is_refused_in_one_line(host: str) -> None:
    with pytest.raises(InvalidInput, match=f"^cannot listen on {host}, port 0: .+$"):
        await HttpServer({}).start(host, 0)


async def test_a_port_that_is_taken_is_refused(port: int) -> None:
    with pytest.raises(InvalidInput, match=rf"^cannot listen on 127.0.0.1, port {port}: "):
        await HttpServer({}).start("127.0.0.1", port)
