"""`mx-rmq pause`: stop workers from taking messages of a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mx_rmq.cli.connection import on_admin, with_topic
from mx_rmq.cli.output import as_json, print_result

if TYPE_CHECKING:
    from mx_rmq.admin import Admin


@click.command
@with_topic
@as_json
@on_admin
async def pause(admin: Admin, topic: str, as_json: bool) -> int:
    """Stop workers from taking messages of TOPIC until it is resumed.

    Messages that are already being processed are not affected.
    """
    return report_switch(topic, "paused", await admin.pause(topic), as_json=as_json)


def report_switch(topic: str, state: str, changed: bool, *, as_json: bool) -> int:
    """Say that a topic is paused or resumed, or that it was already. Return the exit code."""
    document = {"topic": topic, "state": state, "changed": changed}
    unchanged = "already paused" if state == "paused" else "was not paused"
    line = f"{topic}: {state if changed else unchanged}"
    print_result(line, document, as_json=as_json)
    return 0
