"""The pages that show something."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.message import State
from mx_rmq.dashboard import render
from mx_rmq.dashboard.attention import findings, key_of
from mx_rmq.dashboard.jobs import Stage
from mx_rmq.dashboard.search import LAST, Search
from mx_rmq.dashboard.source import LOOK

if TYPE_CHECKING:
    from mx_rmq.admin import MessageView, Page, Stats
    from mx_rmq.dashboard.ask import Ask

PAGE: Final = 50
"""Messages on a page, unless another number is asked for."""
PAGES: Final = (20, 50, 100, 200)

TOPICS: Final = 30
"""Topics on the pages over all topics, those with the most messages first."""
EACH: Final = 10
"""Messages of each of them."""
WORKERS: Final = 50
"""Workers on a page, each with all that it tells of itself."""

ACTS: Final = {
    State.PENDING: ("cancel",),
    State.DELAYED: ("cancel",),
    State.PROCESSING: (),
    State.DEAD: ("requeue", "discard"),
    State.QUARANTINED: ("requeue", "discard"),
}
"""What can be done with messages of a state."""


async def overview(ask: Ask) -> Response:
    """All topics, and what needs somebody."""
    seen = await ask.parts.sampler.first()
    found = findings(seen)
    alive = sum(worker.alive for worker in seen.workers)
    return ask.page(
        "overview.html",
        here="overview",
        seen=seen,
        number=ask.page_number,
        findings=found,
        key=key_of(found),
        alive=alive,
    )


async def topic(ask: Ask) -> Response:
    """One topic: its counts, its charts, and the messages of one state."""
    source = ask.parts.source
    await source.check_topic(ask.topic)
    stats = await source.stats(ask.topic)
    asked = ask.query.get("state", "")
    state = state_of(asked) if asked else _first(stats)
    search = Search.of(ask.query)
    limit = _limit(ask.query.get("limit", ""))
    page = await source.page(
        ask.topic, state, search, limit=limit, cursor=ask.query.get("cursor") or None
    )
    latest = ask.parts.sampler.latest
    return ask.page(
        "topic.html",
        here="overview",
        stats=stats,
        point=latest.points.get(ask.topic) if latest else None,
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
        first=not ask.query.get("cursor"),
    )


async def message(ask: Ask) -> Response:
    """One message: everything that is known of it."""
    source, id = ask.parts.source, ask.query.get("id", "")
    await source.check_topic(ask.topic)
    found = await source.message(ask.topic, id)
    history = await source.history(ask.topic, id)
    if found is None and not history:
        raise HTTPException(
            404,
            f"There is no message {render.cut(id, 80)!r} in topic {ask.topic!r}: it was never "
            "there, or it was finished longer ago than the topic remembers.",
        )
    text, whole = render.payload_text(found) if found else ("", True)
    return ask.page(
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


async def raw(ask: Ask) -> Response:
    """The bytes of a message, to be kept in a file."""
    id = ask.query.get("id", "")
    await ask.parts.source.check_topic(ask.topic)
    found = await ask.parts.source.message(ask.topic, id)
    if found is None:
        raise HTTPException(404, "The message is not there any more.")
    return Response(
        found.raw,
        media_type="application/octet-stream",
        headers={"Content-Disposition": 'attachment; filename="message.bin"'},
    )


async def dead(ask: Ask) -> Response:
    """The dead letters of all topics."""
    return await _archive(ask, State.DEAD, "dead")


async def quarantine(ask: Ask) -> Response:
    """The quarantined messages of all topics."""
    return await _archive(ask, State.QUARANTINED, "quarantine")


async def _archive(ask: Ask, state: State, here: str) -> Response:
    search = Search.of(ask.query)
    overall = await ask.parts.source.counts(state)
    counts = {topic: count for topic, count in overall.topics.items() if count}
    fullest = sorted(counts, key=lambda topic: (-counts[topic], topic))
    shown = fullest[:TOPICS]
    look = max(EACH, LOOK // max(1, len(shown)))
    found = await ask.parts.source.pages(shown, state, search, limit=EACH, look=look)
    return ask.page(
        "archive.html",
        here=here,
        state=state,
        total=sum(counts.values()),
        counts=counts,
        lists={topic: _list(page, state) for topic, page in found.items()},
        more={topic: page.cursor is not None for topic, page in found.items()},
        others=fullest[TOPICS:],
        away=overall.away,
        looked=len(overall.topics) + len(overall.away),
        known=overall.known,
        search=search,
        spans=LAST,
    )


async def workers(ask: Ask) -> Response:
    """The workers, and what each is doing."""
    every = await ask.parts.source.workers()
    first = _place(ask.query.get("from", ""))
    return ask.page(
        "workers.html",
        here="workers",
        alive=sum(worker.alive for worker in every),
        total=len(every),
        workers=every[first : first + WORKERS],
        first=first,
        next=first + WORKERS if len(every) > first + WORKERS else None,
    )


async def log(ask: Ask) -> Response:
    """What was done through this dashboard."""
    return ask.page(
        "log.html", here="log", entries=ask.parts.journal.latest(200), jobs=ask.parts.jobs.latest()
    )


async def job(ask: Ask) -> Response:
    """How far a job is."""
    found = ask.job
    return ask.page("job.html", here="log", job=found, running=found.stage is Stage.RUNNING)


async def find(ask: Ask) -> Response:
    """Look for an id in all topics."""
    id = ask.query.get("id", "").strip()
    topics, whole = await ask.parts.source.find(id) if id else ([], True)
    if len(topics) == 1 and whole:
        return ask.go("topics", topics[0], "message", id=id)
    return ask.page("find.html", here="overview", id=id, topics=topics, whole=whole)


async def help_page(ask: Ask) -> Response:
    """The keys, and what the words mean."""
    return ask.page("help.html", here="help")


async def without_slash(ask: Ask) -> Response:
    """Send a browser that put a slash at the end to the page without it."""
    path = str(ask.request.path_params["path"]).strip("/").split("/")
    query = ask.request.url.query
    return RedirectResponse(ask.to(*path) + (f"?{query}" if query else ""), status_code=303)


async def static(ask: Ask) -> Response:
    """A style sheet, a script or a picture."""
    found = ask.parts.assets.get(**ask.request.path_params)
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
    """Return the first state in which there is something."""
    return next((state for state in State if getattr(stats, state)), State.PENDING)


def _place(asked: str) -> int:
    return int(asked) if asked.isascii() and asked.isdigit() and len(asked) < 10 else 0


def _limit(asked: str) -> int:
    with contextlib.suppress(ValueError):
        return min(max(int(asked), 1), PAGES[-1])
    return PAGE
