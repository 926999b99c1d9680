"""The pages that show something."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from mx_rmq.admin import LimitView
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.message import State
from mx_rmq.dashboard import assets, render
from mx_rmq.dashboard.jobs import DONE
from mx_rmq.dashboard.search import Search
from mx_rmq.doctor.schedules import check_schedules
from mx_rmq.doctor.topics import check_workers, served_topics

if TYPE_CHECKING:
    from mx_rmq.admin import Stats
    from mx_rmq.dashboard.request import DashboardRequest

LIMIT: Final = 50  # messages on a page, unless the operator chooses another number
LIMITS: Final = (20, 50, 100, 200)

LOOK: Final = 5000  # messages that one page reads for a search, in all topics together

TOPICS: Final = 30  # topics on a page of an archive, those with the most messages first
EACH: Final = 10  # messages shown of each
WORKERS: Final = 50  # workers on a page
SCHEDULES: Final = 100  # schedules on a page
RUNS: Final = 10  # next runs of a schedule
KEYS: Final = 50  # keys on a page, those with the most waiting

PAUSES: Final = {
    "": "until resumed",
    600: "10 minutes",
    3600: "1 hour",
    14_400: "4 hours",
    86_400: "1 day",
}
"""How long something can be paused, in seconds."""

ACTS: Final = {
    State.PENDING: ("cancel", "abort"),
    State.DELAYED: ("cancel", "abort"),
    State.WAITING: ("cancel", "abort"),
    State.PROCESSING: ("abort",),
    State.DEAD: ("requeue", "discard"),
    State.QUARANTINED: ("requeue", "discard"),
    State.COMPLETED: (),
}
"""What can be done with messages of a state."""


async def overview(request: DashboardRequest) -> Response:
    """All topics, and what needs attention."""
    sample = await request.parts.sampler.first()
    return request.page("overview.html", sample=sample, number=request.page_number)


async def topic(request: DashboardRequest) -> Response:
    """One topic: its counts, its charts, and the messages of one state."""
    stats = await request.admin.stats(request.topic)
    chosen = request.query.get("state", "")
    state = state_of(chosen) if chosen else _first(stats)
    search = Search.of(request.query)
    limit = min(request.number("limit") or LIMIT, LIMITS[-1])
    cursor = request.query.get("cursor") or None
    page = await request.admin.list(
        request.topic, state, filter=search.filter(), limit=limit, cursor=cursor, look=LOOK
    )
    latest = request.parts.sampler.latest
    return request.page(
        "topic.html",
        stats=stats,
        own=await request.admin.limits(request.topic),
        subscriptions=await request.admin.subscriptions(request.topic)
        if stats.subscriptions
        else (),
        now=await request.admin.now(),
        point=latest.points.get(request.topic) if latest else None,
        state=state,
        search=search,
        limit=limit,
        limits=LIMITS,
        page=page,
        acts=ACTS[state],
        first=cursor is None,
    )


async def keys(request: DashboardRequest) -> Response:
    """The keys of a topic: how much of each waits and runs, and what holds it back."""
    found = await request.admin.keys(request.topic, limit=KEYS)
    wanted = request.key
    one = None if wanted is None else await request.admin.key(request.topic, wanted)
    own = None if found.held_back is None else await request.admin.limits(request.topic)
    return request.page("keys.html", found=found, one=one, own=own)


async def limits(request: DashboardRequest) -> Response:
    """The limits of a topic or of one of its keys, with the forms to change them."""
    key = request.key
    found = await request.admin.limits(request.topic, key)
    return request.page(
        "limits.html",
        own=found,
        key=key,
        line=None if key is None else await request.admin.key(request.topic, key),
        chosen=found.set if key is None else found.keys.get(key, LimitView()),
        declared=found.declared if key is None else found.per_key,
        now=await request.admin.now(),
        pauses=PAUSES,
    )


async def message(request: DashboardRequest) -> Response:
    """One message: everything that is known about it."""
    id = request.id
    found = await request.admin.get(request.topic, id)
    history = await request.admin.history(request.topic, id)
    if found is None and not history:
        raise HTTPException(
            404,
            f"There is no message {render.cut(id, 80)!r} in topic {request.topic!r}: it never "
            "existed, or it finished before the topic's history begins.",
        )
    acts = ACTS[found.state] if found else ()
    begins = await request.admin.history_begins(request.topic)
    return request.page(
        "message.html", id=id, message=found, acts=acts, history=history, begins=begins
    )


async def raw(request: DashboardRequest) -> Response:
    """The bytes of a message, as a download."""
    found = await request.admin.get(request.topic, request.id)
    if found is None:
        raise HTTPException(404, "The message is gone.")
    return Response(
        found.raw,
        media_type="application/octet-stream",
        headers={"Content-Disposition": 'attachment; filename="message.bin"'},
    )


async def archive(state: State, request: DashboardRequest) -> Response:
    """The dead letters, or the quarantined messages, of all topics."""
    queries, search = request.parts.queries, Search.of(request.query)
    overview = await queries.counts(state)
    counts = {topic: count for topic, count in overview.topics.items() if count}
    fullest = sorted(counts, key=lambda topic: (-counts[topic], topic))
    shown = fullest[:TOPICS]
    look = max(EACH, LOOK // max(1, len(shown)))
    found = await queries.pages(shown, state, search, limit=EACH, look=look)
    return request.page(
        "archive.html",
        state=state,
        total=sum(counts.values()),
        counts=counts,
        pages=found,
        others=fullest[TOPICS:],
        overview=overview,
        search=search,
    )


async def schedules(request: DashboardRequest) -> Response:
    """All schedules, what is wrong with them, and a form to add one."""
    found, now = await request.admin.schedules(), await request.admin.now()
    served = served_topics(await request.parts.queries.workers())
    first = request.number("from")
    return request.page(
        "schedules.html",
        findings=check_schedules(found, served=served, now=now),
        schedules=found[first : first + SCHEDULES],
        total=len(found),
        first=first,
        next=first + SCHEDULES if len(found) > first + SCHEDULES else None,
    )


async def schedule(request: DashboardRequest) -> Response:
    """One schedule: its next ten runs, and what can be done with it."""
    try:
        found = await request.admin.get_schedule(request.schedule)
    except InvalidInput as error:
        raise HTTPException(404, str(error)) from error
    return request.page("schedule.html", one=found, runs=found.next_runs(RUNS))


async def workers(request: DashboardRequest) -> Response:
    """The workers, what each is doing, and what is wrong with them."""
    every = await request.parts.queries.workers()
    first = request.number("from")
    return request.page(
        "workers.html",
        alive=sum(worker.alive for worker in every),
        total=len(every),
        findings=sorted(check_workers(every), key=lambda finding: not finding.bad),
        workers=every[first : first + WORKERS],
        first=first,
        next=first + WORKERS if len(every) > first + WORKERS else None,
    )


async def log(request: DashboardRequest) -> Response:
    """The audit log and the jobs."""
    entries, jobs = request.parts.audit_log.latest(200), request.parts.jobs.latest()
    return request.page("log.html", entries=entries, jobs=jobs)


async def job(request: DashboardRequest) -> Response:
    return request.page("job.html", job=request.job, done=DONE[request.job.act])


async def find(request: DashboardRequest) -> Response:
    """Look for an id in all topics."""
    id = request.id.strip()
    topics, whole = await request.parts.queries.find(id) if id else ([], True)
    if len(topics) == 1 and whole:
        return request.go("topics", topics[0], "message", id=id)
    return request.page("find.html", id=id, topics=topics, whole=whole)


async def help_page(request: DashboardRequest) -> Response:
    return request.page("help.html")


async def without_slash(request: DashboardRequest) -> Response:
    """Redirect a URL that ends with a slash."""
    path = str(request.http.path_params["path"]).strip("/").split("/")
    query = request.http.url.query
    return RedirectResponse(request.to(*path) + (f"?{query}" if query else ""), status_code=303)


async def static(request: DashboardRequest) -> Response:
    """A style sheet, a script or the icon."""
    found = assets.get(**request.http.path_params)
    if found is None:
        raise HTTPException(404)
    return found


def state_of(text: str) -> State:
    """Return the state of this name, or refuse it."""
    try:
        return State(text)
    except ValueError:
        raise InvalidInput(f"state={text!r:.80} is not one of {', '.join(State)}") from None


def _first(stats: Stats) -> State:
    """Return the first state that has messages."""
    return next((state for state in State if getattr(stats, state)), State.PENDING)
