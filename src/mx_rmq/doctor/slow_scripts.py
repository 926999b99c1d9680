"""Our scripts in the server's slow log."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from mx_rmq.core.errors import ScriptFailed
from mx_rmq.doctor.finding import Finding, Severity
from mx_rmq.store.script import load, names

if TYPE_CHECKING:
    from mx_rmq.net.caller import Caller
    from mx_rmq.store.keys import Keys

_OPENING: Final = re.compile(r"-- (\w+):")
"""How each of our scripts begins."""

ENTRIES: Final = 128
"""Entries to read: as many as a server keeps by default."""

LATELY: Final = 3600
"""Seconds for which an entry counts."""


@dataclass(frozen=True, slots=True)
class Slow:
    """A script that took long."""

    script: str
    key: str
    """The first of its keys."""
    ms: float
    at: int
    """Seconds since 1970, of the server's clock."""


async def slow_scripts(caller: Caller, keys: Keys, scratch: str) -> Finding:
    """Look for our scripts in the slow log."""
    try:
        log = await caller.command("SLOWLOG", "GET", ENTRIES, at=scratch)
        now = await caller.time(scratch) // 1000
    except ScriptFailed:
        return Finding(
            Severity.SKIP,
            "this user may not read the slow log, so slow scripts go unnoticed",
            "Grant +slowlog|get (ACL SETUSER)",
        )
    since = now - LATELY
    found = [slow for one in log if (slow := _read(one, keys.prefix)) and slow.at >= since]
    if not found:
        return Finding(Severity.OK, "no script of ours took long in the last hour")
    worst = max(found, key=lambda one: one.ms)
    ago = max(0, now - worst.at)
    return Finding(
        Severity.WARN,
        f"{len(found)} of the last {len(log)} entries of the server's slow log are scripts of ours "
        f"within an hour; the slowest: {worst.script} on {worst.key}, {worst.ms:,.0f} ms, "
        f"{ago:,} s ago",
        "See whether the machine is short of CPU or swaps, whether others run slow commands on "
        "this server, and whether messages are very long",
    )


def _read(entry: Any, prefix: str) -> Slow | None:
    """Read an entry; None: not one of ours."""
    words = [_text(word) for word in entry[3]]
    if len(words) < 4 or words[0].upper() not in ("EVALSHA", "EVAL"):
        return None
    if not words[3].startswith(f"{prefix}:"):
        return None
    opening = _OPENING.match(words[1])  # if it was sent along
    script = opening[1] if opening else _scripts().get(words[1], "a script")
    return Slow(script=script, key=words[3], ms=int(entry[2]) / 1000, at=int(entry[1]))


@cache
def _scripts() -> dict[str, str]:
    return {load(name).sha: name for name in names()}


def _text(word: bytes | str) -> str:
    return word.decode("utf-8", "backslashreplace") if isinstance(word, bytes) else word
