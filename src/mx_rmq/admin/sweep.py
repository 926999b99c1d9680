"""Going through the messages of a state, a step at a time, while they are taken away.

What has a time is gone through by it: a step goes on at the time where the last one ended, so it
does not matter what has gone before it. What comes later stands behind, but of delayed messages it
may stand between, for they are listed by when they are due: their records tell. Pending messages
have no time. They are gone through from the back, the newest first: what is produced meanwhile
stands behind, and what workers take in front only brings some ids up a second time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mx_rmq.core.message import State
from mx_rmq.store.pages import levels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.store.pages import Entry, Pages

STEP: Final = 100
"""Messages of one step."""


class Sweep:
    """The ids of one level of a partition that were there at the beginning."""

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
        """Look how many there are, and return it. Of delayed ones, later ones may come up, too."""
        where = self._part, self._state, self._level
        self._left = await self._pages.count(*where, self._low, self._high)
        if self._left and self._state is not State.PENDING:
            self._high = min(self._high, await self._pages.latest(*where) or 0.0)
        return self._left

    async def step(self) -> Sequence[Entry]:
        """Return the next ids; none: that was all."""
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

    async def _backward(self) -> list[Entry]:
        """Read the step before the last one, counted from where ids are taken."""
        start = max(0, self._left - STEP)
        where = self._part, self._state, self._level
        ids = await self._pages.part_of(*where, start, self._left - start)
        self._left = start
        fresh = [one for one in reversed(ids) if one.id not in self._seen]
        self._seen = {one.id for one in ids}
        return fresh

    async def _onward(self) -> list[Entry]:
        """Read on from the time where the last step ended, past what came up at that time."""
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


def sweeps(pages: Pages, part: str, state: State, times: tuple[float, float]) -> list[Sweep]:
    """Return what the messages of a partition are gone through by, level by level."""
    return [Sweep(pages, part, state, level, times) for level in range(levels(state))]
