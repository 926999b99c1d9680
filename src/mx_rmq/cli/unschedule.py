"""`mx-rmq unschedule`: remove a schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mx_rmq.cli.confirm import ask, yes_option
from mx_rmq.cli.connection import on_admin
from mx_rmq.cli.output import as_json, print_result

if TYPE_CHECKING:
    from mx_rmq.admin import Admin


@click.command
@click.argument("name")
@yes_option
@as_json
@on_admin
async def unschedule(admin: Admin, name: str, yes: bool, as_json: bool) -> int:
    """Remove the schedule NAME. Once this returns, it does not fire again.

    Exit code 1: there is none. A cron that is declared in code can only be paused.
    """
    ask(f"remove schedule {name}", yes=yes)
    gone = await admin.unschedule(name)
    said = "removed" if gone else "not found"
    print_result(f"{name}: {said}", {"name": name, "removed": gone}, as_json=as_json)
    return 0 if gone else 1
