"""What must be true of a server before it gets a message.

Features are probed, never derived from the version: every Valkey says that it is Redis 7.2.4.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mx_rmq.core.errors import (
    MissingRights,
    NewerLayout,
    OutcomeUnknown,
    ScriptFailed,
    ServerUnavailable,
    UnsafeServer,
    WrongType,
)
from mx_rmq.net.redis_errors import is_denied
from mx_rmq.store.keys import LAYOUT
from mx_rmq.store.script import load, names

if TYPE_CHECKING:
    from mx_rmq.net.caller import Caller
    from mx_rmq.store.keys import Keys


OPTIONAL: Final = "PUBLISH"  # without it, waiters and workers learn late of ends and aborts
AWAY: Final = (ServerUnavailable, OutcomeUnknown)


@dataclass(frozen=True, slots=True)
class Preflight:
    hexpire: bool  # whether the server can expire a single field of a hash
    warnings: tuple[str, ...]  # what the server may lose, and what to do about it


async def preflight(caller: Caller, keys: Keys) -> Preflight:
    """Check every server; refuse one that would lose messages."""
    scratch = caller.servers.key_of_each(keys.scratch) or [keys.scratch(0)]
    found = await asyncio.gather(
        *(check_server(caller, keys, key) for key in scratch), return_exceptions=True
    )
    seen = [one for one in found if isinstance(one, Preflight)]
    for error in found:
        if isinstance(error, BaseException) and not (seen and isinstance(error, AWAY)):
            raise error
    warnings = [warning for one in seen for warning in one.warnings]
    if len(seen) < len(scratch):
        warnings.append(
            f"{len(scratch) - len(seen)} of {len(scratch)} nodes did not answer and could not be "
            "checked"
        )
    with suppress(*AWAY):  # the node that has the key may be one of those
        warnings += await check_layout(caller, keys)
    return Preflight(
        hexpire=all(one.hexpire for one in seen), warnings=tuple(dict.fromkeys(warnings))
    )


async def check_layout(caller: Caller, keys: Keys) -> list[str]:
    """Refuse keys with a newer layout than ours. No layout number means the first layout."""
    try:
        found: bytes | None = await caller.command("GET", keys.layout)
    except WrongType:
        raise
    except ScriptFailed as error:
        return [f"cannot check the layout of the keys: {error}. Grant +get ~{keys.layout}"]
    if found is None or (found.isdigit() and int(found) <= LAYOUT):
        return []
    raise NewerLayout(
        f"the keys under {keys.prefix}: have layout {found.decode(errors='replace')[:40]}, and "
        f"this release knows layouts up to {LAYOUT}. Upgrade mx-rmq; nothing was changed"
    )


async def check_server(caller: Caller, keys: Keys, scratch: str) -> Preflight:
    missing = await _missing(caller, keys, scratch)
    hexpire = "HEXPIRE" not in missing
    missing.pop("HEXPIRE", None)
    if missing:
        raise MissingRights(_what_is_missing(missing))
    return Preflight(hexpire=hexpire, warnings=tuple(await _settings(caller, scratch)))


async def _missing(caller: Caller, keys: Keys, scratch: str) -> dict[str, str]:
    script = load("preflight")
    commands = set().union(*(load(name).commands for name in names()))
    wanted = sorted(commands - {"SADD", "SREM", OPTIONAL})
    try:
        reply = await caller.run(script, [scratch], script.arguments({}, list(wanted)))
    except ScriptFailed as error:
        if is_denied(error):
            raise MissingRights(
                f"this user may not run scripts on the keys {keys.prefix}:*: {error.__cause__}. "
                f"Grant +eval +evalsha ~{keys.prefix}:* (ACL SETUSER); or +evalsha alone, with "
                "load_scripts=False and `mx-rmq load-scripts`"
            ) from error
        raise
    fields = iter(reply)
    return {
        name.decode(): words.decode(errors="replace")
        for name, words in zip(fields, fields, strict=True)
    }


def _what_is_missing(missing: dict[str, str]) -> str:
    lines = []
    for command, words in sorted(missing.items()):
        users = sorted(name for name in names() if command in load(name).commands)
        lines.append(f"{command} (needed by {', '.join(users)}): {words}")
    return (
        "some scripts would fail halfway, because this user or this server lacks "
        + "; ".join(lines)
        + ". Grant the commands on the keys of the prefix (ACL SETUSER), or use Redis 6.2 or newer"
    )


async def _settings(caller: Caller, scratch: str) -> list[str]:
    try:
        info: dict[str, Any] = await caller.command("INFO", at=scratch)
    except ScriptFailed:
        return ["this user may not run INFO: cannot check whether the server evicts or persists"]
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise UnsafeServer(
            f"maxmemory-policy is {policy}: when memory runs out, the server deletes whole keys, "
            "and with them every message of a topic. "
            "Run CONFIG SET maxmemory-policy noeviction, and set it in the server's configuration"
        )
    warnings = []
    if info.get("role") == "slave":
        warnings.append("the server is a replica, so it refuses writes: use the primary's address")
    if not info.get("aof_enabled"):
        warnings.append(
            "the server keeps no append-only file: when it stops, all messages since its last "
            "snapshot, if any, are lost. Run CONFIG SET appendonly yes, and set it in the "
            "configuration"
        )
    return warnings
