"""One action on every message of a state that matches a filter, at a limited rate.

Messages are read in steps and acted on one by one, each by one script. So an interruption, or a
crash, leaves each message either done or as it was.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mx_rmq.admin.fanout import ask_all
from mx_rmq.admin.filter import Filter, matches, must_read, times
from mx_rmq.admin.models import created_at
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.message import State
from mx_rmq.core.partition import topic_of
from mx_rmq.store.messages import REPLY_BYTES, as_found, levels

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mx_rmq.store.messages import Found, ListedId, Pages

    Act = Callable[[str, Found], Awaitable[bool]]
    """Acts on a message of a partition; returns whether it was done."""

    Now = Callable[[str], Awaitable[int]]
    """Returns the time of a partition's server, ms."""

STEP: Final = 100
"""Messages of one step."""

CATCH_UP: Final = 0.05
"""Seconds of actions that may be caught up on after a pause."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of an action on many messages."""

    done: int
    """Messages it was done to; in a dry run, would be done to."""
    looked: int
    """Messages that were checked."""
    total: int
    """Messages to check, as counted at the beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Limits of an action on many messages."""

    filter: Filter | None = None
    limit: int | None = None
    rate: float | None = None
    """Maximum actions per second."""
    dry_run: bool = False
    """The action only says whether it could be done."""
    progress: Callable[[Progress], None] | None = None

    def __post_init__(self) -> None:
        limit, rate = self.limit, self.rate
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int)):
            raise InvalidInput(f"limit={limit!r:.80} is not a whole number")
        if limit is not None and limit < 1:
            raise InvalidInput(f"limit={limit} is not at least 1")
        if rate is not None and (isinstance(rate, bool) or not isinstance(rate, int | float)):
            raise InvalidInput(f"rate={rate!r:.80} is not a number of messages per second")
        if rate is not None and not 0 < rate < float("inf"):
            raise InvalidInput(f"rate={rate!r} is not above 0 messages per second")


class Bulk:
    """One action on one state of one topic. `reads`: the action needs the messages' records."""

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
        """Act on the messages that exist now; return on how many it was done."""
        ways = {
            part: [
                Sweep(self._pages, part, self._state, level, self._times)
                for level in range(levels(self._state))
            ]
            for part in parts
        }

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

    async def _work_on(self, part: str, step: Sequence[ListedId]) -> bool:
        """Act on the messages of a step that match; return whether to continue."""
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

    async def _read(self, part: str, step: Sequence[ListedId]) -> list[Found | None]:
        if not self._reads:
            return [as_found(self._state, entry) for entry in step]
        return await self._pages.read(part, self._state, step, most=REPLY_BYTES)

    def _is_later(self, part: str, found: Found) -> bool:
        """Return whether a delayed message was produced after the beginning."""
        if self._state is not State.DELAYED:
            return False
        return (created_at(found.data) or 0) > self._began[part]

    def _means(self, part: str, found: Found) -> bool:
        return self._wanted is None or matches(self._wanted, topic_of(part), found)

    async def _keep_pace(self) -> None:
        """Wait until the rate allows the next action."""
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


class Sweep:
    """The ids of one level of a partition that were there at the beginning, while they are removed.

    What has a time is read in its order: a step continues at the time where the last one ended, so
    it does not matter what was removed before it. Later messages come after, except delayed ones,
    which are ordered by due time: their records tell. Pending messages have no time. They are read
    from the back, newest first: what is produced meanwhile comes behind, and what workers take in
    front only brings some ids up twice.
    """

    def __init__(
        self, pages: Pages, part: str, state: State, level: int, times: tuple[float, float]
    ) -> None:
        self._part = part
        self._pages = pages
        self._state = state
        self._level = level
        self._low, self._high = times
        self._left = 0
        """How many ids may still come up."""
        self._skip = 0
        self._seen: set[bytes] = set()
        """What came up in the last step, or all at the time where it ended."""

    async def begin(self) -> int:
        """Count them. Of delayed messages, later ones may come up, too."""
        where = self._part, self._state, self._level
        self._left = await self._pages.count(*where, self._low, self._high)
        if self._left and self._state is not State.PENDING:
            self._high = min(self._high, await self._pages.latest(*where) or 0.0)
        return self._left

    async def step(self) -> Sequence[ListedId]:
        """Return the next ids; empty: that was all."""
        while self._left > 0:
            if self._state is State.PENDING:
                fresh = await self._backward()
            else:
                fresh = await self._onward()
                if self._state is not State.DELAYED:
                    fresh = fresh[: self._left]
                    self._left -= len(fresh)
            if fresh:
                return fresh
        return []

    async def _backward(self) -> list[ListedId]:
        """Read the step before the last one, counted from where ids are taken."""
        start = max(0, self._left - STEP)
        where = self._part, self._state, self._level
        ids = await self._pages.part_of(*where, start, self._left - start)
        self._left = start
        fresh = [one for one in reversed(ids) if one.id not in self._seen]
        self._seen = {one.id for one in ids}
        return fresh

    async def _onward(self) -> list[ListedId]:
        """Continue at the time where the last step ended, after what came up at that time."""
        ids = await self._pages.between(
            self._part,
            self._state,
            self._level,
            self._low,
            self._high,
            skip=self._skip,
            count=STEP,
        )
        if not ids:
            self._left = 0
            return []
        fresh = [one for one in ids if one.id not in self._seen]
        last = ids[-1].at
        at_last = {one.id for one in ids if one.at == last}
        if last == self._low:
            self._seen |= at_last
            if not fresh:
                self._skip += len(ids)
        else:
            self._low, self._seen, self._skip = last or 0.0, at_last, 0
        return fresh
