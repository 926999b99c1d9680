"""`mx-rmq resume`: let workers take messages of a paused topic or key again."""

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
@click.option("--key", help="Resume only this key.")
@as_json
@on_admin
async def resume(admin: Admin, topic: str, key: str | None, as_json: bool) -> int:
    """Let workers take messages of TOPIC, or of one of its keys, again.

    Resuming a topic does not resume keys that are paused themselves.
    """
    changed = await admin.resume(topic, key)
    return report_switch(topic, key, "resumed", changed, as_json=as_json)
