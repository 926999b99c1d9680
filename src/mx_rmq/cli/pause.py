"""`mx-rmq pause`: let no message of a topic, or of one of its keys, start."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mx_rmq.cli.connection import on_admin, with_topic
from mx_rmq.cli.filters import seconds_of
from mx_rmq.cli.output import as_json, duration, print_result

if TYPE_CHECKING:
    from mx_rmq.admin import Admin


@click.command
@with_topic
@click.option("--key", help="Pause only this key.")
@click.option(
    "--for", "seconds", metavar="TIME", help="How long: 90s, 10m, 2h or 1d. Default: until resumed."
)
@click.option("--reason", default="", help="Why. Shown wherever the pause is shown.")
@as_json
@on_admin
async def pause(
    admin: Admin, topic: str, key: str | None, seconds: str | None, reason: str, as_json: bool
) -> int:
    """Stop workers from taking messages of TOPIC, or of one of its keys.

    Running handlers continue.
    """
    span = None if seconds is None else seconds_of("--for", seconds)
    changed = await admin.pause(topic, key, seconds=span, reason=reason)
    how = "" if span is None else f" for {duration(span)}"
    how += f": {reason}" if reason else ""
    return report_switch(topic, key, "paused", changed, how=how, as_json=as_json)


def report_switch(
    topic: str, key: str | None, state: str, changed: bool, *, how: str = "", as_json: bool
) -> int:
    """Say that something is paused or resumed, or that it was already. Return the exit code."""
    document = {"topic": topic, "state": state, "changed": changed}
    if key is not None:
        document["key"] = key
    unchanged = "already paused" if state == "paused" else "was not paused"
    what = topic if key is None else f"{topic}, key {key}"
    print_result(f"{what}: {state + how if changed else unchanged}", document, as_json=as_json)
    return 0
