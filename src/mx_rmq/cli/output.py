"""What the commands print: words and JSON, of which foreign text can do the terminal no harm."""

from __future__ import annotations

import base64
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from mx_rmq.core.text import instant

if TYPE_CHECKING:
    from mx_rmq.admin import MessageView

CELL: Final = 60
"""Characters of a payload or an error in a table; `show` has them all."""

as_json = click.option("--json", "as_json", is_flag=True, help="One JSON document, nothing else.")


def printable(text: str) -> str:
    """Return text whose every character stands for itself; the others are written as escapes."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else _escaped(one) for one in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def cut(text: str, length: int = CELL) -> str:
    """Return the beginning of a text, made printable."""
    shown = printable(text[: length + 1])
    return shown if len(shown) <= length else shown[: length - 1] + "…"


def lines(text: str) -> list[str]:
    """Return the lines of a text, each made printable."""
    return [printable(line) for line in text.split("\n")]


def say(text: str) -> None:
    """Print a line of our own, foreign words in it escaped."""
    click.echo(printable(text))


def print_json(document: Any) -> None:
    """Print a JSON document. Nothing in it is but plain ASCII."""
    click.echo(_json(document, indent=2))


def print_line(document: Any) -> None:
    """Print a JSON document in one line, one of many."""
    click.echo(_json(document, indent=None))


def _json(document: Any, *, indent: int | None) -> str:
    return json.dumps(document, indent=indent, default=_plain)


def _plain(value: object) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} has no JSON form")


def message_document(message: MessageView, *, raw: bool) -> dict[str, Any]:
    """Return a message as JSON has it; its bytes in Base64, if wanted."""
    document = asdict(message)
    for name in ("content", "broken") if raw else ("content", "broken", "raw"):
        del document[name]
    first = {name: document.pop(name) for name in ("id", "topic", "state")}
    return {**first, "payload": message.payload, "unreadable": message.unreadable, **document}


def payload_text(message: MessageView, *, indent: int | None = None) -> str:
    """Return the payload as JSON text, or the bytes of what cannot be read."""
    if message.unreadable:
        return repr(message.raw)
    return json.dumps(message.payload, ensure_ascii=False, indent=indent)


def when(seconds: float | None) -> str | None:
    """Return an instant as people write it, UTC."""
    return None if seconds is None else instant(seconds)


def duration(seconds: float | None) -> str | None:
    """Return a span of time in its two largest units."""
    if seconds is None:
        return None
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    for unit, size, below, part in (("d", 86_400, "h", 3600), ("h", 3600, "min", 60)):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // part} {below}"
    return f"{whole // 60} min {whole % 60} s"


def count(number: int, noun: str) -> str:
    """Return a number of things in words."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
