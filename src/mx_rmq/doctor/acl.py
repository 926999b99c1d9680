"""Which plain commands a user may run, besides the scripts: those of workers and of operators.

Each is tried on a key that does not exist, where it changes nothing. Asking the server (ACL DRYRUN)
needs a right that few users have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mx_rmq.core.errors import ScriptFailed
from mx_rmq.doctor.finding import Finding, Severity

if TYPE_CHECKING:
    from mx_rmq.net.caller import Caller
    from mx_rmq.net.connection import Value

KEY: Final = "KEY"
"""Stands for the key that does not exist."""

OPERATOR: Final[dict[str, tuple[Value, ...]]] = {
    "HEXISTS": (KEY, "f"),
    "HGET": (KEY, "f"),
    "HGETALL": (KEY,),
    "HKEYS": (KEY,),
    "HLEN": (KEY,),
    "HMGET": (KEY, "f"),
    "HSCAN": (KEY, 0),
    "LLEN": (KEY,),
    "LRANGE": (KEY, 0, 0),
    "SSCAN": (KEY, 0),
    "XLEN": (KEY,),
    "XREAD": ("COUNT", 1, "STREAMS", KEY, "0-0"),
    "XREVRANGE": (KEY, "+", "-", "COUNT", 1),
    "ZCARD": (KEY,),
    "ZCOUNT": (KEY, 0, 0),
    "ZRANGE": (KEY, 0, 0),
    "ZRANGEBYSCORE": (KEY, 0, 0),
    "ZREVRANGE": (KEY, 0, 0),
    "ZSCAN": (KEY, 0),
    "ZSCORE": (KEY, "x"),
}
"""What the admin runs to read, with its arguments."""

WORKER: Final[dict[str, tuple[Value, ...]]] = {
    "BLPOP": (KEY, "0.01"),
    "HDEL": (KEY, "f"),
    "HEXISTS": (KEY, "f"),
    "HGET": (KEY, "f"),
}
"""What a worker runs to wait, register and leave."""


async def rights(caller: Caller, scratch: str) -> list[Finding]:
    """Report what the user of this connection may not run."""
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
            filled = (scratch if word is KEY else word for word in words)
            await caller.command(command, *filled, at=scratch)
        except ScriptFailed:
            missing.append(command)
    return missing


def _grants(commands: list[str]) -> str:
    return " ".join(f"+{command.lower()}" for command in commands)
