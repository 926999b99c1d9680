"""`mx-rmq schedule`: produce a payload at every tick of a cron expression."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mx_rmq.cli.connection import complete_topic, on_admin
from mx_rmq.cli.output import as_json, print_result, when
from mx_rmq.cli.produce import HINT, parse_headers
from mx_rmq.cli.schedules import schedule_document
from mx_rmq.core.message import Priority

if TYPE_CHECKING:
    from mx_rmq.admin import Admin


@click.command
@click.argument("name")
@click.argument("topic", shell_complete=complete_topic)
@click.argument("expression")
@click.option("--payload", default="null", metavar="JSON", help="The payload.  [default: null]")
@click.option("--tz", default="UTC", show_default=True, help="A time zone, such as Europe/Berlin.")
@click.option(
    "--missed",
    type=click.Choice(["skip", "once"]),
    default="skip",
    show_default=True,
    help="If no worker runs at a tick: skip it, or fire the latest one later.",
)
@click.option(
    "--priority",
    type=click.Choice([one.value for one in Priority]),
    default=Priority.NORMAL.value,
    show_default=True,
    help="The priority of the messages.",
)
@click.option("--ttl", type=float, help="Seconds after which a message expires.")
@click.option("--max-attempts", type=int, help="How often a message is tried.")
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    help="A header of the messages. Can be repeated.",
)
@as_json
@on_admin
async def schedule(
    admin: Admin,
    name: str,
    topic: str,
    expression: str,
    payload: str,
    headers: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> int:
    """Produce a payload to TOPIC at every tick of EXPRESSION, once across all workers.

    EXPRESSION has five fields: minute, hour, day, month, weekday; or six, with the second first.
    Put it in quotes, as in "0 3 * * *".
    It replaces the schedule NAME, if there is one. A paused schedule stays paused.
    """
    from mx_rmq.core import codec
    from mx_rmq.core.errors import InvalidInput

    try:
        value = codec.verbatim(payload)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"--payload {payload!r:.80} is not JSON: {error}; {HINT}") from error
    options |= {"headers": parse_headers(headers)}
    view = await admin.schedule(name, topic, expression, value, **options)
    said = "paused" if view.paused else f"next run {when(view.next_run)}"
    print_result(f"{name}: {said}", schedule_document(view), as_json=as_json)
    return 0
