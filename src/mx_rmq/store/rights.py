"""Which plain commands a user may run: those of a worker and of an operator, beside the scripts.

Each is tried, on a key that does not exist, where it finds nothing and changes nothing. To ask the
server (ACL DRYRUN) takes a right that few users have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mx_rmq.core.errors import ScriptFailed
from mx_rmq.store.finding import Finding, Severity

if TYPE_CHECKING:
    from mx_rmq.store.call import Caller
    from mx_rmq.store.script import Value

OPERATOR: Final[dict[str, tuple[Value, ...]]] = {
    "HGET": ("f",),
    "HGETALL": (),
    "HKEYS": (),
    "HMGET": ("f",),
    "HSCAN": (0,),
    "LLEN": (),
    "LRANGE": (0, 0),
    "ZCARD": (),
    "ZCOUNT": (0, 0),
    "ZRANGE": (0, 0),
    "ZRANGEBYSCORE": (0, 0),
    "ZREVRANGE": (0, 0),
    "ZSCAN": (0,),
    "ZSCORE": ("x",),
}
"""What the admin runs to look, and with what behind the key."""

WORKER: Final[dict[str, tuple[Value, ...]]] = {
    "BLPOP": ("0.01",),
    "HDEL": ("f",),
    "HEXISTS": ("f",),
    "HGET": ("f",),
}
"""What a worker runs to hear, to come and to go."""


async def rights(caller: Caller, scratch: str) -> list[Finding]:
    """Say what the user of this connection may not run."""
    user = await _user(caller, scratch)
    found = []
    if missing := await _missing(caller, scratch, OPERATOR):
        found.append(
            Finding(
                Severity.WARN,
                f"{user} may not run {', '.join(missing)}, so some of mq.admin and of the commands "
                "here will fail",
                f"Grant {_grants(missing)} (ACL SETUSER), or use deploy/acl/operator.acl",
            )
        )
    if missing := await _missing(caller, scratch, WORKER):
        found.append(
            Finding(
                Severity.OK,
                f"{user} may not run {', '.join(missing)}, so it is no user for workers",
            )
        )
    return found or [Finding(Severity.OK, f"{user} may run every command that is needed")]


async def _user(caller: Caller, scratch: str) -> str:
    try:
        name: bytes | str = await caller.command("ACL", "WHOAMI", at=scratch)
    except ScriptFailed:
        return "this user"
    return f"user {name.decode(errors='replace') if isinstance(name, bytes) else name}"


async def _missing(
    caller: Caller, scratch: str, commands: dict[str, tuple[Value, ...]]
) -> list[str]:
    missing = []
    for command, words in commands.items():
        try:
            await caller.command(command, scratch, *words)
        except ScriptFailed:
            missing.append(command)
    return missing


def _grants(commands: list[str]) -> str:
    return " ".join(f"+{command.lower()}" for command in commands)
