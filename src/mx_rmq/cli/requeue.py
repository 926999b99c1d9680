"""`mx-rmq requeue`: move dead or quarantined messages back to pending."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mx_rmq.cli.actions import Action, act, acts_on
from mx_rmq.core.message import FAILED

if TYPE_CHECKING:
    from mx_rmq.admin import Admin


@click.command
@acts_on(FAILED)
async def requeue(admin: Admin, **options: Any) -> int:
    """Move the messages IDS of TOPIC from the dead letters or quarantine back to pending.

    With --all, requeue every message in --state that matches the filters. Messages that no worker
    can decode are left alone. Exit code 1: some IDS were not found. 2: failed. 130: interrupted;
    each message is either requeued or unchanged.
    """
    action = Action(
        verb="requeue",
        done="requeued",
        states=FAILED,
        one=admin.requeue,
        many=admin.requeue_all,
        asks=False,
    )
    return await act(admin, action, **options)
