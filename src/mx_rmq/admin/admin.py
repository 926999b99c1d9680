"""Looking into a queue and putting it right: `mq.admin`.

The command line and the dashboard use nothing else. Times are seconds here: since 1970 where they
name an instant, and always the server's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mx_rmq.admin.view import (
    Cancelled,
    MessageView,
    Page,
    Stats,
    WorkerView,
    created_at,
    is_number,
    message_view,
    worker_view,
)
from mx_rmq.core import codec
from mx_rmq.core.errors import DecodeError, InvalidInput
from mx_rmq.core.message import State
from mx_rmq.core.names import TOPIC, check_topic
from mx_rmq.store.answers import Settled
from mx_rmq.store.quarantine import read

if TYPE_CHECKING:
    import builtins
    from collections.abc import Awaitable, Callable

    from mx_rmq.store import Store
    from mx_rmq.store.audit import Violation
    from mx_rmq.store.pages import Found

STEP: Final = 100
"""Messages that `requeue_all` and `discard_all` look at in one step."""

KNOWN: Final = 10
"""Topics that are named to somebody who asked for an unknown one."""

ARCHIVES: Final = (State.DEAD, State.QUARANTINED)
"""The states from which an operator requeues and discards."""


class Admin:
    """Everything an operator asks of a queue.

    A topic that was never produced to is refused with InvalidInput, so that a slip of the pen is
    not taken for an empty queue.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pages = store.views.pages

    # look

    async def topics(self) -> builtins.list[str]:
        """Return every topic that was ever produced to, sorted."""
        return [name for name in await self._store.views.topics() if TOPIC.fullmatch(name)]

    async def check_topic(self, topic: str) -> None:
        """Refuse a topic that was never produced to."""
        if await self._store.views.is_topic(check_topic(topic)):
            return
        known = await self.topics()
        raise InvalidInput(
            f"no topic {topic!r} under the prefix {self._store.keys.prefix!r}; "
            f"there are {len(known)}: {', '.join(known[:KNOWN])}"
        )

    async def stats(self, topic: str) -> Stats:
        """Return how many messages of a topic are in which state, and how long they wait."""
        await self.check_topic(topic)
        counts = await self._store.views.counts(topic)
        oldest = None
        if counts.pending:
            created = [created_at(data) for data in await self._pages.next_records(topic)]
            if stamped := [at for at in created if at is not None]:
                oldest = max(0, await self._store.views.now() - min(stamped)) / 1000
        return Stats(
            topic=topic,
            pending=counts.pending,
            processing=counts.processing,
            delayed=counts.delayed,
            dead=counts.dead,
            quarantined=counts.quarantined,
            oldest_pending=oldest,
            paused=bool(counts.paused),
            dropped=counts.dropped,
        )

    async def get(self, topic: str, id: str) -> MessageView | None:
        """Return one message, in whatever state it is; None: it is finished or was never there."""
        await self.check_topic(topic)
        found = await self._pages.find(topic, _text(id))
        return None if found is None else message_view(topic, found)

    async def list(
        self, topic: str, state: State | str, *, limit: int = 100, cursor: str | None = None
    ) -> Page:
        """Return up to `limit` (1 to 1,000) messages of a state, from where a page before ended.

        Pending ones in the order in which they are taken: high, normal, low. Delayed ones by due
        time, those in processing by the deadline of their lease, dead and quarantined ones newest
        first. A cursor is a position: a message that moves while you turn the page may be on both
        pages or on none.
        """
        chosen = _state(state)
        await self.check_topic(topic)
        page = await self._pages.page(topic, chosen, start=_position(cursor), count=limit)
        return Page(
            [message_view(topic, found) for found in page.messages],
            None if page.after is None else ".".join(map(str, page.after)),
        )

    async def workers(self) -> builtins.list[WorkerView]:
        """Return every worker that was heard of lately, also those that have fallen silent."""
        seen = await self._store.views.workers()
        return [worker_view(one) for one in seen]

    async def audit(self, topic: str) -> builtins.list[Violation]:
        """Return every message that is not in exactly one state; none is a clean bill."""
        await self.check_topic(topic)
        return await self._store.audit.topic(topic)

    # act

    async def requeue(self, topic: str, id: str, *, state: State | str | None = None) -> bool:
        """Send a dead or quarantined message round again, its attempts counted anew.

        `state` None: whichever has it. False: it is in neither, or a live message has its id.
        InvalidInput: what is kept of it is no message, so no worker could read it either.
        """
        found = await self._archived(topic, id, state)
        return found is not None and await self._requeue(topic, found)

    async def discard(self, topic: str, id: str, *, state: State | str | None = None) -> bool:
        """Delete a dead or quarantined message. False: it is in neither."""
        found = await self._archived(topic, id, state)
        return found is not None and bool(
            await self._store.discard_message(
                topic, found.state, found.id, archived=found.archived or 0
            )
        )

    async def cancel(self, topic: str, id: str) -> Cancelled:
        """Remove a message that nobody has begun. The answer is true if that was done."""
        await self.check_topic(topic)
        answer = await self._store.cancel_message(topic, _text(id))
        if answer is Settled.PROCESSING:
            return Cancelled.PROCESSING
        return Cancelled.DONE if answer else Cancelled.ABSENT

    async def pause(self, topic: str) -> bool:
        """Let no worker take messages of a topic; return whether that is new."""
        await self.check_topic(topic)
        return await self._store.pause_topic(topic)

    async def resume(self, topic: str) -> bool:
        """Let workers take messages of a topic again; return whether that is new."""
        await self.check_topic(topic)
        return await self._store.resume_topic(topic)

    async def requeue_all(self, topic: str, state: State | str, *, limit: int | None = None) -> int:
        """Requeue the dead or quarantined messages, oldest first; return how many it were.

        What is archived meanwhile is left alone, and so is what no worker could read.
        """
        chosen = _archive(state)

        async def requeue(id: str, _: int) -> bool:
            found = await self._pages.find_archived(topic, chosen, id)
            try:
                return found is not None and await self._requeue(topic, found)
            except InvalidInput:
                return False

        return await self._each(topic, chosen, limit, requeue)

    async def discard_all(self, topic: str, state: State | str, *, limit: int | None = None) -> int:
        """Delete the dead or quarantined messages, oldest first; return how many it were.

        What is archived meanwhile is left alone.
        """
        chosen = _archive(state)

        async def discard(id: str, at: int) -> bool:
            return bool(await self._store.discard_message(topic, chosen, id, archived=at))

        return await self._each(topic, chosen, limit, discard)

    async def _each(
        self,
        topic: str,
        state: State,
        limit: int | None,
        act: Callable[[str, int], Awaitable[bool]],
    ) -> int:
        """Act on as many as are archived now, in steps; return on how many it was done."""
        if limit is not None and limit < 1:
            raise InvalidInput(f"limit={limit} is not at least 1")
        await self.check_topic(topic)
        counts = await self._store.views.counts(topic)
        left = counts.dead if state is State.DEAD else counts.quarantined
        done = start = 0
        stuck: set[str] = set()  # refused or gone: what stays is passed over
        while batch := await self._pages.oldest_archived(topic, state, start=start, count=STEP):
            fresh = [one for one in batch if one[0] not in stuck]
            for id, at in fresh:
                if done == limit or left == 0:
                    return done
                left -= 1
                if await act(id, at):
                    done += 1
                else:
                    stuck.add(id)
            if not fresh:
                start += len(batch)
        return done

    async def _requeue(self, topic: str, found: Found) -> bool:
        try:
            data = read(found.data)[1] if found.state is State.QUARANTINED else found.data
            message = codec.decode_as(data, topic, found.id).revived()
        except DecodeError as error:
            raise InvalidInput(
                f"message {found.id!r} cannot be requeued, for no worker could read it: "
                f"{error.reason}. Look at its bytes, then discard it"
            ) from error
        return bool(
            await self._store.requeue_message(
                topic, found.state, found.id, archived=found.archived or 0, message=message
            )
        )

    async def _archived(self, topic: str, id: str, state: State | str | None) -> Found | None:
        states = ARCHIVES if state is None else (_archive(state),)
        await self.check_topic(topic)
        for chosen in states:
            if found := await self._pages.find_archived(topic, chosen, _text(id)):
                return found
        return None


def _state(state: State | str) -> State:
    try:
        return State(state)
    except ValueError:
        raise InvalidInput(f"state={state!r:.80} is not one of {', '.join(State)}") from None


def _archive(state: State | str) -> State:
    chosen = _state(state)
    if chosen not in ARCHIVES:
        raise InvalidInput(f"state={chosen!s}: only {' and '.join(ARCHIVES)} messages are archived")
    return chosen


def _position(cursor: str | None) -> tuple[int, ...]:
    if cursor is None:
        return ()
    parts = cursor.split(".")
    if not all(map(is_number, parts)):
        raise InvalidInput(f"cursor={cursor!r:.80} is not one that a page gave")
    return tuple(map(int, parts))


def _text(id: str) -> str:
    if not isinstance(id, str):
        raise InvalidInput(f"message id {id!r:.80} is not a str")
    return id
