"""What operators do: each action is a form, and is recorded in the audit log."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Final

from starlette.exceptions import HTTPException

from mx_rmq.admin import Cancelled, Progress
from mx_rmq.core import codec
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.text import size
from mx_rmq.dashboard import render
from mx_rmq.dashboard.pages import ACTS, state_of
from mx_rmq.dashboard.search import Search

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from typing import TypeVar

    from starlette.responses import Response

    from mx_rmq.admin import MessageView
    from mx_rmq.core.message import State
    from mx_rmq.dashboard.request import DashboardRequest

    T = TypeVar("T")

COUNT_WITHIN: Final = 0.15
"""Seconds for counting messages before asking for confirmation."""

EDITABLE: Final = 1_048_576
"""Largest payload that can be edited in a browser, in bytes."""


# one topic


async def pause(request: DashboardRequest, _: dict[str, str]) -> Response:
    """Pause a topic."""
    await request.parts.queries.check_topic(request.topic)
    new = await _noted(
        request, "pause", request.parts.queries.pause(request.operator, request.topic)
    )
    return request.go("topics", request.topic, said="paused" if new else "same")


async def resume(request: DashboardRequest, _: dict[str, str]) -> Response:
    """Resume a topic."""
    await request.parts.queries.check_topic(request.topic)
    new = await _noted(
        request, "resume", request.parts.queries.resume(request.operator, request.topic)
    )
    return request.go("topics", request.topic, said="resumed" if new else "same")


# one message


async def requeue(request: DashboardRequest, form: dict[str, str]) -> Response:
    """Requeue a message."""
    id, state = await _addressed(request, form)
    work = request.parts.queries.requeue(request.operator, request.topic, id, state, _seen(form))
    done = await _noted(request, "requeue", work, id)
    return request.go(
        "topics", request.topic, "message", id=id, said="requeued" if done else "gone"
    )


async def confirm_discard(request: DashboardRequest) -> Response:
    """Confirm that a message is to be deleted."""
    return await _confirm(request, "discard")


async def discard(request: DashboardRequest, form: dict[str, str]) -> Response:
    """Delete a message."""
    id, state = await _addressed(request, form)
    work = request.parts.queries.discard(request.operator, request.topic, id, state, _seen(form))
    done = await _noted(request, "discard", work, id)
    return request.go(
        "topics", request.topic, state=state or "", said="discarded" if done else "gone"
    )


async def confirm_cancel(request: DashboardRequest) -> Response:
    """Confirm that a message is to be cancelled."""
    return await _confirm(request, "cancel")


async def cancel(request: DashboardRequest, form: dict[str, str]) -> Response:
    """Cancel a message that no worker has taken."""
    id, state = await _addressed(request, form)
    became = await _noted(
        request, "cancel", request.parts.queries.cancel(request.operator, request.topic, id), id
    )
    if became is Cancelled.PROCESSING:
        return request.go("topics", request.topic, "message", id=id, said="taken")
    said = "cancelled" if became else "gone"
    return request.go("topics", request.topic, state=state or "", said=said)


async def edit_form(request: DashboardRequest) -> Response:
    """Show the payload in an editor."""
    message = await _message(request, "requeue")
    if len(message.content) > EDITABLE:
        large = size(len(message.content))
        raise InvalidInput(f"a payload of {large} cannot be edited in a browser")
    return _editor(request, message, "" if render.unreadable(message) else render.editable(message))


async def edit(request: DashboardRequest, form: dict[str, str]) -> Response:
    """Requeue a message with another payload."""
    id, state = await _addressed(request, form)
    text = form.get("payload", "")
    try:
        json.loads(text)  # it says in which line the mistake is
        payload = codec.verbatim(text)
    except (ValueError, RecursionError) as error:
        request.note_refused("edit", f"not JSON: {error}")
        message = await _message(request, "requeue")
        return _editor(request, message, text, f"This is not JSON: {error}", seen=form.get("seen"))
    work = request.parts.queries.edit(
        request.operator, request.topic, id, payload, state, _seen(form)
    )
    done = await _noted(request, "edit", work, id)
    return request.go("topics", request.topic, "message", id=id, said="edited" if done else "gone")


def _editor(
    request: DashboardRequest,
    message: MessageView,
    text: str,
    error: str = "",
    *,
    seen: str | None = None,
) -> Response:
    """Show the form; after an error again, for the message that was first shown."""
    return request.page(
        "edit.html",
        status=400 if error else 200,
        here="overview",
        message=message,
        note=render.note(message),
        unreadable=render.unreadable(message),
        text=text,
        error=error,
        seen=render.seen(message) if seen is None else seen,
    )


async def _confirm(request: DashboardRequest, act: str) -> Response:
    message = await _message(request, act)
    return request.page(
        "confirm.html",
        here="overview",
        act=act,
        message=message,
        note=render.note(message),
        payload=render.payload_line(message),
        seen=render.seen(message),
    )


async def _message(request: DashboardRequest, act: str) -> MessageView:
    """Return the message of the request; refuse one in a state that does not allow this."""
    queries, id = request.parts.queries, request.query.get("id", "")
    await queries.check_topic(request.topic)
    found = await queries.message(request.topic, id)
    if found is None or act not in ACTS[found.state]:
        where = f"it is {found.state}" if found else "it is gone"
        raise HTTPException(409, f"The message cannot be {_DONE[act]}: {where}.")
    return found


_DONE: Final = {"requeue": "requeued", "discard": "discarded", "cancel": "cancelled"}


async def _addressed(request: DashboardRequest, form: dict[str, str]) -> tuple[str, State | None]:
    """Return the id and state. The id is in the URL: a form cannot carry arbitrary bytes."""
    await request.parts.queries.check_topic(request.topic)
    return request.query.get("id", ""), state_of(form["state"]) if form.get("state") else None


def _seen(form: dict[str, str]) -> float | None:
    """Return when the form's message was archived: another may have died under its id."""
    seen = form.get("seen", "")
    return int(seen) / 1000 if re.fullmatch(r"[0-9]{1,15}", seen) else None


async def _noted(request: DashboardRequest, did: str, work: Awaitable[T], id: str = "") -> T:
    """Run an action and record its outcome. The caller records failures."""
    became = await work
    outcome = str(became) if isinstance(became, Cancelled) else "done" if became else "nothing done"
    request.note(did, outcome, topic=request.topic, id=id)
    return became


# many messages


async def confirm_bulk(request: DashboardRequest) -> Response:
    """Count the messages that match, and ask for confirmation for exactly those."""
    queries = request.parts.queries
    await queries.check_topic(request.topic)
    act, state, search = _bulk(request.query)
    fixed = search.counted(await queries.now())
    there = getattr(await queries.stats(request.topic), state)
    counted, looked = (there, None) if not search else await _count(request, act, state, fixed)
    return request.page(
        "bulk.html",
        here="overview",
        act=act,
        done=_DONE[act],
        state=state,
        search=search,
        fields=fixed.fixed(),
        there=there,
        counted=counted,
        looked=looked,
    )


async def bulk(request: DashboardRequest, form: dict[str, str]) -> Response:
    """Start a job."""
    await request.parts.queries.check_topic(request.topic)
    act, state, search = _bulk(form)
    job = request.parts.jobs.start(
        who=request.operator,
        where=request.where,
        act=act,
        topic=request.topic,
        state=state,
        search=search,
        limit=_whole(form, "limit"),
        rate=_whole(form, "rate"),
    )
    return request.go("jobs", job.id)


async def stop(request: DashboardRequest, _: dict[str, str]) -> Response:
    """Stop a job."""
    job = request.job
    request.parts.jobs.stop(job.id)
    request.note("stop", f"job {job.id}", topic=job.topic)
    return request.go("jobs", job.id, said="stopping")


async def _count(
    request: DashboardRequest, act: str, state: State, search: Search
) -> tuple[int, int | None]:
    """Return how many messages match, and of how many checked, if not all could be in time."""
    so_far = Progress(0, 0, 0)

    def heed(progress: Progress) -> None:
        nonlocal so_far
        so_far = progress

    try:
        async with asyncio.timeout(COUNT_WITHIN):
            return await request.parts.queries.bulk(
                request.operator, act, request.topic, state, search, dry_run=True, progress=heed
            ), None
    except TimeoutError:
        return so_far.done, so_far.looked


def _bulk(fields: dict[str, str]) -> tuple[str, State, Search]:
    act, state = fields.get("act", ""), state_of(fields.get("state", ""))
    if act not in ACTS[state]:
        raise InvalidInput(f"act={act!r:.80} cannot be applied to {state} messages")
    return act, state, Search.of(fields)


def _whole(form: dict[str, str], name: str) -> int | None:
    text = form.get(name, "").strip().replace(",", "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and 0 < len(text) <= 9 and int(text)):
        raise InvalidInput(f"{name}={text!r:.80} is not a whole number from 1 on")
    return int(text)
