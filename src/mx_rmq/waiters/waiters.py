"""The waiters of one queue in this process, over all topics and partitions."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from mx_rmq.admin.fanout import ask_for
from mx_rmq.core.durations import SHORTEST, as_seconds
from mx_rmq.core.errors import (
    InvalidInput,
    MessageDied,
    MxRmqError,
    NotOpen,
    OutcomeUnknown,
    ResultTimeout,
    ServerUnavailable,
)
from mx_rmq.core.message import State
from mx_rmq.core.names import check_listed
from mx_rmq.core.partition import partitions, topic_of
from mx_rmq.core.payload import Decode, decoder, unreadable
from mx_rmq.core.status import Kept
from mx_rmq.runtime.loop import AWAY, all_are_cancelled, how_it_ended, spawn
from mx_rmq.safe_log import get_logger
from mx_rmq.store.waiter_calls import MAX_IDS
from mx_rmq.waiters.no_result import was_away, why_unknown
from mx_rmq.waiters.partition_waiters import PartitionWaiters

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from mx_rmq.core.durations import Seconds
    from mx_rmq.core.status import Status
    from mx_rmq.store import Store
    from mx_rmq.store.waiter_calls import RawStatus

logger = get_logger(__name__)

CHECK_EVERY: Final = 2.0  # seconds, in case news was lost
POLL_EVERY: Final = 0.5  # seconds between two reads of a message that is watched
LISTEN_ON: Final = 30.0  # seconds for which a channel is heard after its last waiter

CLOSED: Final = "the queue was closed during this call"


class Waiters:
    """Waits for messages, and tells where they are."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._subscription = store.subscription(self._on_message, self._on_gap)
        self._parts: dict[str, PartitionWaiters] = {}  # by partition
        self._channels: dict[str, PartitionWaiters] = {}
        self._decoders: dict[Any, Decode] = {}
        self._asked: set[str] = set()  # topics that keep results, or about which we have warned
        self._checking: asyncio.Task[None] | None = None
        self._closed = False

    async def result(
        self,
        topic: str,
        id: str,
        *,
        timeout: Seconds | None,  # noqa: ASYNC109 - it raises ResultTimeout
        type: Any = Any,
    ) -> Any:
        """Wait for a message to end; return its result."""
        within = None if timeout is None else as_seconds("timeout=", timeout, SHORTEST)
        decode = self._decoder(type)
        begun = time.monotonic()
        part = self._part_of_fresh(topic, id)
        try:
            found = None if part is None else await part.wait_until_told(id, within)
            if found is None:
                left = None if within is None else begun + within - time.monotonic()
                found = await self._find_end(topic, id, left, seen=part is not None)
        except TimeoutError:
            away = was_away(self._store, topic, begun)
            raise ResultTimeout(topic, id, within or 0.0, away=away) from None
        if found.state is not State.COMPLETED:
            status = found.status()
            raise MessageDied(topic, id, status.state, status.reason, found.error())
        value = Kept.read(found.data)[1]
        try:
            return decode(value)
        except Exception as misfit:
            what = f"result of message {id!r} of topic {topic!r}"
            raise unreadable(misfit, type, value, what) from misfit

    async def status(self, topic: str, id: str) -> Status | None:
        """Return where a message is."""
        found = await self._look_in(topic, id, lambda part, id: self._part(part).full.read(id))
        return None if found is None else found[1].status()

    async def watch(self, topic: str, id: str) -> AsyncGenerator[Status, None]:
        """Yield where a message is, now and whenever that changes."""
        place = await self._look_in(topic, id, lambda part, id: self._part(part).full.read(id))
        if place is None:
            return
        part, found = self._part(place[0]), place[1]
        changed = asyncio.Event()
        part.watched[id].add(changed)
        try:
            await part.listen()
            last: Status | None = None
            while True:
                status = found.status()
                if status != last:
                    last = status
                    yield status
                if status.is_final:
                    return
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_EVERY):
                        await changed.wait()
                changed.clear()
                self._check_open()
                with suppress(*AWAY):
                    now = await part.light.read(id)
                    if now is not None and (now.state, now.lease) == (found.state, found.lease):
                        found = found._replace(progress=now.progress)
                        continue
                    now = now and await part.full.read(id)
                    if now is None:  # completed without a result to keep, cancelled or discarded
                        return
                    found = now
        finally:
            part.watched[id].discard(changed)
            if not part.watched[id]:
                del part.watched[id]

    async def close(self) -> None:
        """Stop listening, and fail the calls that still wait."""
        self._closed = True
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.wait([self._checking])
        await self._subscription.close()
        for part in self._parts.values():
            part.fail(NotOpen(CLOSED))

    def _check_open(self) -> None:
        if self._closed:
            raise NotOpen(CLOSED)

    # messages that are produced here

    def hears(self, topic: str) -> bool:
        """Return whether the end of a message that is produced now will be heard."""
        part = self._parts.get(topic)
        alone = self._store.partitions.get(topic) == 1
        return part is not None and alone and part.is_heard

    def produced(self, topic: str, id: str) -> None:
        """Note a generated id that was produced while we heard: a waiter need not read it."""
        part = self._parts.get(topic)
        if part is not None:
            part.note_fresh(id, to_come=True)

    def _part_of_fresh(self, topic: str, id: str) -> PartitionWaiters | None:
        """Return where a message was produced whose end will be heard; None: we do not know."""
        try:
            part = self._parts.get(topic)
            if part is None or not part.take_fresh(id):
                return None
        except TypeError:  # not hashable
            return None
        self._keep_checking()
        return part

    # where a message is

    async def _find_end(
        self, topic: str, id: str, within: float | None, *, seen: bool
    ) -> RawStatus:
        """Return a message of any partition once it has ended. `seen`: it was live before."""
        live: set[str] = set()  # partitions in which it was live since
        async with asyncio.timeout(within):
            found = await self._look_in(topic, id, lambda part, id: self._part(part).wait(id, live))
            if found is None:
                with _only_reads():
                    raise await why_unknown(self._store, topic, id, seen=seen or bool(live))
        return found[1]

    async def _look_in(self, topic: str, id: str, look: Any) -> tuple[str, RawStatus] | None:
        """Look for a message in the partitions of its topic."""
        check_listed(topic)
        if not isinstance(id, str):
            raise InvalidInput(f"message id {id!r:.80} is not a string")
        try:
            id.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:  # it would fail the read that it shares with others
            raise InvalidInput(f"message id {id!r:.80} cannot be sent: {error}") from error
        with _only_reads():
            known = self._store.partitions.get(topic) or await self._store.views.partitions(topic)
            asked = 0
            while known > asked:
                found = await ask_for(id, partitions(topic, known), lambda part: look(part, id))
                if found is not None:
                    return found
                asked, known = known, await self._store.views.partitions(topic)  # it may have grown
        return None

    def _part(self, name: str) -> PartitionWaiters:
        self._check_open()
        part = self._parts.get(name)
        if part is None:
            part = self._parts[name] = PartitionWaiters(self._store, self._subscription, name)
            self._channels[part.channel] = part
        self._keep_checking()
        return part

    def _keep_checking(self) -> None:
        if self._checking is None or self._checking.done():
            self._checking = spawn("waiters", self._check_all)
            self._checking.add_done_callback(self._checking_ended)

    def _checking_ended(self, task: asyncio.Task[None]) -> None:
        """Go on for those who still wait: some code cancels all tasks but theirs."""
        if not task.cancelled() and task.exception() is not None:
            logger.error("checking for lost news: %s", how_it_ended(task))
        is_left = any(part.waiting for part in self._parts.values())
        if is_left and task is self._checking and not self._closed and not all_are_cancelled():
            self._keep_checking()

    def _decoder(self, type: Any) -> Decode:
        try:
            decode = self._decoders.get(type)
        except TypeError:  # not hashable
            return decoder(type, "mq.result")
        if decode is None:
            decode = self._decoders[type] = decoder(type, "mq.result")
        return decode

    # waiting

    def _on_message(self, channel: str, data: bytes) -> None:
        part = self._channels.get(channel)
        if part is not None:
            part.on_message(data)

    def _on_gap(self, channel: str) -> None:
        part = self._channels.get(channel)
        if part is not None:
            part.on_gap()

    async def _check_all(self) -> None:
        """While there are waiters, check every two seconds whether news was lost."""
        while self._parts:
            await asyncio.sleep(CHECK_EVERY)
            parts = list(self._parts.values())
            await asyncio.gather(*(part.check() for part in parts))
            for part in parts:
                with suppress(MxRmqError):
                    await self._warn_in_time(part)
            for part in parts:
                if part.is_unused_for(LISTEN_ON):
                    del self._parts[part.name], self._channels[part.channel]
                    self._subscription.drop(part.channel)

    async def _warn_in_time(self, part: PartitionWaiters) -> None:
        """Log once per topic that those who wait will get no result, while its messages run.

        A worker notes for how long results are kept before it takes a message.
        """
        topic = topic_of(part.name)
        if not part.waiting or topic in self._asked:
            return
        if await self._store.views.result_ttl(part.name) is not None:
            self._asked.add(topic)
            return
        found = await self._store.read_status(part.name, list(part.waiting)[:MAX_IDS])
        if any(one is not None and one.state is State.PROCESSING for one in found):
            self._asked.add(topic)
            logger.warning(
                "mq.result waits for a message of topic %s, which keeps no results: "
                "give its handler result_ttl",
                topic,
            )


@contextmanager
def _only_reads() -> Iterator[None]:
    """If a reply is lost, say that the server is unavailable: a read changes nothing."""
    try:
        yield
    except OutcomeUnknown as error:
        raise ServerUnavailable(
            f"the server did not answer; nothing was changed: {error.__cause__}"
        ) from error
