"""`mx-rmq tail`: what happens to messages, live."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import click

from mx_rmq.cli.completion import complete_topic
from mx_rmq.cli.connection import on_admin
from mx_rmq.cli.filters import instant
from mx_rmq.cli.life import begin_line, by_and_about
from mx_rmq.cli.output import count, print_line, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.admin import Admin

SHOWN: Final = 3
"""Ids of one line; the others are counted."""


@click.command(short_help="Show what happens to messages, live.")
@click.argument("topics", nargs=-1, shell_complete=complete_topic)
@click.option("--since", help="Begin not now, but 2h (ago), or at 2030-01-31T12:00 (UTC).")
@click.option("--limit", type=click.IntRange(1), help="End after so many lines.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document a line.")
@on_admin
async def tail(
    admin: Admin, topics: tuple[str, ...], since: str | None, limit: int | None, as_json: bool
) -> int:
    """Show what happens to the messages of TOPICS, or of all topics, until Ctrl-C.

    One line tells of up to 25 messages that one call has moved. With the setting `history` at 0
    nothing is recorded, so there is nothing to show.
    """
    start = None if since is None else max(0.0, instant("--since", since, await admin.now()))
    left = limit
    async for one in admin.tail(*topics, since=start):
        if as_json:
            print_line(asdict(one))
        else:
            begin_line(one)
            say(f"  {one.topic}  {_ids(one.ids)}{by_and_about(one)}")
        left = left and left - 1
        if left == 0:
            break
    return 0


def _ids(ids: Sequence[str]) -> str:
    if len(ids) <= SHOWN:
        return " ".join(ids)
    return f"{' '.join(ids[:SHOWN])} and {count(len(ids) - SHOWN, 'other')}"
