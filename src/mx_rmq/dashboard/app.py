"""The dashboard as an ASGI application: its parts, routes and lifespan."""

from __future__ import annotations

import asyncio
import secrets
import string
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Route

from mx_rmq.core.errors import InvalidInput, MxRmqError
from mx_rmq.core.message import State
from mx_rmq.dashboard import actions, bulk_actions, pages, schedule_actions, stream
from mx_rmq.dashboard.audit_log import AuditLog
from mx_rmq.dashboard.errors import error_page
from mx_rmq.dashboard.jobs import Jobs
from mx_rmq.dashboard.queries import NoSuchTopic, Queries, TookTooLong
from mx_rmq.dashboard.request import DashboardRequest, Parts
from mx_rmq.dashboard.sampler import Sampler
from mx_rmq.dashboard.security import REQUEST, SecurityMiddleware

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send

    from mx_rmq.dashboard.auth import Authorize
    from mx_rmq.dashboard.stream import Metrics
    from mx_rmq.queue import MessageQueue

    Page = Callable[[DashboardRequest], Awaitable[Response]]
    Act = Callable[[DashboardRequest, actions.Form], Awaitable[Response]]

ROOT_PART: Final = frozenset(string.ascii_letters + string.digits + "-._~")
"""Characters of a root path besides slashes: none of them needs to be quoted anywhere."""

WITHIN: Final = 6.0  # seconds for a page; an action may take as long as the queue's patience


class Dashboard:
    """A dashboard of a queue, to be run alone or mounted: `app.mount("/queues", Dashboard(…))`.

    `authorize` is called with every request and returns the operator's name, or None to refuse. It
    may return a response instead, for example a sign-in page. Without it, pass `allow_all=True`:
    everyone who can reach it may do everything. `hosts` are the host names it answers to; ["*"]:
    any. None: any if there is an `authorize`, else localhost and the hosts of `origins`.
    `origins` are the public addresses behind a proxy. `secret` lets several processes accept each
    other's forms; None: a random one. `root_path` is the path under which a proxy serves it,
    whether the proxy strips it or not; leave it out if mounted. `hsts` sends
    Strict-Transport-Security over TLS. The application opens the queue.
    """

    def __init__(
        self,
        mq: MessageQueue,
        *,
        authorize: Authorize | None = None,
        allow_all: bool = False,
        read_only: bool = False,
        hosts: Collection[str] | None = None,
        origins: Collection[str] = (),
        metrics: Metrics | None = None,
        secret: str | None = None,
        root_path: str = "",
        hsts: bool = False,
    ) -> None:
        if (authorize is None) != allow_all:
            raise InvalidInput(
                "pass either authorize=, a function that takes the request and returns the "
                "operator's name or None, or allow_all=True if your application checks access"
            )
        self._root = _check_root(root_path)
        queries, audit_log = Queries(mq), AuditLog()
        self.parts: Final = Parts(
            mq=mq,
            queries=queries,
            sampler=Sampler(queries),
            audit_log=audit_log,
            jobs=Jobs(mq, audit_log),
            read_only=read_only,
            secret=secret.encode() if secret else secrets.token_bytes(32),
        )
        errors = (HTTPException, MxRmqError, NoSuchTopic, TookTooLong, TimeoutError, Exception)
        self._app = Starlette(
            routes=_routes(metrics),
            exception_handlers=dict.fromkeys(errors, _on_error),
            lifespan=self._lifespan,
        )
        self._app.router.redirect_slashes = False  # it redirects to http:// behind a TLS proxy
        self._guard = SecurityMiddleware(
            self._app, self.parts, authorize=authorize, hosts=hosts, origins=origins, hsts=hsts
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            on_close = self.parts.mq.on_close  # a mounted application gets no shutdown event
            if self.close not in on_close:
                on_close.append(self.close)
            await self._guard(self._rooted(scope), receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    def _rooted(self, scope: Scope) -> Scope:
        """Return the scope of a request as if we were mounted at the root path."""
        if not self._root:
            return scope
        path = scope["path"]
        if path == self._root:
            path += "/"
        if not path.startswith(f"{self._root}/"):  # the proxy strips it
            path = self._root + path
        return {**scope, "path": path, "root_path": self._root}

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        self.parts.sampler.start()
        try:
            yield
        finally:
            await self.close()

    async def close(self) -> None:
        """Stop the jobs and the sampling. The queue is the caller's to close."""
        await self.parts.jobs.close()
        await self.parts.sampler.close()


def _check_root(root_path: str) -> str:
    """Return a root path without a slash at its end, or refuse it."""
    path = root_path.rstrip("/")
    parts = path.split("/")[1:]
    if path and not (path.startswith("/") and all(map(ROOT_PART.issuperset, parts)) and all(parts)):
        raise InvalidInput(f"root path {root_path!r:.80} must have the form /queues")
    if parts and parts[0] in {route.path.split("/")[1] for route in _routes(None)}:  # ambiguous
        raise InvalidInput(f"root path {root_path!r:.80}: /{parts[0]} is a page of the dashboard")
    return path


def _routes(metrics: Metrics | None) -> list[Route]:
    topic = "/topics/{topic}"
    return [
        _page("/", pages.overview),
        _page(topic, pages.topic),
        _page(f"{topic}/keys", pages.keys),
        _page(f"{topic}/limits", pages.limits),
        _act(f"{topic}/limits", actions.limit),
        _page(f"{topic}/message", pages.message),
        _page(f"{topic}/raw", pages.raw),
        _page("/dead", partial(pages.archive, State.DEAD)),
        _page("/quarantine", partial(pages.archive, State.QUARANTINED)),
        _page("/schedules", pages.schedules),
        _act("/schedules", schedule_actions.schedule),
        _page("/schedules/{schedule}", pages.schedule),
        _act("/schedules/{schedule}/pause", schedule_actions.pause_schedule),
        _act("/schedules/{schedule}/resume", schedule_actions.resume_schedule),
        _act("/schedules/{schedule}/run", schedule_actions.run_schedule),
        _page("/schedules/{schedule}/unschedule", schedule_actions.confirm_unschedule),
        _act("/schedules/{schedule}/unschedule", schedule_actions.unschedule),
        _page("/workers", pages.workers),
        _page("/log", pages.log),
        _page("/jobs/{job}", pages.job),
        _page("/find", pages.find),
        _page("/help", pages.help_page),
        _page("/static/{version}/{name}", pages.static),
        _act(f"{topic}/pause", actions.pause),
        _act(f"{topic}/resume", actions.resume),
        _act(f"{topic}/requeue", actions.requeue),
        _page(f"{topic}/edit", actions.edit_form),
        _act(f"{topic}/edit", actions.edit),
        _page(f"{topic}/discard", partial(actions.confirm, "discard")),
        _act(f"{topic}/discard", actions.discard),
        _page(f"{topic}/cancel", partial(actions.confirm, "cancel")),
        _act(f"{topic}/cancel", actions.cancel),
        _page(f"{topic}/abort", partial(actions.confirm, "abort")),
        _act(f"{topic}/abort", actions.abort),
        _act(f"{topic}/signal", actions.signal),
        _page(f"{topic}/unsubscribe", actions.confirm_unsubscribe),
        _act(f"{topic}/unsubscribe", actions.unsubscribe),
        _page(f"{topic}/bulk", bulk_actions.confirm_bulk),
        _act(f"{topic}/bulk", bulk_actions.bulk),
        _act("/jobs/{job}/stop", bulk_actions.stop),
        _page("/live", stream.stream),
        _page("/live/series", stream.series),
        _page("/live/sparks", stream.sparks),
        _page("/metrics", partial(stream.metrics, metrics)),
        _page("/healthz", stream.healthz),
        _page("/{path:path}/", pages.without_slash),
    ]


def _page(path: str, page: Page) -> Route:
    """A page: it has a time limit and changes nothing."""

    async def answer(http: Request) -> Response:
        request = _request(http)
        try:
            async with asyncio.timeout(WITHIN):
                await _check_topic(request)
                return await page(request)
        except TimeoutError as error:
            if await request.parts.queries.answers():
                raise TookTooLong("The request took too long.") from error
            raise

    return Route(path, answer, methods=["GET"])


def _act(path: str, act: Act) -> Route:
    """An action: needs one of our own forms; refused in a read-only dashboard."""

    async def answer(http: Request) -> Response:
        request = _request(http)
        try:
            if request.parts.read_only:
                raise HTTPException(403, "This dashboard is read-only. Nothing was done.")
            form = await request.form()
            await _check_topic(request)
            return await act(request, form)
        except (HTTPException, InvalidInput, NoSuchTopic) as error:
            request.note_refused(act.__name__, getattr(error, "detail", "") or str(error))
            raise
        except BaseException as error:  # it may have been done
            request.note(act.__name__, f"failed: {str(error) or type(error).__name__}")
            raise

    return Route(path, answer, methods=["POST"])


def _request(http: Request) -> DashboardRequest:
    request: DashboardRequest = http.scope[REQUEST]
    request.http = http  # this one has the path's parameters
    return request


async def _check_topic(request: DashboardRequest) -> None:
    if "topic" in request.http.path_params:
        await request.parts.queries.check_topic(request.topic)


async def _on_error(http: Request, error: Exception) -> Response:
    return error_page(http.scope[REQUEST], error)
