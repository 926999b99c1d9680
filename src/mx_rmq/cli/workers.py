"""`mx-rmq workers`: the workers, and what they are running."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from mx_rmq.cli.connection import on_admin
from mx_rmq.cli.output import as_json, duration, print_json, say, when
from mx_rmq.cli.terminal import Table, show_table
from mx_rmq.core.names import short_worker

if TYPE_CHECKING:
    from mx_rmq.admin import Admin, WorkerView


@click.command
@click.option(
    "--running", is_flag=True, help="List the running handlers, and for how long they have run."
)
@as_json
@on_admin
async def workers(admin: Admin, running: bool, as_json: bool) -> int:
    """List the workers that were seen recently, and how busy they are.

    A worker reports every 15 seconds; "as of" is the age of its report. It reports at most 20
    running handlers, the ones that have run longest.
    """
    found = await admin.workers()
    if as_json:
        print_json({"workers": [{**asdict(one), "alive": one.alive} for one in found]})
    elif not found:
        say("no workers")
    else:
        show_table(_running(found) if running else _workers(found))
    return 0


def _workers(found: list[WorkerView]) -> Table:
    return Table(
        ("worker", "host", "pid", "topics", "running", "held", "slots", "started", "as of", ""),
        [
            (
                short_worker(one.name),
                one.host,
                None if one.pid is None else str(one.pid),
                ", ".join(_topic(one, topic) for topic in one.topics),
                one.running,
                one.held,
                one.concurrency,
                when(one.started_at),
                *_report(one),
            )
            for one in found
        ],
        spare=("started", "host", "pid", "slots", "held"),
        long=("topics",),
    )


def _topic(one: WorkerView, topic: str) -> str:
    """Return a topic of a worker, with the size of its batches, if it has a batch handler."""
    size = one.batches.get(topic)
    return topic if size is None else f"{topic} (batch {size:,})"


def _running(found: list[WorkerView]) -> Table:
    """Return the running handlers. A worker that runs none has a line, too."""
    rows: list[tuple[object, ...]] = []
    for one in found:
        name = short_worker(one.name)
        rows += [
            (
                name,
                run.topic,
                run.id if run.batch is None else f"{run.id} and {run.batch - 1:,} more",
                run.handler,
                run.attempt,
                duration(run.seconds),
                *_report(one),
            )
            for run in one.doing
        ] or [(name, *(None,) * 5, *_report(one))]
    columns = ("worker", "topic", "id", "handler", "attempt", "running for", "as of", "")
    return Table(columns, rows, spare=("attempt", "as of", "handler"))


def _report(one: WorkerView) -> tuple[str, str | None]:
    """Return the age of a worker's last report, and its problem, if it has one."""
    down = f"{', '.join(one.down)} down" if one.down else None
    return f"{duration(one.seen_ago)} ago", down if one.alive else "silent"
