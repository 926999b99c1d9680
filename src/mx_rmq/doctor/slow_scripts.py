"""Our scripts in the server's slow log."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mx_rmq.core.errors import ScriptFailed
from mx_rmq.core.text import count
from mx_rmq.doctor.finding import Finding, ok, skip, warn
from mx_rmq.store.script import load, names

if TYPE_CHECKING:
    from mx_rmq.net.caller import Caller
    from mx_rmq.store.keys import Keys

ENTRIES: Final = 128  # entries to read: as many as a server keeps by default
RECENT: Final = 3600  # seconds for which an entry counts

_OPENING: Final = re.compile(r"-- (\w+):")  # how each of our scripts begins


class SlowScript(NamedTuple):
    ms: float
    name: str
    key: str  # the first of its keys
    at: int  # seconds since 1970, by the server's clock


async def slow_scripts(caller: Caller, keys: Keys, scratch: str) -> Finding:
    """Look for our scripts in the slow log."""
    try:
        log = await caller.command("SLOWLOG", "GET", ENTRIES, at=scratch)
        now = await caller.time(scratch) // 1000
    except ScriptFailed:
        return skip(
            "this user may not read the slow log, so slow scripts go unnoticed",
            "Grant +slowlog|get (ACL SETUSER)",
        )
    ours = [slow for entry in log if (slow := _read(entry, keys.prefix))]
    found = [slow for slow in ours if slow.at >= now - RECENT]
    if not found:
        return ok("none of our scripts was slow in the last hour")
    worst = max(found)
    return warn(
        f"{count(len(found), 'slow run')} of our scripts in the last hour, among the last "
        f"{len(log)} entries of the server's slow log; the slowest: {worst.name} on {worst.key}, "
        f"{worst.ms:,.0f} ms, {max(0, now - worst.at):,} s ago",
        "Check whether the machine is short of CPU or swaps, whether others run slow commands on "
        "this server, and whether messages are very long",
    )


def _read(entry: Any, prefix: str) -> SlowScript | None:
    """Parse an entry; None: not one of our scripts."""
    words = [_text(word) for word in entry[3]]
    if len(words) < 4 or words[0].upper() not in ("EVALSHA", "EVAL"):
        return None
    if not words[3].startswith(f"{prefix}:"):
        return None
    opening = _OPENING.match(words[1])  # an EVAL has the text of the script
    name = opening[1] if opening else _names().get(words[1], "a script")
    return SlowScript(ms=int(entry[2]) / 1000, name=name, key=words[3], at=int(entry[1]))


@cache
def _names() -> dict[str, str]:
    return {load(name).sha: name for name in names()}


def _text(word: bytes | str) -> str:
    return word.decode("utf-8", "backslashreplace") if isinstance(word, bytes) else word
