"""What commands print: text and JSON. Control characters in foreign text are escaped."""

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

CELL: Final = 60
"""Characters of a payload or an error in a table; `show` prints all of them."""

as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


def printable(text: str) -> str:
    """Return a text with every unprintable character escaped."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else _escaped(one) for one in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def cut(text: str, length: int = CELL) -> str:
    """Shorten a text and make it printable."""
    shown = printable(text[: length + 1])
    return shown if len(shown) <= length else shown[: length - 1] + "…"


def lines(text: str) -> list[str]:
    """Return the lines of a text, each made printable."""
    return [printable(line) for line in text.split("\n")]


def say(text: str) -> None:
    """Print one line."""
    click.echo(printable(text))


def print_result(line: str, document: Any, *, as_json: bool) -> None:
    """Print the result of a command, as a line or as JSON."""
    if as_json:
        print_json(document)
    else:
        say(line)


def complain(text: str) -> None:
    """Print one line to standard error."""
    click.echo(printable(text), err=True)


def print_json(document: Any) -> None:
    """Print a JSON document, ASCII only."""
    click.echo(_json(document, indent=2))


def print_line(document: Any) -> None:
    """Print a JSON document as one line of many."""
    click.echo(_json(document, indent=None))


def _json(document: Any, *, indent: int | None) -> str:
    return json.dumps(document, indent=indent, default=_plain)


def _plain(value: object) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} has no JSON form")


def message_document(message: MessageView, *, raw: bool) -> dict[str, Any]:
    """Return a message for JSON; with `raw`, also its bytes in Base64."""
    document = asdict(message)
    for name in ("content", "broken") if raw else ("content", "broken", "raw"):
        del document[name]
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
