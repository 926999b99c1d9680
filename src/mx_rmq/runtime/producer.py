"""The producer: concurrent produce calls share script calls.

While a call to a topic is under way, what else is produced to it waits and goes out together with
the next one. A lone caller waits for nobody.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict, deque
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple

from mx_rmq.core.errors import InvalidInput, MxRmqError, NotConfirmed, ProduceUnknown, QueueFull
from mx_rmq.core.names import check_topic
from mx_rmq.core.partition import MOST, number_for, number_in, partition
from mx_rmq.store.arguments import MAX_BATCH
from mx_rmq.store.lanes import Withdrawn, maker_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

    from mx_rmq.core.confirm import Confirm
    from mx_rmq.core.handler import Handler
    from mx_rmq.core.message import Message
    from mx_rmq.store import Store
    from mx_rmq.store.producer_calls import Prepared
    from mx_rmq.store.results import Produced

BYTES: Final = 1_048_576
"""Bytes of payload in one call, or a single message: one call must not block the server."""

CHUNK: Final = 500
"""Messages in one call of `produce_all`: the next one is prepared while the server works on it."""

RUN: Final = 16
"""Messages of a `produce_all` that go to the same partition together, at the least."""

LEARN_EVERY: Final = 10.0
"""Seconds after which a producer looks whether topics have got more partitions."""

LAST_WORD: Final = 1.0
"""Seconds for that at the end."""

REMEMBER: Final = 10_000
"""Lanes that are known to have made no ids for a partition."""

ENVELOPE: Final = 300
"""Bytes that a message takes beside its payload, about."""


_Waiting = tuple["Message", "asyncio.Future[Produced]"]


class Stored(NamedTuple):
    """What one call of many has stored."""

    places: Sequence[int]
    """Which of the messages they are."""
    ids: list[str]
    """Theirs, in the same order."""
    unconfirmed: NotConfirmed | None = None


class _Line:
    """What waits to be produced to one topic or partition, by one script."""

    __slots__ = ("busy", "confirm", "name", "waiting")

    def __init__(self, name: str, confirm: Confirm | None) -> None:
        self.name = name
        self.confirm = confirm
        self.busy = False
        """A call is under way, or about to be made."""
        self.waiting: deque[_Waiting] = deque()


class Producer:
    """Produces to the topics of one store."""

    def __init__(self, store: Store, handlers: Mapping[str, Handler] | None = None) -> None:
        self._store = store
        self._handlers = {} if handlers is None else handlers
        self._lines: dict[tuple[str, bool, Confirm | None], _Line] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._quiet: asyncio.Event | None = None
        """Set when a line falls quiet, if somebody waits for that."""
        self._learning: dict[str, asyncio.Task[None]] = {}
        self._learners = 0
        """Callers who wait to hear how many partitions their topic has."""
        self._learn_at = time.monotonic() + LEARN_EVERY
        """When to ask again how many partitions there are."""
        self._looking: asyncio.Task[None] | None = None
        self._probes: dict[str, asyncio.Task[None]] = {}
        self._not_made: set[tuple[str, str]] = set()
        """Partitions, and lanes that made no ids for them."""
        self._turns: defaultdict[str, count[int]] = defaultdict(_from_anywhere)

    async def produce(
        self,
        topic: str,
        message: Message,
        *,
        key: str | None = None,
        confirm: Confirm | None = None,
    ) -> Produced:
        """Produce one message, together with those that others produce at this moment."""
        if topic not in self._store.partitions:
            await self._learn(topic)
        name = (
            self._partition(topic, None, key)
            if not message.id
            else await self._home(topic, message.id, key)
        )
        delayed = message.is_delayed
        line = self._lines.get((name, delayed, confirm))
        if line is None:
            line = self._lines[name, delayed, confirm] = _Line(name, confirm)
        if line.busy:
            done: asyncio.Future[Produced] = asyncio.get_running_loop().create_future()
            line.waiting.append((message, done))
            return await done
        line.busy = True
        try:
            (produced,) = await self._store.produce(self._prepare(name, [message]), confirm)
        finally:
            self._go_on(line)
        return produced

    async def produce_all(
        self,
        topic: str,
        messages: Sequence[Message],
        *,
        keys: Sequence[str] | None = None,
        confirm: Confirm | None = None,
    ) -> AsyncIterator[Stored]:
        """Produce messages in order, in as many calls as they need; yield what each call stored.

        The next call is prepared while the server works on the last one.
        """
        if topic not in self._store.partitions:
            await self._learn(topic)
        homes = await self._homes(topic, messages, keys)
        sending: asyncio.Task[Stored] | None = None
        try:
            for name, places in self._deal(topic, messages, keys, homes):
                chunk = (
                    messages[places.start : places.stop]
                    if isinstance(places, range)
                    else [messages[place] for place in places]
                )
                try:
                    call = self._prepare(name, chunk)
                except MxRmqError:  # refused; but what is under way may be stored
                    if sending is not None:
                        yield await sending
                    raise
                if sending is not None:
                    yield await sending
                sending = asyncio.create_task(
                    self._store_all(call, places, confirm), name="mx-rmq producer"
                )
                await asyncio.sleep(0)  # so that it is on its way
            if sending is not None:
                yield await sending
        finally:
            if sending is not None:
                sending.cancel()  # nothing, unless the caller was cancelled

    async def _store_all(
        self, call: Prepared, places: Sequence[int], confirm: Confirm | None
    ) -> Stored:
        try:
            produced = await self._store.produce(call, confirm)
        except NotConfirmed as error:
            return Stored(places, list(error.ids), error)
        return Stored(places, [one.id for one in produced])

    # partitions

    def _partition(self, topic: str, id: str | None, key: str | None) -> str:
        """Return the partition that a message goes to: by its key, by its id, or in turn."""
        if time.monotonic() >= self._learn_at:
            self.learn_again()
        parts = self._store.partitions[topic]
        if parts == 1:
            return topic
        if key is not None:
            return partition(topic, number_for(key, parts))
        if id is None:
            return self._in_turn(topic, parts)
        made_for = number_in(id) if maker_of(id) else parts
        return partition(topic, made_for if made_for < parts else number_for(id, parts))

    async def _home(self, topic: str, id: str, key: str | None) -> str:
        """Return the partition for a message with a custom id.

        After ProduceUnknown a message is produced again with the id that was made for it. If the
        topic has grown since, its key may belong to another partition by now; then the message
        goes back to the first one, or there could be two.
        """
        name = self._partition(topic, id, key)
        maker, number = maker_of(id), number_in(id)
        if maker is None or (key is not None and number_for(key, number + 1) != number):
            return name  # not a generated id, or that was never the partition of this key
        home = partition(topic, number)
        if home == name or (home, maker) in self._not_made:
            return name
        if self._store.partitions[topic] <= number < MOST:
            await self._store.register_topics({topic: 1})  # perhaps it has grown
            name = self._partition(topic, id, key)
        if number < self._store.partitions[topic] and await self._store.has_made_ids(home, maker):
            return home
        if len(self._not_made) >= REMEMBER:
            self._not_made.clear()
        self._not_made.add((home, maker))
        return name

    async def _homes(
        self, topic: str, messages: Sequence[Message], keys: Sequence[str] | None
    ) -> dict[int, str]:
        """Return the partitions of the messages with a custom id, by their places."""
        return {
            place: await self._home(topic, message.id, None if keys is None else keys[place])
            for place, message in enumerate(messages)
            if message.id
        }

    def _in_turn(self, topic: str, parts: int) -> str:
        """Return the next partition, of those whose server answers if there are any."""
        for _ in range(parts):
            name = partition(topic, next(self._turns[topic]) % parts)
            if not self._store.link_of(self._store.site_of(name)).is_failing:
                return name
            self._probe(name)
        return name

    def _probe(self, name: str) -> None:
        """See whether the server of a partition is back, at no caller's cost."""
        if name not in self._probes:
            probe = asyncio.create_task(self._ask(name), name="mx-rmq producer")
            self._probes[name] = probe
            probe.add_done_callback(lambda _: self._probes.pop(name))

    async def _ask(self, name: str) -> None:
        with suppress(MxRmqError):
            await self._store.get_next_delay_task(name)  # a slot that moves refuses scripts alone

    def _deal(
        self,
        topic: str,
        messages: Sequence[Message],
        keys: Sequence[str] | None,
        homes: Mapping[int, str],
    ) -> Iterator[tuple[str, Sequence[int]]]:
        """Cut messages into calls: say to which partition each goes, and the places of its own."""
        if keys is None and not any(message.id for message in messages):
            parts = self._store.partitions[topic]
            run = max(RUN, -(-len(messages) // parts)) if parts > 1 else len(messages)
            for start in range(0, len(messages), run):
                name = self._partition(topic, None, None)
                for chunk in chunks(messages, range(start, min(start + run, len(messages)))):
                    yield name, chunk
            return
        dealt: dict[str, list[int]] = {}
        for place in range(len(messages)):
            name = homes.get(place) or self._partition(
                topic, None, None if keys is None else keys[place]
            )
            dealt.setdefault(name, []).append(place)
        for name, places in dealt.items():
            for chunk in chunks(messages, places):
                yield name, chunk

    async def _learn(self, topic: str) -> None:
        """Find out how many partitions a topic has; whoever wants that now, shares the answer."""
        check_topic(topic)
        learning = self._learning.get(topic)
        if learning is None:
            handler = self._handlers.get(topic)
            declared = (handler.partitions if handler else None) or 1
            learning = asyncio.create_task(
                self._store.register(topic, declared), name="mx-rmq producer"
            )
            self._learning[topic] = learning
            learning.add_done_callback(lambda done: self._learned(topic, done))
        self._learners += 1
        try:
            await asyncio.shield(learning)
        finally:
            self._learners -= 1
            if self._quiet is not None:
                self._quiet.set()

    def _learned(self, topic: str, learning: asyncio.Task[None]) -> None:
        del self._learning[topic]
        if not learning.cancelled():
            learning.exception()  # whoever wanted it may have been cancelled: nobody is to be told

    def learn_again(self) -> None:
        """See whether topics have grown, and list them where a server has lost its registry.

        Nobody waits for it.
        """
        self._learn_at = time.monotonic() + LEARN_EVERY
        if self._store.partitions and (self._looking is None or self._looking.done()):
            self._looking = asyncio.create_task(self._look_at_all(), name="mx-rmq producer")

    async def _look_at_all(self) -> None:
        with suppress(MxRmqError):  # then the next time
            await self._store.register_topics(dict(self._store.partitions))

    # lines

    def _prepare(self, topic: str, messages: Sequence[Message]) -> Prepared:
        """Get the call of messages of one kind ready: see `chunks`."""
        delayed = messages[0].is_delayed
        script = "produce_delay_message" if delayed else "produce_normal_message"
        return self._store.prepare(script, topic, messages)

    async def close(self) -> None:
        """Wait until nothing waits any more."""
        while self._learners or any(line.busy for line in self._lines.values()):
            self._quiet = asyncio.Event()
            await self._quiet.wait()
        asking = [*self._learning.values(), *self._probes.values()]
        asking += [self._looking] if self._looking else []
        for task in asking:
            task.cancel()
        if asking:
            await asyncio.wait(asking)
        if any(parts > 1 for parts in self._store.partitions.values()):
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_WORD):
                    await self._look_at_all()  # who knows them last, tells the registry

    def _go_on(self, line: _Line) -> None:
        """A caller has his answer: send what has come meanwhile."""
        if not line.waiting:
            self._fall_quiet(line)
            return
        task = asyncio.create_task(self._send(line), name="mx-rmq producer")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _fall_quiet(self, line: _Line) -> None:
        line.busy = False
        if self._quiet is not None:
            self._quiet.set()

    async def _send(self, line: _Line) -> None:
        try:
            while line.waiting:
                batch = [line.waiting.popleft()]
                size = _size(batch[0][0])
                while line.waiting and len(batch) < MAX_BATCH:
                    size += _size(line.waiting[0][0])
                    if size > BYTES:
                        break
                    batch.append(line.waiting.popleft())
                await self._send_batch(line, batch)
                await asyncio.sleep(0)  # those who have their answers may come again, together
        finally:
            self._fall_quiet(line)
            while line.waiting:  # only if the event loop ends
                line.waiting.popleft()[1].cancel()

    async def _send_batch(self, line: _Line, batch: list[_Waiting]) -> None:
        """Send messages in one call, but for those whose callers have given up by then."""

        def check() -> None:
            if any(done.done() for _, done in batch):
                raise Withdrawn

        while batch := [one for one in batch if not one[1].done()]:
            try:
                call = self._prepare(line.name, [message for message, _ in batch])
                produced = await self._store.produce(call, line.confirm, check)
            except Withdrawn:
                continue
            except (QueueFull, InvalidInput) as error:
                if len(batch) == 1:
                    _fail(batch[0], error)
                    return
                for one in batch:  # it need not be true of all: each caller gets its own answer
                    await self._send_batch(line, [one])
            except ProduceUnknown as error:
                for one, id in zip(batch, error.ids, strict=True):
                    _fail(one, ProduceUnknown(str(error), [id]))
            except NotConfirmed as error:
                for one, id in zip(batch, error.ids, strict=True):
                    _fail(one, error.of([id]))
            except BaseException as error:
                for one in batch:
                    _fail(one, error)
                if not isinstance(error, Exception):
                    raise
            else:
                for (_, done), answer in zip(batch, produced, strict=True):
                    if not done.done():
                        done.set_result(answer)
            return


def chunks(messages: Sequence[Message], places: Sequence[int]) -> Iterator[Sequence[int]]:
    """Cut the messages at some places into parts that one call may carry, in order."""
    start, size, delayed = 0, 0, False
    for at, place in enumerate(places):
        message = messages[place]
        own = _size(message)
        size += own
        waits = message.is_delayed
        if at > start and (size > BYTES or waits != delayed or at - start == CHUNK):
            yield places[start:at]
            start, size = at, own
        delayed = waits
    if start < len(places):
        yield places[start:]


def _from_anywhere() -> count[int]:
    """Count from a random number, so that producers started together do not move in step."""
    return count(random.randrange(MOST))  # noqa: S311 - no secret


def _size(message: Message) -> int:
    return len(message.payload) + ENVELOPE


def _fail(one: _Waiting, error: BaseException) -> None:
    _, done = one
    if not done.done():
        done.set_exception(error)
