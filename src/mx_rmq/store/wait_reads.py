"""Reads of what messages wait for, and of the signals that have arrived for them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.store.store import Store


NEVER: Final = 253_402_300_799_000  # when a message without a timeout is due: see retry_message
PAGE: Final = 1000  # ids in one call


class Awaited(NamedTuple):
    """Signals that a message still waits for."""

    names: list[str]
    total: int  # of all, even if not all were read


class WaitReads:
    def __init__(self, store: Store) -> None:
        self._caller = store.caller
        self._keys = store.keys

    async def awaited(self, topic: str, id: str, most: int) -> Awaited:
        """Return what a message waits for; at most this many names."""
        key, prefix = self._keys.of(topic).awaited, f"{id}\t".encode("utf-8", "surrogateescape")
        span = b"[" + prefix, b"(" + prefix[:-1] + b"\n"
        found = await self._caller.command("ZRANGEBYLEX", key, *span, "LIMIT", 0, most)
        count = len(found)
        if count == most:
            count = int(await self._caller.command("ZLEXCOUNT", key, *span))
        return Awaited([_text(one[len(prefix) :]) for one in found], count)

    async def signals(self, topic: str, id: str, most: int) -> list[str]:
        """Return the names of signals that have arrived, without those from other messages."""
        prefix = f"{id}\t".encode("utf-8", "surrogateescape")
        span = b"[" + prefix + b" ", b"(" + prefix[:-1] + b"\n"
        key = self._keys.of(topic).signals
        found = await self._caller.command("ZRANGEBYLEX", key, *span, "LIMIT", 0, most)
        return [_text(one[len(prefix) :].partition(b"\t")[0]) for one in found]

    async def ends(self, topic: str, ids: Sequence[bytes]) -> list[int | None]:
        """Return when waiting messages stop waiting, ms; None: they wait as long as it takes."""
        keys = self._keys.of(topic)
        found: list[int | None] = [None] * len(ids)
        for key in (keys.delay_tasks_high, keys.delay_tasks, keys.delay_tasks_low):
            for n, due in enumerate(await self._caller.command("ZMSCORE", key, *ids)):
                found[n] = found[n] if due is None else end_of(due)
        return found

    async def count_ends(self, topic: str, low: float, high: float) -> int:
        """Return how many messages wait, and stop waiting between two times, ms."""
        key = self._keys.of(topic).waiting
        if (low, high) == (-math.inf, math.inf):
            return int(await self._caller.command("ZCARD", key))
        found = start = 0
        while True:
            ids = await self._caller.command("ZRANGE", key, start, start + PAGE - 1)
            ends = await self.ends(topic, ids) if ids else []
            found += sum(low <= (NEVER if end is None else end) <= high for end in ends)
            if len(ids) < PAGE:
                return found
            start += PAGE


def end_of(due: float) -> int | None:
    """Return when a wait ends, ms; None: never."""
    return int(due) if due < NEVER else None


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
