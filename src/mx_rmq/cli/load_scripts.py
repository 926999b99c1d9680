"""`mx-rmq load-scripts`: for Redis users that may not run EVAL."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from mx_rmq.cli.connection import on_settings
from mx_rmq.cli.output import as_json, count, print_json, say

if TYPE_CHECKING:
    from mx_rmq.settings import QueueSettings


@click.command
@as_json
@on_settings
async def load_scripts(settings: QueueSettings, as_json: bool) -> int:
    """Load the scripts of this release on every server and its replicas.

    Needed only if your Redis user lacks +eval and the setting load_scripts is false. Run it before
    you start a new release, and after each restart, failover or SCRIPT FLUSH: servers forget
    scripts. Waiting workers resume by themselves. Exit code 2: some server lacks a script.
    """
    from mx_rmq.net import script_loading
    from mx_rmq.store.script import sources

    loaded = await script_loading.load_scripts(
        settings.address, sources(), patience=settings.patience
    )
    if as_json:
        print_json([asdict(one) for one in loaded])
    else:
        for one in loaded:
            say(f"{one.role} {one.server}: {one.error or count(one.scripts, 'script')}")
    return 2 if any(one.error for one in loaded) else 0
