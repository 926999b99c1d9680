"""`mx-rmq resume`: let workers take messages of a paused topic again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mx_rmq.cli.connection import on_admin, with_topic
from mx_rmq.cli.output import as_json
from mx_rmq.cli.pause import report_switch

if TYPE_CHECKING:
    from mx_rmq.admin import Admin


@click.command
@with_topic
@as_json
@on_admin
async def resume(admin: Admin, topic: str, as_json: bool) -> int:
    """Let workers take messages of TOPIC again."""
    return report_switch(topic, "resumed", await admin.resume(topic), as_json=as_json)
