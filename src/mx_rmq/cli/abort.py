"""`mx-rmq abort`: stop messages for good, even while their handlers run."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from mx_rmq.cli.actions import Action, act, acts_on
from mx_rmq.core.message import LIVE

if TYPE_CHECKING:
    from mx_rmq.admin import Admin


@click.command
@click.option("--reason", help="Why; stored with the dead letter.")
@acts_on(LIVE)
async def abort(admin: Admin, reason: str | None, **options: Any) -> int:
    """Move the messages IDS of TOPIC to the dead letters, and stop their handlers.

    With --all, move every message in --state that matches the filters. To undo it, requeue them.
    Exit code 1: some IDS are not pending, delayed, waiting or processing. 2: failed. 130:
    interrupted; each message is either aborted or unchanged.
    """
    one = partial(admin.abort, reason=reason or "")
    many = partial(admin.abort_all, reason=reason or "")
    action = Action(verb="abort", done="aborted", states=LIVE, one=one, many=many)
    return await act(admin, action, **options)
