"""`mx-rmq demo`: a shop at work, and one of its workers killed."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Final

import click

from mx_rmq.cli.connection import INTERRUPTED
from mx_rmq.cli.output import printable
from mx_rmq.core.errors import MxRmqError

KEPT: Final = "MX_RMQ_SERVER_BINARY"

NEXT: Final = """
Now you, in three terminals. The shop is {shop}
  {program} server
  {program} worker mx_rmq.demo.shop
  {program} produce --url embedded://./mx-rmq-data orders {order}
"""
ORDER: Final = {"number": 1, "item": "tea"}


@click.command(short_help="See a shop at work, and one of its workers killed.")
def demo() -> None:
    """See a shop at work, and one of its workers killed; then count whether anything is lost.

    It has a server of its own, takes about fifteen seconds and leaves nothing behind. Exit code 0:
    every message is accounted for. 1: something is not as it should be.
    """
    _forget_settings()
    from mx_rmq.demo import shop, story  # not before: the shop's queue reads the settings

    told = NEXT.format(
        program=_short(_program()), shop=_short(shop.__file__), order=f"'{json.dumps(ORDER)}'"
    )
    try:
        ended = asyncio.run(story.run(told.splitlines()))
    except (MxRmqError, story.Trouble) as error:
        raise click.ClickException(printable(str(error))) from error
    sys.exit(0 if ended else INTERRUPTED)


def _forget_settings() -> None:
    """The demo, and the processes that it starts, go by nobody's settings but their own."""
    for name in [name for name in os.environ if name.startswith("MX_RMQ_") and name != KEPT]:
        del os.environ[name]
    os.environ["MX_RMQ_CONFIG"] = os.devnull


def _program() -> str:
    """Return what to type to call us again."""
    ours = str(Path(sys.executable).with_name("mx-rmq"))
    return "mx-rmq" if shutil.which("mx-rmq") == ours else ours


def _short(path: str) -> str:
    """Return a path from here, if it is below."""
    return (
        str(Path(path).relative_to(Path.cwd())) if Path(path).is_relative_to(Path.cwd()) else path
    )
