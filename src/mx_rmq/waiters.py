"""Waiters: the callers of `mq.result`, `mq.status` and `mq.watch`.

All waiters of a queue share one subscription. A waiter first subscribes to its partition's channel,
then reads once; concurrent reads share a call. From then on the server tells it what ends: a short
result comes with the news, anything else is read. If news is lost, the topic's counts show within
two seconds that something has ended, and all its waiters read again. They also do so every half
minute, in case something has broken the counts.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
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
    ResultUnknown,
    ServerUnavailable,
)
from mx_rmq.core.message import ARCHIVES, State
from mx_rmq.core.names import check_topic
from mx_rmq.core.partition import partitions, topic_of
from mx_rmq.core.payload import Decode, decoder, unreadable
from mx_rmq.core.status import Kept
from mx_rmq.runtime.loop import AWAY, FailureLog, all_are_cancelled, how_it_ended, spawn
from mx_rmq.safe_log import get_logger
from mx_rmq.store.waiter_calls import MAX_IDS, Whereabouts

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Iterator

    from mx_rmq.core.durations import Seconds
    from mx_rmq.core.status import Status
    from mx_rmq.store import Store

logger = get_logger(__name__)

CHECK_EVERY: Final = 2.0  # seconds, in case news was lost
READ_EVERY: Final = 30.0  # seconds, in case a topic does not count what ends
POLL_EVERY: Final = 0.5  # seconds between two reads of a message that is watched
LISTEN_ON: Final = 30.0  # seconds for which a channel is heard after its last waiter
MAX_FRESH: Final = 10_000  # messages of a partition that have no waiter yet

CLOSED: Final = "the queue was closed during this call"
UNREAD: Final = "read_status: the task that reads for all waiters was cancelled"

_ENDS: Final = frozenset(state.value for state in ARCHIVES)


class Waiters:
    """All waiters of one queue in this process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._subscription = store.subscription(self._on_message, self._on_gap)
        self._parts: dict[str, _Part] = {}  # by partition
        self._channels: dict[str, _Part] = {}
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
        begun, seen = time.monotonic(), set[str]()
        try:
            async with asyncio.timeout(within):
                found = await self._look_in(topic, id, lambda part, id: self._wait(part, id, seen))
                if found is None:
                    raise await self._unknown(topic, id, seen=bool(seen))
        except TimeoutError:
            away = self._was_away(topic, begun)
            raise ResultTimeout(topic, id, within or 0.0, away=away) from None
        _, (state, _, _, data) = found
        if state is not State.COMPLETED:
            status = found[1].status()
            raise MessageDied(topic, id, status.state, status.reason, found[1].error())
        value = Kept.read(data)[1]
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
            await self._subscription.add(part.channel)
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
            for waiting in list(part.waiting.values()):
                for one in waiting:
                    if not one.done():
                        one.set_exception(NotOpen(CLOSED))
            for watching in part.watched.values():
                for changed in watching:
                    changed.set()

    def _check_open(self) -> None:
        if self._closed:
            raise NotOpen(CLOSED)

    # messages that are produced here

    def hears(self, topic: str) -> bool:
        """Return whether the end of a message that is produced now will be heard."""
        part = self._parts.get(topic)
        alone = self._store.partitions.get(topic) == 1
        return part is not None and alone and self._subscription.hears(part.channel)

    def produced(self, topic: str, id: str) -> None:
        """Note a generated id that was produced while we heard: a waiter need not read it."""
        part = self._parts.get(topic)
        if part is not None:
            part.note_fresh(id, to_come=True)

    # where a message is

    async def _look_in(self, topic: str, id: str, look: Any) -> tuple[str, Whereabouts] | None:
        """Look for a message in the partitions of its topic."""
        check_topic(topic)
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

    def _part(self, name: str) -> _Part:
        self._check_open()
        part = self._parts.get(name)
        if part is None:
            part = self._parts[name] = _Part(self._store, name)
            self._channels[part.channel] = part
        if self._checking is None or self._checking.done():
            self._start_checking()
        return part

    def _start_checking(self) -> None:
        self._checking = spawn("waiters", self._check_all)
        self._checking.add_done_callback(self._checking_ended)

    def _checking_ended(self, task: asyncio.Task[None]) -> None:
        """Go on for those who still wait: some code cancels all tasks but theirs."""
        _log_end(task)
        is_left = any(part.waiting for part in self._parts.values())
        if is_left and task is self._checking and not self._closed and not all_are_cancelled():
            self._start_checking()

    def _decoder(self, type: Any) -> Decode:
        try:
            decode = self._decoders.get(type)
        except TypeError:  # not hashable
            return decoder(type, "mq.result")
        if decode is None:
            decode = self._decoders[type] = decoder(type, "mq.result")
        return decode

    async def _unknown(self, topic: str, id: str, *, seen: bool) -> ResultUnknown:
        """Say why there is no result, as far as it can be known. `seen`: it was live just now."""
        with _only_reads():
            known = seen or await self._store.views.partitions(topic)
            ttl = await self._store.views.result_ttl(topic) if known else None
        if not known:
            return ResultUnknown(
                f"topic {topic!r} is not known: nothing was produced to it, and no worker serves it"
            )
        gone = "" if ttl is None else f"its result is gone: they are kept for {ttl / 1000:g} s"
        if seen:
            why = "it was cancelled, discarded, or completed by a handler without `result_ttl`"
            why += gone and f"; or {gone}"
            return ResultUnknown(
                f"message {id!r:.80} of topic {topic!r} has ended without a result: {why}"
            )
        why = (
            f"it was never produced, or ended without a result, or {gone}"
            if gone
            else "it was never produced, or it has ended: the topic keeps no results "
            "(see `result_ttl`)"
        )
        return ResultUnknown(f"nothing is known of message {id!r:.80} of topic {topic!r}: {why}")

    def _was_away(self, topic: str, since: float) -> bool:
        """Return whether a server that has the topic did not answer for a while."""
        store = self._store
        parts = partitions(topic, store.partitions.get(topic) or 1)
        sites = {store.caller.servers.site_of(store.keys.topics), *map(store.site_of, parts)}
        links = map(store.link_of, sites)
        return any(link.is_failing or link.back_at >= since for link in links)

    # waiting

    async def _wait(self, name: str, id: str, seen: set[str]) -> Whereabouts | None:
        """Return a message of a partition once it has ended; None: it is not there.

        If it is live, its partition is added to `seen`.
        """
        part = self._part(name)
        end: asyncio.Future[Whereabouts | None] = asyncio.get_running_loop().create_future()
        waiting = part.waiting.setdefault(id, [])
        waiting.append(end)
        try:
            if not self._subscription.hears(part.channel):
                await self._subscription.add(part.channel)
            elif part.fresh.pop(id, False):
                seen.add(name)
                part.read_at_next_check()  # in case its end was counted, but not heard
                return await end
            if not end.done():
                try:
                    found = await part.brief.read(id)
                except MxRmqError:
                    if not end.done():
                        raise
                    return await end
                if found is not None and not found.state.is_archive:
                    seen.add(name)
                elif not end.done():
                    return found
            return await end
        finally:
            waiting.remove(end)
            if not waiting:
                part.waiting.pop(id, None)

    def _on_message(self, channel: str, data: bytes) -> None:
        part = self._channels.get(channel)
        if part is None:
            return
        try:
            for kind, id, kept in _entries(data):
                for changed in part.watched.get(id, ()):
                    changed.set()
                if kind not in _ENDS:
                    continue
                if id not in part.waiting:
                    part.note_fresh(id, to_come=False)
                elif kept is not None:
                    part.tell(id, Whereabouts(State(kind), data=kept))
                else:
                    part.read_again([id])
        except ValueError:  # not from us
            self._on_gap(channel)

    def _on_gap(self, channel: str) -> None:
        part = self._channels.get(channel)
        if part is not None:
            part.fresh.clear()
            part.read_again(part.waiting)
            for watching in part.watched.values():
                for changed in watching:
                    changed.set()

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

    async def _warn_in_time(self, part: _Part) -> None:
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


class _Part:
    """The waiters of one partition."""

    def __init__(self, store: Store, name: str) -> None:
        self.name = name
        self.channel = store.channel_of(name)
        self.waiting: dict[str, list[asyncio.Future[Whereabouts | None]]] = {}
        self.watched: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self.brief = _StatusReader(store, name)
        self.light = _StatusReader(store, name, said=True)
        self.full = _StatusReader(store, name, live=True, said=True)
        self.fresh: dict[str, bool] = {}
        """Ids that have no waiter yet: True if their end is still to come and will be heard."""
        self._store = store
        self._ended: list[bytes | None] | None = None  # the counts when all last read
        self._all_read_at = time.monotonic()
        self._again: dict[str, None] = {}
        self._reading: asyncio.Task[None] | None = None
        self._failures = FailureLog("check for results")
        self._used_at = time.monotonic()

    def note_fresh(self, id: str, *, to_come: bool) -> None:
        """Note that the end of a message is still to come, or that it came without a waiter.

        The end may be heard before its produce is answered: then it is not to come any more.
        """
        if to_come and id in self.fresh:
            return
        if len(self.fresh) >= MAX_FRESH:
            self.fresh.clear()  # their waiters read
        self.fresh[id] = to_come

    def read_at_next_check(self) -> None:
        """Let the next check read every message that has a waiter, whatever the counts say."""
        self._ended = None

    def tell(self, id: str, found: Whereabouts | None) -> None:
        """Tell the waiters of a message that it has ended."""
        for one in self.waiting.get(id, ()):
            if not one.done():
                one.set_result(found)

    def read_again(self, ids: Iterable[str]) -> None:
        """Find out whether messages have ended."""
        self._again.update(dict.fromkeys(ids))
        if self._again and (self._reading is None or self._reading.done()):
            self._reading = spawn("waiters", self._read_again)
            self._reading.add_done_callback(self._has_read)

    def _has_read(self, task: asyncio.Task[None]) -> None:
        _log_end(task)
        if task.cancelled() or task.exception() is not None:
            self._ended = None  # the next check reads everything again

    async def _read_again(self) -> None:
        while self._again:
            ids = list(self._again)[:MAX_IDS]
            for id in ids:
                del self._again[id]
            try:
                found = await self._store.read_status(self.name, ids)
            except MxRmqError as error:
                self._failures.log(error)
                self._ended = None  # the next check reads everything again
                return
            for id, one in zip(ids, found, strict=True):
                if one is None or one.state.is_archive:
                    self.tell(id, one)

    async def check(self) -> None:
        """Read everything again if a message of the topic has ended since the last time.

        Also if that cannot be known: totals may have a wrong type, or a field that is no number.
        """
        self.fresh.clear()
        if not self.waiting:
            self._ended = None
            return
        try:
            ended = await self._store.ended_so_far(self.name)
        except MxRmqError as error:
            self._failures.log(error)
            if isinstance(error, AWAY):
                return
            ended = None
        now = time.monotonic()
        if ended is None or ended != self._ended or now - self._all_read_at >= READ_EVERY:
            self._ended, self._all_read_at = ended, now
            self.read_again(self.waiting)

    def is_unused_for(self, seconds: float) -> bool:
        now = time.monotonic()
        if self.waiting or self.watched:
            self._used_at = now
        return now - self._used_at > seconds


_Asked = dict[str, list["asyncio.Future[Whereabouts | None]"]]  # by id


class _StatusReader:
    """Reads where messages are. Callers that ask during a read share the next one."""

    def __init__(self, store: Store, part: str, *, live: bool = False, said: bool = False) -> None:
        self._store = store
        self._part = part
        self._live = live
        self._said = said
        self._asked: _Asked = {}
        self._task: asyncio.Task[None] | None = None

    async def read(self, id: str) -> Whereabouts | None:
        answer: asyncio.Future[Whereabouts | None] = asyncio.get_running_loop().create_future()
        self._asked.setdefault(id, []).append(answer)
        if self._task is None or self._task.done():
            self._task = spawn("waiters", self._read_all)
            self._task.add_done_callback(self._has_read)
        return await answer

    async def _read_all(self) -> None:
        while self._asked:
            asked = dict(list(self._asked.items())[:MAX_IDS])
            for id in asked:
                del self._asked[id]
            await self._read(asked)

    def _has_read(self, task: asyncio.Task[None]) -> None:
        """Tell those whose turn never came: some code cancels all tasks."""
        _log_end(task)
        if task is self._task:
            asked, self._asked = self._asked, {}
            _fail(asked, ServerUnavailable(UNREAD))

    async def _read(self, asked: _Asked) -> None:
        ids = list(asked)
        try:
            found = await self._store.read_status(self._part, ids, live=self._live, said=self._said)
        except MxRmqError as error:
            _fail(asked, error)
            return
        except BaseException:
            _fail(asked, ServerUnavailable(UNREAD))
            raise
        for id, one in zip(ids, found, strict=True):
            for answer in asked[id]:
                if not answer.done():
                    answer.set_result(one)


def _entries(data: bytes) -> Iterator[tuple[str, str, bytes | None]]:
    """Yield the news in one message on the channel: kind, id, and the result if it is included.

    Raise ValueError if it is not from us: any client may publish.
    """
    start = 0
    while start < len(data):
        end = data.index(b"\n", start)
        kind, id_length, kept_length = data[start:end].split(b" ")
        id_end = end + 1 + int(id_length)
        start = id_end + max(0, int(kept_length))
        if not end < id_end <= start <= len(data):
            raise ValueError(f"the lengths in {data[:80]!r} are wrong")
        id = data[end + 1 : id_end].decode("utf-8", "surrogateescape")
        yield kind.decode(), id, None if int(kept_length) < 0 else data[id_end:start]


@contextmanager
def _only_reads() -> Iterator[None]:
    """If a reply is lost, say that the server is unavailable: a read changes nothing."""
    try:
        yield
    except OutcomeUnknown as error:
        raise ServerUnavailable(
            f"the server did not answer; nothing was changed: {error.__cause__}"
        ) from error


def _fail(asked: _Asked, error: MxRmqError) -> None:
    for answer in (answer for answers in asked.values() for answer in answers):
        if not answer.done():
            answer.set_exception(error)


def _log_end(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        logger.error("waiting for messages: %s", how_it_ended(task))
