"""`mx-rmq cancel`: remove pending or delayed messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mx_rmq.cli.actions import Action, act, acts_on
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.message import UNSTARTED

if TYPE_CHECKING:
    from mx_rmq.admin import Admin


@click.command
@acts_on(UNSTARTED)
async def cancel(admin: Admin, **options: Any) -> int:
    """Remove the messages IDS of TOPIC that no worker has started.

    With --all, remove every message in --state that matches the filters: pending messages newest
    first, delayed messages by due time. Exit code 1: some IDS are not pending, delayed or waiting.
    2: failed, or a worker is processing a message. 130: interrupted; each message is either removed
    or unchanged.
    """
    from mx_rmq.admin import Cancelled

    async def one(topic: str, id: str) -> bool:
        answer = await admin.cancel(topic, id)
        if answer is Cancelled.PROCESSING:
            raise InvalidInput(f"message {id!r} is in processing: a worker has started it")
        return bool(answer)

    action = Action(
        verb="cancel", done="cancelled", states=UNSTARTED, one=one, many=admin.cancel_all
    )
    return await act(admin, action, **options)
