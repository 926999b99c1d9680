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
    **dict.fromkeys(("retried", "taken_over", "postponed"), "yellow"),
    **dict.fromkeys(("aborted", "died", "quarantined"), "red"),
}


def history_document(history: Sequence[Happening]) -> list[dict[str, Any]]:
    """Return a history for JSON."""
    return [{name: getattr(one, name) for name in ("at", "what", "by", "about")} for one in history]


def print_history(history: Sequence[Happening]) -> None:
    """Print a history, one line per event."""
    if history:
        click.echo("history:")
    for one in history:
        print_event(one, indent="  ")


def print_event(one: Happening, *, indent: str = "", messages: str = "") -> None:
    """Print a line: when, what, which messages, who did it, and why."""
    by = f"  by {one.by}" if one.by else ""
    source = "from " if one.what == "taken_over" else ""
    why = f"  {source}{one.about}" if one.about else ""
    click.secho(f"{indent}{_time(one.at)}  ", dim=True, nl=False)
    click.secho(f"{one.what:<11}", fg=COLOURS.get(one.what), nl=False)
    say(f"{messages}{by}{why}")


def _time(at: float) -> str:
    try:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"
    except (OverflowError, ValueError):
        return printable(f"{at:g} s")
