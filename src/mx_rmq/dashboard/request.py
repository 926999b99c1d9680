"""One request: its fields, its operator, and the responses it can get."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, quote, urlencode

from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, RedirectResponse, Response

from mx_rmq.dashboard import render

if TYPE_CHECKING:
    from starlette.requests import Request

    from mx_rmq.dashboard.assets import Assets
    from mx_rmq.dashboard.audit_log import AuditLog
    from mx_rmq.dashboard.jobs import Job, Jobs
    from mx_rmq.dashboard.queries import Queries
    from mx_rmq.dashboard.sampler import Sampler

SAFE: Final = ("GET", "HEAD")
"""Methods that change nothing."""

THEMES: Final = ("light", "dark")
THEME_COOKIE: Final = "mx_rmq_theme"

MOST_BYTES: Final = 8 * 1_048_576
"""Bytes of a form. Encoding may triple the size of a payload."""
MOST_FIELDS: Final = 1000
FORM_WITHIN: Final = 30.0
"""Seconds in which a form must have arrived."""

VERSION: Final = version("mx-rmq")

SAID: Final = {
    "requeued": ("good", "Requeued. A worker takes it when its turn comes."),
    "edited": ("good", "Requeued with the new payload."),
    "discarded": ("good", "Discarded."),
    "cancelled": ("good", "Cancelled."),
    "paused": ("good", "Paused. Workers finish what they have and take no more."),
    "resumed": ("good", "Resumed. Workers take its messages again."),
    "same": ("note", "Nothing changed: it was already so."),
    "gone": ("warn", "Nothing was done: the message is gone or has changed state."),
    "taken": ("warn", "Nothing was done: a worker already has the message."),
    "stopping": ("good", "The job is stopping. What it has done is not undone."),
}
"""What a page may say about the previous action. A URL names one of these, never a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a dashboard is made of."""

    queries: Queries
    sampler: Sampler
    audit_log: AuditLog
    jobs: Jobs
    assets: Assets
    read_only: bool
    secret: bytes
    """Signs the tokens of forms."""


class DashboardRequest:
    """A request, and the responses it can get."""

    def __init__(self, parts: Parts, http: Request, session: str) -> None:
        self.parts = parts
        self.http = http
        self.session = session
        self.who: str | None = None
        """The operator; None: not admitted."""
        self.query: dict[str, str] = {}
        """The query fields, once they are read."""
        self.base = str(http.scope.get("root_path", "")).rstrip("/")

    def read_query(self) -> None:
        """Read the query fields, or refuse them."""
        self.query = _fields(self.http.scope.get("query_string", b"").decode("latin-1"))

    @property
    def operator(self) -> str:
        """Who acts."""
        if self.who is None:
            raise HTTPException(403)
        return self.who

    @property
    def where(self) -> str:
        """The address of the client, and what X-Forwarded-For claims."""
        host = self.http.client.host if self.http.client else ""
        said = self.http.headers.get("x-forwarded-for", "")[:100]
        return f"{host} for {said}" if said else host

    @property
    def topic(self) -> str:
        """The topic in the path."""
        return str(self.http.path_params["topic"])

    @property
    def page_number(self) -> int:
        """Which page of the topics, from 1 on."""
        number = self.query.get("page", "")
        known = number.isascii() and number.isdigit() and len(number) < 7
        return max(1, int(number)) if known else 1

    @property
    def job(self) -> Job:
        """The job in the path."""
        found = self.parts.jobs.get(str(self.http.path_params["job"]))
        if found is None:
            raise HTTPException(
                404,
                "This dashboard process has no such job: it has restarted since, or another "
                "process runs the job.",
            )
        return found

    @property
    def token(self) -> str:
        """The token that every form of this session and operator must contain."""
        return _signed(self.parts.secret, f"{self.session}\n{self.who or ''}")

    @property
    def mark(self) -> str:
        """The cookie value that shows that this session was admitted before."""
        return _signed(self.parts.secret + b" let in", self.session)

    async def form(self) -> dict[str, str]:
        """Read the form; refuse one that did not come from our own pages."""
        kind = self.http.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/x-www-form-urlencoded":
            raise HTTPException(415, "Only forms are accepted.")
        try:
            async with asyncio.timeout(FORM_WITHIN):
                body = await self._body()
        except TimeoutError:
            raise HTTPException(408, "The form did not arrive in time.") from None
        fields = _fields(body.decode("latin-1"))
        given = fields.get("token", "").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(given, self.token.encode()):
            raise HTTPException(
                403,
                "The form is from another session, or from before a restart of the dashboard. "
                "Nothing was done. Go back, reload the page and try again.",
            )
        return fields

    async def _body(self) -> bytearray:
        body = bytearray()
        async for chunk in self.http.stream():
            body += chunk
            if len(body) > MOST_BYTES:
                raise HTTPException(413, f"A form may have at most {MOST_BYTES:,} bytes.")
        return body

    def note(self, did: str, outcome: str, *, topic: str = "", id: str = "") -> None:
        """Record an action in the audit log."""
        self.parts.audit_log.note(
            did, outcome, who=self.operator, where=self.where, topic=topic, id=id
        )

    def note_refused(self, did: str, why: str) -> None:
        """Record a refused action in the audit log."""
        topic = str(self.http.path_params.get("topic", ""))
        self.parts.audit_log.refused(
            did, why, who=self.who or "", where=self.where, topic=topic, id=self.query.get("id", "")
        )

    def to(self, *path: str, **query: object) -> str:
        """Return the URL of a page of ours, whatever the names in it are made of."""
        address = self.base + "/" + "/".join(_quoted(part) for part in path)
        fields = {name: str(value) for name, value in query.items() if value not in (None, "")}
        if "id" in query:
            fields["id"] = str(query["id"])  # also an empty one
        return address + (f"?{_encoded(fields)}" if fields else "")

    def asset(self, name: str) -> str:
        """Return the URL of a style sheet, a script or a picture."""
        return self.to("static", self.parts.assets.version, name)

    def page(self, template: str, *, status: int = 200, **values: Any) -> Response:
        """Return a page."""
        theme = self.http.cookies.get(THEME_COOKIE, "")
        html = render.html(
            template,
            request=self,
            to=self.to,
            asset=self.asset,
            token=self.token,
            read_only=self.parts.read_only,
            theme=theme if theme in THEMES else "",
            said=SAID.get(self.query.get("said", "")),
            version=VERSION,
            prefix=self.parts.queries.prefix,
            **values,
        )
        return HTMLResponse(html, status_code=status)

    def go(self, *path: str, **query: object) -> Response:
        """Send the browser to a page, after an action."""
        return RedirectResponse(self.to(*path, **query), status_code=303)


def _signed(secret: bytes, text: str) -> str:
    mac = hmac.new(secret, text.encode("utf-8", "backslashreplace"), hashlib.sha256)
    return base64.urlsafe_b64encode(mac.digest()).decode().rstrip("=")


def _fields(text: str) -> dict[str, str]:
    """Read names and values, whatever bytes they hold; of a name that comes twice, the last."""
    try:
        pairs = parse_qsl(
            text, keep_blank_values=True, errors="surrogateescape", max_num_fields=MOST_FIELDS
        )
    except ValueError:
        raise HTTPException(400, f"More than {MOST_FIELDS:,} fields.") from None
    return dict(pairs)


def _quoted(text: str) -> str:
    return quote(text, safe="", errors="surrogateescape")


def _encoded(fields: dict[str, str]) -> str:
    return urlencode(fields, errors="surrogateescape", quote_via=quote)
