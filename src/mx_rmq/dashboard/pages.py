"""The pages that show something."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.message import State
from mx_rmq.dashboard import render
from mx_rmq.dashboard.jobs import Stage
from mx_rmq.dashboard.queries import LOOK
from mx_rmq.dashboard.search import LAST, Search

if TYPE_CHECKING:
    from mx_rmq.admin import MessageView, Page, Stats
    from mx_rmq.dashboard.request import DashboardRequest

PAGE: Final = 50
"""Messages on a page, unless another number is asked for."""
PAGES: Final = (20, 50, 100, 200)

TOPICS: Final = 30
"""Topics on the pages over all topics, those with the most messages first."""
EACH: Final = 10
"""Messages of each of them."""
WORKERS: Final = 50
"""Workers on a page."""

ACTS: Final = {
    State.PENDING: ("cancel",),
    State.DELAYED: ("cancel",),
    State.PROCESSING: (),
    State.DEAD: ("requeue", "discard"),
    State.QUARANTINED: ("requeue", "discard"),
}
"""What can be done with messages of a state."""


async def overview(request: DashboardRequest) -> Response:
    """All topics, and what needs attention."""
    seen = await request.parts.sampler.first()
    alive = sum(worker.alive for worker in seen.workers)
    return request.page(
        "overview.html",
        here="overview",
        seen=seen,
        number=request.page_number,
        alive=alive,
    )


async def topic(request: DashboardRequest) -> Response:
    """One topic: its counts, its charts, and the messages of one state."""
    queries = request.parts.queries
    await queries.check_topic(request.topic)
    stats = await queries.stats(request.topic)
    asked = request.query.get("state", "")
    state = state_of(asked) if asked else _first(stats)
    search = Search.of(request.query)
    limit = _limit(request.query.get("limit", ""))
    page = await queries.page(
        request.topic, state, search, limit=limit, cursor=request.query.get("cursor") or None
    )
    latest = request.parts.sampler.latest
    return request.page(
        "topic.html",
        here="overview",
        stats=stats,
        point=latest.points.get(request.topic) if latest else None,
        state=state,
        states=list(State),
        search=search,
        spans=LAST,
        limit=limit,
        limits=PAGES,
        list=_list(page, state),
        cursor=page.cursor,
        looked=page.looked if search else None,
        acts=ACTS[state],
        first=not request.query.get("cursor"),
    )


async def message(request: DashboardRequest) -> Response:
    """One message: everything that is known about it."""
    queries, id = request.parts.queries, request.query.get("id", "")
    await queries.check_topic(request.topic)
    found = await queries.message(request.topic, id)
    history = await queries.history(request.topic, id)
    if found is None and not history:
        raise HTTPException(
            404,
            f"There is no message {render.cut(id, 80)!r} in topic {request.topic!r}: it never "
            "existed, or it was finished before the topic's history begins.",
        )
    text, whole = render.payload_text(found) if found else ("", True)
    return request.page(
        "message.html",
        here="overview",
        id=id,
        message=found,
        unreadable=render.unreadable(found) if found else "",
        text=text,
        whole=whole,
        note=render.note(found) if found else "",
        seen=render.seen(found) if found else "",
        acts=ACTS[found.state] if found else (),
        history=history,
    )


async def raw(request: DashboardRequest) -> Response:
    """The bytes of a message, as a download."""
    id = request.query.get("id", "")
    await request.parts.queries.check_topic(request.topic)
    found = await request.parts.queries.message(request.topic, id)
    if found is None:
        raise HTTPException(404, "The message is gone.")
    return Response(
        found.raw,
        media_type="application/octet-stream",
        headers={"Content-Disposition": 'attachment; filename="message.bin"'},
    )


async def dead(request: DashboardRequest) -> Response:
    """The dead letters of all topics."""
    return await _archive(request, State.DEAD, "dead")


async def quarantine(request: DashboardRequest) -> Response:
    """The quarantined messages of all topics."""
    return await _archive(request, State.QUARANTINED, "quarantine")


async def _archive(request: DashboardRequest, state: State, here: str) -> Response:
    search = Search.of(request.query)
    overview = await request.parts.queries.counts(state)
    counts = {topic: count for topic, count in overview.topics.items() if count}
    fullest = sorted(counts, key=lambda topic: (-counts[topic], topic))
    shown = fullest[:TOPICS]
    look = max(EACH, LOOK // max(1, len(shown)))
    found = await request.parts.queries.pages(shown, state, search, limit=EACH, look=look)
    return request.page(
        "archive.html",
        here=here,
        state=state,
        total=sum(counts.values()),
        counts=counts,
        lists={topic: _list(page, state) for topic, page in found.items()},
        more={topic: page.cursor is not None for topic, page in found.items()},
        others=fullest[TOPICS:],
        away=overview.away,
        looked=overview.known - overview.left_out,
        known=overview.known,
        search=search,
        spans=LAST,
    )


async def workers(request: DashboardRequest) -> Response:
    """The workers, and what each is doing."""
    every = await request.parts.queries.workers()
    first = _place(request.query.get("from", ""))
    return request.page(
        "workers.html",
        here="workers",
        alive=sum(worker.alive for worker in every),
        total=len(every),
        workers=every[first : first + WORKERS],
        first=first,
        next=first + WORKERS if len(every) > first + WORKERS else None,
    )


async def log(request: DashboardRequest) -> Response:
    """The audit log and the jobs."""
    return request.page(
        "log.html",
        here="log",
        entries=request.parts.audit_log.latest(200),
        jobs=request.parts.jobs.latest(),
    )


async def job(request: DashboardRequest) -> Response:
    """How far a job is."""
    found = request.job
    return request.page("job.html", here="log", job=found, running=found.stage is Stage.RUNNING)


async def find(request: DashboardRequest) -> Response:
    """Look for an id in all topics."""
    id = request.query.get("id", "").strip()
    topics, whole = await request.parts.queries.find(id) if id else ([], True)
    if len(topics) == 1 and whole:
        return request.go("topics", topics[0], "message", id=id)
    return request.page("find.html", here="overview", id=id, topics=topics, whole=whole)


async def help_page(request: DashboardRequest) -> Response:
    """Keyboard shortcuts and a glossary."""
    return request.page("help.html", here="help")


async def without_slash(request: DashboardRequest) -> Response:
    """Send a browser that put a slash at the end to the page without it."""
    path = str(request.http.path_params["path"]).strip("/").split("/")
    query = request.http.url.query
    return RedirectResponse(request.to(*path) + (f"?{query}" if query else ""), status_code=303)


async def static(request: DashboardRequest) -> Response:
    """A style sheet, a script or a picture."""
    found = request.parts.assets.get(**request.http.path_params)
    if found is None:
        raise HTTPException(404)
    return found


def _list(page: Page, state: State) -> list[tuple[MessageView, float | None, str, str]]:
    """Return the rows of a list: the message, its time, what matters, how its payload begins."""
    field = render.TIME_OF[state]
    return [
        (
            one,
            getattr(one, field),
            render.cut(render.note(one, brief=True)),
            render.payload_line(one),
        )
        for one in page.messages
    ]


def state_of(text: str) -> State:
    """Return the state of this name, or refuse it."""
    try:
        return State(text)
    except ValueError:
        raise InvalidInput(f"state={text!r:.80} is not one of {', '.join(State)}") from None


def _first(stats: Stats) -> State:
    """Return the first state that has messages."""
    return next((state for state in State if getattr(stats, state)), State.PENDING)


def _place(asked: str) -> int:
    return int(asked) if asked.isascii() and asked.isdigit() and len(asked) < 10 else 0


def _limit(asked: str) -> int:
    with contextlib.suppress(ValueError):
        return min(max(int(asked), 1), PAGES[-1])
    return PAGE
