"""What every request must pass, and what every answer bears."""

from __future__ import annotations

import hashlib
import hmac
import inspect
import secrets
from typing import TYPE_CHECKING, Final

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from mx_rmq.dashboard.access import KNOWN
from mx_rmq.dashboard.ask import SAFE, Ask
from mx_rmq.dashboard.errors import error_page
from mx_rmq.safe_log import get_logger

if TYPE_CHECKING:
    from collections.abc import Collection

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from mx_rmq.dashboard.access import Authorize
    from mx_rmq.dashboard.ask import Parts

logger = get_logger(__name__)

ASK: Final = "mx_rmq.ask"
"""Where in the scope the request is, once it has passed."""

OPEN: Final = "/healthz"
"""The one path for which nobody has to be let in: it tells whether we work, and nothing else."""

ANY: Final = "*"
"""Stands for every host."""

LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")

NAMELESS: Final = "dashboard"
"""Who acts, where everybody is let in."""

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


HSTS: Final = "max-age=31536000"
"""For a year. Subdomains are not ours to decide about."""


class Guard:
    """Stands before the application: hosts, operators, the origin of actions, headers."""

    def __init__(
        self,
        app: ASGIApp,
        parts: Parts,
        *,
        authorize: Authorize | None,
        hosts: Collection[str] | None,
        origins: Collection[str],
        hsts: bool = False,
    ) -> None:
        self._hsts = hsts
        self._app = app
        self._parts = parts
        self._authorize = authorize
        self._origins = {origin.lower().rstrip("/") for origin in origins}
        proxies = (_host(origin.partition("://")[2]) for origin in self._origins)
        if hosts is None and authorize is None:
            hosts = LOOPBACK
        self._hosts = None if hosts is None else {*map(str.lower, hosts), *proxies}
        self._behind_tls = any(origin.startswith("https://") for origin in self._origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope = dict(scope)
        request = Request(scope, receive)
        secure = scope.get("scheme") == "https" or self._behind_tls
        here = request.headers.get("host", "")
        cookie = ("__Host-mx_rmq" if secure else "mx_rmq") + _place(here, scope)
        known = request.cookies.get(cookie, "")
        ask = scope[ASK] = Ask(self._parts, request, known or secrets.token_urlsafe(32))
        mark = request.cookies.get(f"{cookie}_known", "").encode("utf-8", "backslashreplace")
        marked = scope[KNOWN] = hmac.compare_digest(mark, ask.mark.encode())

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
                if self._hsts and secure and _host(here) not in LOOPBACK:
                    headers["Strict-Transport-Security"] = HSTS
                if headers.get("content-type", "").startswith("text/html"):
                    rules = f"Path=/; HttpOnly; SameSite=Lax{'; Secure' if secure else ''}"
                    if not known:
                        headers.append("Set-Cookie", f"{cookie}={ask.session}; {rules}")
                    if not marked and self._authorize is not None and ask.who is not None:
                        headers.append("Set-Cookie", f"{cookie}_known={ask.mark}; {rules}")
            await send(message)

        try:
            refused = await self._refused(ask)
        except Exception as error:
            if not isinstance(error, HTTPException):
                logger.exception("a request could not be checked, and was refused")
            ask.note_refused("ask", getattr(error, "detail", type(error).__name__))
            refused = error_page(ask, error)
        await (refused or self._app)(scope, receive, with_headers)

    async def _refused(self, ask: Ask) -> Response | None:
        """Return why a request goes no further; None: it may pass."""
        request = ask.request
        if not self._is_our_host(request):
            if request.method not in SAFE:
                ask.note_refused("act", "by a name that is not ours")
            return ask.page(
                "error.html",
                status=421,
                title="Wrong host",
                text="The dashboard is not known by the name in the address.",
                advice="Use localhost or 127.0.0.1, or name it at the start: "
                "--origin https://…, or Dashboard(hosts=[…]).",
            )
        if request.method in SAFE and _path(request) == OPEN:
            return None
        who = await self._operator(request)
        if isinstance(who, Response):
            if "authorization" in request.headers or request.method not in SAFE:
                ask.note_refused("sign in", f"answered with {who.status_code}")
            return who
        if who is None:
            ask.note_refused("sign in", "not allowed")
            return ask.page(
                "error.html",
                status=403,
                title="Not for you",
                text="You are not allowed to use this dashboard.",
                advice="Sign in, or ask whoever runs it.",
            )
        ask.who = who
        ask.read_query()
        if request.method not in SAFE and not self._is_our_origin(request):
            ask.note_refused("act", "from another origin")
            return ask.page(
                "error.html",
                status=403,
                title="Refused",
                text="The action came from another place than this dashboard. Nothing was done.",
                advice="Behind a proxy that changes the Host header, name the public address: "
                "--origin https://…, or Dashboard(origins=[…]).",
            )
        return None

    async def _operator(self, request: Request) -> str | Response | None:
        if self._authorize is None:
            return NAMELESS
        answer = self._authorize(request)
        if inspect.isawaitable(answer):
            answer = await answer
        if answer is True:
            return NAMELESS
        return answer if isinstance(answer, str | Response) and answer else None

    def _is_our_host(self, request: Request) -> bool:
        """A page elsewhere must not reach us by a name of its own that leads to our address."""
        if self._hosts is None or ANY in self._hosts:
            return True
        return _host(request.headers.get("host", "")) in self._hosts

    def _is_our_origin(self, request: Request) -> bool:
        """Browsers say where a form was; what does not say it, is refused."""
        origin = request.headers.get("origin", "").lower()
        if not origin:
            return request.headers.get("sec-fetch-site") == "same-origin"
        if origin in self._origins:
            return True
        scheme, here = request.scope.get("scheme", "http"), request.headers.get("host", "").lower()
        port = {"http": ":80", "https": ":443"}.get(scheme, "")
        return origin in (f"{scheme}://{here}", f"{scheme}://{here.removesuffix(port)}")


def _host(header: str) -> str:
    """Return the name in a Host header, without the port."""
    name = header.lower()
    if name.startswith("["):
        return name.partition("]")[0] + "]"
    return name.partition(":")[0]


def _place(host: str, scope: Scope) -> str:
    """Return what tells the cookies of dashboards on one host apart: browsers send those of all
    ports and paths to each."""
    port = host.lower().removeprefix(_host(host))
    place = ("" if port in (":80", ":443") else port) + str(scope.get("root_path", ""))
    return f"_{hashlib.sha256(place.encode()).hexdigest()[:8]}" if place else ""


def _path(request: Request) -> str:
    """Return the path below the place where we are mounted."""
    return str(request.scope["path"]).removeprefix(str(request.scope.get("root_path", "")))
