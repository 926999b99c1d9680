"""`mx-rmq load-scripts`: for users that may call our scripts but not run EVAL."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from mx_rmq.cli.connection import on_queue
from mx_rmq.cli.output import as_json, count, print_json, say
from mx_rmq.store.loading import load_scripts

if TYPE_CHECKING:
    from mx_rmq.cli.connection import Queue


@click.command("load-scripts", short_help="Load our scripts on every server in advance.")
@as_json
@on_queue
async def load(queue: Queue, as_json: bool) -> int:
    """Load the scripts of this release on every server and its replicas.

    Only needed for users without +eval, with the setting load_scripts=false. Run it before a new
    release starts, and after each restart, failover or SCRIPT FLUSH: servers forget scripts.
    Workers that wait for them resume by themselves. Exit code 2: a server does not have them all.
    """
    found = await load_scripts(queue.settings.address, patience=queue.settings.patience)
    if as_json:
        print_json([asdict(one) for one in found])
    else:
        for one in found:
            say(f"{one.role} {one.server}: {one.error or count(one.scripts, 'script')}")
    return 2 if any(one.error for one in found) else 0
