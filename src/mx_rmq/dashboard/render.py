"""From values to HTML. Text from messages is escaped here, once for all templates."""

from __future__ import annotations

import contextlib
import re
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from mx_rmq.admin.keys import limited_by
from mx_rmq.admin.limits import limit_words, topic_limited_by
from mx_rmq.admin.steps import what_it_awaits
from mx_rmq.core import text as core_text
from mx_rmq.core.message import State
from mx_rmq.core.text import instant, size
from mx_rmq.dashboard.search import LAST
from mx_rmq.doctor.topics import unreachable

if TYPE_CHECKING:
    from mx_rmq.admin import MessageView, StepView

SHOWN: Final = 64 * 1024  # characters of a payload on its page; the rest can be downloaded
CELL: Final = 140  # characters of a payload or an error in a list
VALUE: Final = 2000  # characters of the value of a step
LONG: Final = 64 * 1024  # bytes above which a payload is shown as stored, without decoding

_INVISIBLE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
"""Characters that cannot be seen, change the direction of text, or have no UTF-8 form."""


def html(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(**values)


@cache
def _environment() -> Environment:
    """The templates, compiled once per process."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_final,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    plain = (ago, cut, duration, exact, iso, json_line, number, when)
    of_limits = (topic_limited_by, limit_words, limited_by)
    of_messages = (archived_ms, note, payload_line, payload_text, time_in_list, unreadable)
    filters = {one.__name__: one for one in (*plain, *of_limits, *of_messages, step_value)}
    environment.filters.update(filters, bytes=size)
    environment.globals.update(spans=LAST, states=tuple(State), unreachable=unreachable)
    return environment


def shown(text: str) -> str:
    """Return text with every invisible character escaped as in JSON."""
    return _INVISIBLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text.replace("\r\n", "\n"))


def _final(value: object) -> object:
    return shown(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def cut(text: str, length: int = CELL) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def unreadable(message: MessageView) -> str:
    """Return why a message cannot be read, or ""; a long payload is not decoded to find out."""
    return message.broken if len(message.content) > LONG else message.unreadable


def payload_text(message: MessageView) -> tuple[str, bool]:
    """Return the payload as indented JSON, or the bytes if it cannot be read; and whether that is
    all of it."""
    stored = message.raw if unreadable(message) else _indented(message.content)
    text = _text(stored[: 4 * SHOWN])  # characters have up to four bytes
    return text[:SHOWN], len(text) <= SHOWN and len(stored) <= 4 * SHOWN


def editable(message: MessageView) -> str:
    """Return the whole payload as indented JSON."""
    return _text(_indented(message.content))


def archived_ms(message: MessageView) -> str:
    """Return when it was archived, for a form: another message may die under the same id."""
    return "" if message.archived_at is None else str(round(message.archived_at * 1000))


def payload_line(message: MessageView) -> str:
    """Return the beginning of the payload, on one line."""
    stored = message.raw if unreadable(message) else message.content
    line = cut(_text(stored[: 4 * CELL]))
    return f"{size(message.length)}: {line}" if message.length > LONG else line


def json_line(value: Any, length: int = CELL) -> str:
    """Return the beginning of a JSON value, on one line."""
    return cut(_text(msgspec.json.encode(value)[: 4 * length + 4]), length)


def time_in_list(message: MessageView) -> float | None:
    """Return the time that a list of messages in this state shows."""
    if message.state is State.DELAYED:
        return message.due
    if message.wait is not None:
        return message.wait.since
    if message.state is State.PROCESSING:
        return message.lease_deadline
    return message.created_at if message.state is State.PENDING else message.archived_at


def step_value(step: StepView) -> str:
    """Return the value of a step as JSON, at most its beginning."""
    return cut(_text(step.content[: 4 * VALUE]), VALUE)


def _indented(content: bytes) -> bytes:
    """Return indented JSON; a long payload is left as it is."""
    if len(content) <= LONG:
        with contextlib.suppress(msgspec.DecodeError, RecursionError):
            return msgspec.json.format(content, indent=2)
    return content


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def note(message: MessageView, *, brief: bool = False) -> str:
    """Return what matters most about a message in its state; brief: not how often it failed."""
    if message.state is State.QUARANTINED:
        return f"{message.error_type}: {message.error}"
    if why := unreadable(message):
        return f"unreadable: {why}"
    if message.state is State.PROCESSING:
        return message.worker if brief else f"held by {message.worker}"
    if message.wait is not None:
        return "for " + (what_it_awaits(message.steps, message.wait) or "nothing that is known")
    exhausted = message.reason.startswith("exhausted:")
    if message.errors and (not message.reason or (brief and exhausted)):
        return f"{message.errors[-1].type}: {message.errors[-1].text}"
    return message.reason


def when(at: float | None) -> str:
    """Return a time in UTC, without saying so: every page does."""
    return "" if at is None else instant(at).removesuffix("Z")


def exact(at: float) -> str:
    """Return a time with its milliseconds."""
    return f"{when(at)}.{int(at * 1000) % 1000:03}"


def iso(at: float | None) -> str:
    """Return a time for HTML's time element; nothing if it is beyond any date."""
    text = "" if at is None else instant(at)
    return text.replace(" ", "T") if text.endswith("Z") else ""


def ago(at: float | None) -> str:
    """Return how far a time is from now, in words."""
    if at is None:
        return ""
    apart = time.time() - at
    if abs(apart) < 1:
        return "now"
    return f"{duration(apart)} ago" if apart > 0 else f"in {duration(-apart)}"


def duration(seconds: float | None) -> str:
    """Return a span of time in its two largest units, or in milliseconds."""
    if seconds is not None and seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return core_text.duration(seconds) or ""


def number(value: float | None) -> str:
    """Return a count or a rate; a dash if unknown."""
    if value is None:
        return "–"
    if float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) < 100 else f"{value:,.0f}"
