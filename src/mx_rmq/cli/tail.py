"""`mx-rmq tail`: what happens to messages, live."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import click

from mx_rmq.cli.connection import on_admin, with_topics
from mx_rmq.cli.filters import instant
from mx_rmq.cli.history import print_event
from mx_rmq.cli.output import count, print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.admin import Admin

SHOWN: Final = 3  # ids on one line; the rest are counted


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

    One line covers up to 25 messages that moved together. If the setting `history` is 0,
    nothing is recorded, so nothing is shown.
    """
    start = None if since is None else max(0.0, instant("--since", since, await admin.now()))
    shown = 0
    async for one in admin.tail(*topics, since=start):
        if as_json:
            print_json(asdict(one), indent=None)
        else:
            print_event(one, messages=f"  {one.topic}  {_ids(one.ids)}")
        shown += 1
        if shown == limit:
            break
    return 0


def _ids(ids: Sequence[str]) -> str:
    if len(ids) <= SHOWN:
        return " ".join(ids)
    return f"{' '.join(ids[:SHOWN])} and {count(len(ids) - SHOWN, 'other')}"
