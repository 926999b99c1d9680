"""`mx-rmq resume-schedule`: let a paused schedule fire again."""

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
async def resume_schedule(admin: Admin, name: str, as_json: bool) -> int:
    """Let the schedule NAME fire again. Ticks up to now are skipped."""
    changed = await admin.resume_schedule(name)
    document = {"name": name, "state": "resumed", "changed": changed}
    said = "resumed" if changed else "was not paused"
    print_result(f"{name}: {said}", document, as_json=as_json)
    return 0
