"""`mx-rmq signal`: send a signal to a message that waits for it, or will."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mx_rmq.cli.actions import why_not
from mx_rmq.cli.connection import on_admin, with_topic
from mx_rmq.cli.output import as_json, print_result
from mx_rmq.cli.produce import parsed

if TYPE_CHECKING:
    from mx_rmq.admin import Admin


@click.command
@with_topic
@click.argument("id")
@click.argument("name")
@click.argument("value", required=False)
@as_json
@on_admin
async def signal(
    admin: Admin, topic: str, id: str, name: str, value: str | None, as_json: bool
) -> int:
    """Send the signal NAME with VALUE (JSON; null if omitted) to message ID of TOPIC.

    Its handler gets the value from delivery.wait(NAME). A signal may arrive before the handler
    waits for it; of two with the same name, the first counts. Exit code 1: there is no such
    message, or it has ended.
    """
    payload = None if value is None else parsed(value, "the value")
    before = await admin.get(topic, id)
    sent = await admin.signal(topic, id, name, payload)
    is_first = sent and (before is None or name not in before.signals)
    if not sent:
        line = await why_not(admin, topic, id)
    elif not is_first:
        line = f"not changed, a signal {name} had arrived before"
    else:
        awaited = () if before is None or before.wait is None else before.wait.signals
        other = f"; it waits for {', '.join(awaited)}" if awaited and name not in awaited else ""
        line = f"signal {name} sent{other}"
    document = {"topic": topic, "id": id, "signal": name, "sent": sent, "first": is_first}
    print_result(f"{id}: {line}", document, as_json=as_json)
    return 0 if sent else 1
