"""`mx-rmq audit`: is every message in exactly one state?"""

from __future__ import annotations

import asyncio
import sys

import click

from mx_rmq.core.errors import MxRmqError
from mx_rmq.core.names import check_topic
from mx_rmq.store.keys import DEFAULT_PREFIX
from mx_rmq.store.store import PATIENCE, Store


@click.command()
@click.argument("topics", nargs=-1)
@click.option("--url", envvar="MX_RMQ_URL", required=True, help="The server. Also MX_RMQ_URL.")
@click.option("--prefix", envvar="MX_RMQ_PREFIX", default=DEFAULT_PREFIX, show_default=True)
@click.option("--patience", default=PATIENCE, show_default=True, help="Seconds to wait for it.")
def audit(topics: tuple[str, ...], url: str, prefix: str, patience: float) -> None:
    """Report every message that is lost between states, in TOPICS or in all.

    Reads in small steps, so it may run beside live traffic. Exit code 1 if it finds anything.
    """
    try:
        for topic in topics:
            check_topic(topic)
        found = asyncio.run(_audit(topics, url, prefix, patience))
    except MxRmqError as error:
        raise click.ClickException(str(error)) from error
    sys.exit(1 if found else 0)


async def _audit(topics: tuple[str, ...], url: str, prefix: str, patience: float) -> int:
    found = 0
    async with await Store.open(url, prefix=prefix, patience=patience) as store:
        chosen = topics or await store.views.topics()
        for topic in chosen:
            violations = await store.audit.topic(topic)
            found += len(violations)
            for violation in violations:
                click.echo(str(violation))
        click.echo(f"{_count(len(chosen), 'topic')}, {_count(found, 'violation')}")
    return found


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
