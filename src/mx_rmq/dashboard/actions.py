"""What operators do to topics, keys, messages and subscriptions.

Each action is a form, and is recorded in the audit log.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, TypeVar, cast

from starlette.exceptions import HTTPException

from mx_rmq.admin import Cancelled
from mx_rmq.core import codec
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.text import count, duration, size
from mx_rmq.dashboard import render
from mx_rmq.dashboard.jobs import DONE
from mx_rmq.dashboard.pages import ACTS, state_of

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from msgspec import Raw
    from starlette.responses import Response

    from mx_rmq.admin import MessageView
    from mx_rmq.core.message import State
    from mx_rmq.dashboard.request import DashboardRequest

T = TypeVar("T")
Form = dict[str, str]

EDITABLE: Final = 1_048_576  # bytes of the largest payload that can be edited in a browser


# one topic, or one of its keys


async def pause(request: DashboardRequest, form: Form) -> Response:
    seconds, reason = positive(form, "seconds"), form.get("reason", "").strip()
    work = request.admin.pause(request.topic, request.key, seconds=seconds, reason=reason)
    about = f"for {duration(seconds)}" if seconds else ""
    new = await noted(request, "pause", work, ": ".join(filter(None, (about, reason))))
    return _to_topic(request, "paused" if new else "was_paused")


async def resume(request: DashboardRequest, _: Form) -> Response:
    new = await noted(request, "resume", request.admin.resume(request.topic, request.key))
    return _to_topic(request, "resumed" if new else "not_paused")


async def limit(request: DashboardRequest, form: Form) -> Response:
    """Change the limits that differ from those that the form showed; an empty one is restored."""
    changes: dict[str, Any] = {}
    for name in ("running", "rate", "weight"):
        text = form.get(name, "").strip()
        if name in form and text != form.get(f"was_{name}", ""):
            changes[name] = _limit(name, text) if text else None
    if not changes:
        return _to_topic(request, "not_limited")
    await request.admin.limit(request.topic, request.key, **changes)
    said = ", ".join(f"{name} {form[name].strip() or 'restored'}" for name in changes)
    request.note("limit", "done", about=said)
    return _to_topic(request, "limited")


def _limit(name: str, text: str) -> int | float | str:
    """Return a limit as the admin takes it; what is no number is left for it to refuse."""
    with suppress(ValueError):
        return text if name == "rate" else int(text) if name == "running" else float(text)
    return text


def _to_topic(request: DashboardRequest, notice: str) -> Response:
    """Go back to the topic, or to its keys if it was about one of them."""
    if request.key is None:
        return request.go("topics", request.topic, notice=notice)
    return request.go("topics", request.topic, "limits", key=request.key, notice=notice)


# one message


async def requeue(request: DashboardRequest, form: Form) -> Response:
    work = request.admin.requeue(request.topic, request.id, **_shown(form))
    return _to_message(request, "requeued" if await noted(request, "requeue", work) else "gone")


async def discard(request: DashboardRequest, form: Form) -> Response:
    shown = _shown(form)
    work = request.admin.discard(request.topic, request.id, **shown)
    notice = "discarded" if await noted(request, "discard", work) else "gone"
    return request.go("topics", request.topic, state=shown["state"], notice=notice)


async def cancel(request: DashboardRequest, form: Form) -> Response:
    """Cancel a message that no worker has taken."""
    state = _shown(form)["state"]
    became = await noted(request, "cancel", request.admin.cancel(request.topic, request.id))
    if became is Cancelled.PROCESSING:
        return _to_message(request, "taken")
    notice = "cancelled" if became else "gone"
    return request.go("topics", request.topic, state=state, notice=notice)


async def abort(request: DashboardRequest, form: Form) -> Response:
    """Dead-letter a live message, and stop its handler."""
    work = request.admin.abort(request.topic, request.id, form.get("reason", ""))
    return _to_message(request, "aborted" if await noted(request, "abort", work) else "gone")


async def signal(request: DashboardRequest, form: Form) -> Response:
    """Send a signal to a message."""
    name, text = form.get("name", "").strip(), form.get("value", "").strip() or "null"
    work = request.admin.signal(request.topic, request.id, name, json_payload(text, "the value"))
    sent = await noted(request, "signal", work, name)
    return _to_message(request, "signalled" if sent else "gone")


async def confirm(act: str, request: DashboardRequest) -> Response:
    """Ask whether to discard, cancel or abort a message."""
    message = await _message(request, act)
    return request.page("confirm.html", act=act, message=message)


async def edit_form(request: DashboardRequest) -> Response:
    """Show the payload in an editor."""
    message = await _message(request, "requeue")
    if len(message.content) > EDITABLE:
        large = size(len(message.content))
        raise InvalidInput(f"a payload of {large} is too large to edit in a browser")
    return _editor(request, message, "" if render.unreadable(message) else render.editable(message))


async def edit(request: DashboardRequest, form: Form) -> Response:
    """Requeue a message with another payload."""
    text, shown = form.get("payload", ""), _shown(form)
    try:
        payload = codec.verbatim(text)
    except (ValueError, RecursionError) as error:
        request.note_refused("edit", f"not JSON: {error}")
        message = await _message(request, "requeue")
        return _editor(request, message, text, f"This is not JSON: {error}", seen=form.get("seen"))
    work = request.admin.edit(request.topic, request.id, payload, **shown)
    return _to_message(request, "edited" if await noted(request, "edit", work) else "gone")


def _editor(
    request: DashboardRequest,
    message: MessageView,
    text: str,
    error: str = "",
    seen: str | None = None,
) -> Response:
    """Show the form; after an error, again for the message that was shown first (`seen`)."""
    status = 400 if error else 200
    return request.page(
        "edit.html", status=status, message=message, text=text, error=error, seen=seen
    )


async def _message(request: DashboardRequest, act: str) -> MessageView:
    """Return the message of the request; refuse one in a state that does not allow this."""
    found = await request.admin.get(request.topic, request.id)
    if found is None or act not in ACTS[found.state]:
        why = f"it is {found.state}" if found else "it is gone"
        raise HTTPException(409, f"The message cannot be {DONE[act]}: {why}.")
    return found


class _Shown(TypedDict):
    state: State | None
    archived_at: float | None


def _shown(form: Form) -> _Shown:
    """Return which message the form showed: another one may have died under its id since then.

    The id itself is in the URL: a form cannot carry arbitrary bytes.
    """
    state, seen = form.get("state"), form.get("seen", "")
    return {
        "state": state_of(state) if state else None,
        "archived_at": int(seen) / 1000 if re.fullmatch(r"[0-9]{1,15}", seen) else None,
    }


def _to_message(request: DashboardRequest, notice: str) -> Response:
    return request.go("topics", request.topic, "message", id=request.id, notice=notice)


# subscriptions


async def confirm_unsubscribe(request: DashboardRequest) -> Response:
    """Ask whether to end a subscription, and what becomes of the messages that wait in it."""
    name = request.query.get("name", "")
    found = [one for one in await request.admin.subscriptions(request.topic) if one.name == name]
    if not found:
        raise HTTPException(409, "There is no such subscription.")
    return request.page("unsubscribe.html", one=found[0])


async def unsubscribe(request: DashboardRequest, form: Form) -> Response:
    """End a subscription."""
    name = form.get("name", "")
    waiting = cast("Literal['dead', 'drop']", form.get("waiting", ""))  # the admin refuses others
    known = name in {one.name for one in await request.admin.subscriptions(request.topic)}
    number = await request.admin.unsubscribe(request.topic, name, waiting=waiting)
    ended = known or number > 0
    fate = "dead-lettered" if waiting == "dead" else "dropped"
    outcome = f"{count(number, 'message')} {fate}" if ended else "nothing done"
    request.note("unsubscribe", outcome, about=f"subscription {name}")
    notice = "unsubscribed" if ended else "no_subscription"
    return request.go("topics", request.topic, notice=notice)


# for all actions


async def noted(request: DashboardRequest, did: str, work: Awaitable[T], about: str = "") -> T:
    """Run an action and record its outcome. The caller records failures."""
    became = await work
    outcome = "done" if became else "nothing done"
    request.note(did, str(became) if isinstance(became, Cancelled) else outcome, about=about)
    return became


def json_payload(text: str, what: str) -> Raw:
    """Return JSON text as a payload, digit by digit; `what` introduces it in the error."""
    try:
        return codec.verbatim(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{what} is not JSON: {error}") from error


def positive(form: Form, name: str) -> int | None:
    """Return a positive number of a form; None: the field is empty."""
    text = form.get(name, "").strip().replace(",", "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and int(text)):
        raise InvalidInput(f"{name}={text!r:.80} is not a positive whole number")
    return int(text)
