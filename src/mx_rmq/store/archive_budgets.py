"""How many bytes the archives and the history of a topic may hold.

By default the dead letters of a topic may hold 256 MiB, its quarantine and its results 64 MiB each,
and its history 32 MiB. If the server has a maxmemory, all dead letters on it together get at most a
tenth of that, divided evenly over the partitions that live there; so do the quarantine, the results
and the histories. So they never stop a produce. An explicit setting overrides both. The partitions
of a topic share its budget.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from mx_rmq.core.errors import MxRmqError
from mx_rmq.core.message import State
from mx_rmq.core.names import LISTED
from mx_rmq.core.partition import partitions, partitions_of, topic_of

if TYPE_CHECKING:
    from mx_rmq.net.caller import Caller
    from mx_rmq.settings import Limits
    from mx_rmq.store.keys import Keys

REFRESH_EVERY: Final = 60.0  # seconds after which maxmemory and the topics are read again
ASK_WITHIN: Final = 0.5  # seconds that a server has to report its maxmemory

SHARE: Final = 0.1
"""The part of maxmemory for all dead letters on a server; the others get the same."""

OVERHEAD: Final = 200
"""Bytes counted per archived message on top of its contents; the scripts use the same number."""

MIB: Final = 1_048_576
FIXED: Final = {State.DEAD: 256 * MIB, State.QUARANTINED: 64 * MIB, State.COMPLETED: 64 * MIB}
"""Bytes per topic, if no setting and no maxmemory demands less."""
HISTORY: Final = 32 * MIB  # the same for its history


class Budgets:
    def __init__(self, caller: Caller, keys: Keys) -> None:
        self._caller = caller
        self._keys = keys
        self._refresh_at = float("-inf")
        self._maxmemory: dict[str | None, int] = {}  # bytes, by server; 0: no limit is set
        self._parts: Counter[str | None] = Counter()  # how many partitions live on each server
        self._counts: dict[str, int] = {}  # how many partitions each topic has

    async def refresh(self) -> None:
        """Read maxmemory and the registry, at most once per minute. A failure changes nothing."""
        if time.monotonic() < self._refresh_at:
            return
        self._refresh_at = time.monotonic() + REFRESH_EVERY
        try:
            await self._read_servers()
        except MxRmqError:
            return  # away, or not permitted: the next call reports it

    async def _read_servers(self) -> None:
        servers = self._caller.servers
        asked = (self._read_maxmemory(key) for key in servers.key_of_each(self._keys.scratch))
        await asyncio.gather(*asked)
        if not any(self._maxmemory.values()):
            return
        registered = await self._caller.command("HGETALL", self._keys.topics)
        counts: dict[str, int] = {}
        for name, count in registered.items():
            topic = name.decode("utf-8", "replace")
            if LISTED.fullmatch(topic):
                counts[topic] = partitions_of(count)
        parts = [part for topic, count in counts.items() for part in partitions(topic, count)]
        self._parts = Counter(self._caller.server_of(self._keys.of(part).payload) for part in parts)
        self._counts = counts

    async def _read_maxmemory(self, key: str) -> None:
        """Read the maxmemory of a key's server. Skip a server that does not answer in time."""
        try:
            async with asyncio.timeout(ASK_WITHIN):
                info: dict[str, Any] = await self._caller.command("INFO", "memory", at=key)
        except (MxRmqError, TimeoutError):
            return
        self._maxmemory[self._caller.server_of(key)] = int(info.get("maxmemory", 0))

    def of(self, part: str, state: State, limits: Limits, known: int) -> int:
        """Return how many bytes an archive of a partition may hold; 0: no limit.

        `known`: how many partitions the topic has, in case the registry was not read.
        """
        explicit = {
            State.DEAD: limits.dlq_max_bytes,
            State.QUARANTINED: limits.quarantine_max_bytes,
            State.COMPLETED: limits.results_bytes,
        }[state]
        return self._share(part, explicit, FIXED[state], known)

    def of_history(self, part: str, limits: Limits, known: int) -> int:
        """Return how many bytes the history of a partition may hold; 0: no limit."""
        return self._share(part, limits.history_max_bytes, HISTORY, known)

    def _share(self, part: str, explicit: int | None, fixed: int, known: int) -> int:
        """Return a partition's share of its topic's bytes, which a setting or `fixed` limits."""
        count = max(known, self._counts.get(topic_of(part), 1))
        if explicit is not None:
            return max(1, explicit // count) if explicit else 0
        budget = fixed // count
        server = self._caller.server_of(self._keys.of(part).payload)
        if maxmemory := self._maxmemory.get(server):
            budget = min(budget, int(maxmemory * SHARE / max(1, self._parts[server])))
        return max(1, budget)
