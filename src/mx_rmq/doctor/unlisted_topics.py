"""Topics and partitions that have messages, but are missing from the registry."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from mx_rmq.core.errors import ScriptFailed
from mx_rmq.core.names import PARTITION
from mx_rmq.core.partition import number_of, partition, partitions_of, topic_of
from mx_rmq.doctor.finding import Finding, bad, ok, skip

if TYPE_CHECKING:
    from mx_rmq.net.caller import Caller
    from mx_rmq.store.keys import Keys

STEP: Final = 1000  # keys per step, about
STEPS: Final = 200  # maximum number of steps: the server may have millions of other keys
SHOWN: Final = 5

_HOLDS: Final = r"\}(@[^:]+)?:(payload|dlq:payload|error:parse:payload)"
"""The keys that hold messages."""


async def unlisted_topics(caller: Caller, keys: Keys, scratch: str) -> Finding:
    """Scan the keys of a server in a bounded number of steps."""
    holds = re.compile(re.escape(keys.prefix) + r":\{([^{}]+)" + _HOLDS)
    found: set[str] = set()
    cursor, steps = 0, 0
    try:
        while steps == 0 or (cursor and steps < STEPS):
            words = (cursor, "MATCH", f"{keys.prefix}:{{*", "COUNT", STEP)
            cursor, names = await caller.command("SCAN", *words, at=scratch)
            cursor, steps = int(cursor), steps + 1
            for name in names:
                match = holds.fullmatch(name.decode("utf-8", "replace"))
                if match and PARTITION.fullmatch(match[1]):
                    copies = match[2] or ""
                    found.add(partition(topic_of(match[1]) + copies, number_of(match[1])))
        listed = await caller.command("HGETALL", keys.topics)  # last: topics may appear meanwhile
    except ScriptFailed:
        return skip(
            "this user may not run SCAN, so topics that are missing from the registry go unnoticed",
            "Grant +scan (ACL SETUSER)",
        )
    known = {name.decode("utf-8", "replace"): partitions_of(held) for name, held in listed.items()}
    lost = sorted(part for part in found if number_of(part) >= known.get(topic_of(part), 0))
    if lost:
        more = f" and {len(lost) - SHOWN} more" if len(lost) > SHOWN else ""
        return bad(
            "topics or partitions with messages are missing from the registry, so they are "
            f"neither counted nor served: {', '.join(lost[:SHOWN])}{more}",
            "Start a worker with a handler for the topic, or run mx-rmq grow with its number of "
            "partitions; either registers it again",
        )
    if cursor:
        return skip(
            f"the server has more than {STEP * STEPS:,} keys; the others were not searched for "
            "topics that are missing from the registry"
        )
    return ok("every topic with messages is in the registry")
