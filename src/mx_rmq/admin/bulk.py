"""One action on every message of a state that matches a filter, at a limited rate.

Messages are read in steps, and each is acted on by one script call. So an interruption or a crash
leaves each message either done or as it was.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypedDict

from mx_rmq.admin.fanout import ask_all
from mx_rmq.admin.filter import Filter, matches, must_read, times
from mx_rmq.core import codec
from mx_rmq.core.errors import DecodeError, InvalidInput
from mx_rmq.core.message import State
from mx_rmq.store.messages import REPLY_BYTES, as_found, levels

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mx_rmq.store.messages import Found, ListedId, Pages

    Act = Callable[[str, Found], Awaitable[object]]
    """Acts on a message of a partition; the result is true if that was done."""

    CanAct = Callable[[str, Found], bool]
    """Whether the action applies to a message of a partition."""

    Now = Callable[[str], Awaitable[int]]
    """Returns the time of a partition's server, ms."""

STEP: Final = 100  # messages per step
CATCH_UP: Final = 0.05  # seconds of actions that may be caught up on after a pause


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of an action on many messages."""

    done: int  # messages it was done to; in a dry run, would be done to
    looked: int  # messages that were checked
    total: int  # messages to check, as counted at the beginning


class BulkOptions(TypedDict, total=False):
    """What `requeue_all`, `discard_all` and `cancel_all` take after topic and state."""

    filter: Filter | None
    limit: int | None  # stop after this many messages
    rate: float | None  # maximum messages per second
    dry_run: bool  # only count the messages
    progress: Callable[[Progress], None] | None  # called on the way


class Bulk:
    """One action on one state of one topic. With `can_act`, the messages' records are read."""

    def __init__(
        self,
        pages: Pages,
        state: State,
        act: Act,
        *,
        now: Now,
        can_act: CanAct | None = None,
        filter: Filter | None = None,
        limit: int | None = None,
        rate: float | None = None,
        dry_run: bool = False,
        progress: Callable[[Progress], None] | None = None,
    ) -> None:
        _check(limit, rate)
        wanted = filter or Filter()
        self._pages = pages
        self._state = state
        self._act = act
        self._now = now
        self._can_act = can_act
        self._times = times(wanted, state)
        self._wanted = wanted if must_read(wanted, state) else None
        needed = can_act is not None or self._wanted is not None
        self._reads = needed or state is State.DELAYED
        self._limit = limit
        self._rate = rate
        self._dry_run = dry_run
        self._progress = progress
        self._began: dict[str, int] = {}  # when it began, by each partition's server, ms
        self._done = self._looked = self._total = 0
        self._next_at = 0.0

    async def run(self, parts: Sequence[str]) -> int:
        """Act on the messages that exist now; return for how many it was done."""
        sweeps = {
            part: [
                Sweep(self._pages, part, self._state, level, self._times)
                for level in range(levels(self._state))
            ]
            for part in parts
        }

        async def begin(part: str) -> int:
            self._began[part] = await self._now(part)
            return sum([await sweep.begin() for sweep in sweeps[part]])

        self._total = sum(await ask_all(parts, begin))
        self._report()
        for part in parts:
            for sweep in sweeps[part]:
                while step := await sweep.step():
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
                if found is not None and self._applies(part, found):
                    await self._keep_pace()
                    if self._dry_run or await self._act(part, found):
                        self._done += 1
                    self._report()
                if self._done == self._limit:
                    return False
            self._report()
        return True

    async def _read(self, part: str, step: Sequence[ListedId]) -> list[Found | None]:
        if not self._reads:
            return [as_found(self._state, entry) for entry in step]
        return await self._pages.read(part, self._state, step, most=REPLY_BYTES)

    def _is_later(self, part: str, found: Found) -> bool:
        """Return whether a delayed message was produced after the beginning."""
        if self._state is not State.DELAYED:
            return False
        try:
            return codec.decode(found.data).created_at > self._began[part]
        except DecodeError:
            return False

    def _applies(self, part: str, found: Found) -> bool:
        if self._wanted is not None and not matches(self._wanted, part, found):
            return False
        return self._can_act is None or self._can_act(part, found)

    async def _keep_pace(self) -> None:
        """Wait until the rate allows the next action."""
        if self._rate is None or self._dry_run:
            return
        now = time.monotonic()
        if self._next_at > now:
            await asyncio.sleep(self._next_at - now)
        self._next_at = max(self._next_at, now - CATCH_UP) + 1 / self._rate

    def _report(self) -> None:
        if self._progress is not None:
            self._progress(Progress(self._done, min(self._looked, self._total), self._total))


def _check(limit: object, rate: object) -> None:
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int)):
        raise InvalidInput(f"limit={limit!r:.80} is not a whole number")
    if limit is not None and limit < 1:
        raise InvalidInput(f"limit={limit} is not at least 1")
    if rate is not None and (isinstance(rate, bool) or not isinstance(rate, int | float)):
        raise InvalidInput(f"rate={rate!r:.80} is not a number of messages per second")
    if rate is not None and not 0 < rate < float("inf"):
        raise InvalidInput(f"rate={rate!r} is not above 0 messages per second")


class Sweep:
    """The ids that one level of a partition had at the beginning, while they are removed.

    Ids with a time are read in its order. A step continues at the time where the last one ended, so
    it does not matter what was removed before it. Messages that arrive later come behind, except
    delayed ones, which are ordered by due time: their records tell.

    Pending messages have no time. They are read from the back, newest first: what is produced
    meanwhile comes behind, and what workers take from the front only makes some ids appear twice.
    """

    def __init__(
        self, pages: Pages, part: str, state: State, level: int, times: tuple[float, float]
    ) -> None:
        self._pages = pages
        self._state = state
        self._where = part, state, level
        self._low, self._high = times
        self._left = 0  # how many ids may still appear
        self._skip = 0
        self._seen: set[bytes] = set()  # the ids of the last step, or all at the time it ended

    async def begin(self) -> int:
        """Count the ids. Delayed messages produced later may appear in addition."""
        self._left = await self._pages.count(*self._where, self._low, self._high)
        if self._left and self._state is not State.PENDING:
            self._high = min(self._high, await self._pages.latest(*self._where) or 0.0)
        return self._left

    async def step(self) -> Sequence[ListedId]:
        """Return the next ids; empty: that was all."""
        while self._left > 0:
            if self._state is State.PENDING:
                fresh = await self._backward()
            else:
                fresh = await self._forward()
                if self._state is not State.DELAYED:
                    fresh = fresh[: self._left]
                    self._left -= len(fresh)
            if fresh:
                return fresh
        return []

    async def _backward(self) -> list[ListedId]:
        """Read the step before the last one, counted from where ids are taken."""
        start = max(0, self._left - STEP)
        ids = await self._pages.part_of(*self._where, start, self._left - start)
        self._left = start
        fresh = [one for one in reversed(ids) if one.id not in self._seen]
        self._seen = {one.id for one in ids}
        return fresh

    async def _forward(self) -> list[ListedId]:
        """Continue at the time where the last step ended, after the ids already seen there."""
        ids = await self._pages.between(
            *self._where, self._low, self._high, skip=self._skip, count=STEP
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
