"""One act on many messages of a state: on those that a filter means, and not faster than allowed.

Messages are looked at in steps and acted on one by one, each by one script. So whoever stops in the
middle, or dies, leaves each message either done or as it was.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mx_rmq.admin.filter import Filter, matches, must_read, times
from mx_rmq.admin.spread import ask_all
from mx_rmq.admin.sweep import sweeps
from mx_rmq.admin.view import created_at
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.message import State
from mx_rmq.core.partition import topic_of
from mx_rmq.store.pages import REPLY_BYTES, as_found

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mx_rmq.store.pages import Entry, Found, Pages

    Act = Callable[[str, Found], Awaitable[bool]]
    """Does it to a message of a partition; says whether it was done."""

    Now = Callable[[str], Awaitable[int]]
    """Returns the time of a partition's server, ms."""

CATCH_UP: Final = 0.05
"""Seconds of acts that may be made up for after a pause."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an act on many messages has come."""

    done: int
    """Messages on which it was done; in a dry run, on which it would be."""
    looked: int
    """Messages that were looked at."""
    total: int
    """Messages to look at, as many as there were at the beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """How far an act on many messages goes, and how fast."""

    filter: Filter | None = None
    limit: int | None = None
    rate: float | None = None
    """Acts a second, at the most."""
    dry_run: bool = False
    """The act only says whether it could be done."""
    progress: Callable[[Progress], None] | None = None

    def __post_init__(self) -> None:
        limit, rate = self.limit, self.rate
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int)):
            raise InvalidInput(f"limit={limit!r:.80} is not a whole number")
        if limit is not None and limit < 1:
            raise InvalidInput(f"limit={limit} is not at least 1")
        if rate is not None and (isinstance(rate, bool) or not isinstance(rate, int | float)):
            raise InvalidInput(f"rate={rate!r:.80} is not a number of messages a second")
        if rate is not None and not 0 < rate < float("inf"):
            raise InvalidInput(f"rate={rate!r} is not above 0 messages a second")


class Bulk:
    """One act, on one state of one topic. `reads`: the act needs what messages contain."""

    def __init__(
        self, pages: Pages, state: State, act: Act, scope: Scope, *, now: Now, reads: bool
    ) -> None:
        wanted = scope.filter or Filter()
        self._pages = pages
        self._state = state
        self._act = act
        self._scope = scope
        self._times = times(wanted, state)
        self._wanted = wanted if must_read(wanted, state) else None
        self._reads = reads or self._wanted is not None or state is State.DELAYED
        self._now = now
        self._began: dict[str, int] = {}
        """When it began, by each partition's server, ms."""
        self._done = self._looked = self._total = 0
        self._next_at = 0.0

    async def run(self, parts: Sequence[str]) -> int:
        """Go through the messages that there are now; return on how many it was done."""
        ways = {part: sweeps(self._pages, part, self._state, self._times) for part in parts}

        async def begin(part: str) -> int:
            self._began[part] = await self._now(part)
            return sum([await way.begin() for way in ways[part]])

        self._total = sum(await ask_all(parts, begin))
        self._tell()
        for part in parts:
            for way in ways[part]:
                while step := await way.step():
                    if not await self._work_on(part, step):
                        return self._done
        return self._done

    async def _work_on(self, part: str, step: Sequence[Entry]) -> bool:
        """Act on the messages of a step that are meant; say whether to go on."""
        while step:
            messages = await self._read(part, step)
            step = step[len(messages) :]
            for found in messages:
                if found is not None and self._is_later(part, found):
                    continue
                self._looked += 1
                if found is not None and self._means(part, found):
                    await self._keep_pace()
                    self._done += await self._act(part, found)
                    self._tell()
                if self._done == self._scope.limit:
                    return False
            self._tell()
        return True

    async def _read(self, part: str, step: Sequence[Entry]) -> list[Found | None]:
        if not self._reads:
            return [as_found(self._state, entry) for entry in step]
        return await self._pages.read(part, self._state, step, most=REPLY_BYTES)

    def _is_later(self, part: str, found: Found) -> bool:
        """Say whether a delayed message was produced after the beginning; no place tells that."""
        if self._state is not State.DELAYED:
            return False
        return (created_at(found.data) or 0) > self._began[part]

    def _means(self, part: str, found: Found) -> bool:
        return self._wanted is None or matches(self._wanted, topic_of(part), found)

    async def _keep_pace(self) -> None:
        """Wait until the next act may be done."""
        if self._scope.rate is None or self._scope.dry_run:
            return
        now = time.monotonic()
        if self._next_at > now:
            await asyncio.sleep(self._next_at - now)
        self._next_at = max(self._next_at, now - CATCH_UP) + 1 / self._scope.rate

    def _tell(self) -> None:
        if self._scope.progress is not None:
            looked = min(self._looked, self._total)
            self._scope.progress(Progress(self._done, looked, self._total))
