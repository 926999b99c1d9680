"""The dashboard as a Django view, for staff, under WSGI and ASGI.

The dashboard is an ASGI application. It runs in the background loop of `mq.sync`, where the queue
is open. The view passes the request on and returns the response. Forms carry the dashboard's own
tokens, which it checks itself, so the view is exempt from Django's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpResponse, StreamingHttpResponse
from django.urls import NoReverseMatch, reverse
from django.utils.crypto import salted_hmac
from django.views.decorators.csrf import csrf_exempt

from mx_rmq.dashboard import Dashboard
from mx_rmq.django.dashboard_exchange import OPERATOR, Exchange, scope_of
from mx_rmq.django.project_queue import shared_queue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from django.http import HttpRequest
    from django.http.response import HttpResponseBase
    from starlette.requests import Request
    from starlette.types import Message

    from mx_rmq.queue import MessageQueue


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
    exchange = Exchange(scope_of(request, path, str(user.get_username())), request.body)
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
