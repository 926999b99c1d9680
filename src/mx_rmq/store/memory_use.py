"""What uses a server's memory: for the error when it is full, and for the doctor."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mx_rmq.core.errors import MxRmqError, ScriptFailed
from mx_rmq.core.message import State
from mx_rmq.core.names import LISTED
from mx_rmq.core.partition import topic_of
from mx_rmq.core.text import size
from mx_rmq.store.script import load

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mx_rmq.net.caller import Caller
    from mx_rmq.store.keys import Keys

MAX_MEASURED: Final = 100  # topics
CONCURRENCY: Final = 16
SAMPLE: Final = 20  # values to read for an estimate of the bytes of all messages
EXPLAIN_WITHIN: Final = 2.0  # seconds that an explanation may take: a refused produce waits for it
REUSE_FOR: Final = (
    5.0  # seconds for which an explanation is reused: many callers may be refused at once
)
SIGNIFICANT: Final = 0.1  # the part of the used memory below which a holder is not the cause

ARCHIVES: Final = {
    State.DEAD: ("dead letters", "dlq_max_bytes"),
    State.QUARANTINED: ("quarantined messages", "quarantine_max_bytes"),
}
_HOLDERS: Final = {**ARCHIVES, State.COMPLETED: ("results", "results_bytes")}


class Holder(NamedTuple):
    bytes: int
    topic: str
    state: State | None  # the archive; None: messages that are waiting or being handled

    def __str__(self) -> str:
        what = "waiting messages" if self.state is None else _HOLDERS[self.state][0]
        return f"{what} of topic {self.topic} hold {size(self.bytes)}"

    @property
    def cure(self) -> str:
        if self.state is None:
            return "Let workers catch up, or raise maxmemory"
        discard = "Set" if self.state is State.COMPLETED else "Discard them, set"
        return f"{discard} a lower {_HOLDERS[self.state][1]}, or raise maxmemory"


class Memory:
    def __init__(self, caller: Caller, keys: Keys) -> None:
        self._caller = caller
        self._keys = keys
        self._lock = asyncio.Lock()
        self._explained: tuple[float, str] | None = None

    async def explain(self, topic: str, known: Iterable[str]) -> str:
        """Say why a topic's server stores nothing more, and what to do about it.

        `known`: topics to measure if this user may not list all of them.
        """
        async with self._lock:
            if self._explained is None or time.monotonic() - self._explained[0] > REUSE_FOR:
                try:
                    async with asyncio.timeout(EXPLAIN_WITHIN):
                        text = await self._explain(topic, [topic, *known])
                except (MxRmqError, TimeoutError):
                    text = _GENERIC
                self._explained = time.monotonic(), text
            return self._explained[1]

    async def _explain(self, topic: str, known: list[str]) -> str:
        key = self._keys.of(topic).payload
        used, limit = await self.use(key)
        full = "the server has reached maxmemory and stores nothing more"
        if limit:
            full = f"{full} ({size(used)} used, maxmemory is {size(limit)})"
        found = await self.holders(key, known)
        if not found or (used and found[0].bytes < SIGNIFICANT * used):
            return f"{full}; {_CURE}" if not found else f"{full}; only {found[0]}; {_CURE}"
        return f"{full}; {found[0]}. {found[0].cure}"

    async def use(self, key: str) -> tuple[int, int]:
        """Return the bytes that a key's server uses, and its limit; 0: unknown, or no limit."""
        try:
            info: dict[str, Any] = await self._caller.command("INFO", "memory", at=key)
        except ScriptFailed:
            return 0, 0
        return int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))

    async def holders(self, key: str, known: Iterable[str] = ()) -> list[Holder]:
        """Return what the topics on a key's server hold, largest first."""
        here = self._caller.server_of(key)
        names = [*known]
        with suppress(ScriptFailed):  # a producer may not list them
            registered = await self._caller.command("HKEYS", self._keys.topics)
            names += [name.decode("utf-8", "replace") for name in registered]
        chosen = [
            name
            for name in dict.fromkeys(names)
            if LISTED.fullmatch(topic_of(name))
            and self._caller.server_of(self._keys.of(name).payload) == here
        ][:MAX_MEASURED]
        free = asyncio.Semaphore(CONCURRENCY)

        async def measure(name: str) -> list[Holder]:
            async with free:
                return await self._measure(name)

        found = await asyncio.gather(*map(measure, chosen))
        held = (one for some in found for one in some if one.bytes)
        return sorted(held, key=lambda one: one.bytes, reverse=True)

    async def _measure(self, name: str) -> list[Holder]:
        """Return what a topic or partition holds, as far as this user may read it."""
        keys, topic, script = self._keys.of(name), topic_of(name), load("weigh_hash")
        found: list[Holder] = []
        with suppress(ScriptFailed):
            noted = await self._caller.command("HMGET", keys.archive_bytes, *_HOLDERS)
            for state, count in zip(_HOLDERS, noted, strict=True):
                if count and count.isdigit():
                    found.append(Holder(int(count), topic, state))
        with suppress(ScriptFailed):
            args = script.arguments({"sample": SAMPLE})
            _, count = await self._caller.run(script, [keys.payload], args)
            found.append(Holder(int(count), topic, None))
        return found


_CURE: Final = (
    "let workers catch up, discard dead letters, check what else is stored there, "
    "or raise maxmemory"
)
_GENERIC: Final = f"the server has reached maxmemory and stores nothing more; {_CURE}"
