"""A very small HTTP server for a few pages that machines read.

One request per connection, GET or HEAD, with limits on the size of the head and on the time. It
runs in the worker's event loop on purpose: if it answers, the loop runs.
"""

from __future__ import annotations

import asyncio
import string
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Final, NamedTuple

from mx_rmq.core.errors import InvalidInput
from mx_rmq.safe_log import get_logger

logger = get_logger(__name__)

MAX_HEAD: Final = 8192  # bytes of a request line and its headers
MAX_OPEN: Final = 64  # connections; one more drops another
ASK_WITHIN: Final = 2.0  # seconds from the connection to the end of the request's head
WITHIN: Final = 10.0  # seconds from the connection to the end of the response
LINGER: Final = 0.5  # seconds to read the rest of a refused request, so that the refusal arrives

PLAIN: Final = "text/plain; charset=utf-8"

_VERSIONS: Final = ("HTTP/1.0", "HTTP/1.1")
_IN_NAMES: Final = frozenset("!#$%&'*+-.^_`|~" + string.digits + string.ascii_letters)


class Answer(NamedTuple):
    status: HTTPStatus
    body: bytes
    content_type: str = PLAIN


Page = Callable[[Mapping[str, str]], Awaitable[Answer]]
"""Takes the headers of a request, their names in lower case."""


class HttpServer:
    """Serves pages, each under its path."""

    def __init__(self, pages: Mapping[str, Page]) -> None:
        self._pages = pages
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}  # oldest first
        self._silent: dict[asyncio.Task[None], None] = {}  # those that have sent no request yet

    async def start(self, host: str, port: int) -> int:
        """Start listening; return the port: with 0, a free one is chosen."""
        try:
            self._server = await asyncio.start_server(self._connected, host, port, limit=MAX_HEAD)
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise InvalidInput(f"cannot listen on {host}, port {port}: {why}") from error
        name: tuple[str, int] = self._server.sockets[0].getsockname()
        return name[1]

    async def stop(self) -> None:
        """Stop listening and drop the open connections."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        tasks = list(self._open)
        for task in tasks:
            self._drop(task)
        if tasks:
            await asyncio.wait(tasks)
        await server.wait_closed()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= MAX_OPEN:
            # Drop the connection that has been silent longest, else the one being answered
            # longest. Not the newest: otherwise a client that opens connections and sends nothing
            # could keep health probes away and get the worker killed. A probe sends its request
            # at once.
            self._drop(next(iter(self._silent or self._open)))
        task = asyncio.create_task(self._serve(reader, writer), name="mx-rmq http")
        self._open[task] = writer
        self._silent[task] = None
        task.add_done_callback(self._ended)

    def _drop(self, task: asyncio.Task[None]) -> None:
        self._open[task].transport.abort()  # a task cancelled before it started would not do it
        task.cancel()
        self._ended(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._open.pop(task, None)
        self._silent.pop(task, None)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(0)  # so that drain waits for the last byte
        try:
            async with asyncio.timeout(WITHIN):
                answer, method = await self._respond(reader)
                writer.write(_encode(answer, method))
                await writer.drain()
                if answer.status >= HTTPStatus.BAD_REQUEST and writer.can_write_eof():
                    writer.write_eof()
                    await _drain(reader)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            writer.transport.abort()  # the client has gone, or is too slow
        finally:
            writer.close()

    async def _respond(self, reader: asyncio.StreamReader) -> tuple[Answer, str]:
        """Read a request; return the answer and the request's method."""
        try:
            async with asyncio.timeout(ASK_WITHIN):
                head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "too long"), ""
        if (task := asyncio.current_task()) is not None:
            self._silent.pop(task, None)
        try:
            method, target, headers = _parse(head)
        except ValueError:
            return _refused(HTTPStatus.BAD_REQUEST, "not HTTP/1.1"), ""
        if method not in ("GET", "HEAD"):
            return _refused(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD"), method
        page = self._pages.get(target.partition("?")[0])
        if page is None:
            there = ", ".join(self._pages)
            return _refused(HTTPStatus.NOT_FOUND, f"not found; the pages are {there}"), method
        try:
            answer = await page(headers)
        except Exception:
            logger.exception("cannot answer %s", target[:80])
            answer = _refused(HTTPStatus.INTERNAL_SERVER_ERROR, "failed: see the log")
        return answer, method


def _parse(head: bytes) -> tuple[str, str, dict[str, str]]:
    """Return method, target and headers; raise ValueError if this is not HTTP/1.

    With plain string methods: each reads a byte once or twice, whatever a stranger sends.
    """
    first, *rest = head.removesuffix(b"\r\n\r\n").decode("ascii").split("\r\n")
    method, target, version = first.split(" ")
    if version not in _VERSIONS or not (method and target and first.isprintable()):
        raise ValueError
    headers = {}
    for line in rest:
        name, colon, value = line.partition(":")
        value = value.strip(" \t")
        if not (name and colon and _IN_NAMES.issuperset(name)):
            raise ValueError
        if not value.replace("\t", " ").isprintable():
            raise ValueError
        headers[name.lower()] = value
    return method, target, headers


def _refused(status: HTTPStatus, why: str) -> Answer:
    return Answer(status, f"{why}\n".encode())


def _encode(answer: Answer, method: str) -> bytes:
    status, body, content_type = answer
    head = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
    ]
    if status is HTTPStatus.METHOD_NOT_ALLOWED:
        head.append("Allow: GET, HEAD")
    return "\r\n".join([*head, "", ""]).encode("ascii") + (b"" if method == "HEAD" else body)


async def _drain(reader: asyncio.StreamReader) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGER):
            while await reader.read(MAX_HEAD):
                pass
