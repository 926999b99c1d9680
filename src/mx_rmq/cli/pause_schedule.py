"""`mx-rmq pause-schedule`: pause a schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mx_rmq.cli.connection import on_admin
from mx_rmq.cli.output import as_json, print_result

if TYPE_CHECKING:
    from mx_rmq.admin import Admin


@click.command
@click.argument("name")
@click.option("--reason", default="", help="Why. Shown wherever the pause is shown.")
@as_json
@on_admin
async def pause_schedule(admin: Admin, name: str, reason: str, as_json: bool) -> int:
    """Pause the schedule NAME, or the cron of the topic NAME, until it is resumed."""
    changed = await admin.pause_schedule(name, reason)
    said = ("paused" + (f": {reason}" if reason else "")) if changed else "already paused"
    document = {"name": name, "state": "paused", "changed": changed}
    print_result(f"{name}: {said}", document, as_json=as_json)
    return 0
