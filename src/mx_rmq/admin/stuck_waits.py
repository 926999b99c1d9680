"""Finds messages that wait for messages that never complete, or only if an operator acts.

A message tells those that wait for it before it completes. So one that is gone and has not told
them was cancelled, discarded or trimmed: it never will. A dead one may still be requeued.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mx_rmq.admin.actions import readable
from mx_rmq.admin.models import seconds
from mx_rmq.admin.steps import RelatedMessage, with_states
from mx_rmq.core import steps as core_steps
from mx_rmq.core.errors import DecodeError
from mx_rmq.core.message import FAILED, State
from mx_rmq.core.partition import topic_of
from mx_rmq.core.steps import MAX_AFTER
from mx_rmq.store.flow_head import read_carried

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mx_rmq.store import Store
    from mx_rmq.store.messages import Found

STEP: Final = 100  # messages read at a time

SETTLED: Final = 60_000  # milliseconds that a message must have waited


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckWait:
    """A message that waits for one that will not complete on its own."""

    topic: str
    id: str
    since: float | None
    source: RelatedMessage  # the first such message; its state None: it is gone
    count: int  # how many such messages it waits for

    @property
    def is_lost(self) -> bool:
        """Whether it can never run: what it waits for is gone."""
        return self.source.state is None

    def __str__(self) -> str:
        state = "gone" if self.source.state is None else str(self.source.state)
        more = f", and for {self.count - 1:,} more such messages" if self.count > 1 else ""
        return f"waits for message {self.source.id} of {self.source.topic}, which is {state}{more}"


async def find_stuck_waits(store: Store, part: str, most: int | None) -> list[StuckWait]:
    """Return the stuck messages of a partition; `most`: among those that wait longest."""
    return [
        stuck
        async for message in _waiting(store, part, most)
        if (stuck := await _check(store, part, message)) is not None
    ]


async def _waiting(store: Store, part: str, most: int | None) -> AsyncIterator[Found]:
    """Yield the messages that have waited for a while."""
    pages, start = store.views.pages, 0
    until = await store.views.now(part) - SETTLED
    while most is None or start < most:
        ids = await pages.between(
            part, State.WAITING, 0, float("-inf"), until, skip=start, count=STEP
        )
        for found in await pages.read(part, State.WAITING, ids):
            if found is not None:
                yield found
        if len(ids) < STEP:
            return
        start += STEP


async def _check(store: Store, part: str, found: Found) -> StuckWait | None:
    message = readable(part, found)
    if message is None:  # a worker will quarantine it
        return None
    try:
        steps = core_steps.read(message)
    except DecodeError:
        return None
    if not steps.after or steps.on_dead != "wait":  # the waiting check tells it
        return None
    # Read before the states: while the head carries others, some of them do not exist yet.
    carried = await read_carried(store, steps.head)
    if carried.ids != frozenset() and carried.failed is None:
        return None
    sources = {one.signal: one for one in steps.after if one.part}
    states = dict(zip(sources, await with_states(store, sources), strict=True))
    if carried.head is not None and carried.failed is not None:
        head = RelatedMessage(
            topic=topic_of(carried.head.part), id=carried.head.id, state=carried.failed.state
        )
        states |= {
            name: head
            for name, one in sources.items()
            if one in carried and states[name].state in (None, State.COMPLETED)
        }
    # Read after the states: a message sends its signal before it completes.
    awaited = await store.views.waits.awaited(part, found.id, MAX_AFTER)
    stuck = [
        one
        for name in awaited.names
        if (one := states.get(name)) is not None
        and (one.state in FAILED or (one.state is None and sources[name].told))
    ]
    if not stuck:
        return None
    stuck.sort(key=lambda one: one.state is not None)  # those that are gone first
    return StuckWait(
        topic=topic_of(part),
        id=found.id,
        since=seconds(found.since),
        source=stuck[0],
        count=len(stuck),
    )
