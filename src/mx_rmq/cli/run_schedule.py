"""`mx-rmq run-schedule`: produce the message of a schedule now."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mx_rmq.cli.connection import on_admin
from mx_rmq.cli.output import as_json, print_result

if TYPE_CHECKING:
    from mx_rmq.admin import Admin


@click.command
@click.argument("name")
@as_json
@on_admin
async def run_schedule(admin: Admin, name: str, as_json: bool) -> int:
    """Produce the message of the schedule NAME now, and print its id.

    The next tick stays as it is. This also works while the schedule is paused.
    """
    id = await admin.run_schedule(name)
    print_result(id, {"name": name, "id": id}, as_json=as_json)
    return 0
