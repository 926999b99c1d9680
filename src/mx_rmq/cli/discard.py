"""`mx-rmq discard`: delete dead or quarantined messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mx_rmq.cli.actions import Action, act, acts_on
from mx_rmq.core.message import FAILED

if TYPE_CHECKING:
    from mx_rmq.admin import Admin


@click.command
@acts_on(FAILED)
async def discard(admin: Admin, **options: Any) -> int:
    """Delete the messages IDS of TOPIC from the dead letters or quarantine. There is no undo.

    With --all, delete every message in --state that matches the filters. Exit code 1: some IDS were
    not found. 2: failed. 130: interrupted; each message is either deleted or unchanged.
    """
    action = Action(
        verb="discard",
        done="discarded",
        states=FAILED,
        one=admin.discard,
        many=admin.discard_all,
    )
    return await act(admin, action, **options)
