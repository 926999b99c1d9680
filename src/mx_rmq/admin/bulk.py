"""One action on every message of a state that matches a filter, at a limited rate.

Messages are read in steps, and each is acted on by one script call. So an interruption or a crash
leaves each message either done or as it was.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, TypedDict

from mx_rmq.admin.actions import readable
from mx_rmq.admin.fanout import ask_all
from mx_rmq.admin.filter import Filter, matches, must_read, times
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.message import State
from mx_rmq.store.messages import IN_LINES, REPLY_BYTES, as_found, levels

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from mx_rmq.store.messages import Found, ListedId, Pages

    Act = Callable[[str, Found], Awaitable[object]]
    """Acts on a message of a partition; the result is true if that was done."""

    CanAct = Callable[[str, Found], object]
    """The result is true if the action is possible for a message of a partition."""

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
    """What `requeue_all`, `discard_all`, `cancel_all` and `abort_all` take."""

    filter: Filter | None
    limit: int | None  # stop after this many messages
    rate: float | None  # maximum messages per second
    dry_run: bool  # only count the messages
    progress: Callable[[Progress], None] | None  # called on the way


class Span(NamedTuple):
    """The ids that one level of a partition had at the beginning, with times from low to high.

    For messages with a key, `high` is the place of the last one instead.
    """

    part: str
    state: State
    level: int
    size: int
    low: float  # ms
    high: float
    key: bytes = b""  # only the line of this key

    @property
    def where(self) -> tuple[str, State, int]:
        return self[:3]


@dataclass(slots=True)
class Bulk:
    """One action on one state of one topic. With `can_act`, the messages' records are read."""

    pages: Pages
    state: State
    act: Act
    _: KW_ONLY
    now: Now
    can_act: CanAct | None = None
    filter: Filter | None = None
    limit: int | None = None
    rate: float | None = None
    dry_run: bool = False
    progress: Callable[[Progress], None] | None = None

    _began: dict[str, int] = field(init=False, default_factory=dict)  # by partition, ms
    _done: int = field(init=False, default=0)
    _looked: int = field(init=False, default=0)
    _total: int = field(init=False, default=0)
    _next_at: float = field(init=False, default=0.0)  # when the rate allows the next action

    def __post_init__(self) -> None:
        limit, rate = self.limit, self.rate
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int)):
            raise InvalidInput(f"limit={limit!r:.80} is not a whole number")
        if limit is not None and limit < 1:
            raise InvalidInput(f"limit={limit} must be at least 1")
        if rate is not None and (isinstance(rate, bool) or not isinstance(rate, int | float)):
            raise InvalidInput(f"rate={rate!r:.80} is not a number of messages per second")
        if rate is not None and not 0 < rate < float("inf"):
            raise InvalidInput(
                f"rate={rate!r} must be a finite number of messages per second above 0"
            )

    async def run(self, parts: Sequence[str]) -> int:
        """Act on the messages that exist now; return for how many it was done."""
        spans = [span for some in await ask_all(parts, self._begin) for span in some]
        self._total = sum(span.size for span in spans)
        self._report()
        for span in spans:
            async for step in _steps_of(span)(self.pages, span):
                if not await self._work_on(span.part, step):
                    return self._done
        return self._done

    async def _begin(self, part: str) -> list[Span]:
        """Note the time, and count the ids of each level of a partition."""
        self._began[part] = await self.now(part)
        low, high = times(self.filter or Filter(), self.state)
        spans = []
        if self.state is State.PENDING and self.filter and self.filter.key is not None:
            key = self.filter.key.encode("utf-8", "surrogateescape")
            _, size = await self.pages.line_of(part, key)
            newest = await self.pages.last_place(part)
            return [Span(part, self.state, IN_LINES, size, low, newest, key)]
        for level in range(levels(self.state)):
            where = part, self.state, level
            size, latest = await self.pages.count(*where, low, high), high
            if size and self.state is not State.PENDING:
                latest = min(high, await self.pages.latest(*where) or 0.0)
            elif size and level == IN_LINES:
                latest = await self.pages.last_place(part)
            spans.append(Span(*where, size, low, latest))
        return spans

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
                    if self.dry_run or await self.act(part, found):
                        self._done += 1
                    self._report()
                if self._done == self.limit:
                    return False
            self._report()
        return True

    async def _read(self, part: str, step: Sequence[ListedId]) -> list[Found | None]:
        needed = self.can_act is not None or self.state is State.DELAYED
        if needed or (self.filter and must_read(self.filter, self.state)):
            return await self.pages.read(part, self.state, step, most=REPLY_BYTES)
        return [as_found(self.state, entry) for entry in step]

    def _is_later(self, part: str, found: Found) -> bool:
        """Return whether a delayed message was produced after the beginning."""
        message = readable(part, found) if self.state is State.DELAYED else None
        return message is not None and message.created_at > self._began[part]

    def _applies(self, part: str, found: Found) -> bool:
        if self.filter and not matches(self.filter, part, found):
            return False
        return self.can_act is None or bool(self.can_act(part, found))

    async def _keep_pace(self) -> None:
        """Wait until the rate allows the next action."""
        if self.rate is None or self.dry_run:
            return
        now = time.monotonic()
        if self._next_at > now:
            await asyncio.sleep(self._next_at - now)
        self._next_at = max(self._next_at, now - CATCH_UP) + 1 / self.rate

    def _report(self) -> None:
        if self.progress is not None:
            self.progress(Progress(self._done, min(self._looked, self._total), self._total))


async def _ids_from_the_back(pages: Pages, span: Span) -> AsyncIterator[list[ListedId]]:
    """Yield the pending ids that a span had, in steps, newest first.

    What is produced meanwhile comes behind, and what workers take from the front only makes some
    ids appear twice.
    """
    left, seen = span.size, set[bytes]()
    while left > 0:
        start = max(0, left - STEP)
        ids = await pages.part_of(*span.where, start, left - start)
        left = start
        if fresh := [one for one in reversed(ids) if one.id not in seen]:
            yield fresh
        seen = {one.id for one in ids}


async def _ids_in_lines(pages: Pages, span: Span) -> AsyncIterator[list[ListedId]]:
    """Yield the pending ids with a key that a span had, in steps, line by line.

    A step continues behind the place where the last one ended, so it does not matter what left its
    line or joined one before it.
    """
    place: bytes | None = b""
    while span.size and place is not None:
        ids, place = await pages.in_lines(span.part, span.key, place, span.high, STEP)
        if ids:
            yield ids


async def _ids_at_once(pages: Pages, span: Span) -> AsyncIterator[list[ListedId]]:
    """Yield the ids in processing of a span, in steps.

    All of them are read first, because extending a lease moves its message.
    """
    ids = await pages.between(*span.where, span.low, span.high, skip=0, count=span.size)
    for start in range(0, len(ids), STEP):
        yield ids[start : start + STEP]


async def _ids_by_time(pages: Pages, span: Span) -> AsyncIterator[list[ListedId]]:
    """Yield the ids that a span had, in steps, by their time.

    A step continues at the time where the last one ended, so it does not matter what was removed
    before it. Later messages come behind, except delayed ones, which are ordered by due time: they
    appear as well, and `_is_later` recognizes them by their record.
    """
    left, low, skip = span.size, span.low, 0
    seen: set[bytes] = set()  # the ids at `low` that were yielded
    while left > 0:
        ids = await pages.between(*span.where, low, span.high, skip=skip, count=STEP)
        if not ids:
            return
        fresh = [one for one in ids if one.id not in seen]
        last = ids[-1].at
        at_last = {one.id for one in ids if one.at == last}
        if last == low:
            seen |= at_last
            if not fresh:
                skip += len(ids)
        else:
            low, seen, skip = last or 0.0, at_last, 0
        if span.state is not State.DELAYED:
            fresh = fresh[:left]
            left -= len(fresh)
        if fresh:
            yield fresh


def _steps_of(span: Span) -> Callable[[Pages, Span], AsyncIterator[list[ListedId]]]:
    """Return how to go through a span: most states order their ids by a fixed time."""
    if span.state is State.PENDING:
        return _ids_in_lines if span.level == IN_LINES else _ids_from_the_back
    return _ids_at_once if span.state is State.PROCESSING else _ids_by_time
