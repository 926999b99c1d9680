"""The life of a message, as `show` tells it, and what its lines have in common with `tail`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from mx_rmq.admin import What
from mx_rmq.cli.output import printable, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.admin import Happening

COLOURS: Final = {
    What.COMPLETED: "green",
    What.RETRIED: "yellow",
    What.TAKEN_OVER: "yellow",
    What.POSTPONED: "yellow",
    What.DIED: "red",
    What.QUARANTINED: "red",
}


def life_document(life: Sequence[Happening]) -> list[dict[str, Any]]:
    """Return the life of a message as JSON has it."""
    return [{name: getattr(one, name) for name in ("at", "what", "by", "about")} for one in life]


def show_life(life: Sequence[Happening]) -> None:
    """Print the life of a message, a line for each thing that happened."""
    if not life:
        return
    click.echo("history:")
    for one in life:
        click.echo("  ", nl=False)
        begin_line(one)
        say(by_and_about(one))


def begin_line(one: Happening) -> None:
    """Print when something happened, and what."""
    click.secho(f"{_time(one.at)}  ", dim=True, nl=False)
    click.secho(f"{one.what:<11}", fg=COLOURS.get(one.what), nl=False)


def by_and_about(one: Happening) -> str:
    """Return the rest of a line: by whom it was, and why."""
    by = f"  by {one.by}" if one.by else ""
    silent = "from " if one.what is What.TAKEN_OVER else ""
    return f"{by}  {silent}{one.about}" if one.about else by


def _time(at: float) -> str:
    try:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"
    except (OverflowError, ValueError):
        return printable(f"{at:g} s")
