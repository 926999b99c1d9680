"""`mx-rmq tail`: what happens to messages, live."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import click

from mx_rmq.cli.connection import on_admin, with_topics
from mx_rmq.cli.filters import instant
from mx_rmq.cli.history import begin_line, by_and_about
from mx_rmq.cli.output import count, print_line, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.admin import Admin

SHOWN: Final = 3
"""Ids on one line; the rest are counted."""


@click.command
@with_topics
@click.option(
    "--since", help="Start in the past: 2h (ago) or 2030-01-31T12:00 (UTC).  [default: now]"
)
@click.option("--limit", type=click.IntRange(1), help="Stop after N lines.", metavar="N")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document per line.")
@on_admin
async def tail(
    admin: Admin, topics: tuple[str, ...], since: str | None, limit: int | None, as_json: bool
) -> int:
    """Show what happens to the messages of TOPICS, or of all topics, until Ctrl-C.

    One line covers up to 25 messages that moved together. With the setting `history` at 0 nothing
    is recorded, so nothing is shown.
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
