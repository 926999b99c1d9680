"""The command line. Signals, log configuration and exit codes live here and nowhere else."""

from __future__ import annotations

import click

from mx_rmq.cli.act import cancel, discard, requeue
from mx_rmq.cli.audit import audit
from mx_rmq.cli.bench import bench
from mx_rmq.cli.capacity import capacity
from mx_rmq.cli.completion import completion
from mx_rmq.cli.dashboard import dashboard
from mx_rmq.cli.demo import demo
from mx_rmq.cli.doctor import doctor
from mx_rmq.cli.edit import edit
from mx_rmq.cli.look import list_messages, stats, workers
from mx_rmq.cli.produce import produce
from mx_rmq.cli.program import Program
from mx_rmq.cli.scripts import load
from mx_rmq.cli.server import server
from mx_rmq.cli.show import show
from mx_rmq.cli.tail import tail
from mx_rmq.cli.topic import grow, pause, resume
from mx_rmq.cli.work import worker

EXIT_CODES = """\b
Exit codes:
  0    done; nothing is wrong
  1    it was looked for and is not there, or something wrong was found
  2    it could not be done: a wrong call, or the server is away
  130  interrupted; worker, server and dashboard end so: 0
  141  nobody reads its output any more, as behind | head
"""


@click.group(
    cls=Program, context_settings={"help_option_names": ["-h", "--help"]}, epilog=EXIT_CODES
)
@click.version_option(package_name="mx-rmq")
def main() -> None:
    """mx-rmq: a message queue for Python on Redis and Valkey."""


for command in (
    audit,
    bench,
    cancel,
    capacity,
    completion,
    dashboard,
    demo,
    discard,
    doctor,
    edit,
    grow,
    list_messages,
    load,
    pause,
    produce,
    requeue,
    resume,
    server,
    show,
    stats,
    tail,
    worker,
    workers,
):
    main.add_command(command)
