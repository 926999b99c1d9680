"""`mx-rmq audit`: is every message in exactly one state?"""

from __future__ import annotations

import asyncio
import sys

import click

from mx_rmq.core.errors import MxRmqError
from mx_rmq.store.keys import DEFAULT_PREFIX
from mx_rmq.store.store import Store


@click.command()
@click.argument("topics", nargs=-1)
@click.option("--url", envvar="MX_RMQ_URL", required=True, help="The server. Also MX_RMQ_URL.")
@click.option("--prefix", envvar="MX_RMQ_PREFIX", default=DEFAULT_PREFIX, show_default=True)
def audit(topics: tuple[str, ...], url: str, prefix: str) -> None:
    """Report every message that is lost between states, in TOPICS or in all.

    Reads in small steps, so it may run beside live traffic. Exit code 1 if it finds anything.
    """
    try:
        found = asyncio.run(_audit(topics, url, prefix))
    except MxRmqError as error:
        raise click.ClickException(str(error)) from error
    sys.exit(1 if found else 0)


async def _audit(topics: tuple[str, ...], url: str, prefix: str) -> int:
    found = 0
    async with await Store.open(url, prefix=prefix) as store:
        chosen = topics or await store.views.topics()
        for topic in chosen:
            violations = await store.audit.topic(topic)
            found += len(violations)
            for violation in violations:
                click.echo(str(violation))
        click.echo(f"{len(chosen)} topics, {found} violations")
    return found
