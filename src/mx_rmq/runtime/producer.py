"""The producer: concurrent produce calls share script calls.

While a call to a topic is under way, further messages for the topic wait and go out together in the
next call. A lone message is sent at once. After a call with several messages, the next message
waits for one turn of the event loop: their callers often come back together, as when all of them
wait for results.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from mx_rmq.core.errors import (
    DuplicateMessage,
    InvalidInput,
    MxRmqError,
    NotConfirmed,
    ProduceUnknown,
    QueueFull,
)
from mx_rmq.core.names import check_topic
from mx_rmq.runtime.partition_choice import PartitionChoice
from mx_rmq.store.arguments import MAX_BATCH
from mx_rmq.store.lanes import Withdrawn

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

    from mx_rmq.core.confirm import Confirm
    from mx_rmq.core.duplicates import DuplicatePolicy
    from mx_rmq.core.handler import Handler
    from mx_rmq.core.message import Message
    from mx_rmq.store import Store
    from mx_rmq.store.producer_calls import Prepared
    from mx_rmq.store.results import Produced

MAX_CALL_BYTES: Final = 1_048_576  # per call, which blocks the server; one message may exceed it
MAX_CHUNK: Final = 500  # messages per call of `produce_all`
MIN_RUN: Final = 16  # `produce_all` sends at least this many to one partition in a row
REFRESH_EVERY: Final = 10.0  # seconds between two checks for new partitions and default ttls
LAST_REFRESH_WITHIN: Final = 1.0  # seconds for the last check, when the producer is closed
ENVELOPE: Final = 300  # approximate size of a record without its payload, in bytes

_SCRIPTS: Final = ("produce_normal_message", "produce_delay_message")
"""Indexed by `Message.is_delayed`."""

_Waiting = tuple["Message", "DuplicatePolicy | None", "asyncio.Future[Produced]"]


class Stored(NamedTuple):
    """What one call of a `produce_all` stored."""

    places: Sequence[int]  # positions of the messages, in the order of `ids`
    ids: list[str]
    unconfirmed: NotConfirmed | None = None
    duplicates: Mapping[str, str] = {}
    """Ids that had to be free and are not, with their states. They are not in `ids`."""


class _Channel:
    """Sends messages to one topic or partition by one script, one call at a time."""

    __slots__ = ("busy", "confirm", "name", "script", "shared", "waiting")

    def __init__(self, name: str, script: str, confirm: Confirm | None) -> None:
        self.name = name
        self.script = script
        self.confirm = confirm
        self.busy = False  # a call is under way or about to be made
        self.shared = False  # the last call had several messages
        self.waiting: deque[_Waiting] = deque()


class Producer:
    """Produces to the topics of one store."""

    def __init__(self, store: Store, handlers: Mapping[str, Handler]) -> None:
        self.store = store
        self._handlers = handlers
        self._channels: dict[tuple[str, bool, Confirm | None], _Channel] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._progress: asyncio.Event | None = None  # tells `close` that a caller is done
        self._registering: dict[str, asyncio.Task[None]] = {}
        self._callers = 0  # callers that wait for something other than a channel
        self._refresh_at = time.monotonic() + REFRESH_EVERY
        self._refreshing: asyncio.Task[None] | None = None
        self._partition = PartitionChoice(store)

    async def produce(
        self,
        topic: str,
        message: Message,
        *,
        confirm: Confirm | None = None,
        policy: DuplicatePolicy | None = None,
    ) -> Produced:
        """Produce one message; messages produced during a call share the next one.

        `policy`: what to do if its id is taken; None: ignore the message.
        """
        if topic not in self.store.partitions:
            await self._register(topic)
        if time.monotonic() >= self._refresh_at:
            self.refresh_partitions()
        if self.store.ttls:
            message = self._with_ttl(topic, message)
        name = topic
        if message.id:
            name = await self._partition.for_id(topic, message.id, message.key)
        elif self.store.partitions[topic] > 1:
            name = self._partition.choose(topic, None, message.key)
        if policy is not None and policy.replaces:
            return await self._replace(name, message, policy, confirm)
        delayed = bool(message.delay) or message.due is not None  # is_delayed, inlined for speed
        channel = self._channels.get((name, delayed, confirm))
        if channel is None:
            channel = _Channel(name, _SCRIPTS[delayed], confirm)
            self._channels[name, delayed, confirm] = channel
        if channel.busy or channel.shared:
            answer: asyncio.Future[Produced] = asyncio.get_running_loop().create_future()
            channel.waiting.append((message, policy, answer))
            if not channel.busy:
                channel.busy = True
                self._continue(channel)  # in the next turn of the event loop
            produced = await answer
        else:
            channel.busy = True
            try:
                call = self.store.prepare(channel.script, name, [message], [policy])
                (produced,) = await self.store.produce(call, confirm)
            except NotConfirmed as error:
                raise _refused(policy, error.ids[0], error.taken[0]) or error from None
            finally:
                self._continue(channel)
        if policy is not None and produced.placed.duplicate:
            refused = _refused(policy, produced.id, produced.placed.state)
            if refused is not None:
                raise refused
        return produced

    async def _replace(
        self, name: str, message: Message, policy: DuplicatePolicy, confirm: Confirm | None
    ) -> Produced:
        self._callers += 1
        try:
            return await self.store.replace_message(name, message, policy, confirm)
        finally:
            self._caller_done()

    def _caller_done(self) -> None:
        self._callers -= 1
        if self._progress is not None:
            self._progress.set()

    async def produce_all(
        self,
        topic: str,
        messages: Sequence[Message],
        *,
        confirm: Confirm | None = None,
        policies: Sequence[DuplicatePolicy | None] = (),
    ) -> AsyncIterator[Stored]:
        """Produce messages in order, in as many calls as needed; yield what each call stored.

        Each call is prepared while the server runs the previous one. None of `policies` may
        replace.
        """
        if topic not in self.store.partitions:
            await self._register(topic)
        if time.monotonic() >= self._refresh_at:
            self.refresh_partitions()
        if self.store.ttls:
            messages = [self._with_ttl(topic, message) for message in messages]
        unusual = any(policies)
        sending: asyncio.Task[Stored] | None = None
        try:
            for name, places in await self._split(topic, messages):
                chunk = (
                    messages[places.start : places.stop]
                    if isinstance(places, range)
                    else [messages[place] for place in places]
                )
                chunk_policies = [policies[place] for place in places] if unusual else ()
                try:
                    script = _SCRIPTS[chunk[0].is_delayed]
                    call = self.store.prepare(script, name, chunk, chunk_policies)
                except MxRmqError:  # refused, but the call under way may store its messages
                    if sending is not None:
                        yield await sending
                    raise
                if sending is not None:
                    yield await sending
                sending = asyncio.create_task(
                    self._store_all(call, places, confirm, chunk_policies), name="mx-rmq producer"
                )
                await asyncio.sleep(0)  # let it start
            if sending is not None:
                yield await sending
        finally:
            if sending is not None:
                sending.cancel()  # no effect unless our caller was cancelled

    async def _store_all(
        self,
        call: Prepared,
        places: Sequence[int],
        confirm: Confirm | None,
        policies: Sequence[DuplicatePolicy | None],
    ) -> Stored:
        unconfirmed: NotConfirmed | None = None
        taken: Sequence[str] = ()
        try:
            produced = await self.store.produce(call, confirm)
            ids = [one.id for one in produced]
            if policies:
                taken = [one.placed.state if one.placed.duplicate else "" for one in produced]
        except NotConfirmed as error:
            unconfirmed, ids, taken = error, list(error.ids), error.taken
        if not policies:
            return Stored(places, ids, unconfirmed)
        stored: dict[int, str] = {}
        duplicates: dict[str, str] = {}
        for place, policy, id, state in zip(places, policies, ids, taken, strict=True):
            if state and policy is not None and policy.refuses:
                duplicates[id] = state
            else:
                stored[place] = id
        return Stored(
            [*stored], [*stored.values()], unconfirmed if stored else None, duplicates=duplicates
        )

    def _with_ttl(self, topic: str, message: Message) -> Message:
        """Return the message with the topic's default time to live, unless it has its own."""
        ttl = self.store.ttls.get(topic)
        if ttl is None or message.ttl is not None:
            return message
        if message.delay >= ttl:
            raise self._too_late(topic, message, ttl)
        return msgspec.structs.replace(message, ttl=ttl)

    def _too_late(self, topic: str, message: Message, ttl: int) -> InvalidInput:
        """Return the error of a message whose delay is longer than its topic's default ttl."""
        handler = self._handlers.get(topic)
        if handler is not None and handler.ttl_ms == ttl:
            source = f"handler {handler.name}"
        elif handler is None and self.store.own_ttl(topic) == ttl:
            source = "the queue's settings"
        else:
            source = "a worker's handler"
        return InvalidInput(
            f"delay={message.delay / 1000:g}: the message would expire before it is due. The "
            f"default of topic {topic!r} is ttl={ttl / 1000:g}, from {source}; pass a longer ttl"
        )

    # splitting into calls

    async def _split(
        self, topic: str, messages: Sequence[Message]
    ) -> Iterator[tuple[str, Sequence[int]]]:
        """Split messages into calls: the partition of each, and the positions of its messages."""
        alike = self.store.partitions[topic] == 1  # if so, a key has no choice
        if not any(message.id or (message.key and not alike) for message in messages):
            return self._split_evenly(topic, messages)
        # Do this first: it may find that the topic has grown, and a key must not change partitions
        # in the middle of the split.
        with_id = {
            place: await self._partition.for_id(topic, message.id, message.key)
            for place, message in enumerate(messages)
            if message.id
        }
        places_of: defaultdict[str, list[int]] = defaultdict(list)
        for place, message in enumerate(messages):
            name = with_id.get(place) or self._partition.choose(topic, None, message.key)
            places_of[name].append(place)
        return (
            (name, chunk)
            for name, places in places_of.items()
            for chunk in chunks(messages, places)
        )

    def _split_evenly(
        self, topic: str, messages: Sequence[Message]
    ) -> Iterator[tuple[str, Sequence[int]]]:
        """Split messages that may go to any partition."""
        parts = self.store.partitions[topic]
        run = max(MIN_RUN, -(-len(messages) // parts)) if parts > 1 else len(messages)
        for start in range(0, len(messages), run):
            name = self._partition.choose(topic, None, None)
            for chunk in chunks(messages, range(start, min(start + run, len(messages)))):
                yield name, chunk

    async def _register(self, topic: str) -> None:
        """Register a topic and learn its partitions and its default ttl. Concurrent callers share
        this."""
        check_topic(topic)
        registering = self._registering.get(topic)
        if registering is None:
            handler = self._handlers.get(topic)
            declared = (handler.partitions if handler else None) or 1
            registering = asyncio.create_task(
                self.store.register(topic, declared), name="mx-rmq producer"
            )
            self._registering[topic] = registering
            registering.add_done_callback(lambda done: self._registered(topic, done))
        self._callers += 1
        try:
            await asyncio.shield(registering)
        finally:
            self._caller_done()

    def _registered(self, topic: str, registering: asyncio.Task[None]) -> None:
        del self._registering[topic]
        if not registering.cancelled():
            registering.exception()  # or asyncio warns if all callers were cancelled

    def refresh_partitions(self) -> None:
        """In the background, register all topics again: they may have grown or have another default
        ttl, or a server may have lost its registry."""
        self._refresh_at = time.monotonic() + REFRESH_EVERY
        if self.store.partitions and (self._refreshing is None or self._refreshing.done()):
            self._refreshing = asyncio.create_task(self._refresh(), name="mx-rmq producer")

    async def _refresh(self) -> None:
        with suppress(MxRmqError):  # the next refresh may succeed
            await self.store.register_topics(dict(self.store.partitions))

    # sending

    def _continue(self, channel: _Channel) -> None:
        """Send the messages that arrived during a call; if there are none, free the channel."""
        if channel.waiting:
            task = asyncio.create_task(self._send_waiting(channel), name="mx-rmq producer")
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)
            return
        channel.busy = False
        if self._progress is not None:
            self._progress.set()

    async def _send_waiting(self, channel: _Channel) -> None:
        waiting = channel.waiting
        try:
            while waiting:
                batch = [waiting.popleft()]
                size = _size(batch[0][0])
                while waiting and len(batch) < MAX_BATCH:
                    size += _size(waiting[0][0])
                    if size > MAX_CALL_BYTES:
                        break
                    batch.append(waiting.popleft())
                channel.shared = len(batch) > 1
                await self._send_batch(channel, batch)
                await asyncio.sleep(0)  # let answered callers produce again and join the next batch
        finally:
            while waiting:  # only if the event loop ends
                waiting.popleft()[2].cancel()
            self._continue(channel)

    async def _send_batch(self, channel: _Channel, batch: list[_Waiting]) -> None:
        """Send messages in one call, except those whose callers have given up."""

        def check() -> None:
            if any(answer.done() for *_, answer in batch):
                raise Withdrawn

        while batch := [one for one in batch if not one[2].done()]:
            try:
                messages = [message for message, *_ in batch]
                policies = [policy for _, policy, _ in batch]
                call = self.store.prepare(channel.script, channel.name, messages, policies)
                produced = await self.store.produce(call, channel.confirm, check)
            except Withdrawn:
                continue
            except (QueueFull, InvalidInput) as error:
                if len(batch) == 1:
                    _fail(batch[0], error)
                    return
                for one in batch:  # the error may concern only some: each caller gets its own
                    await self._send_batch(channel, [one])
            except ProduceUnknown as error:
                for one, id in zip(batch, error.ids, strict=True):
                    _fail(one, ProduceUnknown(str(error), [id]))
            except NotConfirmed as error:
                for one, id, state in zip(batch, error.ids, error.taken, strict=True):
                    _fail(one, _refused(one[1], id, state) or error.of([id]))
            except BaseException as error:
                for one in batch:
                    _fail(one, error)
                if not isinstance(error, Exception):
                    raise
            else:
                for (*_, answer), one_produced in zip(batch, produced, strict=True):
                    if not answer.done():
                        answer.set_result(one_produced)
            return

    async def close(self) -> None:
        """Wait until every produce has its answer, then end all background work."""
        while self._callers or any(one.busy for one in self._channels.values()):
            self._progress = asyncio.Event()
            await self._progress.wait()
        tasks = [*self._registering.values(), *self._partition.probes.values()]
        tasks += [self._refreshing] if self._refreshing else []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if any(parts > 1 for parts in self.store.partitions.values()):
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_REFRESH_WITHIN):
                    # The registry may have lost a partition count that only we still know.
                    await self._refresh()


def chunks(messages: Sequence[Message], places: Sequence[int]) -> Iterator[Sequence[int]]:
    """Split the messages at these positions into parts that each fit in one call, in order."""
    start, size, delayed = 0, 0, False
    for at, place in enumerate(places):
        message = messages[place]
        own = _size(message)
        size += own
        waits = message.is_delayed
        if at > start and (size > MAX_CALL_BYTES or waits != delayed or at - start == MAX_CHUNK):
            yield places[start:at]
            start, size = at, own
        delayed = waits
    if start < len(places):
        yield places[start:]


def _size(message: Message) -> int:
    return len(message.payload) + ENVELOPE


def _refused(policy: DuplicatePolicy | None, id: str, state: str) -> DuplicateMessage | None:
    """Return the error of a message that must not be a duplicate; `state`: empty if it is none."""
    return (
        DuplicateMessage({id: state}) if state and policy is not None and policy.refuses else None
    )


def _fail(one: _Waiting, error: BaseException) -> None:
    *_, answer = one
    if not answer.done():
        answer.set_exception(error)
