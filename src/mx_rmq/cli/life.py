"""What has happened, as lines: `mx-rmq tail`, and the life of a message for `show`."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from mx_rmq.admin import What
from mx_rmq.cli.connection import on_admin
from mx_rmq.cli.output import count, printable, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.admin import Admin, Happening

SHOWN: Final = 3
"""Ids of one line; the others are counted."""

COLOURS: Final = {
    What.COMPLETED: "green",
    What.RETRIED: "yellow",
    What.TAKEN_OVER: "yellow",
    What.DIED: "red",
    What.QUARANTINED: "red",
}


@click.command(short_help="Show what happens to messages, live.")
@click.argument("topics", nargs=-1)
@click.option("--ago", type=click.FloatRange(0), help="Begin so many seconds ago, not now.")
@click.option("--limit", type=click.IntRange(1), help="End after so many lines.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document a line.")
@on_admin
async def tail(
    admin: Admin, topics: tuple[str, ...], ago: float | None, limit: int | None, as_json: bool
) -> int:
    """Show what happens to the messages of TOPICS, or of all topics, until Ctrl-C.

    One line is about up to 25 messages that one call has moved. Without the setting `history`
    nothing is written down, and nothing shown.
    """
    since = None if ago is None else time.time() - ago
    left = limit
    async for one in admin.tail(*topics, since=since):
        if as_json:
            click.echo(json.dumps(asdict(one)))
        else:
            _begin_line(one)
            say(f"  {one.topic}  {_ids(one.ids)}{_more(one)}")
        left = left and left - 1
        if left == 0:
            break
    return 0


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
        _begin_line(one)
        say(_more(one))


def _begin_line(one: Happening) -> None:
    click.secho(f"{_time(one.at)}  ", dim=True, nl=False)
    click.secho(f"{one.what:<11}", fg=COLOURS.get(one.what), nl=False)


def _more(one: Happening) -> str:
    by = f"  by {one.by}" if one.by else ""
    silent = "from " if one.what is What.TAKEN_OVER else ""
    return f"{by}  {silent}{one.about}" if one.about else by


def _ids(ids: Sequence[str]) -> str:
    if len(ids) <= SHOWN:
        return " ".join(ids)
    return f"{' '.join(ids[:SHOWN])} and {count(len(ids) - SHOWN, 'other')}"


def _time(at: float) -> str:
    try:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"
    except (OverflowError, ValueError):
        return printable(f"{at:g} s")
