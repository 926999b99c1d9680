"""The history of a message, as `show` and `tail` print it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from mx_rmq.cli.output import printable, say, when
from mx_rmq.core.text import duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.admin import Happening

COLOURS: Final = {
    "completed": "green",
    **dict.fromkeys(("retried", "snoozed", "parked", "taken_over", "postponed"), "yellow"),
    **dict.fromkeys(("aborted", "died", "quarantined"), "red"),
}


def history_document(history: Sequence[Happening]) -> list[dict[str, Any]]:
    """Return a history for JSON."""
    return [{name: getattr(one, name) for name in ("at", "what", "by", "about")} for one in history]


def print_history(
    history: Sequence[Happening], begins: float | None, now: float, created_at: float | None = None
) -> None:
    """Print a history, one line per event, and how far back the topic's history reaches.

    `created_at`: when the message was produced; None: unknown.
    """
    click.echo("history:")
    for one in history:
        print_event(one, indent="  ")
    if begins is None:
        say("  none: the history is empty or turned off")
        return
    if not history:
        older = created_at is not None and created_at < begins
        say("  none: the message is older than the history" if older else "  none")
    click.secho(f"  the history reaches back to {reach(begins, now)}", dim=True)


def reach(begins: float, now: float) -> str:
    """Say since when a topic has a history."""
    return f"{when(begins)} ({duration(max(0.0, now - begins))})"


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
