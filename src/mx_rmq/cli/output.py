"""What the commands print: tables and JSON, of which foreign text can do the terminal no harm."""

from __future__ import annotations

import base64
import json
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from mx_rmq.admin import MessageView

CELL: Final = 60
"""Characters of a payload or an error in a table; `show` has them all."""

WIDE: Final = 10_000
"""Columns where no terminal sets a limit: a pipe gets whole lines."""

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


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Return a table: numbers to the right, None as nothing."""
    rows = list(rows)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        numeric = any(isinstance(row[number], int | float) for row in rows)
        table.add_column(
            column, justify="right" if numeric else "left", overflow="fold", no_wrap=numeric
        )
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row))
    return table


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table."""
    show_table(table(columns, rows))


def show_table(table: Table) -> None:
    """Print a table that is made already."""
    _console().print(table)


@contextmanager
def screen() -> Iterator[Callable[[Table, Sequence[str]], None]]:
    """Yield what shows a table and lines below it, in the place of those before.

    Where no terminal is, one comes below the other.
    """
    console = _console()
    if not console.is_terminal:

        def show(table: Table, below: Sequence[str]) -> None:
            console.print(table, *(Text(printable(line)) for line in below), sep="\n")

        yield show
        return
    with Live(console=console, auto_refresh=False) as live:

        def update(table: Table, below: Sequence[str]) -> None:
            shown = (Text(printable(line)) for line in below)
            live.update(Group(table, *shown), refresh=True)

        yield update


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise  # rich would end the program with exit code 1  # noqa: PLE0704


def _console() -> Console:
    console = _Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = WIDE
    return console


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.1f}" if isinstance(value, float) else printable(str(value))


def payload_text(message: MessageView, *, indent: int | None = None) -> str:
    """Return the payload as JSON text, or the bytes of what cannot be read."""
    if message.unreadable:
        return repr(message.raw)
    return json.dumps(message.payload, ensure_ascii=False, indent=indent)


def when(seconds: float | None) -> str | None:
    """Return an instant as people write it, UTC."""
    if seconds is None:
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (OverflowError, ValueError, OSError):  # each for another kind of too large
        return f"{seconds:g} s"


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
