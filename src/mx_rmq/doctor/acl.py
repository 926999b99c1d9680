"""Which plain commands a user may run beside the scripts: those of workers and of operators.

Each is tried on a key that does not exist, where it changes nothing. Asking the server (ACL DRYRUN)
needs a right that few users have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mx_rmq.core.errors import ScriptFailed
from mx_rmq.doctor.finding import Finding, ok, warn
from mx_rmq.net.subscription import Subscription

if TYPE_CHECKING:
    from mx_rmq.net.caller import Caller

OPERATOR: Final = (  # what the admin runs to read
    "HEXISTS KEY f, HGET KEY f, HGETALL KEY, HKEYS KEY, HLEN KEY, HMGET KEY f, HSCAN KEY 0, "
    "LLEN KEY, LRANGE KEY 0 0, SSCAN KEY 0, XLEN KEY, XREAD COUNT 1 STREAMS KEY 0-0, "
    "XREVRANGE KEY + - COUNT 1, ZCARD KEY, ZCOUNT KEY 0 0, ZLEXCOUNT KEY - +, ZMSCORE KEY x, "
    "ZRANDMEMBER KEY 1, ZRANGE KEY 0 0, ZRANGEBYLEX KEY - +, ZRANGEBYSCORE KEY 0 0, "
    "ZREVRANGE KEY 0 0, ZSCAN KEY 0, ZSCORE KEY x"
)
WORKER: Final = "BLPOP KEY 0.01, HDEL KEY f, HEXISTS KEY f, HGET KEY f"  # to wait, register, leave


async def rights(caller: Caller, scratch: str) -> list[Finding]:
    """Report what the user of this connection may not run. `scratch`: a key that is never used."""
    user = await _user(caller, scratch)
    found = []
    if missing := await _missing(caller, scratch, OPERATOR):
        grants = " ".join(f"+{command.lower()}" for command in missing)
        found.append(
            warn(
                f"{user} may not run {', '.join(missing)}, so parts of mq.admin and some mx-rmq "
                "commands will fail",
                f"Grant {grants} (ACL SETUSER), or use deploy/acl/operator.acl",
            )
        )
    if missing := await _missing(caller, scratch, WORKER):
        what = f"{user} may not run {', '.join(missing)}, so workers cannot use this user"
        found.append(ok(what))
    if not await _may_listen(caller, scratch):
        found.append(
            warn(
                f"{user} may not SUBSCRIBE to channels, so callers of mq.result learn of results "
                "up to two seconds late",
                "Grant +subscribe and &mx-rmq:* with your prefix (ACL SETUSER), or use the files "
                "in deploy/acl",
            )
        )
    if not await _may_publish(caller, scratch):
        found.append(
            warn(
                f"{user} may not PUBLISH to channels, so workers learn of aborts up to ten seconds "
                "late",
                "Grant +publish and &mx-rmq:* with your prefix (ACL SETUSER), or use the files in "
                "deploy/acl",
            )
        )
    return found or [ok(f"{user} may run every command that is needed")]


async def _user(caller: Caller, scratch: str) -> str:
    try:
        name: bytes | str = await caller.command("ACL", "WHOAMI", at=scratch)
    except ScriptFailed:
        return "this user"
    return f"user {name.decode(errors='replace') if isinstance(name, bytes) else name}"


async def _may_listen(caller: Caller, channel: str) -> bool:
    subscription = Subscription(caller, lambda *_: None)
    try:
        return await subscription.add(channel)
    finally:
        await subscription.close()


async def _may_publish(caller: Caller, channel: str) -> bool:
    try:
        await caller.command("PUBLISH", channel, "", at=channel)
    except ScriptFailed:
        return False
    return True


async def _missing(caller: Caller, scratch: str, commands: str) -> list[str]:
    missing = []
    for one in commands.split(", "):
        command, *words = one.split()
        try:
            filled = (scratch if word == "KEY" else word for word in words)
            await caller.command(command, *filled, at=scratch)
        except ScriptFailed:
            missing.append(command)
    return missing
