"""`mx-rmq demo`: a small shop survives the kill -9 of a worker."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Final

import click

from mx_rmq.cli.output import printable, relative
from mx_rmq.cli.program import INTERRUPTED
from mx_rmq.core.errors import MxRmqError

KEPT: Final = "MX_RMQ_SERVER_BINARY"

NEXT: Final = """
Now you, in three terminals. The shop is {shop}
  {program} server
  {program} worker mx_rmq_demo.shop
  {program} produce --url embedded://./mx-rmq-data orders {order}
"""
ORDER: Final = {"number": 1, "item": "tea"}


@click.command
def demo() -> None:
    """Run a small shop with two workers, kill -9 one of them, then account for every message.

    It starts its own server, takes about fifteen seconds and leaves nothing behind. Exit code 0:
    every message is accounted for. 1: something went wrong.
    """
    _forget_settings()
    from mx_rmq_demo import scenario, shop  # after _forget_settings: the shop's queue reads them

    told = NEXT.format(
        program=relative(_program()), shop=relative(shop.__file__), order=f"'{json.dumps(ORDER)}'"
    )
    try:
        ended = asyncio.run(scenario.run(told.splitlines()))
    except (MxRmqError, scenario.Trouble) as error:
        raise click.ClickException(printable(str(error))) from error
    sys.exit(0 if ended else INTERRUPTED)


def _forget_settings() -> None:
    """Ignore the user's settings, in this process and in those that it starts."""
    for name in [name for name in os.environ if name.startswith("MX_RMQ_") and name != KEPT]:
        del os.environ[name]
    os.environ["MX_RMQ_CONFIG"] = os.devnull


def _program() -> str:
    """Return what to type to run mx-rmq."""
    ours = str(Path(sys.executable).with_name("mx-rmq"))
    return "mx-rmq" if shutil.which("mx-rmq") == ours else ours
