"""The command line. Signals, log configuration and exit codes live here and nowhere else."""

from __future__ import annotations

import click

from mx_rmq.cli.act import cancel, discard, grow, pause, requeue, resume
from mx_rmq.cli.audit import audit
from mx_rmq.cli.bench import bench
from mx_rmq.cli.capacity import capacity
from mx_rmq.cli.dashboard import dashboard
from mx_rmq.cli.demo import demo
from mx_rmq.cli.doctor import doctor
from mx_rmq.cli.look import list_messages, show, stats, workers
from mx_rmq.cli.produce import produce
from mx_rmq.cli.server import server
from mx_rmq.cli.work import worker


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="mx-rmq")
def main() -> None:
    """mx-rmq: a message queue for Python on Redis and Valkey."""


for command in (
    audit,
    bench,
    cancel,
    capacity,
    dashboard,
    demo,
    discard,
    doctor,
    grow,
    list_messages,
    pause,
    produce,
    requeue,
    resume,
    server,
    show,
    stats,
    worker,
    workers,
):
    main.add_command(command)
