"""`mx-rmq audit`: is every message in exactly one state?"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click

from mx_rmq.core.errors import InvalidInput, MxRmqError
from mx_rmq.store import Store
from mx_rmq.store.keys import DEFAULT_PREFIX
from mx_rmq.store.store import MAX_PATIENCE, PATIENCE


class CannotAudit(click.ClickException):
    """No verdict, so no exit code that a clean or a broken queue would give."""

    exit_code = 2


@click.command(short_help="Check that every message is in exactly one state.")
@click.argument("topics", nargs=-1)
@click.option("--url", envvar="MX_RMQ_URL", required=True, show_envvar=True, help="The server.")
@click.option("--prefix", envvar="MX_RMQ_PREFIX", default=DEFAULT_PREFIX, show_default=True)
@click.option(
    "--patience",
    type=click.FloatRange(0, MAX_PATIENCE),
    default=PATIENCE,
    show_default=True,
    help="Seconds to wait for the server.",
)
def audit(topics: tuple[str, ...], url: str, prefix: str, patience: float) -> None:
    """Report every message that is not in exactly one state, in TOPICS or in all.

    Reads in small steps, so it may run beside live traffic. Exit code 0: clean. 1: violations
    found. 2: the audit could not be made.
    """
    try:
        found = asyncio.run(_audit(topics, url, prefix, patience))
    except MxRmqError as error:
        raise CannotAudit(str(error)) from error
    sys.exit(1 if found else 0)


async def _audit(topics: tuple[str, ...], url: str, prefix: str, patience: float) -> int:
    directory = url.removeprefix("embedded://")
    if directory != url and not Path(directory).is_dir():  # noqa: ASYNC240 - nothing else runs
        raise InvalidInput(f"there is no directory {directory}, so there is nothing to audit")
    messages = found = 0
    async with await Store.open(url, prefix=prefix, patience=patience) as store:
        known = await store.views.topics()
        if unknown := sorted(set(topics) - set(known)):
            raise InvalidInput(
                f"no topic {', '.join(map(repr, unknown))} under the prefix {prefix!r}; "
                f"there are {len(known)}: {', '.join(known[:10])}"
            )
        for topic in topics or known:
            violations = await store.audit.topic(topic)
            found += len(violations)
            for violation in violations:
                click.echo(str(violation))
            messages += (await store.views.counts(topic)).total
        checked = _count(len(topics or known), "topic")
        click.echo(f"{checked}, {_count(messages, 'message')}, {_count(found, 'violation')}")
    return found


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
