"""One request to the dashboard, which is an ASGI application, and its response."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from django.http import HttpRequest
    from starlette.types import Message, Scope

    from mx_rmq.dashboard import Dashboard

OPERATOR: Final = "mx_rmq.operator"  # scope key: the name of the user

EVENTS: Final = "text/event-stream"

AGAIN: Final = b'event: again\ndata: {"after": 3000}\n\n'
"""Tells a page to ask for the next event after three seconds."""


def scope_of(request: HttpRequest, path: str, operator: str) -> Scope:
    """Return a request of Django as an ASGI application gets it."""
    headers = {name.lower(): value for name, value in request.headers.items()}
    headers["host"] = request.get_host()  # as Django has checked it
    root = request.path.removesuffix(path).rstrip("/")
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.scheme,
        "path": request.path,
        "root_path": root,
        "query_string": request.META.get("QUERY_STRING", "").encode("utf-8", "replace"),
        "headers": [
            (name.encode("latin-1", "replace"), value.encode("latin-1", "replace"))
            for name, value in headers.items()
        ],
        "client": (request.META.get("REMOTE_ADDR", ""), 0),
        "server": None,
        OPERATOR: operator,
    }


class Exchange:
    """One request and its response, in the loop of the dashboard."""

    def __init__(self, scope: Scope, body: bytes) -> None:
        self._scope = scope
        self._body: bytes | None = body
        self._sent: asyncio.Queue[Message | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def begin(self, app: Dashboard, streams: bool) -> tuple[Message, bytes | None]:
        """Start; return the head of the response, and its body. None: read events by `chunk`.

        WSGI has a thread for every open response, and few of them. So there events end after the
        first one, and the page asks again after three seconds.
        """
        self._task = asyncio.create_task(self._run(app), name="mx-rmq dashboard request")
        try:
            head = await self._next()
            if head is None:
                raise RuntimeError("the dashboard sent no response")
            is_events = any(
                name == b"content-type" and value.startswith(EVENTS.encode())
                for name, value in head["headers"]
            )
            if is_events and streams:
                return head, None
            body = b""
            while chunk := await self.chunk():
                body += chunk
                if is_events and b"event:" in body:
                    body += AGAIN
                    break
            await self.end()
        except BaseException:
            await self.end()
            raise
        return head, body

    async def chunk(self) -> bytes:
        """Return the next part of the body; empty: there is no more."""
        while (message := await self._next()) is not None:
            if message.get("body"):
                return bytes(message["body"])
        return b""

    async def end(self) -> None:
        """End the request, finished or not."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _next(self) -> Message | None:
        message = await self._sent.get()
        if message is None and self._task is not None:
            await self._task  # raises what the dashboard raised
        return message

    async def _run(self, app: Dashboard) -> None:
        try:
            await app(self._scope, self._receive, self._sent.put)
        finally:
            self._sent.put_nowait(None)

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await asyncio.Event().wait()  # until `end` cancels it
        raise AssertionError("unreachable")
