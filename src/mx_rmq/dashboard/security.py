"""Checks on every request, and security headers on every response."""

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

from mx_rmq.dashboard.auth import KNOWN
from mx_rmq.dashboard.errors import error_page
from mx_rmq.dashboard.request import SAFE, DashboardRequest
from mx_rmq.safe_log import get_logger

if TYPE_CHECKING:
    from collections.abc import Collection

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from mx_rmq.dashboard.auth import Authorize
    from mx_rmq.dashboard.request import Parts

logger = get_logger(__name__)

REQUEST: Final = "mx_rmq.request"  # scope key of our request

OPEN: Final = "/healthz"
"""The one path that needs no sign-in: it says whether the dashboard works, and nothing else."""

LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")

ANONYMOUS: Final = "dashboard"
"""The operator's name where everyone is admitted."""

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
HSTS: Final = "max-age=31536000"  # one year, without subdomains


class SecurityMiddleware:
    """Checks the host, the operator and the origin of actions; sets headers."""

    def __init__(
        self,
        app: ASGIApp,
        parts: Parts,
        *,
        authorize: Authorize | None,
        hosts: Collection[str] | None,
        origins: Collection[str],
        hsts: bool,
    ) -> None:
        self._hsts = hsts
        self._app = app
        self._parts = parts
        self._authorize = authorize
        self._origins = {origin.lower().rstrip("/") for origin in origins}
        proxies = (_host_name(origin.partition("://")[2]) for origin in self._origins)
        if hosts is None and authorize is None:
            hosts = LOOPBACK
        self._hosts = None if hosts is None else {*map(str.lower, hosts), *proxies}
        self._behind_tls = any(origin.startswith("https://") for origin in self._origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope = dict(scope)
        http = Request(scope, receive)
        secure = scope.get("scheme") == "https" or self._behind_tls
        host = http.headers.get("host", "")
        cookie = ("__Host-mx_rmq" if secure else "mx_rmq") + _cookie_suffix(host, scope)
        known = http.cookies.get(cookie, "")
        request = scope[REQUEST] = DashboardRequest(
            self._parts, http, known or secrets.token_urlsafe(32)
        )
        mark = http.cookies.get(f"{cookie}_known", "").encode("utf-8", "backslashreplace")
        marked = scope[KNOWN] = hmac.compare_digest(mark, request.mark.encode())

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
                if self._hsts and secure and _host_name(host) not in LOOPBACK:
                    headers["Strict-Transport-Security"] = HSTS
                if headers.get("content-type", "").startswith("text/html"):
                    rules = f"Path=/; HttpOnly; SameSite=Lax{'; Secure' if secure else ''}"
                    if not known:
                        headers.append("Set-Cookie", f"{cookie}={request.session}; {rules}")
                    if not marked and self._authorize is not None and request.who is not None:
                        headers.append("Set-Cookie", f"{cookie}_known={request.mark}; {rules}")
            await send(message)

        try:
            refused = await self._refused(request)
        except Exception as error:
            if not isinstance(error, HTTPException):
                logger.exception("refused a request, because authorizing it failed")
            request.note_refused("request", getattr(error, "detail", type(error).__name__))
            refused = error_page(request, error)
        await (refused or self._app)(scope, receive, with_headers)

    async def _refused(self, request: DashboardRequest) -> Response | None:
        """Return the refusal of a request; None: it may pass."""
        http = request.http
        if not self._is_our_host(http):
            if http.method not in SAFE:
                request.note_refused("act", "wrong host name")
            return request.error(
                421,
                "Wrong host",
                "This dashboard does not answer to that host name.",
                "Use localhost or 127.0.0.1, or allow the name when you start it: "
                "--origin https://…, or Dashboard(hosts=[…]).",
            )
        if http.method in SAFE and _path(http) == OPEN:
            return None
        who = await self._operator(http)
        if isinstance(who, Response):
            if "authorization" in http.headers or http.method not in SAFE:
                request.note_refused("sign in", f"answered with {who.status_code}")
            return who
        if who is None:
            request.note_refused("sign in", "not allowed")
            return request.error(
                403,
                "Not allowed",
                "You are not allowed to use this dashboard.",
                "Sign in, or ask the administrator.",
            )
        request.who = who
        request.read_query()
        if http.method not in SAFE and not self._is_our_origin(http):
            request.note_refused("act", "from another origin")
            return request.error(
                403,
                "Refused",
                "The action came from another origin. Nothing was done.",
                "Behind a proxy that changes the Host header, pass the public address: "
                "--origin https://…, or Dashboard(origins=[…]).",
            )
        return None

    async def _operator(self, http: Request) -> str | Response | None:
        if self._authorize is None:
            return ANONYMOUS
        answer = self._authorize(http)
        if inspect.isawaitable(answer):
            answer = await answer
        if answer is True:
            return ANONYMOUS
        return answer if isinstance(answer, str | Response) and answer else None

    def _is_our_host(self, http: Request) -> bool:
        """Prevent DNS rebinding: another site's host name that resolves to our address."""
        if self._hosts is None or "*" in self._hosts:
            return True
        return _host_name(http.headers.get("host", "")) in self._hosts

    def _is_our_origin(self, http: Request) -> bool:
        """Browsers send the origin of a form; a request without one is refused."""
        origin = http.headers.get("origin", "").lower()
        if not origin:
            return http.headers.get("sec-fetch-site") == "same-origin"
        if origin in self._origins:
            return True
        scheme, host = http.scope.get("scheme", "http"), http.headers.get("host", "").lower()
        port = {"http": ":80", "https": ":443"}.get(scheme, "")
        return origin in (f"{scheme}://{host}", f"{scheme}://{host.removesuffix(port)}")


def _host_name(header: str) -> str:
    name = header.lower()
    if name.startswith("["):
        return name.partition("]")[0] + "]"
    return name.partition(":")[0]


def _cookie_suffix(host: str, scope: Scope) -> str:
    """Return a suffix that keeps dashboards on one host apart: browsers send the cookies of all
    ports and paths to each."""
    port = host.lower().removeprefix(_host_name(host))
    place = ("" if port in (":80", ":443") else port) + str(scope.get("root_path", ""))
    return f"_{hashlib.sha256(place.encode()).hexdigest()[:8]}" if place else ""


def _path(http: Request) -> str:
    """Return the path below our mount point."""
    return str(http.scope["path"]).removeprefix(str(http.scope.get("root_path", "")))
