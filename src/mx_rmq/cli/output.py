"""What commands print: text and JSON. Control characters in untrusted text are escaped."""

from __future__ import annotations

import base64
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from mx_rmq.core.text import count as count
from mx_rmq.core.text import duration as duration
from mx_rmq.core.text import instant

if TYPE_CHECKING:
    from mx_rmq.admin import MessageView

CELL: Final = 60  # characters of a payload or an error in a table; `show` prints all of them

as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


def printable(text: str) -> str:
    """Escape every unprintable character."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )


def cut(text: str, length: int = CELL) -> str:
    """Shorten a text and make it printable."""
    shown = printable(text[: length + 1])
    return shown if len(shown) <= length else shown[: length - 1] + "…"


def lines(text: str) -> list[str]:
    """Return the lines of a text, each made printable."""
    return [printable(line) for line in text.split("\n")]


def say(text: str, *, err: bool = False) -> None:
    """Print one line."""
    click.echo(printable(text), err=err)


def named(text: str) -> str:
    """Name the commands in a text as this program is called: `manage.py mx_rmq list` in Django."""
    program = click.get_current_context().find_root().info_name or "mx-rmq"
    return text.replace("mx-rmq ", f"{program} ")


def print_result(line: str, document: Any, *, as_json: bool) -> None:
    """Print the result of a command, as a line or as JSON."""
    if as_json:
        print_json(document)
    else:
        say(line)


def print_json(document: Any, *, indent: int | None = 2) -> None:
    """Print a JSON document, ASCII only, bytes in Base64. Without indent it is one line."""
    click.echo(
        json.dumps(document, indent=indent, default=lambda raw: base64.b64encode(raw).decode())
    )


def message_document(message: MessageView, *, raw: bool) -> dict[str, Any]:
    """Return a message for JSON; with `raw`, also its bytes."""
    document = asdict(message)
    for name in ("content", "broken") if raw else ("content", "broken", "raw"):
        del document[name]
    if message.steps is None:
        del document["steps"]
    else:
        values = {one.name: one.value for one in message.steps.done} if raw else None
        document["steps"]["done"] = values or [one.name for one in message.steps.done]
    first = {name: document.pop(name) for name in ("id", "topic", "state")}
    return {**first, "payload": message.payload, "unreadable": message.unreadable, **document}


def payload_text(message: MessageView, *, indent: int | None = None) -> str:
    """Return the payload as JSON text, or the bytes if it cannot be decoded."""
    if message.unreadable:
        return repr(message.raw)
    return json.dumps(message.payload, ensure_ascii=False, indent=indent)


def when(seconds: float | None) -> str | None:
    """Return a time as text, in UTC."""
    return None if seconds is None else instant(seconds)
