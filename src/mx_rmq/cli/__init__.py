"""The command line. Signals, log configuration and exit codes live here and nowhere else."""

from __future__ import annotations

import click

from mx_rmq.cli.audit import audit
from mx_rmq.cli.demo import demo
from mx_rmq.cli.server import server


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="mx-rmq")
def main() -> None:
    """mx-rmq: a message queue for Python on Redis and Valkey."""


main.add_command(audit)
main.add_command(demo)
main.add_command(server)
