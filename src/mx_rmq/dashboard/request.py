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

from mx_rmq.dashboard import assets, render
from mx_rmq.dashboard.audit_log import AuditEntry

if TYPE_CHECKING:
    from starlette.requests import Request

    from mx_rmq.admin import Admin
    from mx_rmq.dashboard.audit_log import AuditLog
    from mx_rmq.dashboard.jobs import Job, Jobs
    from mx_rmq.dashboard.queries import Queries
    from mx_rmq.dashboard.sampler import Sampler
    from mx_rmq.queue import MessageQueue

SAFE: Final = ("GET", "HEAD")  # methods that change nothing

THEMES: Final = ("light", "dark")
THEME_COOKIE: Final = "mx_rmq_theme"

MOST_BYTES: Final = 8 * 1_048_576  # of a form: encoding may triple the size of a payload
MOST_FIELDS: Final = 1000
FORM_WITHIN: Final = 30.0  # seconds in which a form must have arrived

VERSION: Final = version("mx-rmq")

NOTICES: Final = {
    "requeued": ("good", "Requeued. A worker takes it when its turn comes."),
    "edited": ("good", "Requeued with the new payload."),
    "discarded": ("good", "Discarded."),
    "cancelled": ("good", "Cancelled."),
    "aborted": ("good", "Aborted. It is in the dead letters; requeue undoes that."),
    "signalled": (
        "good",
        "Signal sent. If nothing else is missing, the message runs now.",
    ),
    "paused": ("good", "Paused. Workers finish what they have and take no more."),
    "resumed": ("good", "Resumed. Workers take its messages again."),
    "was_paused": ("note", "Nothing changed: it was already paused."),
    "not_paused": ("note", "Nothing changed: it was not paused."),
    "limited": ("good", "Limits changed. They apply now."),
    "not_limited": ("note", "Nothing changed: the limits are as they were."),
    "scheduled": ("good", "Stored. Workers know it within two seconds."),
    "unscheduled": ("good", "Removed. It does not fire again."),
    "no_schedule": ("warn", "Nothing was done: there is no such schedule."),
    "schedule_paused": ("good", "Paused. It does not fire until it is resumed."),
    "schedule_resumed": ("good", "Resumed. It fires again from its next tick."),
    "schedule_run": ("good", "Produced one message. The next tick stays as it is."),
    "unsubscribed": ("good", "Subscription ended. It gets no more messages."),
    "no_subscription": ("warn", "Nothing was done: there is no such subscription."),
    "gone": ("warn", "Nothing was done: the message is gone or has changed state."),
    "taken": ("warn", "Nothing was done: a worker already has the message."),
    "stopping": ("good", "The job is stopping. What it has done is not undone."),
}
"""What a page may say about the previous action. A URL names one of these, never a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a dashboard is made of."""

    mq: MessageQueue
    queries: Queries
    sampler: Sampler
    audit_log: AuditLog
    jobs: Jobs
    read_only: bool
    secret: bytes  # signs the tokens of forms


class DashboardRequest:
    """A request, and the responses it can get."""

    def __init__(self, parts: Parts, http: Request, session: str) -> None:
        self.parts = parts
        self.http = http
        self.session = session
        self.who: str | None = None  # the operator; None: not admitted
        self.query: dict[str, str] = {}  # empty until `read_query`
        self.base = str(http.scope.get("root_path", "")).rstrip("/")

    def read_query(self) -> None:
        """Read the query fields, or refuse them."""
        self.query = _fields(self.http.scope.get("query_string", b"").decode("latin-1"))

    @property
    def operator(self) -> str:
        if self.who is None:
            raise HTTPException(403)
        return self.who

    @property
    def admin(self) -> Admin:
        """`mq.admin` under the operator's name."""
        return self.parts.mq.admin.as_operator(self.operator)

    @property
    def where(self) -> str:
        """The address of the client, and what X-Forwarded-For claims."""
        host = self.http.client.host if self.http.client else ""
        claimed = self.http.headers.get("x-forwarded-for", "")[:100]
        return f"{host} for {claimed}" if claimed else host

    @property
    def topic(self) -> str:
        """The topic in the path."""
        return str(self.http.path_params["topic"])

    @property
    def schedule(self) -> str:
        """The name of the schedule in the path."""
        return str(self.http.path_params["schedule"])

    @property
    def id(self) -> str:
        """The message id in the query."""
        return self.query.get("id", "")

    @property
    def key(self) -> str | None:
        """The key of messages in the query; None: the whole topic is meant."""
        return self.query.get("key") or None

    def number(self, name: str) -> int:
        """Return a whole number in the query; 0 if it is missing or is not one."""
        text = self.query.get(name, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0

    @property
    def page_number(self) -> int:
        """Which page of the topics, from 1 on."""
        return max(1, self.number("page"))

    @property
    def job(self) -> Job:
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

    def note(self, did: str, outcome: str, topic: str = "", about: str = "") -> None:
        """Record an action in the audit log. `topic`: if it is not the one in the path."""
        self.parts.audit_log.add(self._entry(did, outcome, topic, about))

    def note_refused(self, did: str, why: str) -> None:
        self.parts.audit_log.add_refused(self._entry(did, why))

    def _entry(self, did: str, outcome: str, topic: str = "", about: str = "") -> AuditEntry:
        key = "" if self.key is None else f"key {self.key}"
        return AuditEntry(
            who=self.who or "",
            where=self.where,
            did=did,
            topic=topic or str(self.http.path_params.get("topic", "")),
            id=self.id,
            about=": ".join(filter(None, (key, about))),
            outcome=outcome,
        )

    def to(self, *path: str, **query: object) -> str:
        """Return the URL of a page of ours. Names in it may contain any bytes."""
        quoted = [quote(part, safe="", errors="surrogateescape") for part in path]
        page = f"{self.base}/{'/'.join(quoted)}"
        fields = {name: str(value) for name, value in query.items() if value not in (None, "")}
        if "id" in query:
            fields["id"] = str(query["id"])  # also an empty one
        encoded = urlencode(fields, errors="surrogateescape", quote_via=quote)
        return f"{page}?{encoded}" if fields else page

    def asset(self, name: str) -> str:
        """Return the URL of a file of `static/`."""
        return self.to("static", assets.VERSION, name)

    def page(self, template: str, *, status: int = 200, **values: Any) -> Response:
        theme = self.http.cookies.get(THEME_COOKIE, "")
        html = render.html(
            template,
            request=self,
            to=self.to,
            asset=self.asset,
            token=self.token,
            read_only=self.parts.read_only,
            theme=theme if theme in THEMES else "",
            notice=NOTICES.get(self.query.get("notice", "")),
            version=VERSION,
            prefix=self.parts.mq.settings.prefix,
            **values,
        )
        return HTMLResponse(html, status_code=status)

    def error(self, status: int, title: str, text: str, advice: str = "") -> Response:
        return self.page("error.html", status=status, title=title, text=text, advice=advice)

    def go(self, *path: str, **query: object) -> Response:
        """Redirect to a page, after an action."""
        return RedirectResponse(self.to(*path, **query), status_code=303)


def _signed(secret: bytes, text: str) -> str:
    mac = hmac.new(secret, text.encode("utf-8", "backslashreplace"), hashlib.sha256)
    return base64.urlsafe_b64encode(mac.digest()).decode().rstrip("=")


def _fields(text: str) -> dict[str, str]:
    """Read names and values, which may contain any bytes. Of a repeated name, the last counts."""
    try:
        pairs = parse_qsl(
            text, keep_blank_values=True, errors="surrogateescape", max_num_fields=MOST_FIELDS
        )
    except ValueError:
        raise HTTPException(400, f"More than {MOST_FIELDS:,} fields.") from None
    return dict(pairs)
