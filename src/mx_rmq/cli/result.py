"""`mx-rmq result`: what the handler of a message returned."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mx_rmq.cli.connection import on_settings, open_store, with_topic
from mx_rmq.cli.output import as_json, cut, print_json, say
from mx_rmq.core.errors import MessageDied, ResultTimeout, ResultUnknown

if TYPE_CHECKING:
    from mx_rmq.settings import QueueSettings


@click.command
@with_topic
@click.argument("id")
@click.option(
    "--wait",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="Seconds to wait for the message to end.",
)
@as_json
@on_settings
async def result(settings: QueueSettings, topic: str, id: str, wait: float, as_json: bool) -> int:
    """Print what the handler of message ID of TOPIC returned.

    The handler needs a result_ttl. With --json, the result is a field of an object. Exit code 1:
    there is no result, or none yet. 2: failed.
    """
    from mx_rmq.waiters import Waiters

    async with open_store(settings) as store:
        waiters = Waiters(store)
        try:
            found = await waiters.result(topic, id, timeout=wait)
            print_json({"topic": topic, "id": id, "result": found} if as_json else found)
        except (MessageDied, ResultTimeout, ResultUnknown) as error:
            say("Error: " + cut(str(error), 400), err=True)
            return 1
        finally:
            await waiters.close()
    return 0
