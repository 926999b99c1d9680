"""`mx-rmq outbox`: the rows of an outbox that wait, and those that cannot be sent."""

from __future__ import annotations

import sys
from dataclasses import asdict

import click

from mx_rmq.cli.confirm import ask, yes_option
from mx_rmq.cli.outbox_database import TABLE, open_outbox
from mx_rmq.cli.output import as_json, count, cut, duration, print_json, print_result, say
from mx_rmq.cli.terminal import Table, show_table


@click.command
@click.argument("database")
@click.option("--table", default=TABLE, show_default=True, help="The table of the rows.")
@click.option("--id", "id", help="Only the parked row with this id.")
@click.option("--retry", is_flag=True, help="Let a relay try the parked rows again.")
@click.option("--discard", is_flag=True, help="Delete the parked rows.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True)
@yes_option
@as_json
def outbox(
    database: str,
    table: str,
    id: str | None,
    retry: bool,
    discard: bool,
    limit: int,
    yes: bool,
    as_json: bool,
) -> None:
    """Show the outbox in DATABASE, a URL as SQLAlchemy takes it.

    Rows that wait are sent by any worker with a relay. A parked row cannot be sent as it is; the
    rows behind it were sent. Exit code 1: there are parked rows, or none to retry or discard.
    """
    if retry and discard:
        raise click.UsageError("Pass either --retry or --discard.")
    if discard:
        ask("delete parked rows for good" if id is None else f"delete row {id} for good", yes=yes)
    if retry or discard:
        with open_outbox(database, table) as (box, connection):
            number = (box.retry if retry else box.discard)(connection, id)
        done = "will be tried again" if retry else "deleted"
        document = {"retried" if retry else "discarded": number}
        print_result(f"{count(number, 'row')} {done}", document, as_json=as_json)
        sys.exit(int(number == 0))
    with open_outbox(database, table) as (box, connection):
        counts = box.waiting(connection)
        rows = [one for one in box.parked(connection, limit) if id in (None, one.id)]
    if as_json:
        print_json({**asdict(counts), "rows": [asdict(one) for one in rows]})
    else:
        since = f", the first for {duration(counts.oldest)}" if counts.waiting else ""
        say(f"{count(counts.waiting, 'row')} to send{since}; {counts.parked:,} parked")
        if rows:
            shown = [(one.id, one.topic, duration(one.age), cut(one.error)) for one in rows]
            show_table(Table(("id", "topic", "age", "error"), shown, long=("error", "id")))
    sys.exit(int(counts.parked > 0))
