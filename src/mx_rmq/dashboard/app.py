"""The dashboard as an ASGI application: its parts, its addresses, its life."""

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
from mx_rmq.dashboard import act, live, look
from mx_rmq.dashboard.ask import Ask, Parts
from mx_rmq.dashboard.assets import Assets
from mx_rmq.dashboard.errors import error_page
from mx_rmq.dashboard.guard import ASK, Guard
from mx_rmq.dashboard.jobs import Jobs
from mx_rmq.dashboard.journal import Journal
from mx_rmq.dashboard.sampler import Sampler
from mx_rmq.dashboard.source import NoSuchTopic, Source, TookTooLong

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send

    from mx_rmq.dashboard.access import Authorize
    from mx_rmq.dashboard.live import Metrics
    from mx_rmq.queue import MessageQueue

    Page = Callable[[Ask], Awaitable[Response]]
    Act = Callable[[Ask, dict[str, str]], Awaitable[Response]]

ROOT_PART: Final = frozenset(string.ascii_letters + string.digits + "-._~")
"""Characters of a root path, beside slashes: none of them needs to be quoted anywhere."""

PAGES: Final = (
    *("topics", "dead", "quarantine", "workers", "log", "jobs", "find", "help", "static"),
    *("live", "metrics", "healthz"),
)
"""How our paths begin. A root path that begins so could not be told from them."""

WITHIN: Final = 6.0
"""Seconds that a page may take. An action takes as long as the queue has patience."""


class Dashboard:
    """A dashboard of a queue, to be run by itself or mounted: `app.mount("/queues", Dashboard(…))`.

    `authorize` is called with every request and says who it is, or None: nobody who may. It may
    return a response instead, to let people sign in. Without one, say `allow_all=True`: whoever
    reaches it may do everything. `hosts` are the names by which it may be called, ["*"]: any.
    None: any if there is an `authorize`, else those of this machine alone, and of `origins`.
    `origins` are addresses under which a proxy shows it. `secret` is what the forms of several
    processes have in common, so that each takes those of the others; None: a new one.
    `root_path` is the path under which a proxy shows it, whether the proxy takes it away or not;
    mounted, leave it out. `hsts` tells browsers to use TLS alone for this host, where TLS is used.
    The application around opens the queue.
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
                "who may use the dashboard? Pass authorize=, a function of the request that "
                "returns the operator's name or None; or allow_all=True, if others see to it"
            )
        self._mq = mq
        self._root = _checked(root_path)
        source, journal = Source(mq), Journal()
        self.parts: Final = Parts(
            source=source,
            sampler=Sampler(source),
            journal=journal,
            jobs=Jobs(source, journal),
            assets=Assets(),
            read_only=read_only,
            secret=secret.encode() if secret else secrets.token_bytes(32),
        )
        handlers = dict.fromkeys((HTTPException, MxRmqError, NoSuchTopic, TookTooLong), _on_error)
        self._app = Starlette(
            routes=_routes(metrics),
            exception_handlers={**handlers, TimeoutError: _on_error, Exception: _on_error},
            lifespan=self._lifespan,
        )
        self._app.router.redirect_slashes = False  # it redirects to http:// behind a TLS proxy
        self._guard = Guard(
            self._app, self.parts, authorize=authorize, hosts=hosts, origins=origins, hsts=hsts
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            if self.close not in self._mq.on_close:  # mounted, nobody tells us of the end
                self._mq.on_close.append(self.close)
            await self._guard(self._rooted(scope), receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    def _rooted(self, scope: Scope) -> Scope:
        """Return a request as if we were mounted at the root path."""
        if not self._root:
            return scope
        path = scope["path"]
        if path == self._root:
            path += "/"
        if not path.startswith(f"{self._root}/"):  # the proxy has taken it away
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


def _checked(root_path: str) -> str:
    """Return a root path without a slash at its end, or refuse it."""
    path = root_path.rstrip("/")
    parts = path.split("/")[1:]
    if path and not (path.startswith("/") and all(map(ROOT_PART.issuperset, parts)) and all(parts)):
        raise InvalidInput(f"root path {root_path!r:.80} is not of the form /queues")
    if parts and parts[0] in PAGES:
        raise InvalidInput(f"root path {root_path!r:.80}: /{parts[0]} is a page of the dashboard")
    return path


def _routes(metrics: Metrics | None) -> list[Route]:
    topic = "/topics/{topic}"
    return [
        _page("/", look.overview),
        _page(topic, look.topic),
        _page(f"{topic}/message", look.message),
        _page(f"{topic}/raw", look.raw),
        _page("/dead", look.dead),
        _page("/quarantine", look.quarantine),
        _page("/workers", look.workers),
        _page("/log", look.log),
        _page("/jobs/{job}", look.job),
        _page("/find", look.find),
        _page("/help", look.help_page),
        _page("/static/{version}/{name}", look.static),
        _act(f"{topic}/pause", act.pause),
        _act(f"{topic}/resume", act.resume),
        _act(f"{topic}/requeue", act.requeue),
        _page(f"{topic}/edit", act.ask_edit),
        _act(f"{topic}/edit", act.edit),
        _page(f"{topic}/discard", act.ask_discard),
        _act(f"{topic}/discard", act.discard),
        _page(f"{topic}/cancel", act.ask_cancel),
        _act(f"{topic}/cancel", act.cancel),
        _page(f"{topic}/bulk", act.ask_bulk),
        _act(f"{topic}/bulk", act.bulk),
        _act("/jobs/{job}/stop", act.stop),
        _page("/live", live.stream),
        _page("/live/series", live.series),
        _page("/live/sparks", live.sparks),
        _page("/metrics", partial(live.metrics, metrics)),
        _page("/healthz", live.healthz),
        _page("/{path:path}/", look.without_slash),
    ]


def _page(path: str, page: Page) -> Route:
    """Something to look at: it must come soon, and changes nothing."""

    async def answer(request: Request) -> Response:
        ask = _asked(request)
        try:
            async with asyncio.timeout(WITHIN):
                return await page(ask)
        except TimeoutError as error:
            if await ask.parts.source.answers():
                raise TookTooLong("There was no time for all of it.") from error
            raise

    return Route(path, answer, methods=["GET"])


def _act(path: str, act: Act) -> Route:
    """Something to do: not in a read-only dashboard, and only by a form of ours."""

    async def answer(request: Request) -> Response:
        ask = _asked(request)
        topic = request.path_params.get("topic", "")
        try:
            if ask.parts.read_only:
                raise HTTPException(403, "This dashboard is read-only. Nothing was done.")
            return await act(ask, await ask.form())
        except (HTTPException, InvalidInput, NoSuchTopic) as error:
            ask.note_refused(act.__name__, getattr(error, "detail", "") or str(error))
            raise
        except BaseException as error:  # it may have been done
            outcome = f"failed: {str(error) or type(error).__name__}"
            ask.note(act.__name__, outcome, topic=topic, id=ask.query.get("id", ""))
            raise

    return Route(path, answer, methods=["POST"])


def _asked(request: Request) -> Ask:
    ask: Ask = request.scope[ASK]
    ask.request = request  # by now it knows what its path means
    return ask


async def _on_error(request: Request, error: Exception) -> Response:
    return error_page(request.scope[ASK], error)
