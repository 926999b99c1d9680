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
@acts_on(LIVE, "Only messages in this state. Required with --all; not allowed without it.")
async def abort(admin: Admin, reason: str | None, **options: Any) -> int:
    """Move the messages IDS of TOPIC to the dead letters, and stop their handlers.

    With --all, move every message in --state that matches the filters. To undo it, requeue them.
    Exit code 1: some IDS are not pending, delayed or processing. 2: failed. 130: interrupted;
    each message is either aborted or unchanged.
    """
    if options["state"] is not None and options["ids"]:
        raise click.UsageError("--state needs --all.")

    why = reason or ""

    async def one(topic: str, id: str, *, state: None) -> bool:
        return await admin.abort(topic, id, why)

    many = partial(admin.abort_all, reason=why)
    action = Action(verb="abort", done="aborted", states=LIVE, one=one, many=many)
    return await act(admin, action, **options)
