"""The dashboard as a Django view, for staff, under WSGI and ASGI.

The dashboard is an ASGI application. It runs in the background loop of `mq.sync`, where the queue
is open. The view passes the request on and returns the response. Forms carry the dashboard's own
tokens, which it checks itself, so the view is exempt from Django's.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from django.conf import settings
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpResponse, StreamingHttpResponse
from django.urls import NoReverseMatch, reverse
from django.utils.crypto import salted_hmac
from django.views.decorators.csrf import csrf_exempt

from mx_rmq.dashboard import Dashboard
from mx_rmq.django.queue import shared_queue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from django.http import HttpRequest
    from django.http.response import HttpResponseBase
    from starlette.requests import Request
    from starlette.types import Message, Scope

    from mx_rmq.queue import MessageQueue

OPERATOR: Final = "mx_rmq.operator"  # scope key: the name of the user

EVENTS: Final = "text/event-stream"

AGAIN: Final = b'event: again\ndata: {"after": 3000}\n\n'
"""Tells a page to ask for the next event after three seconds."""


@csrf_exempt
async def dashboard(request: HttpRequest, path: str = "") -> HttpResponseBase:
    """Answer a request to the dashboard if the user is staff."""
    if not hasattr(request, "auser"):
        raise ImproperlyConfigured(
            "the dashboard of mx-rmq needs django.contrib.auth.middleware.AuthenticationMiddleware"
        )
    user: Any = await request.auser()
    if not (user.is_active and user.is_staff):
        if user.is_authenticated:
            raise PermissionDenied("the dashboard of mx-rmq is for staff")
        return redirect_to_login(request.get_full_path(), _login_url())
    exchange = _Exchange(_scope(request, path, str(user.get_username())), request.body)
    sync = shared_queue().sync
    streams = isinstance(request, ASGIRequest)
    response, body = await sync.acall(lambda mq: exchange.begin(_dashboards.of(mq), streams))
    if body is not None:
        return _with_head(HttpResponse(body), response)

    async def events() -> AsyncIterator[bytes]:
        try:
            while chunk := await sync.acall(lambda _: exchange.chunk()):
                yield chunk
        finally:
            await sync.acall(lambda _: exchange.end())

    return _with_head(StreamingHttpResponse(events()), response)


def _login_url() -> str:
    """Return the sign-in page of the admin site; without one, LOGIN_URL."""
    try:
        return reverse("admin:login")
    except NoReverseMatch:
        return str(settings.LOGIN_URL)


def _scope(request: HttpRequest, path: str, operator: str) -> Scope:
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


def _with_head(response: HttpResponseBase, head: Message) -> HttpResponseBase:
    """Give a response of Django the status and the headers of the dashboard's."""
    response.status_code = head["status"]
    for name, value in head["headers"]:
        key, text = name.decode("latin-1"), value.decode("latin-1")
        if key == "set-cookie":
            response.cookies.load(text)
        else:
            response.headers[key] = text
    return response


class _Dashboards:
    """Keeps one dashboard for the queue that is open in this process's background loop."""

    def __init__(self) -> None:
        self._latest: Dashboard | None = None

    def of(self, mq: MessageQueue) -> Dashboard:
        """Return the dashboard; a new one if the queue was reopened, for example after a fork."""
        if self._latest is None or self._latest.parts.mq is not mq:
            secret = salted_hmac("mx_rmq.django.dashboard", "forms", algorithm="sha256")
            self._latest = Dashboard(mq, authorize=_operator, secret=secret.hexdigest())
        return self._latest


_dashboards = _Dashboards()


def _operator(request: Request) -> str | None:
    name: str | None = request.scope.get(OPERATOR)
    return name


class _Exchange:
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
