"""`mx-rmq demo`: a small shop survives the kill -9 of a worker."""

from __future__ import annotations

import asyncio
import os
import sys

import click

from mx_rmq.cli.output import printable
from mx_rmq.cli.program import INTERRUPTED
from mx_rmq.core.errors import MxRmqError


@click.command
def demo() -> None:
    """Run a small shop with two workers, kill -9 one of them, then account for every message.

    It starts its own server, takes about fifteen seconds and leaves nothing behind. Exit code 0:
    every message is accounted for. 1: something went wrong.
    """
    for name in [name for name in os.environ if name.startswith("MX_RMQ_")]:
        if name != "MX_RMQ_SERVER_BINARY":  # the user's settings are not for the demo
            del os.environ[name]
    os.environ["MX_RMQ_CONFIG"] = os.devnull
    from mx_rmq_demo import scenario  # now: the shop's queue reads the settings

    try:
        ended = asyncio.run(scenario.run())
    except (MxRmqError, scenario.DemoFailed) as error:
        raise click.ClickException(printable(str(error))) from error
    sys.exit(0 if ended else INTERRUPTED)
