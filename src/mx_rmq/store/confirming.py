"""The commands by which a server confirms how far a message has come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mx_rmq.core.confirm import Level

if TYPE_CHECKING:
    from mx_rmq.core.confirm import Confirm
    from mx_rmq.store.script import Value


def wait_for(confirm: Confirm) -> tuple[Value, ...]:
    """Return the command that waits for it, on the connection that has written."""
    ms = round(confirm.within * 1000)
    if confirm.level is Level.FSYNCED:
        return ("WAITAOF", 1, confirm.replicas, ms)
    return ("WAIT", confirm.replicas, ms)


def probe(level: Level) -> tuple[Value, ...]:
    """Return a command that a server refuses if it can never confirm this."""
    return ("WAITAOF", 1, 0, 1) if level is Level.FSYNCED else ("WAIT", 0, 1)


def missing(confirm: Confirm, reply: int | list[int]) -> str:
    """Say what is missing after the reply to `wait_for`; nothing: it is confirmed."""
    local, replicas = reply if isinstance(reply, list) else (1, reply)
    lacks = []
    if not local:
        lacks.append("the primary has not written it to its disk")
    if replicas < confirm.replicas:
        lacks.append(f"{replicas} of {confirm.replicas} replicas have confirmed it")
    return " and ".join(lacks)
