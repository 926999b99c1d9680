"""The history of a message, as `show` and `tail` print it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from mx_rmq.cli.output import printable, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.admin import Happening

COLOURS: Final = {
    "completed": "green",
    "retried": "yellow",
    "taken_over": "yellow",
    "postponed": "yellow",
    "died": "red",
    "quarantined": "red",
}


def life_document(life: Sequence[Happening]) -> list[dict[str, Any]]:
    """Return a history for JSON."""
    return [{name: getattr(one, name) for name in ("at", "what", "by", "about")} for one in life]


def show_life(life: Sequence[Happening]) -> None:
    """Print a history, one line per event."""
    if not life:
        return
    click.echo("history:")
    for one in life:
        click.echo("  ", nl=False)
        begin_line(one)
        say(by_and_about(one))


def begin_line(one: Happening) -> None:
    """Print time and name of an event."""
    click.secho(f"{_time(one.at)}  ", dim=True, nl=False)
    click.secho(f"{one.what:<11}", fg=COLOURS.get(one.what), nl=False)


def by_and_about(one: Happening) -> str:
    """Return the rest of the line: who did it, and why."""
    by = f"  by {one.by}" if one.by else ""
    silent = "from " if one.what == "taken_over" else ""
    return f"{by}  {silent}{one.about}" if one.about else by


def _time(at: float) -> str:
    try:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"
    except (OverflowError, ValueError):
        return printable(f"{at:g} s")
