"""`mx-rmq reschedule`: give a waiting message another due time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mx_rmq.cli.actions import why_not
from mx_rmq.cli.connection import on_admin, with_topic
from mx_rmq.cli.output import as_json, print_result
from mx_rmq.cli.produce import parse_at

if TYPE_CHECKING:
    from mx_rmq.admin import Admin


@click.command
@with_topic
@click.argument("id")
@click.option("--delay", type=float, help="Seconds until the message is due; 0: now.")
@click.option("--at", help="When the message is due: 2030-01-31T12:00:00+01:00.")
@as_json
@on_admin
async def reschedule(
    admin: Admin, topic: str, id: str, delay: float | None, at: str | None, as_json: bool
) -> int:
    """Give the pending or delayed message ID of TOPIC another due time.

    Exit code 1: the message is neither pending nor delayed.
    """
    if (delay is None) == (at is None):
        raise click.UsageError("Pass either --delay or --at.")
    done = await admin.reschedule(topic, id, delay=delay, at=parse_at(at))
    line = f"{id}: {'rescheduled' if done else await why_not(admin, topic, id)}"
    print_result(line, {"topic": topic, "id": id, "rescheduled": done}, as_json=as_json)
    return 0 if done else 1
