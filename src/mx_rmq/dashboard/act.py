"""What an operator does: each by a form, each written into the journal."""

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
from mx_rmq.dashboard.look import ACTS, state_of
from mx_rmq.dashboard.search import Search

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from typing import TypeVar

    from starlette.responses import Response

    from mx_rmq.admin import MessageView
    from mx_rmq.core.message import State
    from mx_rmq.dashboard.ask import Ask

    T = TypeVar("T")

COUNT_WITHIN: Final = 0.15
"""Seconds for which messages are counted before somebody is asked."""

EDITABLE: Final = 1_048_576
"""Bytes of a payload that can be edited in a browser."""


# one topic


async def pause(ask: Ask, _: dict[str, str]) -> Response:
    """Let workers take nothing more of a topic."""
    await ask.parts.source.check_topic(ask.topic)
    new = await _noted(ask, "pause", ask.parts.source.pause(ask.operator, ask.topic))
    return ask.go("topics", ask.topic, said="paused" if new else "same")


async def resume(ask: Ask, _: dict[str, str]) -> Response:
    """Let workers take messages of a topic again."""
    await ask.parts.source.check_topic(ask.topic)
    new = await _noted(ask, "resume", ask.parts.source.resume(ask.operator, ask.topic))
    return ask.go("topics", ask.topic, said="resumed" if new else "same")


# one message


async def requeue(ask: Ask, form: dict[str, str]) -> Response:
    """Send a message round again."""
    id, state = await _addressed(ask, form)
    work = ask.parts.source.requeue(ask.operator, ask.topic, id, state, _seen(form))
    done = await _noted(ask, "requeue", work, id)
    return ask.go("topics", ask.topic, "message", id=id, said="requeued" if done else "gone")


async def ask_discard(ask: Ask) -> Response:
    """Ask whether a message shall be deleted."""
    return await _confirm(ask, "discard")


async def discard(ask: Ask, form: dict[str, str]) -> Response:
    """Delete a message."""
    id, state = await _addressed(ask, form)
    work = ask.parts.source.discard(ask.operator, ask.topic, id, state, _seen(form))
    done = await _noted(ask, "discard", work, id)
    return ask.go("topics", ask.topic, state=state or "", said="discarded" if done else "gone")


async def ask_cancel(ask: Ask) -> Response:
    """Ask whether a message shall be removed."""
    return await _confirm(ask, "cancel")


async def cancel(ask: Ask, form: dict[str, str]) -> Response:
    """Remove a message that nobody has begun."""
    id, state = await _addressed(ask, form)
    became = await _noted(ask, "cancel", ask.parts.source.cancel(ask.operator, ask.topic, id), id)
    if became is Cancelled.PROCESSING:
        return ask.go("topics", ask.topic, "message", id=id, said="taken")
    said = "cancelled" if became else "gone"
    return ask.go("topics", ask.topic, state=state or "", said=said)


async def ask_edit(ask: Ask) -> Response:
    """Show the payload, to be changed."""
    message = await _message(ask, "requeue")
    if len(message.content) > EDITABLE:
        large = size(len(message.content))
        raise InvalidInput(f"a payload of {large} cannot be edited in a browser")
    return _editor(ask, message, "" if render.unreadable(message) else render.editable(message))


async def edit(ask: Ask, form: dict[str, str]) -> Response:
    """Send a message round again with another payload."""
    id, state = await _addressed(ask, form)
    text = form.get("payload", "")
    try:
        json.loads(text)  # it says in which line the mistake is
        payload = codec.verbatim(text)
    except (ValueError, RecursionError) as error:
        ask.note_refused("edit", f"not JSON: {error}")
        message = await _message(ask, "requeue")
        return _editor(ask, message, text, f"This is not JSON: {error}", seen=form.get("seen"))
    work = ask.parts.source.edit(ask.operator, ask.topic, id, payload, state, _seen(form))
    done = await _noted(ask, "edit", work, id)
    return ask.go("topics", ask.topic, "message", id=id, said="edited" if done else "gone")


def _editor(
    ask: Ask, message: MessageView, text: str, error: str = "", *, seen: str | None = None
) -> Response:
    """Show the form, again if there is an error: with what was seen at first."""
    return ask.page(
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


async def _confirm(ask: Ask, act: str) -> Response:
    message = await _message(ask, act)
    return ask.page(
        "confirm.html",
        here="overview",
        act=act,
        message=message,
        note=render.note(message),
        payload=render.payload_line(message),
        seen=render.seen(message),
    )


async def _message(ask: Ask, act: str) -> MessageView:
    """Return the message that is meant, on which this can be done."""
    source, id = ask.parts.source, ask.query.get("id", "")
    await source.check_topic(ask.topic)
    found = await source.message(ask.topic, id)
    if found is None or act not in ACTS[found.state]:
        where = f"it is {found.state}" if found else "it is not there any more"
        raise HTTPException(409, f"The message cannot be {_DONE[act]}: {where}.")
    return found


_DONE: Final = {"requeue": "requeued", "discard": "discarded", "cancel": "cancelled"}


async def _addressed(ask: Ask, form: dict[str, str]) -> tuple[str, State | None]:
    """Return which message is meant. The id is in the address: a form could not carry any bytes."""
    await ask.parts.source.check_topic(ask.topic)
    return ask.query.get("id", ""), state_of(form["state"]) if form.get("state") else None


def _seen(form: dict[str, str]) -> float | None:
    """Return when the message was archived that the form is about: another may die under its id."""
    seen = form.get("seen", "")
    return int(seen) / 1000 if re.fullmatch(r"[0-9]{1,15}", seen) else None


async def _noted(ask: Ask, did: str, work: Awaitable[T], id: str = "") -> T:
    """Do it, and write down what became of it; what fails, the caller writes down."""
    became = await work
    outcome = str(became) if isinstance(became, Cancelled) else "done" if became else "nothing done"
    ask.note(did, outcome, topic=ask.topic, id=id)
    return became


# many messages


async def ask_bulk(ask: Ask) -> Response:
    """Count the messages that fit, and ask whether it shall be done to them, and to no others."""
    source = ask.parts.source
    await source.check_topic(ask.topic)
    act, state, search = _bulk(ask.query)
    fixed = search.counted(await source.now())
    there = getattr(await source.stats(ask.topic), state)
    counted, looked = (there, None) if not search else await _count(ask, act, state, fixed)
    return ask.page(
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


async def bulk(ask: Ask, form: dict[str, str]) -> Response:
    """Begin with it."""
    await ask.parts.source.check_topic(ask.topic)
    act, state, search = _bulk(form)
    job = ask.parts.jobs.start(
        who=ask.operator,
        where=ask.where,
        act=act,
        topic=ask.topic,
        state=state,
        search=search,
        limit=_whole(form, "limit"),
        rate=_whole(form, "rate"),
    )
    return ask.go("jobs", job.id)


async def stop(ask: Ask, _: dict[str, str]) -> Response:
    """Stop a job."""
    job = ask.job
    ask.parts.jobs.stop(job.id)
    ask.note("stop", f"job {job.id}", topic=job.topic)
    return ask.go("jobs", job.id, said="stopping")


async def _count(ask: Ask, act: str, state: State, search: Search) -> tuple[int, int | None]:
    """Return how many messages fit, and among how many, if there was no time to look at all."""
    so_far = Progress(0, 0, 0)

    def heed(progress: Progress) -> None:
        nonlocal so_far
        so_far = progress

    try:
        async with asyncio.timeout(COUNT_WITHIN):
            return await ask.parts.source.bulk(
                ask.operator, act, ask.topic, state, search, dry_run=True, progress=heed
            ), None
    except TimeoutError:
        return so_far.done, so_far.looked


def _bulk(fields: dict[str, str]) -> tuple[str, State, Search]:
    act, state = fields.get("act", ""), state_of(fields.get("state", ""))
    if act not in ACTS[state]:
        raise InvalidInput(f"act={act!r:.80} is nothing that can be done with {state} messages")
    return act, state, Search.of(fields)


def _whole(form: dict[str, str], name: str) -> int | None:
    text = form.get(name, "").strip().replace(",", "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and 0 < len(text) <= 9 and int(text)):
        raise InvalidInput(f"{name}={text!r:.80} is not a whole number from 1 on")
    return int(text)
